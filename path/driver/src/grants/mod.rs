//! A netback's access to the pages that a guest granted, by the mechanism [`counted`]: the monitor
//! maps the guest's pages once; each use is counted, without a hypercall.
//!
//! Every mechanism maps page `index` of a guest's grant table at slot `first + index` of the
//! window, so that adjacent pages of the guest's pool are adjacent in the window and share one
//! mapping.

mod access;
pub mod counted;

pub use access::{GranterWindow, copy_to, fetch_and_copy_small_frames, fetch_start, part};
