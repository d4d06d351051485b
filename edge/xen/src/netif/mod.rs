//! A network interface on Xen: the nodes that the two ends write to the xenstore, their states, and
//! the guest's requests.
//!
//! | module | purpose |
//! |---|---|
//! | [`features`] | offered and requested features: converts nodes to records and back (pure) |
//! | [`states`] | the states of both ends, as tables |
//! | [`control`] | the control ring: requests and their answers |
//! | [`settings`] | the toolstack's settings of an interface (pure) |

pub mod control;
pub mod features;
pub mod settings;
pub mod states;
