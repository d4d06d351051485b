//! How a use of a grant and its revocation meet (`specs/grants.md`, N-7 … N-12).
//!
//! ```text
//!   user, for a whole batch                     revoker (the monitor), for a batch
//!   announced: read the count                   announce: entry ← revoking, for each
//!   claim: read the entry, count one use        tell: count of announcements + 1, one full fence
//!   settle: one full fence                      idle: read the count of uses, of each
//!   undisturbed: read the count again             refused – entry ← valid, when all were looked at
//!     another one – holds: read each entry again
//!   … touches the pages …
//!   release: count one use less
//! ```
//!
//! With a full fence on both sides, either the user sees that something was announced, finds the
//! entry changed and does not touch the page, or the revoker sees the use and does not take the
//! page away. An announcement that was counted before the batch began has changed its entries
//! before that, so no use of them is claimed, unless they are valid again since: refused, or
//! granted anew. A user that does not keep to this harms itself alone: it faults.

mod revoker;
mod user;

pub use revoker::{Word, Words, announce, announcements, full_fence, idle, publish};
pub use user::{Entries, announced, claim, holds, release, undisturbed};

#[cfg(all(test, not(loom)))]
mod exhaustive;
#[cfg(all(test, loom))]
mod model;
