//! The epoll set through which the main thread waits for all domains.

use crate::process::Process;
use abi::DomId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Bit in an event's data, in addition to the domain's id, which marks an attach call.
const ATTACH_CALL: u64 = 1 << 16;
/// The maximum number of events per call; further events stay pending.
const EVENTS_MAX: usize = 64;

/// The epoll set over the descriptors of all living domains.
#[derive(Debug)]
pub(crate) struct DomainEpoll(pub(crate) OwnedFd);

impl DomainEpoll {
    pub(crate) fn create() -> Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches a domain's process.
    pub(crate) fn add(&self, id: DomId, process: &Process) -> Result<()> {
        for (fd, mark) in [
            (process.pidfd.as_fd(), 0),
            (process.attach.fd(), ATTACH_CALL),
        ] {
            let data = EventData::new_u64(u64::from(id.0) | mark);
            epoll::add(&self.0, fd, data, EventFlags::IN)?;
        }
        Ok(())
    }

    /// Enables or disables events for the domain's attach calls.
    pub(crate) fn modify(&self, id: DomId, process: &Process, enabled: bool) {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, enabled);
        let data = EventData::new_u64(u64::from(id.0) | ATTACH_CALL);
        // A domain that is no longer watched is dead.
        let _ = epoll::modify(&self.0, process.attach.fd(), data, flags);
    }

    /// Stops watching a domain's process.
    pub(crate) fn remove(&self, process: &Process) {
        for fd in [process.pidfd.as_fd(), process.attach.fd()] {
            let _ = epoll::delete(&self.0, fd);
        }
    }

    /// Returns the domains with events; true marks an attach call, false the exit of the process.
    pub(crate) fn take(&self) -> Vec<(DomId, bool)> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let ready = epoll::wait(&self.0, &mut events, Some(&Timespec::default()));
        let data = |event: &epoll::Event| event.data.u64();
        let decode = |data: u64| (DomId(data as u16), data & ATTACH_CALL != 0);
        let decode = ready.map(|(ready, _)| ready.iter().map(data).map(decode).collect());
        decode.unwrap_or_default()
    }
}
