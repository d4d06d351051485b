//! The one way in which a new descriptor enters a domain.

use abi::hypercall::{ATTACH_MAGIC, Attach};
use abi::layout::fd;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Asks the monitor for a descriptor: a system call that the domain's filter hands over to it.
/// Blocks until the monitor answers.
///
/// # Errors
/// What the monitor answers (`ENOENT`: there is no such device or connection; `EEXIST`: it was
/// attached before); `NotConnected` if this process is not a domain.
pub fn call(what: Attach) -> io::Result<OwnedFd> {
    let expected = match what {
        Attach::Device(n) if n < fd::DEVICES_MAX => fd::DEVICE + n as i32,
        Attach::Doorbell(conn) if conn.0 < fd::CONNECTIONS_MAX => fd::DOORBELL + conn.0 as i32,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    if !crate::home::is_taken() {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let [kind, index] = what.encode();
    // SAFETY: a system call without pointers.
    let answer = unsafe { libc::syscall(libc::SYS_getppid, ATTACH_MAGIC, kind, index) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // Without the filter this would be a plain getppid: only the agreed number is a descriptor.
    if answer != i64::from(expected) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    // SAFETY: the monitor has just put a new descriptor there, for us alone. It refuses a second
    // attach of the same thing, so the number is free; but for a doorbell whose end is
    // another domain by now, and the number of a doorbell cannot be closed.
    Ok(unsafe { OwnedFd::from_raw_fd(expected) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::ConnId;

    #[test]
    fn outside_a_domain_nothing_can_be_attached() {
        let error = call(Attach::Device(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    }

    #[test]
    fn numbers_beyond_the_descriptor_range_are_refused() {
        for what in [
            Attach::Device(fd::DEVICES_MAX),
            Attach::Doorbell(ConnId(fd::CONNECTIONS_MAX)),
            Attach::Device(u32::MAX),
        ] {
            assert_eq!(call(what).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
