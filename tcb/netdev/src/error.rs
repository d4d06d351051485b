//! What can go wrong when a device is set up, in words that say what to do.

use crate::overlap::Overlap;
use std::io;

/// Why a device could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// There is no TAP driver, or this process may not use it.
    #[error(
        "/dev/net/tun cannot be opened: {error}; load the module `tun` and give this process \
         access to the device, or do without TAPs: NICs of kind `sim`, endpoints of kind `stack`"
    )]
    NoTun {
        /// The system's word.
        error: io::Error,
    },
    /// A namespace that cannot be entered.
    #[error(
        "network namespace {path} cannot be entered: {error}; `ip netns list` shows those that \
         have a name, and entering one needs CAP_SYS_ADMIN"
    )]
    Namespace {
        /// Where it was looked for.
        path: String,
        /// The system's word.
        error: io::Error,
    },
    /// An interface name that the kernel would not take.
    #[error(
        "interface `{interface}`: a name has 1 to 15 visible ASCII characters, and none of / % :"
    )]
    Name {
        /// The name.
        interface: String,
    },
    /// An impossible MTU.
    #[error("interface `{interface}`: MTU {mtu} is not between 68 and 65521")]
    Mtu {
        /// The interface.
        interface: String,
        /// The MTU.
        mtu: u32,
    },
    /// Offloads that need another one.
    #[error("interface `{interface}`: `tso` needs `checksum`, and `checksum` needs `vnet_header`")]
    Offloads {
        /// The interface.
        interface: String,
    },
    /// Frames cannot both be led to single guests and be spread.
    #[error("interface `{interface}`: `queues` and `shares` exclude each other")]
    Shares {
        /// The interface.
        interface: String,
    },
    /// Not an address.
    #[error(
        "`{text}` is not an address: write it like 10.0.0.2/24 or fd00::2/64 (a gateway without \
            the prefix length)"
    )]
    Address {
        /// The text.
        text: String,
    },
    /// The name is taken.
    #[error(
        "interface `{interface}` exists already in namespace {namespace} ({error}): choose \
         another name for this one (`ifname`)"
    )]
    Exists {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// The system's word.
        error: io::Error,
    },
    /// Its network is another interface's, in part at least.
    #[error(
        "interface `{interface}` in namespace {namespace}: {overlap}; choose another network, or \
         write `allow_overlap = true`"
    )]
    Overlap {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// Both networks.
        overlap: Overlap,
    },
    /// Forwarding between interfaces cannot be looked at or changed.
    #[error(
        "the forwarding of namespace {namespace} cannot be looked at or changed: {error}; it needs \
         CAP_NET_ADMIN and nf_tables"
    )]
    Forwarding {
        /// The namespace.
        namespace: String,
        /// The system's word.
        error: io::Error,
    },
    /// An interface that is to be there is not.
    #[error(
        "there is no interface `{interface}` in namespace {namespace} ({error}): `ip link` shows \
         those that there are"
    )]
    NoInterface {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// The system's word.
        error: io::Error,
    },
    /// An interface that would spread what comes over queues that nobody listens to, or has too
    /// few.
    #[error(
        "interface `{interface}` receives by {queues} queues, and {wanted} are heard (one by all \
         guests, the others by one guest each): `ethtool -L {interface} combined {wanted}` (or \
         rx {wanted}) makes it so"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// How many it has.
        queues: u32,
        /// How many are listened to.
        wanted: u32,
    },
    /// No frame can be led to a queue of its own.
    #[error(
        "interface `{interface}` steers nothing: {error}; all guests use its shared queue \
         (queues = \"vmq\" needs CAP_BPF and CAP_NET_ADMIN outside of a user namespace, and a \
         kernel with membarrier(2))"
    )]
    Steering {
        /// The interface.
        interface: String,
        /// The system's word.
        error: io::Error,
    },
    /// Firewall rules before a queue that the kernel does not take as a program.
    #[error(
        "queue {queue} of interface `{interface}` in namespace {namespace} cannot have the program \
         of the {rules} firewall rules before it: {error}; without `pdev` the guest uses the \
         shared queue, and the driver domain asks the rules"
    )]
    Rules {
        /// The queue.
        queue: u32,
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// How many rules there are.
        rules: usize,
        /// The system's word.
        error: io::Error,
    },
    /// Any other step.
    #[error("interface `{interface}` in namespace {namespace} cannot be {step}: {error}; {hint}")]
    Step {
        /// The interface.
        interface: String,
        /// The namespace.
        namespace: String,
        /// What was to happen to it.
        step: &'static str,
        /// The system's word.
        error: io::Error,
        /// What may help.
        hint: &'static str,
    },
}

impl SetupError {
    /// Whether it is that something else has the device, perhaps not for long: the kernel takes its
    /// time to let go of what is closed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Step { error, .. } if error.kind() == io::ErrorKind::ResourceBusy)
    }
}
