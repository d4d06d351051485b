//! A TCP/IP station in user space, with the interface of a device. It implements a guest's endpoint
//! `stack`, and the far end of a driver domain's `sim` NIC. Only this crate links smoltcp.
//!
//! Received frames wait in a queue. `Nic::rx`, which receives the time and the transmit buffers as
//! arguments, does all the work.
//!
//! | module | contents |
//! |---|---|
//! | [`station`] | the station: its addresses, its programs, its turn |
//! | [`frame_queue`] | frames that wait for buffers |
//! | `link` | smoltcp's device: frames in and out of a turn |
//! | `rx_queue` | received frames that wait for the stack |
//! | `tx_buffers` | transmit buffers |
//! | `tcp` | TCP in a frame, and its checksum |
//! | `tx_queues`, `into_queues` | a station with several queues |
//! | [`cable`] | a station at the far end of a cable in memory |
//! | `app` | the interface of programs |
//! | `server` | programs that accept connections |
//! | `file` | a file that is sent in place |
//! | `client` | programs that open connections |
//! | `ping` | the program `ping` |
//! | `latency` | round-trip times |

mod app;
pub mod cable;
mod client;
mod file;
pub mod frame_queue;
mod latency;
mod link;
mod multi_queue;
mod ping;
mod rx_queue;
mod server;
pub mod station;
mod tcp;
#[cfg(test)]
mod tests;
mod tx_buffers;
mod tx_queues;

pub use multi_queue::StackQueue;
pub use station::StackEndpoint;

/// Maximum length of a stack's frame: the longest IP packet, with an Ethernet header and a VLAN
/// tag.
pub const FRAME_MAX: usize = 65_535 + 18;
