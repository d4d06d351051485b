//! The platform of two threads of one process, without a monitor between them. The program connects
//! the rings directly, and each thread rings the other's doorbell.

use abi::{ConnId, XenbusState};
use runtime::platform::{ConnectRecord, Doorbell, PeerEnd, Platform};
use runtime::processes::EventDoorbell;
use shmem::Area;
use std::io;
use std::os::fd::OwnedFd;

/// Platform of one of the two threads.
#[derive(Debug)]
pub(crate) struct Threads {
    /// The other thread's doorbell.
    other: OwnedFd,
    /// Window of the platform, always empty.
    window: Area,
}

impl Threads {
    pub(crate) fn new(other: OwnedFd, window: Area) -> Self {
        Self { other, window }
    }
}

impl Platform for Threads {
    /// Returns no peer, because no monitor makes the connections.
    fn peer(&self, _: ConnId) -> io::Result<Option<PeerEnd>> {
        Ok(None)
    }

    fn set_state(&self, _: ConnId, _: XenbusState, _: &ConnectRecord) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// Returns the other thread's doorbell, because all connections are with that thread.
    fn doorbell(&self, _: ConnId) -> io::Result<Box<dyn Doorbell>> {
        Ok(Box::new(EventDoorbell::from(self.other.try_clone()?)))
    }

    fn window(&self) -> Area {
        self.window
    }
}
