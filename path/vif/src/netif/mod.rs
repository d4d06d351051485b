//! The netif wire format (public/io/netif.h): the meaning of a slot.
//!
//! Every function here is pure: it decodes words that were copied out of the ring once. It checks
//! only conditions within the slot; netback and netfront check the limits. Clauses:
//! `specs/netif.md`.

pub mod features;
pub mod limits;
pub mod negotiated;
pub mod record;
pub mod rings;
pub mod slot;
pub mod transport;

pub use features::{Features, PeerCaps};
pub use limits::{
    FATAL_SLOTS, MAX_PACKET, MAX_SLOTS, MAX_SLOTS_STOCK, MIN_PACKET, extra, rsp, rxf, txf,
};
pub use negotiated::Negotiated;
pub use record::{BackRecord, FrontRecord, RecordError};
pub use slot::{ExtraInfo, GsoInfo, RxRequest, RxResponse, TxRequest, TxResponse};

#[cfg(test)]
mod tests;
