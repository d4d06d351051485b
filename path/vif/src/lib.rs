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
mod fatal;
pub mod grants;
pub mod netback;
pub mod netfront;
pub mod netif;
pub mod ring;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use counters::{Counters, Drop, Drops};
pub use fatal::Fatal;

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod end_to_end;
