//! Parses the headers of a frame: Ethernet (with VLAN tags), ARP, IPv4, IPv6, and the transport
//! behind them.
//!
//! [`Packet::parse`] reads private bytes, a frame's snapshot, and returns offsets into them. It
//! reads nothing twice, follows at most [`MAX_TAGS`] tags and [`MAX_EXTENSIONS`] extension headers,
//! and accepts any input. It locates headers without validating them: lengths in headers are
//! unverified claims.
//!
//! | module | job |
//! |---|---|
//! | `headers`, `network`, `transport` | locate each header |
//! | `plain_headers` | locates the headers of the most frequent TCP packets by a few comparisons |
//! | [`flow`] | flow identification |
//! | [`toeplitz`] | a hash with a key that the receiver chooses |
//! | [`ack`] | pure acknowledgements |
//! | [`announce`] | announcements of an address |
//! | [`checksum`] | Internet checksums |
//! | [`ecn`] | congestion marks in the IP header |
//! | [`segment`] | segmentation in software |
//! | [`too_big`] | errors for path MTU discovery |
//! | `constants`, `mac`, `bytes` | building blocks |

pub mod ack;
pub mod announce;
pub mod checksum;
pub mod ecn;
pub mod flow;
pub mod segment;
pub mod toeplitz;
pub mod too_big;

mod bytes;
mod constants;
mod headers;
mod mac;
mod network;
mod plain_headers;
mod transport;

pub use bytes::ParseError;
pub use constants::{ETHERNET_BYTES, MAX_EXTENSIONS, MAX_TAGS, TAG_BYTES, ethertype, protocol};
pub use headers::Packet;
pub use mac::Mac;
pub use network::{Arp, Ipv4, Ipv6, Network};
pub use transport::{Tcp, Transport, flags};

pub(crate) use bytes::{array, be16, byte, put};
pub(crate) use plain_headers::PlainHeaders;
pub(crate) use transport::TCP_CHECKSUM;
