//! A network interface as Xen has it: what both ends write into the xenstore, and when, and what
//! the guest asks for besides.
//!
//! | module | what it is |
//! |---|---|
//! | [`features`] | what is offered and asked for, between nodes and records: pure |
//! | [`states`] | the states of both ends: a table |
//! | [`control`] | the control ring: requests and their answers |
//! | [`settings`] | what a toolstack has written about an interface: pure |

pub mod control;
pub mod features;
pub mod settings;
pub mod states;
