//! The rights of the core's helpers. Each program adds the user id to which it changes.

use crate::calls::{BROKER_CALLS, COMMON_CALLS, CONSOLE_CALLS, DEVICE_CALLS, SERVER_CALLS};
use crate::{CapabilitySet, Rights};

/// Rights of the manager, which opens no files.
pub const MANAGER: Rights<'_> = Rights {
    name: "the manager",
    user: None,
    capabilities: CapabilitySet::empty(),
    ends_with_parent: true,
    files: None,
    calls: &[COMMON_CALLS, SERVER_CALLS, CONSOLE_CALLS],
};

/// Rights of netd, which opens the TAP driver and settings of network namespaces. Its broker opens
/// all other files.
pub const NETD: Rights<'_> = Rights {
    name: "netd",
    user: None,
    // CAP_SYS_ADMIN is needed to enter network namespaces.
    capabilities: CapabilitySet::NET_ADMIN
        .union(CapabilitySet::NET_RAW)
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::SYS_ADMIN),
    ends_with_parent: true,
    files: Some(&["/dev/net", "/proc/sys/net"]),
    calls: &[COMMON_CALLS, DEVICE_CALLS],
};

/// Rights of netd's broker, which opens and creates files by name, and loads BPF programs. It keeps
/// its user, who owns the `pcap` files.
pub const BROKER: Rights<'_> = Rights {
    name: "netd's broker",
    user: None,
    // Needed to find network namespaces of other users' processes, to load BPF programs, to give
    // sockets to the users of virtual machine monitors, and to connect to their sockets.
    capabilities: CapabilitySet::SYS_PTRACE
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::NET_ADMIN)
        .union(CapabilitySet::PERFMON)
        .union(CapabilitySet::CHOWN)
        .union(CapabilitySet::DAC_OVERRIDE),
    ends_with_parent: true,
    files: None,
    calls: &[BROKER_CALLS],
};
