//! Privileged set-up of network interfaces: netlink, TAP, eBPF, XDP. This crate opens and
//! configures a device once, and returns descriptors; it accesses no frames. It is part of the
//! trusted base.
//!
//! | module | contents |
//! |---|---|
//! | [`tap`] | creates TAPs in their namespace, configures them and brings them up |
//! | [`xdp`] | AF_XDP sockets for an interface's packets, and dedicated queues for guests |
//! | [`pci`] | PCI devices for a domain, through VFIO |
//! | [`NatUplink`] | connects a TAP to its namespace's network: a bridge, or address translation |
//! | [`forwarding`] | switches forwarding on, and off with the last machine |
//! | [`overlap`] | finds addresses and routes of a namespace that overlap a TAP's networks |
//! | [`napi_threads`] | threads on which the kernel polls an interface's queues |
//! | [`netns`] | network namespaces: enters, creates and names them |
//! | [`host_checks`] | problems of a machine's start, and faults of a running machine, for tools |
//! | [`tool_setup`] | set-up of namespaces for tools; netd does not use it |
//! | [`steering`] | selection of a TAP's queue by destination MAC |
//!
//! This crate is one of the few that may use `unsafe`: for `ioctl`, `bpf`, `mmap` of a socket's
//! rings, and `unshare`.
#![allow(unsafe_code)]

mod bpf;
mod connections;
mod error;
mod ethtool;
pub mod forwarding;
pub mod host_checks;
mod interface;
mod legacy;
pub mod napi_threads;
mod netlink;
pub mod netns;
mod nftables;
pub mod overlap;
pub mod pci;
pub mod programs;
pub mod steering;
pub mod tap;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tool_setup;
mod tun;
mod uplink;
pub mod xdp;

pub use abi::machine::Tap as TapSpec;
pub use error::NetError;
pub use interface::{MTU_MAX, MTU_MIN, NAME_MAX};
pub use steering::{SteerError, TapSteering};
pub use tap::{OpenedTap, open_queues, release, remove};
pub use uplink::NatUplink;
