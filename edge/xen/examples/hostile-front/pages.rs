//! Xen's interfaces for user space in a guest, to grant pages (`/dev/xen/gntalloc`) and to offer an
//! event channel (`/dev/xen/evtchn`).
#![allow(unsafe_code)]

use abi::PAGE;
use shmem::Span;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use xen::dev::{ForeignWindow, PageRights, open};

/// Pages of a connection: both rings, and buffers.
pub(crate) const PAGES: usize = 10;

/// `IOCTL_GNTALLOC_ALLOC_GREF`, with room for one reference in the structure.
const ALLOC: libc::Ioctl = 24 << 16 | (b'G' as libc::Ioctl) << 8 | 5;
/// `GNTALLOC_FLAG_WRITABLE`.
const WRITABLE: u16 = 1;
/// `IOCTL_EVTCHN_BIND_UNBOUND_PORT`.
const BIND_UNBOUND: libc::Ioctl = 4 << 16 | (b'E' as libc::Ioctl) << 8 | 2;
/// `IOCTL_EVTCHN_NOTIFY`.
const NOTIFY: libc::Ioctl = 4 << 16 | (b'E' as libc::Ioctl) << 8 | 4;

#[repr(C)]
struct Alloc {
    domain: u16,
    flags: u16,
    count: u32,
    index: u64,
    grefs: [u32; PAGES],
}

/// Pages that the driver domain may access, until this is dropped.
#[derive(Debug)]
pub(crate) struct Granted {
    window: ForeignWindow,
    pub(crate) grefs: [u32; PAGES],
    _device: File,
}

impl Granted {
    /// Grants [`PAGES`] zeroed pages to `domain`, which appear in `window`.
    pub(crate) fn new(domain: u16, window: ForeignWindow) -> io::Result<Self> {
        let device = open("/dev/xen/gntalloc", 0)?;
        let mut alloc = Alloc {
            domain,
            flags: WRITABLE,
            count: PAGES as u32,
            index: 0,
            grefs: [0; PAGES],
        };
        // SAFETY: this is the structure of the request, and it has room for the number of
        // references that it states.
        let refused = unsafe { libc::ioctl(device.as_raw_fd(), ALLOC, &raw mut alloc) } < 0;
        if refused {
            return Err(io::Error::last_os_error());
        }
        window.map_device(device.as_fd(), alloc.index, PageRights::ReadWrite)?;
        Ok(Self {
            window,
            grefs: alloc.grefs,
            _device: device,
        })
    }

    /// Returns page `n`.
    pub(crate) fn page(&self, n: usize) -> Span {
        let page = self.window.span().sub(n * PAGE, PAGE);
        page.expect("a page of the window")
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        // A page stays granted while it is mapped.
        self.window.unmap();
    }
}

/// An event channel to which a domain may bind.
#[derive(Debug)]
pub(crate) struct Offered {
    device: File,
    pub(crate) port: u32,
}

impl Offered {
    pub(crate) fn new(domain: u16) -> io::Result<Self> {
        let device = open("/dev/xen/evtchn", 0)?;
        let mut remote = u32::from(domain);
        // SAFETY: the structure of this request contains only the domain.
        let port = unsafe { libc::ioctl(device.as_raw_fd(), BIND_UNBOUND, &raw mut remote) };
        match u32::try_from(port) {
            Ok(port) => Ok(Self { device, port }),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn notify(&self) {
        let mut port = self.port;
        // SAFETY: the structure of this request contains only the port.
        let _ = unsafe { libc::ioctl(self.device.as_raw_fd(), NOTIFY, &raw mut port) };
    }
}
