//! The xenstore: Xen's small database, through which domains find each other.
//!
//! | module | purpose |
//! |---|---|
//! | [`wire`] | messages as bytes (pure) |
//! | [`client`] | requests and answers over a device, watches, transactions |

pub mod client;
#[cfg(test)]
pub(crate) mod fake;
pub mod wire;

pub use client::{Store, StoreChannel, StoreError, XenBus};
