//! What every domain links: from its first instruction to its counters.
//!
//! | module | what it is |
//! |---|---|
//! | [`start`] | from the first instruction to a ready domain |
//! | [`call`] | hypercalls |
//! | [`connection`] | the domain's ends of connections: doorbells |
//! | [`device`] | devices that the monitor hands over |
//! | [`wait`] | sleeping and being woken |
//! | [`idle`] | look again, or sleep; how much is one turn |
//! | [`lro`] | large receive offload between a source of frames and who takes them |
//! | [`ledger`] | where the cycles of this domain went, hop by hop |
//! | [`mailbox`] | answers to `stat`, `set` and `trace` |
//! | [`report`] | counters as JSON |
//! | [`trace`] | one packet, hop by hop |

pub mod call;
pub mod connection;
pub mod device;
pub mod idle;
pub mod ledger;
pub mod lro;
pub mod mailbox;
pub mod report;
pub mod start;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod wait;
