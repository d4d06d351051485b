//! The driver domain: NICs, bridge, netbacks, and the main loop.
//!
//! In the order of a received frame:
//!
//! | module | contents |
//! |---|---|
//! | [`turn`] | the main loop: waiting, fairness, mailbox |
//! | [`poll_set`] | ports to poll in a round |
//! | [`fairness`] | scheduling of guests |
//! | [`backpressure`] | backpressure on senders of GSO packets |
//! | [`ports`] | the bridge's ports, by their numbers |
//! | [`port_common`] | state that every port has |
//! | [`nics`] | ports of NICs |
//! | [`linearizer`] | copies each aggregate into one buffer |
//! | [`switch`] | forwards a batch of frames from a port over the bridge |
//! | [`egress`] | groups the frames of a batch by egress port |
//! | [`queueing`], [`egress_queue`] | frames that wait for a guest's buffers or rate limit |
//! | [`dynamic_threshold`] | limits on the buffers of queues |
//! | [`software_offload`] | segmentation and checksums for a port that lacks them |
//! | [`path_mtu`] | errors to senders of packets that exceed a NIC's MTU |
//! | [`fast_path`] | small frames from guest to guest |
//! | [`vmq`] | a NIC's dedicated queues: assignment, receiving straight into guest pages |
//! | [`dedicated`] | queues of one guest each: the kernel or a device writes into its pages |
//! | [`in_place`] | frames in a guest's pages: merging, verdicts, delivery |
//! | [`merge`] | large receive offload of frames in guests' pages |
//! | [`vifs`] | ports of guests: handshake, netback, doorbell |
//! | [`guests`] | adds and removes guests |
//! | [`resegment`] | splits aggregates to a guest's receive credit |
//! | [`grants`] | a netback's access to guest pages |
//! | [`dirty_ports`] | guest ports whose rings need publishing |
//! | [`notify`] | publishes rings and notifies guests |
//!
//! Around them:
//!
//! | module | contents |
//! |---|---|
//! | `build` | creates ports from a configuration and adds them to an empty driver |
//! | [`device_port`] | a NIC whose device is a domain |
//! | [`devices`] | creates NICs from a configuration |
//! | [`pci`] | a NIC whose device is a PCI device behind an IOMMU |
//! | [`sim`] | the wire of `sim` and `soft` NICs |
//! | [`soft`] | logs the events of a NIC with a device in software |
//! | [`xdp`] | AF_XDP sockets that the monitor has created |
//! | [`steering`] | steers frames to a NIC's queues, through the monitor |
//! | [`firewall`] | converts rules of the configuration for the bridge |
//! | [`flow_report`] | answers to queries for the flows of ports |
//! | [`flow_memory`] | flow tables, in memory that outlives the process |
//! | [`traffic`] | traffic counters of a port |
//! | [`capture`] | active packet captures |
//! | [`report`] | counters as JSON |

pub mod backpressure;
mod build;
pub mod capture;
pub mod dedicated;
pub mod device_port;
pub mod devices;
pub mod dirty_ports;
pub mod dynamic_threshold;
pub mod egress;
pub mod egress_queue;
pub mod fairness;
pub mod fast_path;
pub mod firewall;
pub mod flow_memory;
pub mod flow_report;
pub mod grants;
pub mod guests;
pub mod in_place;
pub mod linearizer;
pub mod merge;
pub mod nics;
pub mod notify;
mod offences;
pub mod path_mtu;
pub mod pci;
pub mod poll_set;
pub mod port_common;
pub mod ports;
pub mod queueing;
pub mod report;
pub mod resegment;
pub mod sim;
pub mod soft;
pub mod software_offload;
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
