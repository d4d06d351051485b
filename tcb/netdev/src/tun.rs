//! The system calls that create a TAP.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Bytes of the virtio-net header before every frame, without the merged-buffers count.
pub(super) const VNET_HEADER_BYTES: libc::c_int = 10;

// linux/if_tun.h; libc has no TUNSETVNETHDRSZ and no TUN_F_*.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
const TUNSETQUEUE: libc::c_ulong = 0x4004_54d9;
const TUNSETSTEERINGEBPF: libc::c_ulong = 0x8004_54e0;
const TUNSETFILTEREBPF: libc::c_ulong = 0x8004_54e1;
const IFF_TAP: u16 = 0x0002;
const IFF_NAPI: u16 = 0x0010;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_DETACH_QUEUE: u16 = 0x0400;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_TUN_EXCL: u16 = 0x8000;
const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;

/// The part of the kernel's `struct ifreq` that TUNSETIFF reads: a name, flags, padding.
#[repr(C)]
struct FlagsRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<FlagsRequest>() == size_of::<libc::ifreq>());

/// Opens the driver, non-blocking and close-on-exec. A new interface belongs to the namespace of
/// the calling thread.
pub(super) fn open() -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    Ok(file.into())
}

/// The role of a descriptor's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueRole {
    /// The only queue.
    Only,
    /// The only queue of an existing interface.
    Existing,
    /// The first of several queues.
    First,
    /// A further queue.
    Next,
}

/// Attaches the descriptor to a queue of the interface `name` (at most 15 bytes, checked by the
/// caller). The first or only queue creates the interface, which must not exist. With `napi`, the
/// kernel receives the queue's frames by polling, and merges them (GRO).
pub(super) fn attach(
    fd: &OwnedFd,
    name: &str,
    (vnet_header, napi): (bool, bool),
    queue: QueueRole,
) -> io::Result<()> {
    let kind = match queue {
        QueueRole::Only => IFF_TUN_EXCL,
        QueueRole::Existing => 0,
        QueueRole::First => IFF_TUN_EXCL | IFF_MULTI_QUEUE,
        QueueRole::Next => IFF_MULTI_QUEUE,
    };
    let mut request = FlagsRequest {
        name: [0; libc::IFNAMSIZ],
        flags: IFF_TAP
            | IFF_NO_PI
            | kind
            | if vnet_header { IFF_VNET_HDR } else { 0 }
            | if napi { IFF_NAPI } else { 0 },
        rest: [0; 22],
    };
    for (to, from) in request
        .name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
    {
        *to = from;
    }
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq` at the pointer. `FlagsRequest` has its
    // size (asserted above) and outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, &raw mut request) };
    check(result)?;
    if vnet_header {
        let bytes: libc::c_int = VNET_HEADER_BYTES;
        // SAFETY: TUNSETVNETHDRSZ reads one int at the pointer.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETVNETHDRSZ, &raw const bytes) })?;
    }
    Ok(())
}

/// Sets the offloads that the kernel may leave to the receiver of packets. Excludes the ECN
/// variants of segmentation, because a frame's offload record cannot represent the flag.
pub(super) fn offloads(fd: &OwnedFd, checksum: bool, tso: bool) -> io::Result<()> {
    let flags =
        if checksum { TUN_F_CSUM } else { 0 } | if tso { TUN_F_TSO4 | TUN_F_TSO6 } else { 0 };
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, flags) })
}

/// Sets the program by which the kernel selects queues.
pub(super) fn steer(fd: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    set_program(fd, TUNSETSTEERINGEBPF, program)
}

/// Sets the program by which the kernel filters frames that enter queues.
pub(super) fn filter(fd: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    set_program(fd, TUNSETFILTEREBPF, program)
}

fn set_program(fd: &OwnedFd, request: libc::c_ulong, program: &OwnedFd) -> io::Result<()> {
    let program: libc::c_int = program.as_raw_fd();
    // SAFETY: both requests read one int at the pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw const program) })
}

/// Sets whether the interface persists when all its descriptors are closed.
pub(super) fn persist(fd: &OwnedFd, persists: bool) -> io::Result<()> {
    let persists = libc::c_ulong::from(persists);
    // SAFETY: TUNSETPERSIST takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETPERSIST, persists) })
}

/// Detaches the descriptor's queue from the interface.
pub(super) fn detach(fd: &OwnedFd) -> io::Result<()> {
    let request = FlagsRequest {
        name: [0; libc::IFNAMSIZ],
        flags: IFF_DETACH_QUEUE,
        rest: [0; 22],
    };
    // SAFETY: TUNSETQUEUE reads one `struct ifreq` at the pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETQUEUE, &raw const request) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
