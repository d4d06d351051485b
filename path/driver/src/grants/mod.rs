//! A netback's access to the pages that a guest granted: one implementation per mechanism.
//!
//! | mechanism | reading (from the guest) | writing (to the guest) |
//! |---|---|---|
//! | [`copy`] | one hypercall copies the batch into the driver's pages | one hypercall copies the batch into the guest's pages |
//! | `map` ([`mapping`]) | one hypercall maps the batch's pages, one unmaps them | the same, with copies in between |
//! | `persistent` ([`mapping`]) | pages are mapped at first use and stay mapped for the connection | the same |
//! | [`flip`] | as `map` | one hypercall exchanges the driver's pages that hold the batch for the guest's |
//! | [`counted`] | the monitor maps the guest's pages once; each use is counted, without a hypercall | the same |
//!
//! Every mechanism maps page `index` of a guest's grant table at slot `first + index` of the
//! window, so that adjacent pages of the guest's pool are adjacent in the window and share one
//! mapping.

mod access;
pub mod copy;
pub mod counted;
pub mod flip;
pub mod mapping;
#[cfg(test)]
mod tests;

pub use access::{GranterWindow, copy_to, fetch_and_copy_small_frames, fetch_start, part};
