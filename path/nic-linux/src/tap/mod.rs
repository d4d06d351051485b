//! The data path of a TAP: one `readv` or `writev` per frame.
//!
//! The descriptor is opened and configured by crate `netdev`. The kernel copies payload directly
//! from and to the caller's buffers; an inaccessible page makes the system call fail with EFAULT,
//! and only that frame is lost.

mod length;
mod nic;
mod queues;
mod rx;
mod tx;

pub use nic::{RemoveCallback, TapNic};
