//! The platform of domains that are processes under the monitor.
//!
//! Connections and devices by hypercall, doorbells by eventfd. How such a domain waits is
//! [`crate::wait::Waiter`].

use crate::call::Calls;
use crate::platform::{Doorbell, Peer, Platform, Record};
use crate::wait;
use abi::hypercall::Attach;
use abi::{ConnId, XenbusState};
use shmem::{Area, attach};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// The monitor, as one domain sees it.
#[derive(Debug)]
pub struct Processes {
    calls: Rc<RefCell<Calls>>,
    window: Area,
}

impl Processes {
    /// The monitor behind `calls`, which maps pages of others into `window`.
    #[must_use]
    pub fn new(calls: Rc<RefCell<Calls>>, window: Area) -> Self {
        Self { calls, window }
    }
}

impl Platform for Processes {
    fn peer(&self, conn: ConnId) -> io::Result<Option<Peer>> {
        Ok(self.calls.borrow_mut().connection(conn)?)
    }

    fn set_state(&self, conn: ConnId, state: XenbusState, record: &Record) -> io::Result<()> {
        let mut calls = self.calls.borrow_mut();
        Ok(calls.set_connection(conn, state, record)?)
    }

    fn doorbell(&self, conn: ConnId) -> io::Result<Box<dyn Doorbell>> {
        let event = attach::call(Attach::Doorbell(conn))?;
        Ok(Box::new(EventDoorbell(event)))
    }

    fn window(&self) -> Area {
        self.window
    }

    fn attach(&self, device: u32) -> io::Result<OwnedFd> {
        attach::call(Attach::Device(device))
    }

    fn tell_all(&self, device: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
        let told = self.calls.borrow_mut().tell_device(device, all);
        told.into_iter().map(|told| Ok(told?)).collect()
    }

    fn end(&self, device: u32) -> io::Result<()> {
        Ok(self.calls.borrow_mut().end_device(device)?)
    }

    fn ready(&self) -> io::Result<()> {
        Ok(self.calls.borrow_mut().ready()?)
    }
}

/// A doorbell that is an eventfd of the other end's.
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
