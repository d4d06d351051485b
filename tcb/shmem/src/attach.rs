//! The attach call, by which a domain receives new descriptors.

use abi::hypercall::{ATTACH_MAGIC, AttachTarget};
use abi::layout::fd;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Requests a descriptor from the monitor, by a system call that the domain's filter forwards to
/// the monitor. Blocks until the monitor answers.
///
/// # Errors
/// Returns the monitor's error (`ENOENT`: the device or connection does not exist; `EEXIST`: it was
/// attached before), or `NotConnected` if this process is not a domain.
pub fn request_descriptor(what: AttachTarget) -> io::Result<OwnedFd> {
    let expected = match what {
        AttachTarget::Device(n) if n < fd::DEVICES_MAX => fd::DEVICE + n as i32,
        AttachTarget::Doorbell(conn) if conn.0 < fd::CONNECTIONS_MAX => {
            fd::DOORBELL + conn.0 as i32
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    if !crate::domain_memory::is_taken() {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let [kind, index] = what.encode();
    // SAFETY: the system call takes no pointers.
    let answer = unsafe { libc::syscall(libc::SYS_getppid, ATTACH_MAGIC, kind, index) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // Without the filter, the call is a plain getppid. So only the expected number is a descriptor.
    if answer != i64::from(expected) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    // SAFETY: the monitor has just put a new descriptor at this number, and nothing else owns the
    // number. The number was free, because the monitor refuses to attach an object twice. The
    // exception is a doorbell whose other end was replaced by another domain; doorbell numbers are
    // never closed.
    Ok(unsafe { OwnedFd::from_raw_fd(expected) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::ConnId;

    #[test]
    fn nothing_can_be_attached_outside_a_domain() {
        let error = request_descriptor(AttachTarget::Device(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    }

    #[test]
    fn numbers_above_the_range_are_rejected() {
        for what in [
            AttachTarget::Device(fd::DEVICES_MAX),
            AttachTarget::Doorbell(ConnId(fd::CONNECTIONS_MAX)),
            AttachTarget::Device(u32::MAX),
        ] {
            assert_eq!(
                request_descriptor(what).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
    }
}
