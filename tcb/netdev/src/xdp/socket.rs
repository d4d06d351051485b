//! An AF_XDP socket with its memory, rings and queue (linux/if_xdp.h).

use super::shared::RingPages;
use abi::xdp::{Counter, Ring, RingLayout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A socket that is bound to a queue, and its rings.
#[derive(Debug)]
pub struct XdpSocket {
    fd: OwnedFd,
    layouts: [RingLayout; 4],
    entries: u32,
}

impl XdpSocket {
    /// Wraps a socket with rings of `entries` entries.
    pub(super) fn new(fd: OwnedFd, entries: u32) -> io::Result<Self> {
        let layouts = layouts(&fd)?;
        Ok(Self {
            fd,
            layouts,
            entries,
        })
    }

    /// Returns the offsets of a ring's parts.
    #[must_use]
    pub fn layout(&self, ring: Ring) -> RingLayout {
        let found = self.layouts.get(ring.index() as usize).copied();
        found.unwrap_or(RingLayout::decode(0))
    }

    /// Returns the pages of a ring to map.
    pub(super) fn pages(&self, ring: Ring) -> RingPages {
        let entries = self.entries as usize * ring.entry_bytes();
        let bytes = usize::from(self.layout(ring).entries) + entries;
        RingPages {
            ring,
            page: first_page(ring),
            pages: bytes.div_ceil(abi::PAGE) as u32,
        }
    }

    /// Returns one of the kernel's counters.
    ///
    /// # Errors
    /// Returns an error if the kernel rejected the request.
    pub fn counter(&self, counter: Counter) -> io::Result<u64> {
        self::counter(&self.fd, counter)
    }
}

/// The descriptor for the domain.
impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the page of a socket's mappings at which a ring begins.
const fn first_page(ring: Ring) -> u32 {
    let offset = match ring {
        Ring::Receive => libc::XDP_PGOFF_RX_RING as u64,
        Ring::Transmit => libc::XDP_PGOFF_TX_RING as u64,
        Ring::Fill => libc::XDP_UMEM_PGOFF_FILL_RING,
        Ring::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING,
    };
    (offset / abi::PAGE as u64) as u32
}

/// Creates an AF_XDP socket that is not bound and has no memory yet, in the calling thread's
/// namespace.
pub(super) fn create() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
    Ok(socket)
}

/// Binds the socket to a queue of an interface. If `copies` is set, the kernel copies received
/// frames. Otherwise the interface may write them to the socket's memory directly, if its driver
/// supports this.
pub(super) fn bind(socket: &OwnedFd, index: u32, queue: u32, copies: bool) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | if copies { libc::XDP_COPY } else { 0 },
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: bind reads the address, whose size is given.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) })
}

/// Returns the offsets of the rings' parts, in the order of [`Ring::ALL`].
fn layouts(socket: &OwnedFd) -> io::Result<[RingLayout; 4]> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    // SAFETY: the option writes one such struct.
    unsafe { get(socket, libc::XDP_MMAP_OFFSETS, &mut offsets) }?;
    let libc::xdp_mmap_offsets { rx, tx, fr, cr } = offsets;
    let mut layouts = [RingLayout::decode(0); 4];
    for (layout, ring) in layouts.iter_mut().zip([rx, tx, fr, cr]) {
        let at = |offset: u64| u16::try_from(offset).map_err(|_| io::ErrorKind::Unsupported);
        *layout = RingLayout {
            producer: at(ring.producer)?,
            consumer: at(ring.consumer)?,
            flags: at(ring.flags)?,
            entries: at(ring.desc)?,
        };
    }
    Ok(layouts)
}

/// Returns one of the kernel's counters.
fn counter(socket: &OwnedFd, counter: Counter) -> io::Result<u64> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut all: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    // SAFETY: the option writes one such struct.
    unsafe { get(socket, libc::XDP_STATISTICS, &mut all) }?;
    Ok(match counter {
        Counter::Dropped => all.rx_dropped,
        Counter::BadTransmit => all.tx_invalid_descs,
        Counter::RingFull => all.rx_ring_full,
        Counter::FillEmpty => all.rx_fill_ring_empty_descs,
    })
}

/// # Safety
/// The option writes a `T`, for which any bytes are valid.
unsafe fn get<T>(socket: &OwnedFd, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size_of::<T>()` bytes.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            (&raw mut *value).cast(),
            &raw mut bytes,
        )
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
