//! One ring of a connection: its configuration and its descriptors.

use crate::ProtocolError;
use crate::features::{VirtioFeatures, virtio};
use crate::memory::VmMemory;
use crate::queue::{RingAddresses, RingError, SplitRing};
use crate::socket::nonblocking;
use crate::system::VhostSystem;
use std::os::fd::{AsFd, OwnedFd};

/// A ring. It runs while it has a size, addresses and a kick descriptor, and is enabled.
#[derive(Debug, Default)]
pub(crate) struct Vring {
    pub(crate) size: u16,
    pub(crate) addresses: Option<RingAddresses>,
    /// Index at which the ring resumes.
    pub(crate) base: u16,
    pub(crate) enabled: bool,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    /// The ring in memory, while it runs.
    pub(crate) queue: Option<SplitRing>,
    /// Error that stopped the ring, until the front end sets it up again.
    pub(crate) broken: Option<RingError>,
}

impl Vring {
    /// Starts, stops or moves the ring after its memory, features or descriptors have changed.
    pub(crate) fn refresh(&mut self, memory: &VmMemory, features: VirtioFeatures) {
        let was_running = self.queue.is_some();
        if let Some(queue) = self.queue.take() {
            self.base = queue.next_avail();
        }
        // Without protocol features rings are enabled from the start.
        let is_enabled = self.enabled || !features.has(virtio::PROTOCOL_FEATURES);
        let Some(addresses) = &self.addresses else {
            return;
        };
        // A write before the log arrives would not be logged.
        if self.kick.is_none() || !is_enabled || self.broken.is_some() || memory.lacks_log() {
            return;
        }
        let addresses = RingAddresses {
            log: addresses.log.filter(|_| features.has(virtio::LOG_ALL)),
            ..*addresses
        };
        let event_idx = features.has(virtio::EVENT_IDX);
        self.queue = SplitRing::new(memory, &addresses, self.size, event_idx, self.base);
        if self.queue.is_some() && !was_running {
            // An earlier back end may have exited after it returned a chain and before it notified
            // the driver.
            self.call();
        }
    }

    /// Returns whether the ring cannot run only because its memory is not mapped.
    pub(crate) fn lacks_memory(&self, memory: &VmMemory) -> bool {
        let is_set_up = self.kick.is_some() && self.addresses.is_some();
        is_set_up
            && self.enabled
            && self.queue.is_none()
            && self.broken.is_none()
            && !memory.lacks_log()
    }

    /// Returns whether the front end has stopped the ring, or has not started it.
    pub(crate) fn is_stopped(&self) -> bool {
        self.kick.is_none()
    }

    /// Replaces the kick descriptor. The shim never reads it, because each write of the driver is
    /// an edge, which wakes the shim.
    pub(crate) fn set_kick(
        &mut self,
        kick: Option<OwnedFd>,
        system: &mut dyn VhostSystem,
    ) -> std::io::Result<()> {
        if let Some(old) = self.kick.take() {
            system.unwatch(old.as_fd());
        }
        self.broken = None;
        if let Some(kick) = kick {
            system.watch(kick.as_fd(), true)?;
            self.kick = Some(kick);
        }
        Ok(())
    }

    /// Replaces the call descriptor, which may be a full, blocking pipe.
    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) -> Result<(), ProtocolError> {
        self.call = notifier(call)?;
        // The driver may still wait for a notification that was sent through the old descriptor.
        self.call();
        Ok(())
    }

    /// Replaces the error descriptor.
    pub(crate) fn set_err(&mut self, err: Option<OwnedFd>) -> Result<(), ProtocolError> {
        self.err = notifier(err)?;
        Ok(())
    }

    /// Notifies the driver. If the descriptor is full, an earlier notification is still pending.
    pub(crate) fn call(&self) {
        notify(self.call.as_ref());
    }

    /// Returns the ring and its notifier, while it runs.
    pub(crate) fn running(&mut self) -> Option<(VringNotifier<'_>, &mut SplitRing)> {
        let queue = self.queue.as_mut()?;
        Some((VringNotifier(self.call.as_ref()), queue))
    }

    /// Stops the ring permanently, and notifies the front end of the error.
    pub(crate) fn fail(&mut self, broken: RingError) {
        if let Some(queue) = self.queue.take() {
            self.base = queue.next_avail();
        }
        self.broken = Some(broken);
        notify(self.err.as_ref());
    }

    /// Stops the ring; returns the index at which it resumes.
    pub(crate) fn stop(&mut self, system: &mut dyn VhostSystem) -> u16 {
        if let Some(queue) = self.queue.take() {
            self.base = queue.next_avail();
        }
        if let Some(kick) = self.kick.take() {
            system.unwatch(kick.as_fd());
        }
        self.base
    }
}

/// Notifies the driver of a ring that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VringNotifier<'a>(Option<&'a OwnedFd>);

impl VringNotifier<'_> {
    pub(crate) fn call(self) {
        notify(self.0);
    }
}

fn notifier(fd: Option<OwnedFd>) -> Result<Option<OwnedFd>, ProtocolError> {
    if let Some(fd) = &fd {
        nonblocking(fd.as_fd()).map_err(ProtocolError::Socket)?;
    }
    Ok(fd)
}

fn notify(fd: Option<&OwnedFd>) {
    if let Some(fd) = fd {
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }
}
