//! Event channels: pending bits for a domain, and the doorbell that wakes it.

use crate::memory::SharedDomainMemory;
use abi::layout::info;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A domain's event channel. Its words are in the domain's information region, so a domain that
/// writes them affects only its own wake-ups.
#[derive(Debug)]
pub struct EventPort {
    memory: Arc<SharedDomainMemory>,
    event: OwnedFd,
}

impl EventPort {
    /// Creates an eventfd for the domain that owns this memory.
    ///
    /// # Errors
    /// Returns an error if the kernel has no descriptors left.
    pub fn create(memory: Arc<SharedDomainMemory>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { memory, event })
    }

    /// Returns the doorbell: a holder of the descriptor can wake the domain.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Sets pending bits ([`info::PENDING_CONNECT`] …), and wakes the domain if it sleeps.
    pub fn raise(&self, bits: u32) {
        let span = self.memory.info.span();
        let (Some(pending), Some(armed)) = (span.u32(info::PENDING), span.u32(info::ARMED)) else {
            return;
        };
        pending.fetch_or(bits, Ordering::Release);
        // The domain sets its armed flag, then reads the bits; the monitor sets the bits, then
        // reads the flag. Both execute a full fence in between, so at least one of the two reads
        // the other's write.
        fence(Ordering::SeqCst);
        if armed.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Marks one of the domain's connections as changed, and notifies the domain.
    pub fn mark_changed(&self, number: u32) {
        let (at, bit) = info::changed(number);
        if let Some(word) = self.memory.info.span().u64(at) {
            word.fetch_or(bit, Ordering::Release);
        }
        self.raise(info::PENDING_CONNECT);
    }

    /// Rings the doorbell. Ignores errors: an eventfd whose counter is full is also readable.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}
