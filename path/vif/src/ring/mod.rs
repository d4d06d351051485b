//! The shared ring, in one of two formats, independent of the meaning of a slot.
//!
//! Xen's format (public/io/ring.h): a response overwrites its request, and all indices share a
//! cache line.
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
//! The native format: requests and responses are separate, and each index has a separate cache line
//! in the ring's *control block*, so that no line is written by both ends. For slots of 12 and 4
//! bytes:
//!
//! ```text
//!            page 0                       page 1 …             control block
//!   offset 0 ┌──────────────────┐         ┌──────────────┐     ┌────────────────────────┐
//!            │ requests 0 … 255 │         │ 256 … 511    │   0 │ req_prod   front writes │
//!            │   front writes   │         │              │  64 │ req_event  back writes  │
//!       3072 ├──────────────────┤         ├──────────────┤ 128 │ rsp_prod   back writes  │
//!            │ responses 0 … 255│         │ 256 … 511    │ 192 │ rsp_event  front writes │
//!            │   back writes    │         │              │     └────────────────────────┘
//!       4096 └──────────────────┘         └──────────────┘
//! ```
//!
//! OWNERSHIP. A slot belongs to the front until `req_prod` has passed it, then to the back until
//! `rsp_prod` has passed it, then to the front again. The pages belong to the front's domain, and
//! either side may write anything anywhere at any time. So a handle ([`Front`], [`Back`]) keeps its
//! indices and masks in private memory, and copies slots out of shared memory in [bursts](BURST).
//!
//! Clauses: `specs/ring.md`.

mod back;
mod consumer;
mod end;
mod format;
mod front;
mod journal;
mod producer;
mod slots;
mod words;

pub use back::{Back, RingWatch};
pub use consumer::Overrun;
pub use end::RingEnd;
pub use format::{
    BURST, Format, HEADER_BYTES, ORDER_MAX, PAGES_MAX, SLOTS_PER_PAGE, SlotLayout, passes, slots,
};
pub use front::Front;
pub use journal::Journal;
pub use words::{BadPages, CONTROL_BYTES, GrantedRingPages, RingIndex, RingMemory};

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod resume;
#[cfg(test)]
mod tests;
