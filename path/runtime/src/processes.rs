//! The platform of domains that are processes under the monitor.
//!
//! Connections and devices use hypercalls; doorbells are eventfds. [`crate::wait::Waiter`]
//! implements waiting.

use crate::call::Calls;
use crate::foreign::ForeignMemory;
use crate::platform::{ConnectRecord, Doorbell, PeerEnd, Platform};
use crate::wait;
use abi::hypercall::AttachTarget;
use abi::{ConnId, XenbusState};
use shmem::{Area, Span, attach};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// The platform that the monitor offers to one domain.
#[derive(Debug)]
pub struct Processes {
    calls: Rc<RefCell<Calls>>,
    window: Area,
    /// Set in a domain that serves a virtual machine.
    foreign: Option<ForeignMemory>,
}

impl Processes {
    /// Creates the platform. `calls` makes hypercalls to the monitor, which maps other domains'
    /// pages into `window`.
    #[must_use]
    pub fn new(calls: Rc<RefCell<Calls>>, window: Area) -> Self {
        Self {
            calls,
            window,
            foreign: None,
        }
    }

    /// Adds support for a virtual machine. Its memory files are mapped into `range`, and the
    /// descriptors of its VMM are added to the epoll set `epoll`.
    #[must_use]
    pub fn with_foreign(self, range: Area, epoll: Rc<OwnedFd>) -> Self {
        let foreign = (!range.is_empty()).then(|| ForeignMemory::new(range, epoll));
        Self { foreign, ..self }
    }

    fn foreign(&self) -> io::Result<&ForeignMemory> {
        let none = || io::ErrorKind::Unsupported.into();
        self.foreign.as_ref().ok_or_else(none)
    }
}

impl Platform for Processes {
    fn peer(&self, conn: ConnId) -> io::Result<Option<PeerEnd>> {
        Ok(self.calls.borrow_mut().connection(conn)?)
    }

    fn set_state(
        &self,
        conn: ConnId,
        state: XenbusState,
        record: &ConnectRecord,
    ) -> io::Result<()> {
        let mut calls = self.calls.borrow_mut();
        Ok(calls.set_connection(conn, state, record)?)
    }

    fn doorbell(&self, conn: ConnId) -> io::Result<Box<dyn Doorbell>> {
        let event = attach::request_descriptor(AttachTarget::Doorbell(conn))?;
        Ok(Box::new(EventDoorbell(event)))
    }

    fn window(&self) -> Area {
        self.window
    }

    fn attach(&self, device: u32) -> io::Result<OwnedFd> {
        attach::request_descriptor(AttachTarget::Device(device))
    }

    fn device_control_all(&self, device: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        let answers = self.calls.borrow_mut().control_device(device, all);
        answers.into_iter().map(|answers| Ok(answers?)).collect()
    }

    fn end(&self, device: u32) -> io::Result<()> {
        Ok(self.calls.borrow_mut().end_device(device)?)
    }

    fn map_region(&self, file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Span> {
        let calls = &mut self.calls.borrow_mut();
        self.foreign()?.map(calls, file, offset, bytes)
    }

    fn unmap_region(&self, region: Span) -> io::Result<()> {
        self.foreign()?.unmap(&mut self.calls.borrow_mut(), region)
    }

    fn watch(&self, fd: BorrowedFd<'_>, edges: bool) -> io::Result<()> {
        self.foreign()?.watch(fd, edges)
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.foreign()?.unwatch(fd)
    }

    fn ready(&self) -> io::Result<()> {
        Ok(self.calls.borrow_mut().ready()?)
    }
}

/// A doorbell that is the other end's eventfd.
#[derive(Debug)]
pub struct EventDoorbell(OwnedFd);

impl From<OwnedFd> for EventDoorbell {
    fn from(event: OwnedFd) -> Self {
        Self(event)
    }
}

impl Doorbell for EventDoorbell {
    fn ring(&self) {
        wait::ring(self.0.as_fd());
    }
}
