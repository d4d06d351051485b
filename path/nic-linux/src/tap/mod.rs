//! The data path of a TAP, with one `readv` or `writev` per frame.
//!
//! Crate `netdev` opens and configures the descriptor. The kernel copies payload directly from and
//! to the caller's buffers. If a page is inaccessible, the system call fails with EFAULT, and only
//! that frame is lost.

mod length;
mod nic;
mod queues;
mod rx;
mod tx;

pub use nic::{RemoveCallback, TapNic};
