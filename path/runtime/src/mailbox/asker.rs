//! The other end of a domain's mailbox, for a program that is monitor and domain in one.

use abi::layout::{info, mailbox};
use shmem::Span;
use shmem::home::Home;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the domain may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks for the answer.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Asks one domain, one request at a time.
#[derive(Debug)]
pub struct Asker {
    info: Span,
    mailbox: Span,
    number: u32,
}

impl Asker {
    /// Asks the domain whose memory this is.
    #[must_use]
    pub fn new(home: &Home) -> Self {
        let (info, mailbox, number) = (home.info.span(), home.mailbox.span(), 0);
        Self {
            info,
            mailbox,
            number,
        }
    }

    /// Asks; `ring` wakes the domain.
    ///
    /// # Errors
    /// It does not answer, or cannot be asked that much.
    pub fn ask(&mut self, request: &[u8], ring: impl FnOnce()) -> Result<Vec<u8>, String> {
        if request.len() > mailbox::IN_MAX {
            return Err("the request is longer than the mailbox".to_owned());
        }
        self.number = self.number.wrapping_add(1);
        self.post(request, ring)
            .unwrap_or_else(|| Err("there is no mailbox".to_owned()))
    }

    /// None: there is no mailbox.
    fn post(&self, request: &[u8], ring: impl FnOnce()) -> Option<Result<Vec<u8>, String>> {
        let word = |offset| self.mailbox.u32(offset);
        self.mailbox.skip(mailbox::IN).write(request).ok()?;
        word(mailbox::REQUEST_BYTES)?.store(request.len() as u32, Ordering::Relaxed);
        // Release: the thread that sees the number sees the request.
        word(mailbox::REQUEST)?.store(self.number, Ordering::Release);
        self.info
            .u32(info::PENDING)?
            .fetch_or(info::PENDING_MAILBOX, Ordering::Release);
        ring();
        let end = Instant::now() + PATIENCE;
        while word(mailbox::REPLY)?.load(Ordering::Acquire) != self.number {
            if Instant::now() > end {
                return Some(Err("it does not answer".to_owned()));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let bytes = word(mailbox::REPLY_BYTES)?.load(Ordering::Relaxed) as usize;
        let mut reply = vec![0; bytes.min(mailbox::OUT_MAX)];
        self.mailbox.skip(mailbox::OUT).read(&mut reply).ok()?;
        Some(Ok(reply))
    }
}
