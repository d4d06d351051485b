//! Xen's devices, as Linux shows them to user space: the only `unsafe` code of this crate.
//!
//! Everything that is passed to the kernel is a structure of ours with a fixed layout. Pages of
//! other domains are mapped into a [`Window`] alone: memory that is this process's for ever and
//! that no Rust object lies in, so a page which goes away leaves nothing dangling.
#![allow(unsafe_code)]

mod evtchn;
mod gntdev;
mod window;

pub use evtchn::{EVTCHN_REQUESTS, Evtchn, Port};
pub use gntdev::{Copied, CopySegment, GNTDEV_REQUESTS, Gntdev, MAPPED_MAX, Mapped, Remote};
pub use window::{PageRights, Window};

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Opens a device of Xen's; it is closed on exec.
///
/// # Errors
/// With its path, and what may be missing.
pub fn open(path: &str, extra_flags: i32) -> io::Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(extra_flags)
        .open(path);
    opened.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => {
                ": this is no domain of Xen's, or xen-gntdev and xen-evtchn are not loaded"
            }
            io::ErrorKind::PermissionDenied => ": only root may open it",
            _ => "",
        };
        io::Error::new(error.kind(), format!("{path}: {error}{hint}"))
    })
}

/// The number of a request of Xen's devices (`_IOC(_IOC_NONE, …)`).
const fn request(group: u8, number: u8, bytes: usize) -> libc::Ioctl {
    ((bytes as u64) << 16 | (group as u64) << 8 | number as u64) as libc::Ioctl
}

/// Makes a request of a device.
///
/// # Safety
/// `T` is the structure that the request `number` of this device takes, and whatever it points at
/// is valid for what the request does.
unsafe fn ioctl<T>(device: &File, number: libc::Ioctl, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the caller vouches for the structure, which is ours alone for the time of the call.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), number, std::ptr::from_mut(argument)) };
    match answer {
        ..0 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}
