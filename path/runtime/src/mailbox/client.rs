//! The client end of a domain's mailbox, for a program that is both monitor and domain.

use abi::layout::{info, mailbox};
use shmem::Span;
use shmem::domain_memory::DomainMemory;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of polling for the answer.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Sends requests to one domain, one at a time.
#[derive(Debug)]
pub struct MailboxClient {
    info: Span,
    mailbox: Span,
    number: u32,
}

impl MailboxClient {
    /// Creates a client for the domain with this memory.
    #[must_use]
    pub fn new(domain_memory: &DomainMemory) -> Self {
        let (info, mailbox, number) = (domain_memory.info.span(), domain_memory.mailbox.span(), 0);
        Self {
            info,
            mailbox,
            number,
        }
    }

    /// Sends a request, wakes the domain with `ring`, and returns the reply.
    ///
    /// # Errors
    /// Returns an error if the domain does not answer, or the request is too long.
    pub fn request(&mut self, request: &[u8], ring: impl FnOnce()) -> Result<Vec<u8>, String> {
        if request.len() > mailbox::IN_MAX {
            return Err("the request is longer than the mailbox".to_owned());
        }
        self.number = self.number.wrapping_add(1);
        self.post(request, ring)
            .unwrap_or_else(|| Err("the domain has no mailbox".to_owned()))
    }

    /// Writes a request and waits for the reply. Returns `None` if the domain has no mailbox.
    fn post(&self, request: &[u8], ring: impl FnOnce()) -> Option<Result<Vec<u8>, String>> {
        let word = |offset| self.mailbox.u32(offset);
        self.mailbox.skip(mailbox::IN).write(request).ok()?;
        word(mailbox::REQUEST_BYTES)?.store(request.len() as u32, Ordering::Relaxed);
        // Release ensures that a thread that reads the number also reads the request.
        word(mailbox::REQUEST)?.store(self.number, Ordering::Release);
        self.info
            .u32(info::PENDING)?
            .fetch_or(info::PENDING_MAILBOX, Ordering::Release);
        ring();
        let end = Instant::now() + ANSWER_TIMEOUT;
        while word(mailbox::REPLY)?.load(Ordering::Acquire) != self.number {
            if Instant::now() > end {
                return Some(Err("the domain does not answer".to_owned()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let bytes = word(mailbox::REPLY_BYTES)?.load(Ordering::Relaxed) as usize;
        let mut reply = vec![0; bytes.min(mailbox::OUT_MAX)];
        self.mailbox.skip(mailbox::OUT).read(&mut reply).ok()?;
        Some(Ok(reply))
    }
}
