//! The netif wire format (public/io/netif.h): what a slot means.
//!
//! Every function here is pure: words that were copied out of the ring once go in, numbers come
//! out. Nothing is checked but what can be seen in the slot alone; limits are the netback's and
//! the netfront's matter. Clauses: `specs/netif.md`.

pub mod features;
pub mod limits;
pub mod record;
pub mod rings;
pub mod slot;
pub mod terms;
pub mod transport;

pub use features::{Abilities, Features};
pub use limits::{
    FATAL_SLOTS, MAX_PACKET, MAX_SLOTS, MAX_SLOTS_STOCK, MIN_PACKET, extra, rsp, rxf, txf,
};
pub use record::{BackRecord, FrontRecord, RecordError};
pub use slot::{ExtraInfo, GsoInfo, RxRequest, RxResponse, TxRequest, TxResponse};
pub use terms::Terms;

#[cfg(test)]
mod tests;
