//! A TCP/IP station in user space, as a device: what stands behind a guest's endpoint `stack`, and
//! at the far end of a driver domain's `sim` NIC. The one crate that links smoltcp.
//!
//! Frames given to it wait in a queue; all work is done in `Nic::rx`, which is given the time and
//! the buffers to send in.
//!
//! | module | what it is |
//! |---|---|
//! | [`station`] | the station: its addresses, its programs, its turn |
//! | [`waiting`] | frames that wait for buffers |
//! | `link` | smoltcp's device: frames in and out of a turn |
//! | `inbox` | frames on their way into the stack |
//! | `supply` | buffers for the frames that it makes |
//! | `tcp` | TCP in a frame, and its checksum |
//! | `lanes`, `spread` | from a station to several queues |
//! | `app` | what every program is, and what it works with |
//! | `server` | programs that take connections |
//! | `file` | a file that is sent from where it lies |
//! | `client` | programs that make connections |
//! | `ping` | the program `ping` |
//! | `latency` | round-trip times |

mod app;
mod client;
mod file;
mod inbox;
mod lanes;
mod latency;
mod link;
mod ping;
mod server;
mod spread;
pub mod station;
mod supply;
mod tcp;
#[cfg(test)]
mod tests;
pub mod waiting;

pub use spread::StackQueue;
pub use station::StackEndpoint;

/// Longest frame that a stack yields: the largest IP packet behind a header with a VLAN tag.
pub const FRAME_MAX: usize = 65_535 + 18;
