//! Code that all domains share, from their start to their counters.
//!
//! | module | contents |
//! |---|---|
//! | [`start`] | start-up of a domain |
//! | [`platform`] | a domain's requirements on its system |
//! | [`processes`] | the system in which domains are processes under the monitor |
//! | [`wait`] | sleep and wake-up of such a domain |
//! | [`call`] | hypercalls of that domain |
//! | [`device`] | devices that the system provides |
//! | [`frontend`] | a frontend's end of a connection |
//! | [`idle`] | decides whether to poll again or to sleep |
//! | [`lro`] | large receive offload between a source of frames and their consumer |
//! | [`ledger`] | cycles of this domain, hop by hop |
//! | [`mailbox`] | answers to `stat`, `set` and `trace` |
//! | [`report`] | counters as JSON |
//! | [`trace`] | one packet, hop by hop |

mod adaptive_polling;
pub mod call;
pub mod device;
mod foreign;
pub mod frontend;
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
