//! The guest domain: netfronts, and an endpoint behind each.
//!
//! | module | what it is |
//! |---|---|
//! | [`turn`] | the main loop |
//! | [`interface`] | one netfront and its endpoint: hand-shake, both directions |
//! | [`table`] | its pages under counted grants, and those that change hands |
//! | [`devices`] | from a configuration to endpoints |
//! | [`endpoint`] | what stands behind a netfront |
//! | [`report`] | counters as JSON |

pub mod devices;
pub mod endpoint;
pub mod interface;
pub mod report;
pub mod table;
pub mod turn;

pub use turn::{run, run_joined};
