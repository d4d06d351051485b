//! The one fault that ends an interface.

use crate::ring::Overrun;

/// The peer broke the protocol in a way that leaves nothing to go on with: this interface is
/// disabled, for good, until both ends connect anew. Whatever is wrong with one packet alone is a
/// [`Drop`](crate::counters::Drop) instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// A producer index beyond the ring, or going backwards (XSA-39).
    #[error("the peer's producer index is beyond the ring")]
    Overrun,
    /// A packet of more slots than any mistake explains
    /// ([`FATAL_SLOTS`](crate::netif::FATAL_SLOTS)).
    #[error("a packet without end")]
    EndlessPacket,
    /// A response to a request that is not in flight: unknown, answered before, or out of range.
    #[error("a response to nothing that is in flight")]
    ResponseId,
    /// A response for a buffer whose page has not changed hands, or is only about to.
    #[error("a response without the page that it is for")]
    NotExchanged,
    /// This end was taken down; the peer broke nothing.
    #[error("the interface was taken down")]
    Closed,
}

impl From<Overrun> for Fatal {
    fn from(_: Overrun) -> Self {
        Self::Overrun
    }
}
