//! The shared ring in either of two formats, and nothing of what a slot means.
//!
//! Xen's (public/io/ring.h): a response overwrites its request, and all indices share a line.
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
//! The native one: requests and responses lie apart, and each index has a line of its own in the
//! ring's *control block*, so that no line is written by both ends. For slots of 12 and 4 bytes:
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
//! OWNERSHIP. A slot is the front's until `req_prod` has passed it, then the back's until
//! `rsp_prod` has passed it, then the front's again. The pages belong to the front's domain, and
//! either side may write anything anywhere at any time: so everything that a handle relies on
//! (indices, masks) lives in the handle ([`Front`], [`Back`]), and slots are copied out of shared
//! memory, [a burst](BURST) at once.
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

pub use back::{Back, Watch};
pub use consumer::Overrun;
pub use end::End;
pub use format::{
    BURST, Format, HEADER_BYTES, ORDER_MAX, PAGES_MAX, Place, SLOTS_PER_PAGE, passes, slots,
};
pub use front::Front;
pub use journal::Journal;
pub use words::{BadPages, CONTROL_BYTES, Index, Pages, Words};

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod resume;
#[cfg(test)]
mod tests;
