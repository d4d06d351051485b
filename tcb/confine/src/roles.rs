//! The rights of the core's helpers. A program adds the user that it becomes.

use crate::calls::{BROKER_CALLS, COMMON, CONSOLES, DEVICES, SERVING};
use crate::{CapabilitySet, Rights};

/// The manager: it opens nothing.
pub const MANAGER: Rights<'_> = Rights {
    name: "the manager",
    user: None,
    keep: CapabilitySet::empty(),
    ends_with_parent: true,
    files: None,
    calls: &[COMMON, SERVING, CONSOLES],
};

/// netd: it opens the TAP driver and settings of network namespaces. Its broker opens the rest.
pub const NETD: Rights<'_> = Rights {
    name: "netd",
    user: None,
    // CAP_SYS_ADMIN to enter network namespaces.
    keep: CapabilitySet::NET_ADMIN
        .union(CapabilitySet::NET_RAW)
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::SYS_ADMIN),
    ends_with_parent: true,
    files: Some(&["/dev/net", "/proc/sys/net"]),
    calls: &[COMMON, DEVICES],
};

/// netd's broker: it opens and makes files by name, and loads programs. Its user stays, for `pcap`
/// files are the user's.
pub const BROKER: Rights<'_> = Rights {
    name: "netd's broker",
    user: None,
    // To find network namespaces of other users' processes, and to load programs.
    keep: CapabilitySet::SYS_PTRACE
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::NET_ADMIN)
        .union(CapabilitySet::PERFMON),
    ends_with_parent: true,
    files: None,
    calls: &[BROKER_CALLS],
};
