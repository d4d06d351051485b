//! The rights of the core's helpers. A program adds the user id that it changes to.

use crate::calls::{BROKER_CALLS, COMMON, CONSOLES, DEVICES, SERVING};
use crate::{CapabilitySet, Rights};

/// The manager, which opens nothing.
pub const MANAGER: Rights<'_> = Rights {
    name: "the manager",
    user: None,
    keep: CapabilitySet::empty(),
    ends_with_parent: true,
    files: None,
    calls: &[COMMON, SERVING, CONSOLES],
};

/// netd, which opens the TAP driver and settings of network namespaces. Its broker opens the rest.
pub const NETD: Rights<'_> = Rights {
    name: "netd",
    user: None,
    // CAP_SYS_ADMIN, to enter network namespaces.
    keep: CapabilitySet::NET_ADMIN
        .union(CapabilitySet::NET_RAW)
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::SYS_ADMIN),
    ends_with_parent: true,
    files: Some(&["/dev/net", "/proc/sys/net"]),
    calls: &[COMMON, DEVICES],
};

/// netd's broker, which opens and creates files by name, and loads programs. It keeps its user, who
/// owns the `pcap` files.
pub const BROKER: Rights<'_> = Rights {
    name: "netd's broker",
    user: None,
    // For finding network namespaces of other users' processes, for loading programs, for giving
    // sockets to virtual machine monitors' users, and for connecting to theirs.
    keep: CapabilitySet::SYS_PTRACE
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::NET_ADMIN)
        .union(CapabilitySet::PERFMON)
        .union(CapabilitySet::CHOWN)
        .union(CapabilitySet::DAC_OVERRIDE),
    ends_with_parent: true,
    files: None,
    calls: &[BROKER_CALLS],
};
