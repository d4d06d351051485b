//! Errors of device set-up. Each message includes a remedy.

use crate::overlap::Overlap;
use std::io;

/// Reason why a device could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The TAP driver is missing, or this process may not use it.
    #[error(
        "/dev/net/tun cannot be opened: {error}; load the module `tun`, and run `chmod 666 \
         /dev/net/tun` (netd is not root), or use NICs of kind `sim`, endpoints of kind `stack`"
    )]
    NoTun {
        /// The error of the system.
        error: io::Error,
    },
    /// A namespace cannot be entered.
    #[error(
        "network namespace {path} cannot be entered: {error}; `ip netns list` lists those \
         with a name, and entering one needs CAP_SYS_ADMIN"
    )]
    Namespace {
        /// The path of the namespace.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The kernel does not accept an interface name.
    #[error(
        "interface `{interface}`: a name has 1 to 15 visible ASCII characters, and none of / % :"
    )]
    Name {
        /// The name.
        interface: String,
    },
    /// The MTU is out of range.
    #[error("interface `{interface}`: MTU {mtu} is not between 68 and 65521")]
    Mtu {
        /// The interface.
        interface: String,
        /// The MTU.
        mtu: u32,
    },
    /// An offload requires another offload that is not enabled.
    #[error("interface `{interface}`: `tso` needs `checksum`, and `checksum` needs `vnet_header`")]
    Offloads {
        /// The interface.
        interface: String,
    },
    /// Dedicated queues and shared queues exclude each other.
    #[error("interface `{interface}`: `queues` and `shares` exclude each other")]
    Shares {
        /// The interface.
        interface: String,
    },
    /// A text is not an address.
    #[error(
        "`{text}` is not an address: write it like 10.0.0.2/24 or fd00::2/64 (a gateway without \
            the prefix length)"
    )]
    Address {
        /// The text.
        text: String,
    },
    /// Another interface has the name.
    #[error(
        "interface `{interface}` already exists in namespace {namespace} ({error}): choose \
         another name for this one (`ifname`)"
    )]
    Exists {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The network of the interface overlaps the network of another interface.
    #[error(
        "interface `{interface}` in namespace {namespace}: {overlap}; choose another network, or \
         write `allow_overlap = true`"
    )]
    Overlap {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// The two networks.
        overlap: Overlap,
    },
    /// Forwarding between interfaces cannot be read or changed.
    #[error(
        "the forwarding of namespace {namespace} cannot be read or changed: {error}; it needs \
         CAP_NET_ADMIN and nf_tables"
    )]
    Forwarding {
        /// The namespace.
        namespace: String,
        /// The error of the system.
        error: io::Error,
    },
    /// An interface that should exist does not.
    #[error(
        "there is no interface `{interface}` in namespace {namespace} ({error}): `ip link` lists \
         all interfaces"
    )]
    NoInterface {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The interface has more or fewer receive queues than the machine reads.
    #[error(
        "interface `{interface}` has {queues} receive queues, but the machine reads {wanted} (one \
         for all guests, the others for one guest each): `ethtool -L {interface} combined \
         {wanted}` (or rx {wanted}) changes that"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// The number of its queues.
        queues: u32,
        /// The number that the machine reads.
        wanted: u32,
    },
    /// Frames cannot be steered to dedicated queues.
    #[error(
        "interface `{interface}` cannot steer frames: {error}; all guests use its shared queue \
         (queues = \"vmq\" needs CAP_BPF and CAP_NET_ADMIN outside a user namespace, and a \
         kernel with membarrier(2))"
    )]
    Steering {
        /// The interface.
        interface: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The kernel rejects the program of the firewall rules before a queue.
    #[error(
        "queue {queue} of interface `{interface}` in namespace {namespace} cannot have the program \
         of the {rules} firewall rules before it: {error}; without `pdev` the guest uses the \
         shared queue, and the driver domain applies the rules"
    )]
    Rules {
        /// The queue.
        queue: u32,
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// The number of rules.
        rules: usize,
        /// The error of the system.
        error: io::Error,
    },
    /// Another step failed.
    #[error("interface `{interface}` in namespace {namespace} cannot be {step}: {error}; {hint}")]
    Step {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// The step, as a participle.
        step: &'static str,
        /// The error of the system.
        error: io::Error,
        /// A hint for the user.
        hint: &'static str,
    },
}

impl NetError {
    /// Returns whether the device is in use, perhaps only briefly: the kernel releases closed
    /// devices with a delay.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Step { error, .. } | Self::Exists { error, .. }
            if error.kind() == io::ErrorKind::ResourceBusy)
    }
}
