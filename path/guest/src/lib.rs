//! The guest domain: netfronts, and an endpoint behind each.
//!
//! | module | contents |
//! |---|---|
//! | [`turn`] | the main loop |
//! | [`interface`] | one netfront and its endpoint: handshake, both directions |
//! | [`table`] | tables of counted grants, and exchanged pages |
//! | [`devices`] | creates endpoints from a configuration |
//! | [`endpoint`] | endpoints |
//! | [`report`] | counters as JSON |

pub mod devices;
pub mod endpoint;
pub mod interface;
pub mod report;
pub mod table;
pub mod turn;

pub use turn::{run, run_joined};
