//! The guest domain: netfronts, and an endpoint behind each.
//!
//! | module | what it is |
//! |---|---|
//! | [`turn`] | the main loop |
//! | [`interface`] | one netfront and its endpoint: hand-shake, both directions |
//! | [`report`] | counters as JSON |

pub mod interface;
pub mod report;
pub mod turn;

pub use turn::run;
