//! A domain's doorbells: how it wakes the other end of a connection.

use crate::wait;
use abi::ConnId;
use abi::hypercall::Attach;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The other end's doorbell.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// Asks the monitor for it.
    ///
    /// # Errors
    /// There is no such connection, or its other end is gone.
    pub fn attach(conn: ConnId) -> io::Result<Self> {
        shmem::attach::call(Attach::Doorbell(conn)).map(Self)
    }

    /// The doorbell of a thread of this very process.
    #[must_use]
    pub fn of_thread(event: OwnedFd) -> Self {
        Self(event)
    }

    /// Wakes the other end.
    pub fn ring(&self) {
        wait::ring(self.0.as_fd());
    }
}
