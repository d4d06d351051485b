//! What every domain links, and the programs: `driver`, `guest`, and `pointers` for experiments.
//!
//! | module | what it is |
//! |---|---|
//! | [`sim`] | the wire of a `sim` NIC |
//! | [`start`] | from the first instruction to a ready domain |
//! | [`call`] | hypercalls |
//! | [`steering`] | which queue of a NIC a frame goes to: asked of the monitor |
//! | [`connection`] | the domain's ends of connections: records, doorbells |
//! | [`grants`] | a netback's access to guest pages: `copy`, `map`, `mapped` |
//! | [`ledger`] | where the cycles of this domain went, hop by hop |
//! | [`lro`] | large receive offload between a source of frames and who takes them |
//! | [`trace`] | one packet, hop by hop |
//! | [`wait`] | sleeping and being woken |
//! | [`mailbox`] | answers to `stat`, `set` and `trace` |
//! | [`report`] | counters as JSON |
//! | [`device`] | from a configuration to NICs and endpoints |
//! | [`xdp`] | AF_XDP sockets that the monitor has made |
//! | [`driver`] | the driver domain's turn: NICs, bridge, netbacks |
//! | [`idle`] | look again, wait a tick, or sleep |
//! | [`guest`] | the guest domain's turn: netfronts and endpoints |
//! | [`endpoint`] | what stands behind a netfront |
//! | [`pointers`] | both domains as threads of one process, for comparison |

pub mod call;
pub mod connection;
pub mod device;
pub mod driver;
pub mod endpoint;

pub mod grants;
pub mod guest;
pub mod idle;
pub mod ledger;
pub mod lro;
pub mod mailbox;
pub mod pointers;
pub mod report;
pub mod sim;
pub mod start;
pub mod steering;
pub mod trace;
pub mod wait;
pub mod xdp;
