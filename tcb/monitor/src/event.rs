//! Event channels: what the monitor has to say to a domain, and the doorbell that wakes it.

use crate::memory::Memory;
use abi::layout::info;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Where a domain can be reached. The words lie in its own information region: whatever it
/// writes there, only its own wake-ups suffer.
#[derive(Debug)]
pub struct Port {
    memory: Arc<Memory>,
    event: OwnedFd,
}

impl Port {
    /// A new eventfd for the domain whose memory this is.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn create(memory: Arc<Memory>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { memory, event })
    }

    /// The doorbell: who has it can wake the domain.
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
        // The domain sets its flag, then looks at the bits; we set the bits, then look at its
        // flag. With a full fence in both, one of the two sees the other.
        fence(Ordering::SeqCst);
        if armed.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Says that something has changed about one of the domain's connections.
    pub fn tell_of(&self, number: u32) {
        let (at, bit) = info::changed(number);
        if let Some(word) = self.memory.info.span().u64(at) {
            word.fetch_or(bit, Ordering::Release);
        }
        self.raise(info::PENDING_CONNECT);
    }

    /// Rings the doorbell. A counter that is full rings already.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}
