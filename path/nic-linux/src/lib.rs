//! Network interfaces of the Linux kernel, in two halves that never run in the same process:
//!
//! * [`setup`]: what the monitor does once per device (create the TAP in its namespace, switch
//!   offloads on, addresses, up; or lead an interface's packets to an AF_XDP socket). It runs with
//!   privileges and counts to the trusted base.
//! * [`tap`] and [`xdp`]: the data paths inside a confined domain. Each is given a descriptor that is
//!   ready. A TAP's makes no system call but `readv` and `writev` on it; AF_XDP's none but a `write`
//!   of nothing to have things sent, and a `poll` where a NIC asks for it.
//!
//! This crate is one of the few that may use `unsafe`: for `ioctl`, for `unshare`, and because
//! frames are read and written straight from and to memory that a peer may change ([`shmem`]).
#![allow(unsafe_code)]

pub mod setup;
pub mod tap;
pub mod xdp;

pub use setup::{SetupError, open_tap};
pub use tap::TapNic;
pub use xdp::XdpNic;
