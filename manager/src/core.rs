//! The manager's end of the link to the core.

pub(crate) use crate::core_error::CoreError;
use crate::mailbox::{Mailbox, MailboxEvent, Reply};
use abi::DomId;
use abi::core::{CoreMessage, CoreRequest, Record};
use link::{Link, LinkError, Received, sealed};
use rustix::event::PollFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum bytes of a refusal's text.
const WHY_MAX: usize = 1 << 20;
/// Interval of checks for replies of domains, which make no descriptor readable.
const POLL_INTERVAL_NS: u64 = 500_000;

/// A successful answer: a number and descriptors.
#[derive(Debug)]
pub(crate) struct CoreAnswer {
    pub(crate) value: u64,
    pub(crate) fds: Vec<OwnedFd>,
}

impl CoreAnswer {
    /// Returns the bytes of the first descriptor.
    pub(crate) fn bytes(&self, max: usize) -> Result<Vec<u8>, CoreError> {
        let beside = self
            .fds
            .first()
            .ok_or("the core's answer has no data".to_owned())?;
        Ok(sealed::read(beside, max).map_err(|e| e.to_string())?)
    }
}

fn not_running() -> CoreError {
    CoreError::from("the domain is not running".to_owned())
}

pub(crate) type CoreResult = Result<CoreAnswer, CoreError>;

/// The link to the core, and the mailboxes of the domains.
#[derive(Debug)]
pub(crate) struct CoreLink {
    link: Link,
    tokens: u32,
    /// Reports of the core, in order.
    news: VecDeque<(CoreMessage, Vec<OwnedFd>)>,
    /// Answers that the caller has not taken yet, by token.
    answers: BTreeMap<u32, CoreResult>,
    /// Mailboxes of the running domains.
    mailboxes: BTreeMap<DomId, Mailbox>,
    /// Replies of domains that the caller has not taken yet, by token.
    replies: BTreeMap<u32, Reply>,
    /// Whether the core has exited.
    is_gone: bool,
}

impl CoreLink {
    pub(crate) fn new(link: Link) -> Self {
        Self {
            link,
            tokens: 0,
            news: VecDeque::new(),
            answers: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            replies: BTreeMap::new(),
            is_gone: false,
        }
    }

    /// Returns a descriptor that is readable when the core has sent a message.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Returns whether the core has exited, and every domain with it.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_gone
    }

    /// Sends a request. Returns the token of its answer.
    pub(crate) fn post(&mut self, message: CoreRequest, fds: &[BorrowedFd<'_>]) -> u32 {
        let token = self.token();
        let record = Record { token, message };
        while !self.is_gone {
            match self.link.send(&record, fds) {
                Ok(()) => break,
                // The core may be blocked until its reports are received.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.link.wait(PollFlags::IN | PollFlags::OUT, None);
                    self.receive_messages();
                }
                Err(_) => self.is_gone = true,
            }
        }
        token
    }

    fn token(&mut self) -> u32 {
        self.tokens = self.tokens.wrapping_add(1).max(1);
        self.tokens
    }

    /// Adds the mailbox of a running domain.
    pub(crate) fn add_mailbox(&mut self, domain: DomId, mailbox: OwnedFd, now_ns: u64) {
        // Fails pending requests to an earlier domain with this id.
        self.remove_mailbox(domain);
        let mailbox = Mailbox::new(mailbox, now_ns);
        self.mailboxes.insert(domain, mailbox);
    }

    /// Removes the mailbox of a domain that has exited, and fails its pending requests.
    pub(crate) fn remove_mailbox(&mut self, domain: DomId) {
        let mailbox = self.mailboxes.remove(&domain);
        for token in mailbox.into_iter().flat_map(Mailbox::end) {
            self.replies.insert(token, Err(not_running()));
        }
    }

    /// Sends a request to a domain after its reply to earlier ones, for which the request waits
    /// until `until_ns`. Returns the token of its reply.
    pub(crate) fn relay(
        &mut self,
        domain: DomId,
        request: &[u8],
        until_ns: Option<u64>,
        now_ns: u64,
    ) -> u32 {
        let token = self.token();
        let mailbox = self.mailboxes.get_mut(&domain);
        let put = mailbox.map(|mailbox| mailbox.put(token, request, until_ns, now_ns));
        match put.unwrap_or_else(|| Err(not_running())) {
            Ok(true) => drop(self.post(CoreRequest::NotifyMailbox { domain }, &[])),
            Ok(false) => {}
            Err(refusal) => drop(self.replies.insert(token, Err(refusal))),
        }
        token
    }

    /// Checks all mailboxes for replies, and sends the next requests.
    pub(crate) fn poll_mailboxes(&mut self, now_ns: u64) {
        let mut to_notify = Vec::new();
        for (domain, mailbox) in &mut self.mailboxes {
            loop {
                match mailbox.poll(now_ns) {
                    MailboxEvent::Nothing => break,
                    MailboxEvent::NotifyDomain => {
                        to_notify.push(*domain);
                        break;
                    }
                    MailboxEvent::Reply(token, reply) => drop(self.replies.insert(token, reply)),
                }
            }
        }
        for domain in to_notify {
            self.post(CoreRequest::NotifyMailbox { domain }, &[]);
        }
    }

    /// Returns the time of the next check for replies, or `None` if no request is pending.
    pub(crate) fn next_poll_ns(&self, now_ns: u64) -> Option<u64> {
        let is_pending = self.mailboxes.values().any(Mailbox::has_pending_request);
        is_pending.then(|| now_ns.saturating_add(POLL_INTERVAL_NS))
    }

    /// Takes a domain's reply, or returns `None` if it has not arrived.
    pub(crate) fn reply(&mut self, token: u32) -> Option<Reply> {
        self.replies.remove(&token)
    }

    /// Sends a request that the core answers immediately, and waits for the answer. Use
    /// [`CoreLink::post`] for requests that the core forwards to netd, because netd may take long.
    pub(crate) fn request(&mut self, message: CoreRequest, fds: &[BorrowedFd<'_>]) -> CoreResult {
        let token = self.post(message, fds);
        self.await_answer(token)
    }

    /// Like [`CoreLink::request`], with additional bytes in a sealed memory file.
    pub(crate) fn request_with(&mut self, message: CoreRequest, bytes: &[u8]) -> CoreResult {
        let token = self.post_with(message, bytes)?;
        self.await_answer(token)
    }

    /// Like [`CoreLink::post`], with additional bytes in a sealed memory file.
    pub(crate) fn post_with(
        &mut self,
        message: CoreRequest,
        bytes: &[u8],
    ) -> Result<u32, CoreError> {
        let beside = sealed::write("beside", bytes).map_err(|e| e.to_string())?;
        Ok(self.post(message, &[beside.as_fd()]))
    }

    /// Waits for the answer to a request.
    pub(crate) fn await_answer(&mut self, token: u32) -> CoreResult {
        loop {
            if let Some(answer) = self.answers.remove(&token) {
                return answer;
            }
            if self.is_gone {
                return Err("the core has exited".to_owned().into());
            }
            self.link.wait(PollFlags::IN, None);
            self.receive_messages();
        }
    }

    /// Takes the answer to a request, or returns `None` if it has not arrived.
    pub(crate) fn answer(&mut self, token: u32) -> Option<CoreResult> {
        self.answers.remove(&token)
    }

    /// Returns whether the core's answer or a domain's reply has arrived.
    pub(crate) fn has_answer(&self, token: u32) -> bool {
        self.answers.contains_key(&token) || self.replies.contains_key(&token)
    }

    /// Returns whether a report is queued.
    pub(crate) fn has_report(&self) -> bool {
        !self.news.is_empty()
    }

    /// Drops answers, replies and queued requests to domains that no caller awaits any longer.
    pub(crate) fn retain_answers(&mut self, is_awaited: impl Fn(u32) -> bool) {
        self.answers.retain(|token, _| is_awaited(*token));
        self.replies.retain(|token, _| is_awaited(*token));
        for mailbox in self.mailboxes.values_mut() {
            mailbox.retain_queued(&is_awaited);
        }
    }

    /// Receives all messages that the core has sent.
    pub(crate) fn receive_messages(&mut self) {
        loop {
            match self.link.receive::<CoreMessage>() {
                Ok(Some(received)) => self.store(received),
                Ok(None) => return,
                Err(error) => {
                    if !matches!(error, LinkError::Closed) {
                        eprintln!("grantway-manager: the link to the core: {error}");
                    }
                    self.is_gone = true;
                    return;
                }
            }
        }
    }

    fn store(&mut self, received: Received<CoreMessage>) {
        let Received { record, fds } = received;
        let answer = match record.message {
            CoreMessage::Done { value } => Ok(CoreAnswer { value, fds }),
            CoreMessage::Refused { is_busy } => {
                let why = fds.first().map(|fd| sealed::read(fd, WHY_MAX));
                let why = why.and_then(Result::ok).unwrap_or_default();
                let why = String::from_utf8_lossy(&why).into_owned();
                Err(CoreError { why, is_busy })
            }
            news => return self.news.push_back((news, fds)),
        };
        self.answers.insert(record.token, answer);
    }

    /// Takes the next report.
    pub(crate) fn take_report(&mut self) -> Option<(CoreMessage, Vec<OwnedFd>)> {
        self.news.pop_front()
    }

    /// Waits for the next report. Returns `None` if the core exits first.
    pub(crate) fn next_report(&mut self) -> Option<(CoreMessage, Vec<OwnedFd>)> {
        while self.news.is_empty() && !self.is_gone {
            self.link.wait(PollFlags::IN, None);
            self.receive_messages();
        }
        self.take_report()
    }
}
