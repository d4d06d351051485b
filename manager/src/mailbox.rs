//! A domain's mailbox: a memory file for requests and replies to which only the domain and the
//! manager have access. The domain may write arbitrary bytes there at any time.

use crate::core_error::CoreError;
use abi::layout::mailbox;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// Interval between attempts to wake the domain. On virtual machines, wake-ups were delayed by this
/// time.
const KNOCK_INTERVAL_NS: u64 = 50_000_000;
/// Number of intervals until a request times out, three seconds in total: on virtual machines, some
/// domains waited more than one second for their CPU. The manager counts intervals because the
/// clock also advances while the whole machine is paused.
const TIMEOUT_INTERVALS: u32 = 60;

/// A domain's reply, or the reason why it is missing.
pub(crate) type Reply = Result<Vec<u8>, CoreError>;

/// The result of [`Mailbox::poll`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MailboxEvent {
    Nothing,
    /// The caller must signal the domain again.
    Knock,
    /// The reply to the request with this token.
    Reply(u32, Reply),
}

/// A mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    file: File,
    /// Number of the newest request.
    number: u32,
    /// The pending request.
    pending: Option<MailboxRequest>,
}

#[derive(Clone, Copy, Debug)]
struct MailboxRequest {
    /// `None`: an earlier manager has sent the request.
    token: Option<u32>,
    next_knock_ns: u64,
    /// Remaining intervals until the request times out.
    intervals: u32,
}

impl MailboxRequest {
    fn new(token: Option<u32>, now_ns: u64) -> Self {
        Self {
            token,
            next_knock_ns: now_ns.saturating_add(KNOCK_INTERVAL_NS),
            intervals: TIMEOUT_INTERVALS,
        }
    }
}

impl Mailbox {
    /// Returns the mailbox in `file`, which may contain a request of an earlier manager. A pending
    /// request of an earlier manager has the full timeout.
    pub(crate) fn new(file: OwnedFd, now_ns: u64) -> Self {
        let file = File::from(file);
        let number = word(&file, mailbox::REQUEST);
        let is_pending = number != word(&file, mailbox::REPLY);
        Self {
            file,
            number: number.unwrap_or_default(),
            pending: is_pending.then(|| MailboxRequest::new(None, now_ns)),
        }
    }

    /// Writes a request. The caller must then wake the domain.
    ///
    /// # Errors
    /// Returns an error if another request awaits its reply, or this one is too long.
    pub(crate) fn put(&mut self, token: u32, request: &[u8], now_ns: u64) -> Result<(), CoreError> {
        if self.pending.is_some() {
            let why = "another request awaits the domain's reply; try again".to_owned();
            return Err(CoreError { why, is_busy: true });
        }
        let max = mailbox::IN_MAX;
        if request.len() > max {
            return Err(format!("the request is longer than {max} bytes").into());
        }
        self.number = self.number.wrapping_add(1);
        let number = self.number.to_le_bytes();
        let bytes = (request.len() as u32).to_le_bytes();
        // The number is last, so that a domain that reads it finds the whole request.
        self.write(mailbox::IN, request)
            .and_then(|()| self.write(mailbox::REQUEST_BYTES, &bytes))
            .and_then(|()| self.write(mailbox::REQUEST, &number))
            .map_err(|error| format!("the domain's mailbox: {error}"))?;
        self.pending = Some(MailboxRequest::new(Some(token), now_ns));
        Ok(())
    }

    /// Returns whether a request is pending.
    pub(crate) fn has_pending_request(&self) -> bool {
        self.pending.is_some()
    }

    /// Checks for the reply. Copies its bytes once and checks its length.
    pub(crate) fn poll(&mut self, now_ns: u64) -> MailboxEvent {
        let Some(request) = &mut self.pending else {
            return MailboxEvent::Nothing;
        };
        let reply = match word(&self.file, mailbox::REPLY) == Some(self.number) {
            true => read(&self.file).ok_or("the domain's reply is invalid"),
            false if now_ns < request.next_knock_ns => return MailboxEvent::Nothing,
            false if request.intervals > 1 => {
                request.next_knock_ns = now_ns.saturating_add(KNOCK_INTERVAL_NS);
                request.intervals -= 1;
                return MailboxEvent::Knock;
            }
            false => Err("the domain did not reply within three seconds"),
        };
        let token = request.token;
        self.pending = None;
        let reply = reply.map_err(|why| why.to_owned().into());
        token.map_or(MailboxEvent::Nothing, |token| {
            MailboxEvent::Reply(token, reply)
        })
    }

    /// Returns the token of the pending request after its domain has exited.
    pub(crate) fn end(self) -> Option<u32> {
        self.pending?.token
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        // Two calls, because the seccomp filter does not allow `pwrite`.
        self.file.seek(SeekFrom::Start(at as u64))?;
        self.file.write_all(bytes)
    }
}

fn word(file: &File, at: usize) -> Option<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at as u64).ok()?;
    Some(u32::from_le_bytes(bytes))
}

fn read(file: &File) -> Option<Vec<u8>> {
    let length = word(file, mailbox::REPLY_BYTES)? as usize;
    let mut reply = vec![0; (length <= mailbox::OUT_MAX).then_some(length)?];
    file.read_exact_at(&mut reply, mailbox::OUT as u64).ok()?;
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a mailbox and the domain's view of it.
    fn mailbox() -> (Mailbox, File) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(mailbox::BYTES as u64).unwrap();
        let ours = file.try_clone().unwrap();
        (Mailbox::new(ours.into(), 0), file)
    }

    fn set(domain: &File, at: usize, value: u32) {
        domain
            .write_all_at(&value.to_le_bytes(), at as u64)
            .unwrap();
    }

    fn reply(domain: &File, number: u32, text: &[u8], claimed: u32) {
        domain.write_all_at(text, mailbox::OUT as u64).unwrap();
        set(domain, mailbox::REPLY_BYTES, claimed);
        set(domain, mailbox::REPLY, number);
    }

    fn refused(why: &str) -> Reply {
        Err(why.to_owned().into())
    }

    #[test]
    fn a_request_gets_one_reply() {
        let (mut mailbox, domain) = mailbox();
        mailbox.put(7, b"{}", 0).unwrap();
        let mut bytes = [0; 2];
        domain
            .read_exact_at(&mut bytes, mailbox::IN as u64)
            .unwrap();
        let words = [mailbox::REQUEST, mailbox::REQUEST_BYTES].map(|at| word(&domain, at));
        assert_eq!((&bytes, words), (b"{}", [Some(1), Some(2)]));
        let busy = mailbox.put(8, b"{}", 1).unwrap_err();
        assert!(busy.is_busy, "{busy:?}");
        reply(&domain, 1, b"yes", 3);
        assert_eq!(mailbox.poll(1), MailboxEvent::Reply(7, Ok(b"yes".to_vec())));
        assert_eq!(mailbox.poll(2), MailboxEvent::Nothing);
        mailbox.put(9, b"{}", 3).unwrap();
        assert_eq!(mailbox.end(), Some(9));
    }

    #[test]
    fn a_silent_domain_is_knocked_at_until_it_times_out() {
        let (mut mailbox, _domain) = mailbox();
        mailbox.put(7, b"{}", 1000).unwrap();
        let three_seconds = 1000 + 3_000_000_000;
        for now in (1000 + KNOCK_INTERVAL_NS..three_seconds).step_by(KNOCK_INTERVAL_NS as usize) {
            assert_eq!(mailbox.poll(now - 1), MailboxEvent::Nothing);
            assert_eq!(mailbox.poll(now), MailboxEvent::Knock);
        }
        assert_eq!(mailbox.poll(three_seconds - 1), MailboxEvent::Nothing);
        let late = refused("the domain did not reply within three seconds");
        assert_eq!(mailbox.poll(three_seconds), MailboxEvent::Reply(7, late));
        assert!(!mailbox.has_pending_request());
    }

    #[test]
    fn no_domain_times_out_while_the_machine_is_paused() {
        let (mut mailbox, domain) = mailbox();
        mailbox.put(7, b"{}", 0).unwrap();
        let an_hour_later = 3_600_000_000_000;
        assert_eq!(mailbox.poll(an_hour_later), MailboxEvent::Knock);
        reply(&domain, 1, b"yes", 3);
        let yes = MailboxEvent::Reply(7, Ok(b"yes".to_vec()));
        assert_eq!(mailbox.poll(an_hour_later + 1), yes);
    }

    #[test]
    fn oversized_requests_and_invalid_replies_fail() {
        let (mut mailbox, domain) = mailbox();
        let long = mailbox
            .put(1, &vec![b' '; mailbox::IN_MAX + 1], 0)
            .unwrap_err();
        assert!(long.why.contains("longer than 118784 bytes"), "{long:?}");
        for (number, claimed) in [(1, u32::MAX), (2, mailbox::OUT_MAX as u32 + 1)] {
            mailbox
                .put(number, &vec![b' '; mailbox::IN_MAX], 0)
                .unwrap();
            reply(&domain, number, b"", claimed);
            let nonsense = refused("the domain's reply is invalid");
            assert_eq!(mailbox.poll(0), MailboxEvent::Reply(number, nonsense));
        }
        // A reply may fill the whole mailbox.
        mailbox.put(3, b"", 0).unwrap();
        reply(&domain, 3, b"", mailbox::OUT_MAX as u32);
        let all = vec![0; mailbox::OUT_MAX];
        assert_eq!(mailbox.poll(0), MailboxEvent::Reply(3, Ok(all)));
    }

    #[test]
    fn a_request_survives_a_new_manager() {
        let (mut before, domain) = mailbox();
        before.put(7, b"{}", 0).unwrap();
        let next = |now| Mailbox::new(domain.try_clone().unwrap().into(), now);
        let mut mailbox = next(1000);
        assert!(mailbox.put(1, b"{}", 1000).unwrap_err().is_busy);
        for pause in 1..u64::from(TIMEOUT_INTERVALS) {
            assert_eq!(
                mailbox.poll(1000 + pause * KNOCK_INTERVAL_NS),
                MailboxEvent::Knock
            );
        }
        let late = 1000 + u64::from(TIMEOUT_INTERVALS) * KNOCK_INTERVAL_NS;
        assert_eq!(mailbox.poll(late), MailboxEvent::Nothing);
        mailbox.put(1, b"{}", late).unwrap();
        assert_eq!(word(&domain, mailbox::REQUEST), Some(2));
        let mut mailbox = next(1000);
        reply(&domain, 2, b"late", 4);
        assert_eq!(mailbox.poll(1001), MailboxEvent::Nothing);
        mailbox.put(1, b"{}", 1002).unwrap();
        assert_eq!(word(&domain, mailbox::REQUEST), Some(3));
    }
}
