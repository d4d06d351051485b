//! Constants and types that the sockets, programs and rules of a wire share.

use abi::xdp::Ring;

/// The shared queue, to which the wire's socket is bound.
pub(super) const QUEUE: u32 = 0;
/// Return code of an XDP program that drops the packet.
pub(super) const XDP_DROP: i32 = 1;

/// The pages of a ring in a socket's mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPages {
    /// The ring.
    pub ring: Ring,
    /// The first page, in the socket's numbering.
    pub page: u32,
    /// The number of pages.
    pub pages: u32,
}
