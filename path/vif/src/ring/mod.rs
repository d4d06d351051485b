//! The shared ring in Xen's layout (public/io/ring.h), and nothing of what a slot means.
//!
//! ```text
//!            page 0                                    page 1 …
//!   offset 0 ┌───────────────────────────┐            ┌───────────────────────────┐
//!            │ u32 req_prod   front writes│           │ unused                    │
//!          4 │ u32 req_event  back writes │           │                           │
//!          8 │ u32 rsp_prod   back writes │           │                           │
//!         12 │ u32 rsp_event  front writes│           │                           │
//!         16 │ unused                     │           │                           │
//!         64 ├───────────────────────────┤            ├───────────────────────────┤
//!            │ slots 0 … 255              │           │ slots 256 … 511           │
//!            └───────────────────────────┘            └───────────────────────────┘
//! ```
//!
//! OWNERSHIP. A slot is the front's until `req_prod` has passed it, then the back's until
//! `rsp_prod` has passed it, then the front's again; a response overwrites the request that lay
//! in the slot. The pages belong to the front's domain, and either side may write anything
//! anywhere at any time: so everything that a handle relies on (indices, masks) lives in the
//! handle ([`Front`], [`Back`]), and each slot is copied out of shared memory once.
//!
//! Clauses: `specs/ring.md`.

mod back;
mod front;
mod words;

pub use back::Back;
pub use front::Front;
pub use words::{BadPages, Pages, Words};

/// Bytes before the first slot of a page.
pub const HEADER_BYTES: usize = 64;
/// Slots of a page, whatever their size (RING-3).
pub const SLOTS_PER_PAGE: u32 = 256;
/// log2 of the most pages that a ring may have.
pub const ORDER_MAX: u8 = 4;
/// The most pages that a ring may have.
pub const PAGES_MAX: usize = 1 << ORDER_MAX;

const REQ_PROD: usize = 0;
const REQ_EVENT: usize = 4;
const RSP_PROD: usize = 8;
const RSP_EVENT: usize = 12;

/// A peer moved its producer index further than its side of the ring allows (XSA-39). What the
/// ring holds is meaningless from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's producer index is beyond the ring")]
pub struct Overrun;

/// Slots of a ring of 2^`order` pages.
#[must_use]
pub const fn slots(order: u8) -> u32 {
    let order = if order > ORDER_MAX { ORDER_MAX } else { order };
    SLOTS_PER_PAGE << order
}

/// Whether publishing the indices `old + 1 ..= new` passes the index that the consumer asked to
/// be told about (RING-9). Any `event` is fine: it decides about a wake-up of its own writer.
#[must_use]
#[inline]
pub const fn passes(event: u32, old: u32, new: u32) -> bool {
    new.wrapping_sub(event) < new.wrapping_sub(old)
}

/// Page and offset of slot number `index` (already masked) of a ring with `N` words in a slot.
#[inline]
const fn place<const N: usize>(index: u32) -> (usize, usize) {
    let page = index / SLOTS_PER_PAGE;
    let slot = index % SLOTS_PER_PAGE;
    (page as usize, HEADER_BYTES + slot as usize * N * 4)
}

#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod tests;
