//! The attach port: a domain's requests for descriptors, as the monitor sees them.

use crate::notify::{Call, Listener};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Where a domain's attach calls arrive.
#[derive(Debug)]
pub struct AttachPort(pub(crate) Listener);

impl AttachPort {
    /// Readable while a call waits; hangs up when the domain is gone.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// The same port once more: a call is received by one of them.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// The next call, if one waits; arguments 1 and 2 say what it asks for (see
    /// [`abi::hypercall::Attach::decode`]). Never blocks. Not receiving is how to limit a domain's
    /// rate.
    ///
    /// # Errors
    /// `ENOENT` when the domain is gone.
    pub fn receive(&self) -> io::Result<Option<Call>> {
        self.0.receive(Duration::ZERO)
    }

    /// Puts a copy of `fd` at number `at` of the domain's table (replacing what is there) and lets
    /// the call return that number. A caller that has died meanwhile is not an error.
    ///
    /// # Errors
    /// Then the call still waits: answer it with [`AttachPort::answer_errno`].
    pub fn answer_fd(&self, call: Call, fd: BorrowedFd<'_>, at: i32) -> io::Result<()> {
        let at = u32::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        unless_gone(self.0.put(call.id, fd, at, true))
    }

    /// Lets the call fail with this errno (positive). A caller that has died is not an error.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub fn answer_errno(&self, call: Call, errno: i32) -> io::Result<()> {
        unless_gone(self.0.answer(call.id, 0, errno.clamp(1, 4095)))
    }
}

fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}
