//! A domain's mailbox: a memory file for requests and replies to which only the domain and the
//! manager have access. The domain may write arbitrary bytes there at any time.

use crate::core_error::CoreError;
use abi::layout::mailbox;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// Interval between notifications, to wake the domain. On virtual machines, wake-ups were
/// delayed by this time.
const NOTIFY_INTERVAL_NS: u64 = 50_000_000;
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
    NotifyDomain,
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
    /// Later requests, in the order in which they were sent. Each client and each call of the
    /// manager has at most one.
    queue: VecDeque<QueuedRequest>,
}

/// A request that waits for the domain's replies to earlier ones.
#[derive(Debug)]
struct QueuedRequest {
    token: u32,
    request: Vec<u8>,
    /// Deadline for these replies; `None`: the request waits until the domain exits.
    until_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct MailboxRequest {
    /// `None`: an earlier manager has sent the request.
    token: Option<u32>,
    next_notify_ns: u64,
    /// Remaining intervals until the request times out.
    intervals: u32,
}

impl MailboxRequest {
    fn new(token: Option<u32>, now_ns: u64) -> Self {
        Self {
            token,
            next_notify_ns: now_ns.saturating_add(NOTIFY_INTERVAL_NS),
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
            queue: VecDeque::new(),
        }
    }

    /// Writes a request, or queues it while another one awaits its reply. [`Mailbox::poll`] writes
    /// queued requests in their order, and fails those whose deadlines pass first. Returns whether
    /// the caller must notify the domain.
    ///
    /// # Errors
    /// Returns an error if the request is too long.
    pub(crate) fn put(
        &mut self,
        token: u32,
        request: &[u8],
        until_ns: Option<u64>,
        now_ns: u64,
    ) -> Result<bool, CoreError> {
        let max = mailbox::IN_MAX;
        if request.len() > max {
            return Err(format!("the request is longer than {max} bytes").into());
        }
        if self.pending.is_some() {
            self.queue.push_back(QueuedRequest {
                token,
                request: request.to_owned(),
                until_ns,
            });
            return Ok(false);
        }
        self.write_request(token, request, now_ns)?;
        Ok(true)
    }

    fn write_request(&mut self, token: u32, request: &[u8], now_ns: u64) -> Result<(), CoreError> {
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

    /// Drops queued requests whose replies no caller awaits any longer.
    pub(crate) fn retain_queued(&mut self, is_awaited: impl Fn(u32) -> bool) {
        self.queue.retain(|queued| is_awaited(queued.token));
    }

    /// Checks for the reply, or writes the next request. Copies a reply's bytes once and checks
    /// their length. The caller repeats the call after a reply.
    pub(crate) fn poll(&mut self, now_ns: u64) -> MailboxEvent {
        let Some(request) = &mut self.pending else {
            return self.write_next(now_ns);
        };
        let reply = match word(&self.file, mailbox::REPLY) == Some(self.number) {
            true => read(&self.file).ok_or("the domain's reply is invalid"),
            false if now_ns < request.next_notify_ns => return self.refuse_late(now_ns),
            false if request.intervals > 1 => {
                request.next_notify_ns = now_ns.saturating_add(NOTIFY_INTERVAL_NS);
                request.intervals -= 1;
                return MailboxEvent::NotifyDomain;
            }
            false => Err("the domain did not reply within three seconds"),
        };
        let token = request.token;
        self.pending = None;
        let reply = reply.map_err(|why| why.to_owned().into());
        match token {
            Some(token) => MailboxEvent::Reply(token, reply),
            None => self.write_next(now_ns),
        }
    }

    /// Writes the next queued request, even if its deadline has just passed.
    fn write_next(&mut self, now_ns: u64) -> MailboxEvent {
        let Some(QueuedRequest { token, request, .. }) = self.queue.pop_front() else {
            return MailboxEvent::Nothing;
        };
        match self.write_request(token, &request, now_ns) {
            Ok(()) => MailboxEvent::NotifyDomain,
            Err(error) => MailboxEvent::Reply(token, Err(error)),
        }
    }

    /// Fails a queued request whose deadline has passed.
    fn refuse_late(&mut self, now_ns: u64) -> MailboxEvent {
        let is_late = |queued: &QueuedRequest| queued.until_ns.is_some_and(|at| at <= now_ns);
        let late = self.queue.iter().position(is_late);
        match late.and_then(|place| self.queue.remove(place)) {
            Some(QueuedRequest { token, .. }) => {
                let why = "the domain has not replied to earlier requests in time; try again";
                MailboxEvent::Reply(token, Err(why.to_owned().into()))
            }
            None => MailboxEvent::Nothing,
        }
    }

    /// Returns the tokens of all requests without a reply, after their domain has exited.
    pub(crate) fn end(self) -> impl Iterator<Item = u32> {
        let pending = self.pending.and_then(|request| request.token);
        let queued = self.queue.into_iter().map(|queued| queued.token);
        pending.into_iter().chain(queued)
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
        assert!(mailbox.put(7, b"{}", None, 0).unwrap());
        let mut bytes = [0; 2];
        domain
            .read_exact_at(&mut bytes, mailbox::IN as u64)
            .unwrap();
        let words = [mailbox::REQUEST, mailbox::REQUEST_BYTES].map(|at| word(&domain, at));
        assert_eq!((&bytes, words), (b"{}", [Some(1), Some(2)]));
        reply(&domain, 1, b"yes", 3);
        assert_eq!(mailbox.poll(1), MailboxEvent::Reply(7, Ok(b"yes".to_vec())));
        assert_eq!(mailbox.poll(2), MailboxEvent::Nothing);
    }

    #[test]
    fn requests_wait_for_their_turn_in_order() {
        let (mut mailbox, domain) = mailbox();
        assert!(mailbox.put(7, b"first", None, 0).unwrap());
        for (token, text) in [(8, "second"), (9, "unsent"), (10, "third!"), (11, "fourth")] {
            let is_sent = mailbox.put(token, text.as_bytes(), Some(100), 0);
            assert!(!is_sent.unwrap());
        }
        mailbox.retain_queued(|token| token != 9);
        for (number, token, next) in [(1, 7, &b"second"[..]), (2, 8, b"third!")] {
            reply(&domain, number, b"yes", 3);
            let yes = MailboxEvent::Reply(token, Ok(b"yes".to_vec()));
            assert_eq!(mailbox.poll(1), yes);
            assert_eq!(mailbox.poll(1), MailboxEvent::NotifyDomain);
            let mut bytes = [0; 6];
            domain
                .read_exact_at(&mut bytes, mailbox::IN as u64)
                .unwrap();
            assert_eq!(bytes, next);
        }
        assert_eq!(mailbox.end().collect::<Vec<_>>(), [10, 11]);
    }

    #[test]
    fn a_request_waits_until_its_deadline() {
        let (mut mailbox, domain) = mailbox();
        mailbox.put(7, b"{}", None, 0).unwrap();
        for (token, until_ns) in [(8, Some(200)), (9, None), (10, Some(100)), (11, Some(300))] {
            mailbox.put(token, b"{}", until_ns, 0).unwrap();
        }
        let MailboxEvent::Reply(10, Err(error)) = mailbox.poll(100) else {
            panic!("the request waits after its deadline");
        };
        assert!(error.why.contains("in time; try again"), "{error:?}");
        assert_eq!(mailbox.poll(199), MailboxEvent::Nothing);
        assert!(matches!(mailbox.poll(200), MailboxEvent::Reply(8, Err(_))));
        assert_eq!(mailbox.poll(200), MailboxEvent::Nothing);
        // The turn of a request is in time if the earlier requests have their replies.
        for (number, token) in [(1, 7), (2, 9)] {
            reply(&domain, number, b"", 0);
            assert_eq!(
                mailbox.poll(400),
                MailboxEvent::Reply(token, Ok(Vec::new()))
            );
            assert_eq!(mailbox.poll(400), MailboxEvent::NotifyDomain);
        }
        assert_eq!(mailbox.end().collect::<Vec<_>>(), [11]);
    }

    #[test]
    fn a_silent_domain_is_notified_until_it_times_out() {
        let (mut mailbox, _domain) = mailbox();
        mailbox.put(7, b"{}", None, 1000).unwrap();
        let three_seconds = 1000 + 3_000_000_000;
        for now in (1000 + NOTIFY_INTERVAL_NS..three_seconds).step_by(NOTIFY_INTERVAL_NS as usize) {
            assert_eq!(mailbox.poll(now - 1), MailboxEvent::Nothing);
            assert_eq!(mailbox.poll(now), MailboxEvent::NotifyDomain);
        }
        assert_eq!(mailbox.poll(three_seconds - 1), MailboxEvent::Nothing);
        let late = refused("the domain did not reply within three seconds");
        assert_eq!(mailbox.poll(three_seconds), MailboxEvent::Reply(7, late));
        assert!(!mailbox.has_pending_request());
    }

    #[test]
    fn no_domain_times_out_while_the_machine_is_paused() {
        let (mut mailbox, domain) = mailbox();
        mailbox.put(7, b"{}", None, 0).unwrap();
        let an_hour_later = 3_600_000_000_000;
        assert_eq!(mailbox.poll(an_hour_later), MailboxEvent::NotifyDomain);
        reply(&domain, 1, b"yes", 3);
        let yes = MailboxEvent::Reply(7, Ok(b"yes".to_vec()));
        assert_eq!(mailbox.poll(an_hour_later + 1), yes);
    }

    #[test]
    fn oversized_requests_and_invalid_replies_fail() {
        let (mut mailbox, domain) = mailbox();
        let long = mailbox
            .put(1, &vec![b' '; mailbox::IN_MAX + 1], None, 0)
            .unwrap_err();
        assert!(long.why.contains("longer than 118784 bytes"), "{long:?}");
        for (number, claimed) in [(1, u32::MAX), (2, mailbox::OUT_MAX as u32 + 1)] {
            mailbox
                .put(number, &vec![b' '; mailbox::IN_MAX], None, 0)
                .unwrap();
            reply(&domain, number, b"", claimed);
            let nonsense = refused("the domain's reply is invalid");
            assert_eq!(mailbox.poll(0), MailboxEvent::Reply(number, nonsense));
        }
        // A reply may fill the whole mailbox.
        mailbox.put(3, b"", None, 0).unwrap();
        reply(&domain, 3, b"", mailbox::OUT_MAX as u32);
        let all = vec![0; mailbox::OUT_MAX];
        assert_eq!(mailbox.poll(0), MailboxEvent::Reply(3, Ok(all)));
    }

    #[test]
    fn a_request_survives_a_new_manager() {
        let (mut before, domain) = mailbox();
        before.put(7, b"{}", None, 0).unwrap();
        let next = |now| Mailbox::new(domain.try_clone().unwrap().into(), now);
        let mut mailbox = next(1000);
        assert!(!mailbox.put(1, b"{}", None, 1000).unwrap());
        for pause in 1..u64::from(TIMEOUT_INTERVALS) {
            assert_eq!(
                mailbox.poll(1000 + pause * NOTIFY_INTERVAL_NS),
                MailboxEvent::NotifyDomain
            );
        }
        let late = 1000 + u64::from(TIMEOUT_INTERVALS) * NOTIFY_INTERVAL_NS;
        assert_eq!(mailbox.poll(late), MailboxEvent::NotifyDomain);
        assert_eq!(word(&domain, mailbox::REQUEST), Some(2));
        let mut mailbox = next(1000);
        reply(&domain, 2, b"late", 4);
        assert_eq!(mailbox.poll(1001), MailboxEvent::Nothing);
        assert!(mailbox.put(1, b"{}", None, 1002).unwrap());
        assert_eq!(word(&domain, mailbox::REQUEST), Some(3));
    }
}
