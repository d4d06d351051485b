//! What the sockets, the programs and the rules of a wire have in common.

use abi::xdp::Ring;

/// The queue that the socket is bound to: the shared one.
pub(super) const QUEUE: u32 = 0;
/// What an XDP program says of a packet that goes nowhere.
pub(super) const XDP_DROP: i32 = 1;

/// Part of a socket's mappings, and which of the domain's places for rings shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPages {
    /// Whose ring it is.
    pub ring: Ring,
    /// The first page, by the socket's own count.
    pub page: u32,
    /// Pages.
    pub pages: u32,
}
