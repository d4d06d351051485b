//! What the main thread waits for of the domains: one descriptor, however many there are.

use crate::process::Process;
use abi::DomId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Set in an event's data, beside the domain's id, if it asks for a descriptor.
const ASKS: u64 = 1 << 16;
/// Events that are taken in one turn, at most; others stay.
const EVENTS: usize = 64;

/// The descriptors of all domains that are alive.
#[derive(Debug)]
pub(crate) struct Watch(pub(crate) OwnedFd);

impl Watch {
    pub(crate) fn create() -> Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches a domain's process.
    pub(crate) fn add(&self, id: DomId, process: &Process) -> Result<()> {
        for (fd, asks) in [(process.pidfd.as_fd(), 0), (process.attach.fd(), ASKS)] {
            let data = EventData::new_u64(u64::from(id.0) | asks);
            epoll::add(&self.0, fd, data, EventFlags::IN)?;
        }
        Ok(())
    }

    /// From now on it is heard when it asks for a descriptor, or it is not.
    pub(crate) fn hear(&self, id: DomId, process: &Process, hears: bool) {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, hears);
        let data = EventData::new_u64(u64::from(id.0) | ASKS);
        // One that is not watched any more is dead.
        let _ = epoll::modify(&self.0, process.attach.fd(), data, flags);
    }

    /// Watches it no longer.
    pub(crate) fn remove(&self, process: &Process) {
        for fd in [process.pidfd.as_fd(), process.attach.fd()] {
            let _ = epoll::delete(&self.0, fd);
        }
    }

    /// Domains that are to be seen to: whether one asks for a descriptor, or has ended.
    pub(crate) fn take(&self) -> Vec<(DomId, bool)> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let ready = epoll::wait(&self.0, &mut events, Some(&Timespec::default()));
        let data = |event: &epoll::Event| event.data.u64();
        let seen = |data: u64| (DomId(data as u16), data & ASKS != 0);
        let seen = ready.map(|(ready, _)| ready.iter().map(data).map(seen).collect());
        seen.unwrap_or_default()
    }
}
