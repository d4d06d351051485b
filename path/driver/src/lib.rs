//! The driver domain: NICs, bridge, netbacks, and the turn that carries frames between them.
//!
//! | module | what it is |
//! |---|---|
//! | `build` | from a configuration to ports |
//! | [`devices`] | from a configuration to NICs |
//! | [`sim`] | the wire of a `sim` NIC |
//! | [`xdp`] | AF_XDP sockets that the monitor has made |
//! | [`steering`] | which queue of a NIC a frame goes to: asked of the monitor |
//! | [`grants`] | a netback's access to guest pages |
//! | [`turn`] | the main loop |
//! | [`short`] | small frames from guest to guest |
//! | [`fairness`] | whose turn it is among the guests |
//! | [`firewall`] | rules between configuration and bridge |
//! | [`port`] | what the bridge's ports have in common |
//! | [`nics`] | ports that are devices |
//! | [`linear`] | aggregates copied to one buffer |
//! | [`vifs`] | ports that are guests: hand-shake, netback, doorbell |
//! | [`news`] | which guests something was done for |
//! | [`looks`] | which guests are looked at in a round |
//! | [`picks`] | which frames of a batch go out by which port |
//! | [`merge`] | large receive offload where frames lie in guest pages |
//! | [`vmq`] | queues of a NIC for single guests: who has one, frames straight into guest pages |
//! | [`own`] | queues of AF_XDP wires for single guests: frames come into guest pages by themselves |
//! | [`outbox`] | frames on their way to one port: segmentation and checksums where it lacks them |
//! | [`room`] | aggregates cut to what a guest has room for |
//! | [`report`] | counters as JSON |

mod build;
pub mod devices;
pub mod fairness;
pub mod firewall;
pub mod grants;
pub mod linear;
pub mod looks;
pub mod merge;
pub mod news;
pub mod nics;
pub mod outbox;
pub mod own;
pub mod picks;
pub mod port;
pub mod report;
pub mod room;
pub mod short;
pub mod sim;
pub mod steering;
pub mod turn;
pub mod vifs;
pub mod vmq;
pub mod xdp;

pub use turn::{run, run_joined};
