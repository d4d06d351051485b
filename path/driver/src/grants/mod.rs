//! A netback's access to the pages that a guest has granted. The mechanism is [`counted`]: the
//! monitor maps the guest's pages once, and this domain counts each use without a hypercall.
//!
//! Every mechanism maps the page of entry `index` of a guest's grant table at slot `first + index`
//! of the window. So adjacent pages of the guest's pool are adjacent in the window and share one
//! mapping.

mod access;
pub mod counted;

pub use access::{
    GranterWindow, copy_to, fetch_and_copy_small_frames, page_range, prefetch_destination,
};
