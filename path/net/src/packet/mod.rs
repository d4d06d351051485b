//! Where the headers of a frame lie: Ethernet (with VLAN tags), ARP, IPv4, IPv6, and the transport
//! behind them.
//!
//! [`Packet::parse`] looks at private bytes, a frame's snapshot, and answers offsets into them. It
//! reads nothing twice, follows at most [`MAX_TAGS`] tags and [`MAX_EXTENSIONS`] extension
//! headers, and has an answer for every string of bytes. It says where things are, not whether
//! they are right: lengths that a header claims are handed on as claims.
//!
//! | module | job |
//! |---|---|
//! | `headers`, `network`, `transport` | where each header is |
//! | `common` | the same for the most common shapes of TCP packets, by a few comparisons |
//! | [`flow`] | which packets belong together |
//! | [`toeplitz`] | a hash with a key that the receiver chooses |
//! | [`ack`] | pure acknowledgements |
//! | [`announce`] | where an address is, told to a network |
//! | [`checksum`] | Internet checksums |
//! | [`ecn`] | marks of congestion in the IP header |
//! | [`segment`] | segmentation in software |
//! | `numbers`, `mac`, `bytes` | what the others read with |

pub mod ack;
pub mod announce;
pub mod checksum;
pub mod ecn;
pub mod flow;
pub mod segment;
pub mod toeplitz;

mod bytes;
mod common;
mod headers;
mod mac;
mod network;
mod numbers;
mod transport;

pub use bytes::ParseError;
pub use headers::Packet;
pub use mac::Mac;
pub use network::{Arp, Ipv4, Ipv6, Network};
pub use numbers::{ETHERNET_BYTES, MAX_EXTENSIONS, MAX_TAGS, TAG_BYTES, ethertype, protocol};
pub use transport::{Tcp, Transport, flags};

pub(crate) use bytes::{array, be16, byte, put};
pub(crate) use common::Common;
pub(crate) use transport::TCP_CHECKSUM;
