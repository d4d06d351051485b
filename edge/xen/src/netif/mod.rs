//! A network interface as Xen has it: what both ends write into the xenstore, and when.
//!
//! | module | what it is |
//! |---|---|
//! | [`features`] | what is offered and asked for, between nodes and records: pure |
//! | [`states`] | the states of both ends: a table |
//! | [`settings`] | what a toolstack has written about an interface: pure |

pub mod features;
pub mod settings;
pub mod states;
