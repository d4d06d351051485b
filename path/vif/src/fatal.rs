//! Faults that end an interface.

use crate::ring::Overrun;

/// A protocol violation after which the interface cannot continue. It stays disabled until both
/// ends reconnect. An error in a single packet is a [`VifDrop`](crate::counters::VifDrop) instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// A producer index that is beyond the ring or has moved backwards (XSA-39).
    #[error("the peer's producer index is beyond the ring")]
    Overrun,
    /// A packet with more slots than any implementation sends
    /// ([`FATAL_SLOTS`](crate::netif::FATAL_SLOTS)).
    #[error("an endless packet")]
    EndlessPacket,
    /// A response to a request that is not in flight: unknown, already answered, or out of range.
    #[error("a response to a request that is not in flight")]
    ResponseId,
    /// A response for a buffer whose page was not exchanged, or whose exchange is not complete.
    #[error("a response whose page was not exchanged")]
    NotExchanged,
    /// This end was closed; the peer violated nothing.
    #[error("the interface was closed")]
    Closed,
}

impl From<Overrun> for Fatal {
    fn from(_: Overrun) -> Self {
        Self::Overrun
    }
}
