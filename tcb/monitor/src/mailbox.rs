//! The mailbox: bytes to a domain, bytes back. The monitor does not look into them.

use crate::event::Port;
use crate::memory::Memory;
use abi::layout::info;
use std::sync::atomic::Ordering;

/// How long a domain may take for a reply: on virtual machines some were seen to wait for their CPU
/// for more than a second.
const PATIENCE_NS: u64 = 3_000_000_000;
/// How often its bell is rung meanwhile: on virtual machines wake-ups were seen to be late by as
/// much as that.
const AGAIN_NS: u64 = 50_000_000;

/// Why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// There is no such domain.
    #[error("there is no such domain")]
    Unknown,
    /// The domain is not alive.
    #[error("the domain is not running")]
    Dead,
    /// Another request waits for its reply.
    #[error("another request waits for the domain's reply; try again")]
    Busy,
    /// The request does not fit.
    #[error("the request is longer than {} bytes", info::MAILBOX_IN_MAX)]
    TooLong,
    /// The domain did not reply in time.
    #[error("the domain did not reply within three seconds")]
    Late,
    /// The reply says that it is longer than a reply can be.
    #[error("the domain's reply makes no sense")]
    Nonsense,
}

/// The monitor's end of a domain's mailbox.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    number: u32,
    deadline_ns: Option<u64>,
    again_ns: u64,
}

impl Mailbox {
    /// Puts a request in.
    pub(crate) fn send(
        &mut self,
        memory: &Memory,
        port: &Port,
        request: &[u8],
        now_ns: u64,
    ) -> Result<(), RelayError> {
        if self.deadline_ns.is_some() {
            return Err(RelayError::Busy);
        }
        if request.len() > info::MAILBOX_IN_MAX {
            return Err(RelayError::TooLong);
        }
        let span = memory.info().span();
        let place = span.skip(info::MAILBOX_IN).take(request.len());
        place.put(request).map_err(|_| RelayError::Dead)?;
        let word = |at| span.u32(at).ok_or(RelayError::Dead);
        let bytes = word(info::MAILBOX_REQUEST_BYTES)?;
        let number = word(info::MAILBOX_REQUEST)?;
        self.number = self.number.wrapping_add(1);
        bytes.store(request.len() as u32, Ordering::Relaxed);
        // Release: who sees the number sees the request.
        number.store(self.number, Ordering::Release);
        self.deadline_ns = Some(now_ns.saturating_add(PATIENCE_NS));
        self.again_ns = now_ns.saturating_add(AGAIN_NS);
        port.raise(info::PENDING_MAILBOX);
        Ok(())
    }

    /// Whether a reply is waited for.
    pub(crate) fn waits(&self) -> bool {
        self.deadline_ns.is_some()
    }

    /// The outcome, once there is one. Its bytes are copied once; its length is checked.
    pub(crate) fn poll(
        &mut self,
        memory: &Memory,
        port: &Port,
        now_ns: u64,
    ) -> Option<Result<Vec<u8>, RelayError>> {
        let deadline = self.deadline_ns?;
        let span = memory.info().span();
        // Acquire: with the number, the reply is seen.
        let word = |at, order| span.u32(at).map(|word| word.load(order));
        let answered = word(info::MAILBOX_REPLY, Ordering::Acquire);
        if answered != Some(self.number) {
            if now_ns < deadline {
                if now_ns >= self.again_ns {
                    self.again_ns = now_ns.saturating_add(AGAIN_NS);
                    port.ring();
                }
                return None;
            }
            self.deadline_ns = None;
            return Some(Err(RelayError::Late));
        }
        self.deadline_ns = None;
        let length = word(info::MAILBOX_REPLY_BYTES, Ordering::Relaxed);
        let length = length.unwrap_or(u32::MAX) as usize;
        if length > info::MAILBOX_OUT_MAX {
            return Some(Err(RelayError::Nonsense));
        }
        let mut reply = vec![0; length];
        let read = span.skip(info::MAILBOX_OUT).take(length).get(&mut reply);
        Some(read.map(|()| reply).map_err(|_| RelayError::Nonsense))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::DomId;
    use std::sync::Arc;

    /// How often the bell was rung since this was last asked.
    fn rung(port: &Port) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(port.doorbell(), &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    #[test]
    fn who_does_not_reply_is_rung_again_and_then_late() {
        let memory = Arc::new(Memory::create(DomId(1), 1, 0, &[]).unwrap());
        let port = Port::create(Arc::clone(&memory)).unwrap();
        let mut mailbox = Mailbox::default();
        mailbox.send(&memory, &port, b"{}", 1000).unwrap();
        // It is awake, so it was not rung; then its look is missing.
        let look = |mailbox: &mut Mailbox, after| mailbox.poll(&memory, &port, 1000 + after);
        assert_eq!(look(&mut mailbox, AGAIN_NS - 1), None);
        assert_eq!(rung(&port), 0);
        for turn in 1..4 {
            assert_eq!(look(&mut mailbox, turn * AGAIN_NS), None);
            assert_eq!(look(&mut mailbox, turn * AGAIN_NS + 1), None);
            assert_eq!(rung(&port), 1);
        }
        let late = look(&mut mailbox, PATIENCE_NS);
        assert_eq!(late, Some(Err(RelayError::Late)));
        assert!(!mailbox.waits());
        assert_eq!(rung(&port), 0);
    }
}
