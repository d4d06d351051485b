//! Which system calls the process may make once it has its descriptors: those of every confined
//! program, and these. A call that is not on the list fails with EPERM.

use crate::dev::{EVTCHN_REQUESTS, GNTDEV_REQUESTS};
use confine::{COMMON, Call, CapabilitySet, Rights, SERVING, When, calls};

/// The process's rights. It adds the user that it becomes.
pub const RIGHTS: Rights<'_> = Rights {
    name: "the driver domain",
    user: None,
    keep: CapabilitySet::empty(),
    // Guests are served on when the shell that started it ends.
    ends_with_parent: false,
    files: None,
    calls: &[COMMON, SERVING, OWN],
};

/// Requests of Xen's devices, and that by which a socket is told not to wait.
const REQUESTS: [u64; 7] = {
    let [bind, unbind, notify] = EVTCHN_REQUESTS;
    let [map, unmap, copy] = GNTDEV_REQUESTS;
    [bind, unbind, notify, map, unmap, copy, libc::FIONBIO]
};

const OWN: &[Call] = &calls! {
    // Xen's devices, and sockets that do not wait. A TAP is told nothing any more.
    SYS_ioctl When::OneOf(1, &REQUESTS);
    // How long a client of the control socket may take.
    SYS_setsockopt When::Is(1, libc::SOL_SOCKET as u64);
    // Frames of a TAP or of a file, in pieces.
    SYS_readv When::Always;
    // How the driver sleeps.
    SYS_epoll_create1 When::Always;
    SYS_epoll_ctl When::Always;
    SYS_epoll_wait When::Always;
    SYS_epoll_pwait When::Always;
    SYS_epoll_pwait2 When::Always;
    SYS_eventfd2 When::Always;
};
