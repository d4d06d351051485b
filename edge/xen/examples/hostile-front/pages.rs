//! What a guest's user space has of Xen: pages that it grants (`/dev/xen/gntalloc`) and an event
//! channel that it offers (`/dev/xen/evtchn`).
#![allow(unsafe_code)]

use abi::PAGE;
use shmem::Span;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use xen::dev::{PageRights, Window, open};

/// Pages of a connection: both rings, and buffers.
pub(crate) const PAGES: usize = 10;

/// `IOCTL_GNTALLOC_ALLOC_GREF`: the structure with room for one reference.
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

/// Pages that the driver domain may reach, until this is dropped.
#[derive(Debug)]
pub(crate) struct Granted {
    window: Window,
    pub(crate) grefs: [u32; PAGES],
    _device: File,
}

impl Granted {
    /// Grants [`PAGES`] zeroed pages to `domain`, which show in `window`.
    pub(crate) fn new(domain: u16, window: Window) -> io::Result<Self> {
        let device = open("/dev/xen/gntalloc", 0)?;
        let mut alloc = Alloc {
            domain,
            flags: WRITABLE,
            count: PAGES as u32,
            index: 0,
            grefs: [0; PAGES],
        };
        // SAFETY: the structure of this request, with room for as many references as it says.
        let refused = unsafe { libc::ioctl(device.as_raw_fd(), ALLOC, &raw mut alloc) } < 0;
        if refused {
            return Err(io::Error::last_os_error());
        }
        window.show(device.as_fd(), alloc.index, PageRights::ReadWrite)?;
        Ok(Self {
            window,
            grefs: alloc.grefs,
            _device: device,
        })
    }

    /// Page `n`.
    pub(crate) fn page(&self, n: usize) -> Span {
        let page = self.window.span().sub(n * PAGE, PAGE);
        page.expect("a page of the window")
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        // A page that is mapped stays granted.
        self.window.hide();
    }
}

/// An event channel that a domain may bind to.
#[derive(Debug)]
pub(crate) struct Offered {
    device: File,
    pub(crate) port: u32,
}

impl Offered {
    pub(crate) fn new(domain: u16) -> io::Result<Self> {
        let device = open("/dev/xen/evtchn", 0)?;
        let mut remote = u32::from(domain);
        // SAFETY: the structure of this request is the domain.
        let port = unsafe { libc::ioctl(device.as_raw_fd(), BIND_UNBOUND, &raw mut remote) };
        match u32::try_from(port) {
            Ok(port) => Ok(Self { device, port }),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn notify(&self) {
        let mut port = self.port;
        // SAFETY: the structure of this request is the port.
        let _ = unsafe { libc::ioctl(self.device.as_raw_fd(), NOTIFY, &raw mut port) };
    }
}
