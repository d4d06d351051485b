//! Network interfaces of the Linux kernel, as a confined domain sees them: [`tap`] and [`xdp`].
//!
//! Each is given a descriptor that is ready: crate `netdev` opens and configures devices, in
//! another process. A TAP makes no system call but `readv` and `writev` on its descriptor; AF_XDP
//! none but a `write` of nothing to have things sent, and a `poll` where a NIC asks for it.
//!
//! This crate is one of the few that may use `unsafe`: frames are read and written straight from
//! and to memory that a peer may change ([`shmem`]).
#![allow(unsafe_code)]

pub mod tap;
pub mod xdp;

pub use tap::TapNic;
pub use xdp::XdpNic;
