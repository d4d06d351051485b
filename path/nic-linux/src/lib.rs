//! Network interfaces of the Linux kernel, as a confined domain uses them: [`tap`] and [`xdp`].
//!
//! Each receives an open, configured descriptor: crate `netdev` sets up devices in another process.
//! A TAP needs only `readv` and `writev` on its descriptor. AF_XDP needs an empty `write`, which
//! makes the kernel send, and a `poll` for some NICs.
//!
//! This crate is one of the few that may use `unsafe`: it reads and writes frames in place, in
//! memory that a peer may change ([`shmem`]).
#![allow(unsafe_code)]

pub mod tap;
pub mod xdp;

pub use tap::TapNic;
pub use xdp::XdpNic;
