//! Constants and types that the sockets, programs and rules of a wire share.

use abi::xdp::Ring;

/// The queue that the wire's own socket is bound to: the shared one.
pub(super) const QUEUE: u32 = 0;
/// The return code of an XDP program that drops the packet.
pub(super) const XDP_DROP: i32 = 1;

/// A part of a socket's mappings, and the ring that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPages {
    /// The ring.
    pub ring: Ring,
    /// The first page, by the socket's own numbering.
    pub page: u32,
    /// The number of pages.
    pub pages: u32,
}
