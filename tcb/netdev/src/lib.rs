//! Set-up of network interfaces, with privileges: netlink, TAP, eBPF, XDP. It opens and configures
//! a device once and hands out descriptors; no frame passes here. Part of the trusted base.
//!
//! | module | what it is |
//! |---|---|
//! | [`tap`] | TAPs: created in their namespace, given offloads and addresses, brought up |
//! | [`xdp`] | AF_XDP sockets that take an interface's packets, and a guest's own queue of one |
//! | [`Uplink`] | what joins a TAP to the network of its namespace: a bridge, or address translation |
//! | [`forwarding`] | forwarding in a namespace, switched on and taken back |
//! | [`overlap`] | networks that a namespace has already |
//! | [`netns`] | network namespaces: entered, made, named |
//! | [`look`] | what stands in a machine's way, and what keeps it from working |
//! | [`own`] | what tools do to namespaces of their own, and netd never does |
//! | [`steering`] | which queue of a TAP a frame goes to, by its destination MAC |
//!
//! This crate is one of the few that may use `unsafe`: for `ioctl`, `bpf`, `mmap` of a socket's
//! rings, and `unshare`.
#![allow(unsafe_code)]

mod bpf;
mod error;
mod ethtool;
pub mod forwarding;
mod interface;
mod legacy;
pub mod look;
mod netlink;
pub mod netns;
mod nftables;
pub mod overlap;
pub mod own;
pub mod programs;
pub mod steering;
pub mod tap;
mod tun;
mod uplink;
pub mod xdp;

pub use abi::machine::Tap as TapSpec;
pub use error::SetupError;
pub use interface::{MTU_MAX, MTU_MIN, NAME_MAX};
pub use steering::{SteerError, Steering};
pub use tap::{Opened, open_queues, release, remove};
pub use uplink::Uplink;
