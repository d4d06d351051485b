//! The monitor's end of a seccomp listener: receives calls, answers them, passes descriptors.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A system call that waits for an answer. The calling thread sleeps meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCall {
    /// The kernel's id of the call.
    pub id: u64,
    /// Its arguments. Untrusted.
    pub args: [u64; 6],
}

/// The listener of a filter: a domain's for attach calls ([`abi::hypercall::Attach`]), or an
/// agent's for work.
#[derive(Debug)]
pub struct NotifyListener(OwnedFd);

/// Wakes the caller on the answering thread's CPU, since that thread waits next (Linux 6.6).
const SYNC_WAKE_UP: usize = 1;

impl NotifyListener {
    /// Takes over a listener. Also returns whether the kernel can wake synchronously, which affects
    /// only speed.
    pub(crate) fn new(fd: OwnedFd) -> (Self, bool) {
        let listener = Self(fd);
        let flags = std::ptr::without_provenance_mut::<()>(SYNC_WAKE_UP);
        // SAFETY: this request takes its argument by value and touches no memory.
        let set = unsafe { listener.ask(libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, flags) };
        (listener, set.is_ok())
    }

    /// Makes a request of the kernel.
    ///
    /// # Safety
    /// The argument is the address of the data that this request reads or writes, or the request's
    /// value.
    unsafe fn ask<T>(&self, request: libc::Ioctl, argument: *mut T) -> io::Result<()> {
        // SAFETY: by the caller's promise; the descriptor is ours.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Returns a duplicate of the listener: either one receives a call.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Returns the listener's descriptor: readable while a call waits; hangs up once no process has
    /// this filter.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits for a call until the deadline (0 does not wait), and returns `None` if there was none.
    /// Receiving calls less often limits a domain's rate.
    ///
    /// # Errors
    /// `ENOENT`: no process has this filter. Otherwise the kernel's error.
    pub fn receive(&self, within: Duration) -> io::Result<Option<PendingCall>> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready = fds[0].revents();
            if ready.contains(PollFlags::IN) {
                match self.receive_now() {
                    Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                    // The caller died between poll and here; the next poll reports it.
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                        if left.is_zero() {
                            return Ok(None);
                        }
                    }
                    other => return other.map(Some),
                }
            } else if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
        }
    }

    fn receive_now(&self) -> io::Result<PendingCall> {
        // SAFETY: all fields are integers, for which zero is valid.
        let mut got: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the request writes one `seccomp_notif`, zeroed as required, to this place.
        unsafe { self.ask(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut got) }?;
        Ok(PendingCall {
            id: got.id,
            args: got.data.args,
        })
    }

    /// Ends a call: it returns `value`, or fails with `errno` if that is not 0.
    ///
    /// # Errors
    /// `ENOENT`: the caller has died.
    pub fn answer(&self, id: u64, value: i64, errno: i32) -> io::Result<()> {
        let mut answer = libc::seccomp_notif_resp {
            id,
            val: value,
            error: -errno,
            flags: 0,
        };
        // SAFETY: the request reads one `seccomp_notif_resp` from this place.
        unsafe { self.ask(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) }
    }

    /// Puts a copy of `fd` into the caller's table at number `at`, replacing the descriptor there;
    /// with `and_answer`, the call returns that number at once.
    ///
    /// # Errors
    /// `ENOENT`: the caller has died. `EBADF`, `EMFILE`: the number exceeds its limit, and the call
    /// still waits.
    pub fn put(&self, id: u64, fd: BorrowedFd<'_>, at: u32, and_answer: bool) -> io::Result<()> {
        let send = match and_answer {
            true => libc::SECCOMP_ADDFD_FLAG_SEND,
            false => 0,
        };
        let mut put = libc::seccomp_notif_addfd {
            id,
            flags: (libc::SECCOMP_ADDFD_FLAG_SETFD | send) as u32,
            srcfd: fd.as_raw_fd() as u32,
            newfd: at,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        // SAFETY: the request reads one `seccomp_notif_addfd` from this place.
        unsafe { self.ask(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut put) }
    }
}
