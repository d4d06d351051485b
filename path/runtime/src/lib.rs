//! What every domain links: from its first instruction to its counters.
//!
//! | module | what it is |
//! |---|---|
//! | [`start`] | from the first instruction to a ready domain |
//! | [`platform`] | what a domain needs of the system it runs on |
//! | [`processes`] | that system where domains are processes under the monitor |
//! | [`wait`] | how such a domain sleeps and is woken |
//! | [`call`] | its hypercalls |
//! | [`device`] | devices that the system hands over |
//! | [`idle`] | look again, wait a tick, or sleep |
//! | [`lro`] | large receive offload between a source of frames and what takes them |
//! | [`ledger`] | where the cycles of this domain went, hop by hop |
//! | [`mailbox`] | answers to `stat`, `set` and `trace` |
//! | [`report`] | counters as JSON |
//! | [`trace`] | one packet, hop by hop |

pub mod call;
pub mod device;
mod habit;
pub mod idle;
pub mod ledger;
pub mod lro;
pub mod mailbox;
pub mod platform;
pub mod processes;
pub mod report;
pub mod start;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod wait;
