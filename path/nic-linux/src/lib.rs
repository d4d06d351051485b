//! Network interfaces of the Linux kernel, in two halves that never run in the same process:
//!
//! * [`setup`]: what the monitor does once per device (create the TAP in its namespace, switch
//!   offloads on, addresses, up). It runs with privileges and counts to the trusted base.
//! * [`tap`]: the data path inside a confined domain. It is given a descriptor that is ready and
//!   makes no system call but `readv` and `writev` on it.
//!
//! This crate is one of the few that may use `unsafe`: for `ioctl`, for `unshare`, and because
//! frames are read and written straight from and to memory that a peer may change ([`shmem`]).
#![allow(unsafe_code)]

pub mod setup;
pub mod tap;

pub use setup::{SetupError, open_tap};
pub use tap::TapNic;
