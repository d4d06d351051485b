//! The virtual interface: passes packets between a guest and the driver domain.
//!
//! | module | contents | must not depend on |
//! |---|---|---|
//! | [`ring`] | the shared ring, in Xen's format and in a native one | the meaning of a slot |
//! | [`netif`] | the wire format: slots, records, negotiated features | mapping, threads, time |
//! | [`events`] | the event channel: pending and armed words in a shared page | rings |
//! | [`grants`] | how a netback accesses granted pages | packets |
//! | [`netback`] | slots → packets → responses, in the driver domain | NICs, other guests |
//! | [`netfront`] | pools of granted pages, packets ↔ slots, in the guest | the peer's implementation |
//!
//! This crate makes no system calls. A peer can write anything into the shared pages at any
//! moment; the worst result is [`Fatal`], for this interface alone.

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

pub use counters::{DropCounts, InterfaceCounters, VifDrop};
pub use fatal::Fatal;

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod end_to_end;
