//! The monitor's end of a seccomp listener, which receives calls, answers them, and passes
//! descriptors.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A system call that waits for an answer. The calling thread sleeps until the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCall {
    /// The kernel's id of the call.
    pub id: u64,
    /// Its arguments, which are untrusted.
    pub args: [u64; 6],
}

/// The listener of a filter. A domain's listener receives attach calls
/// ([`abi::hypercall::AttachTarget`]); an agent's listener receives requests for work.
#[derive(Debug)]
pub struct NotifyListener(OwnedFd);

/// Flag: wakes the caller on the answering thread's CPU, because that thread waits next (Linux
/// 6.6).
const SYNC_WAKE_UP: usize = 1;

impl NotifyListener {
    /// Creates a listener from its descriptor. Returns the listener, and whether the kernel can
    /// wake synchronously, which affects only speed.
    pub(crate) fn new(fd: OwnedFd) -> (Self, bool) {
        let listener = Self(fd);
        let flags = std::ptr::without_provenance_mut::<()>(SYNC_WAKE_UP);
        // SAFETY: this request takes its argument by value and accesses no memory.
        let set = unsafe { listener.request(libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, flags) };
        (listener, set.is_ok())
    }

    /// Makes a request to the kernel.
    ///
    /// # Safety
    /// The argument is the request's value, or the address of data that the request may read and
    /// write.
    unsafe fn request<T>(&self, request: libc::Ioctl, argument: *mut T) -> io::Result<()> {
        // SAFETY: the argument is valid by the caller's promise, and `self` owns the descriptor.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Returns a duplicate of the listener. Each call is received by one of the two.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Returns the listener's descriptor, which is readable while a call waits, and reports a
    /// hang-up once no process has this filter.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits up to `within` for a call (0: does not wait), and returns `None` if no call arrives.
    /// The caller limits a domain's rate by receiving calls less often.
    ///
    /// # Errors
    /// Returns `ENOENT` if no process has this filter; otherwise the kernel's error.
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
                    // The caller died after poll had returned; the next poll reports that.
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
        let mut received: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the request writes one `seccomp_notif` to this variable, which is zeroed as
        // required.
        unsafe { self.request(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut received) }?;
        Ok(PendingCall {
            id: received.id,
            args: received.data.args,
        })
    }

    /// Answers a call. The call returns `value`, or fails with `errno` if that is not 0.
    ///
    /// # Errors
    /// Returns `ENOENT` if the caller has died.
    pub fn answer(&self, id: u64, value: i64, errno: i32) -> io::Result<()> {
        let mut answer = libc::seccomp_notif_resp {
            id,
            val: value,
            error: -errno,
            flags: 0,
        };
        // SAFETY: the request reads one `seccomp_notif_resp` from this variable.
        unsafe { self.request(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) }
    }

    /// Puts a copy of `fd` into the caller's table at number `at`, in place of any descriptor
    /// there. With `and_answer`, also answers the call with that number.
    ///
    /// # Errors
    /// Returns `ENOENT` if the caller has died. Returns `EBADF` or `EMFILE` if the number exceeds
    /// the caller's limit; the call then still waits.
    pub fn add_descriptor(
        &self,
        id: u64,
        fd: BorrowedFd<'_>,
        at: u32,
        and_answer: bool,
    ) -> io::Result<()> {
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
        // SAFETY: the request reads one `seccomp_notif_addfd` from this variable.
        unsafe { self.request(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut put) }
    }
}
