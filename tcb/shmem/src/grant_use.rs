//! Synchronization of a use of a grant with its revocation (`specs/grants.md`, N-7 … N-12).
//!
//! ```text
//!   user, for a whole batch                     revoker (the monitor), for a batch
//!   announced: read the count                   announce: entry ← revoking, for each
//!   claim: read the entry, count one use        publish: announcement count + 1, one full fence
//!   one full fence                              idle: read the count of uses, of each
//!   undisturbed: read the count again             refused – entry ← valid, after all were checked
//!     changed – holds: read each entry again
//!   … accesses the pages …
//!   release: decrement the count
//! ```
//!
//! Both sides execute a full fence, so one of two cases applies. Either the user reads the new
//! count, finds the entry changed, and does not access the page. Or the revoker reads the use, and
//! does not unmap the page. If an announcement was counted before the batch began, its entries had
//! changed even earlier. So the user claims no use of them, unless they are valid again (the
//! revocation was refused, or the page was granted again). A user that breaks this protocol harms
//! only itself: it faults.

mod revoker;
mod user;

pub use revoker::{EntryWords, Word, announce, announcements, full_fence, is_unused, publish};
pub use user::{TableWords, announced, claim, is_unchanged, release, still_permits};

#[cfg(all(test, not(loom)))]
mod exhaustive;
#[cfg(all(test, loom))]
mod model;
