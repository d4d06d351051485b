//! Xen's devices as Linux presents them to user space. This is the only `unsafe` code of the crate.
//!
//! Every structure that is passed to the kernel has a fixed layout. Pages of other domains are
//! mapped only into a [`ForeignWindow`]. This process never frees that memory, and it contains no
//! Rust object, so an unmapped page leaves no dangling reference.
#![allow(unsafe_code)]

mod evtchn;
mod gntdev;
mod window;

pub use evtchn::{EVTCHN_REQUESTS, Evtchn, EvtchnPort};
pub use gntdev::{
    CopySegment, CopyStatus, GNTDEV_REQUESTS, Gntdev, GrantedRange, MAPPED_MAX, Mapped,
};
pub use window::{ForeignWindow, PageRights};

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Opens a device of Xen, close-on-exec.
///
/// # Errors
///
/// Returns an error with the path and a likely reason if the device cannot be opened.
pub fn open(path: &str, extra_flags: i32) -> io::Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(extra_flags)
        .open(path);
    opened.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => {
                ": not a Xen domain, or the modules xen-gntdev and xen-evtchn are not loaded"
            }
            io::ErrorKind::PermissionDenied => ": only root may open it",
            _ => "",
        };
        io::Error::new(error.kind(), format!("{path}: {error}{hint}"))
    })
}

/// Returns the number of a request of Xen's devices (`_IOC(_IOC_NONE, …)`).
const fn request(group: u8, number: u8, bytes: usize) -> libc::Ioctl {
    ((bytes as u64) << 16 | (group as u64) << 8 | number as u64) as libc::Ioctl
}

/// Makes a request of a device.
///
/// # Safety
///
/// `T` must be the structure that the request `number` of this device takes, and everything to
/// which it points must be valid for the request.
unsafe fn ioctl<T>(device: &File, number: libc::Ioctl, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the caller guarantees the structure, which is exclusively borrowed during the call.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), number, std::ptr::from_mut(argument)) };
    match answer {
        ..0 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}
