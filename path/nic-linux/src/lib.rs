//! The data path of Linux network interfaces in a confined domain: [`tap`] and [`xdp`].
//!
//! Crate `netdev` opens and configures devices in another process, and passes their descriptors. A
//! TAP needs only `readv` and `writev` on its descriptor. AF_XDP needs an empty `write`, which
//! makes the kernel send, and a `poll` for some NICs.
//!
//! This crate is one of the few that may use `unsafe`: it reads and writes frames in place, in
//! memory that a peer may change ([`shmem`]).
#![allow(unsafe_code)]

pub mod tap;
pub mod xdp;

pub use tap::TapNic;
pub use xdp::XdpNic;
