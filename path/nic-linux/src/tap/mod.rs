//! The data path of a TAP: frames by `readv` and `writev`, one system call each.
//!
//! The descriptor comes opened and configured (crate `netdev`). Payload goes straight between
//! the kernel and the caller's buffers; a page that is gone makes the system call fail
//! with EFAULT, which costs that frame and nothing else.

mod length;
mod nic;
mod queues;
mod rx;
mod tx;
mod virtio;

pub use nic::{Removed, TapNic};
