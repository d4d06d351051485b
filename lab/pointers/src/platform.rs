//! The system of two threads of one process: there is nobody between them to ask. The rings are
//! joined by hand, and each thread rings the other's doorbell.

use abi::{ConnId, XenbusState};
use runtime::platform::{Doorbell, Peer, Platform, Record};
use runtime::processes::EventDoorbell;
use shmem::Area;
use std::io;
use std::os::fd::OwnedFd;

/// What one of both threads runs on.
#[derive(Debug)]
pub(crate) struct Threads {
    /// The other thread's doorbell.
    other: OwnedFd,
    /// Nothing ever appears there.
    window: Area,
}

impl Threads {
    pub(crate) fn new(other: OwnedFd, window: Area) -> Self {
        Self { other, window }
    }
}

impl Platform for Threads {
    /// Connections are not made through the system.
    fn peer(&self, _: ConnId) -> io::Result<Option<Peer>> {
        Ok(None)
    }

    fn set_state(&self, _: ConnId, _: XenbusState, _: &Record) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// All connections are with the one other thread.
    fn doorbell(&self, _: ConnId) -> io::Result<Box<dyn Doorbell>> {
        Ok(Box::new(EventDoorbell::from(self.other.try_clone()?)))
    }

    fn window(&self) -> Area {
        self.window
    }
}
