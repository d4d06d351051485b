//! The virtual interface: how packets pass between a guest and the driver domain.
//!
//! | module | what it is | what it must never know |
//! |---|---|---|
//! | [`ring`] | the shared ring, in Xen's format and in a native one | what a slot means |
//! | [`netif`] | the wire format: slots, records, what was agreed | mapping, threads, time |
//! | [`events`] | the event channel: pending and armed words in a shared page | rings |
//! | [`grants`] | how a netback reaches granted pages | packets |
//! | [`netback`] | slots → packets → responses, in the driver domain | NICs, other guests |
//! | [`netfront`] | pools of granted pages, packets ↔ slots, in the guest | who is behind it |
//!
//! Nothing here makes a system call. A peer can write anything into the shared pages at any
//! moment; the worst that it can reach is [`Fatal`], for this interface alone.

pub mod counters;
pub mod events;
pub mod grants;
pub mod netback;
pub mod netfront;
pub mod netif;
pub mod ring;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use counters::{Counters, Drop, Drops};

/// The peer broke the protocol in a way that leaves nothing to go on with: this interface is
/// disabled, for good, until both ends connect anew. Whatever is wrong with one packet alone is a
/// [`Drop`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// A producer index beyond the ring, or going backwards (XSA-39).
    #[error("the peer's producer index is beyond the ring")]
    Overrun,
    /// A packet of more slots than any mistake explains ([`netif::FATAL_SLOTS`]).
    #[error("a packet without end")]
    EndlessPacket,
    /// A response to a request that is not in flight: unknown, answered before, or out of range.
    #[error("a response to nothing that is in flight")]
    ResponseId,
    /// A response for a buffer whose page has not changed hands, or is only about to.
    #[error("a response without the page that it is for")]
    NotExchanged,
    /// Nobody broke anything: this end was taken down.
    #[error("the interface was taken down")]
    Closed,
}

impl From<ring::Overrun> for Fatal {
    fn from(_: ring::Overrun) -> Self {
        Self::Overrun
    }
}

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod end_to_end;
