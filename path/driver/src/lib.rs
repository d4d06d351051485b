//! The driver domain: NICs, bridge, netbacks, and the loop that has frames carried between them.
//!
//! In the order of a received frame:
//!
//! | module | what it is |
//! |---|---|
//! | [`turn`] | the main loop: waiting, fairness, mailbox |
//! | [`poll_set`] | which ports are polled in a round |
//! | [`fairness`] | which guest's turn it is |
//! | [`holds`] | whose segments wait because there is no room for them |
//! | [`ports`] | the bridge's ports, by their numbers |
//! | [`nics`] | ports that are devices |
//! | [`linear`] | aggregates copied to one buffer |
//! | [`switch`] | a batch of frames from a port over the bridge to the ports |
//! | [`egress`] | which frames of a batch go out by which port |
//! | [`queueing`], [`egress_queue`] | frames that wait for a guest's buffers or for its limit |
//! | [`share`] | what part of the buffers these may hold |
//! | [`outbox`] | segmentation and checksums for a port that lacks them |
//! | [`fast_path`] | small frames from guest to guest |
//! | [`vmq`] | queues of a NIC for single guests: which guest has one, frames straight into its pages |
//! | [`dedicated`] | dedicated queues of AF_XDP wires: the kernel writes into a guest's pages |
//! | [`in_place`] | frames that lie in a guest's pages: merged, decided on, answered with |
//! | [`merge`] | large receive offload where frames lie in guest pages |
//! | [`vifs`] | ports that are guests: hand-shake, netback, doorbell |
//! | [`guests`] | guests that come and go while it runs |
//! | [`room`] | aggregates cut to what a guest has room for |
//! | [`grants`] | a netback's access to guest pages |
//! | [`dirty_ports`] | which guests something was done for |
//! | [`notify`] | guests are shown what was done, and notified |
//!
//! Around them:
//!
//! | module | what it is |
//! |---|---|
//! | `build` | from a configuration to ports |
//! | [`numbered`] | which port each NIC and each interface of the configuration is |
//! | [`devices`] | from a configuration to NICs |
//! | [`sim`] | the wire of a `sim` NIC |
//! | [`xdp`] | AF_XDP sockets that the monitor has made |
//! | [`steering`] | which queue of a NIC a frame goes to: asked of the monitor |
//! | [`firewall`] | rules between configuration and bridge |
//! | [`traffic`] | what a port has done |
//! | [`capture`] | what a port sees, for who asks |
//! | [`report`] | counters as JSON |

mod build;
pub mod capture;
pub mod dedicated;
pub mod devices;
pub mod dirty_ports;
pub mod egress;
pub mod egress_queue;
pub mod fairness;
pub mod fast_path;
pub mod firewall;
pub mod grants;
pub mod guests;
pub mod holds;
pub mod in_place;
pub mod linear;
pub mod merge;
pub mod nics;
pub mod notify;
pub mod numbered;
mod offences;
pub mod outbox;
pub mod poll_set;
pub mod ports;
pub mod queueing;
pub mod report;
pub mod room;
pub mod share;
pub mod sim;
pub mod steering;
pub mod switch;
#[cfg(test)]
mod testing;
pub mod traffic;
pub mod turn;
pub mod vifs;
pub mod vmq;
pub mod xdp;

pub use build::{run, run_joined, run_with};
