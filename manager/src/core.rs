//! The manager's end of the link to the core.

use crate::mailbox::{MailTurn, Mailbox, Reply};
pub(crate) use crate::refusal::Refusal;
use abi::DomId;
use abi::core::{Ask, Record, Tell};
use link::{Link, LinkError, Received, sealed};
use rustix::event::PollFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a refusal's words.
const WHY_MAX: usize = 1 << 20;
/// How often a reply is looked for, which makes no descriptor readable.
const LOOK_NS: u64 = 500_000;

/// What was asked for: a number, and what travelled beside it.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) value: u64,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Done {
    /// The bytes beside the answer.
    pub(crate) fn bytes(&self, max: usize) -> Result<Vec<u8>, Refusal> {
        let beside = self
            .fds
            .first()
            .ok_or("the core has sent no bytes".to_owned())?;
        Ok(sealed::read(beside, max).map_err(|e| e.to_string())?)
    }
}

fn not_running() -> Refusal {
    Refusal::from("the domain is not running".to_owned())
}

pub(crate) type Answer = Result<Done, Refusal>;

/// The core.
#[derive(Debug)]
pub(crate) struct Core {
    link: Link,
    tokens: u32,
    /// What the core has told of itself, in order.
    news: VecDeque<(Tell, Vec<OwnedFd>)>,
    /// Answers that nobody has taken yet.
    answers: BTreeMap<u32, Answer>,
    /// Of the domains that run.
    mailboxes: BTreeMap<DomId, Mailbox>,
    /// The same of what domains were asked.
    replies: BTreeMap<u32, Reply>,
    /// Whether it is gone.
    is_gone: bool,
}

impl Core {
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

    /// Readable when there is something to take.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Whether it is gone, and with it every domain.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Asks for something; its answer comes under the token that this returns.
    pub(crate) fn post(&mut self, message: Ask, fds: &[BorrowedFd<'_>]) -> u32 {
        let token = self.token();
        let record = Record { token, message };
        while !self.is_gone {
            match self.link.send(&record, fds) {
                Ok(()) => break,
                // It may wait for us to take what it has told.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.link.wait(PollFlags::IN | PollFlags::OUT, None);
                    self.take();
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

    /// A domain runs, and this is its mailbox.
    pub(crate) fn meet(&mut self, domain: DomId, mailbox: OwnedFd, now_ns: u64) {
        // What an earlier domain of this id was asked.
        self.part(domain);
        let mailbox = Mailbox::new(mailbox, now_ns);
        self.mailboxes.insert(domain, mailbox);
    }

    /// A domain has ended: it replies nothing any more.
    pub(crate) fn part(&mut self, domain: DomId) {
        let mailbox = self.mailboxes.remove(&domain);
        if let Some(token) = mailbox.and_then(Mailbox::end) {
            self.replies.insert(token, Err(not_running()));
        }
    }

    /// Asks a domain; its reply comes under the token that this returns.
    pub(crate) fn relay(&mut self, domain: DomId, request: &[u8], now_ns: u64) -> u32 {
        let token = self.token();
        let mailbox = self.mailboxes.get_mut(&domain);
        let put = mailbox.map(|mailbox| mailbox.put(token, request, now_ns));
        match put.unwrap_or_else(|| Err(not_running())) {
            Ok(()) => drop(self.post(Ask::Knock { domain }, &[])),
            Err(refusal) => drop(self.replies.insert(token, Err(refusal))),
        }
        token
    }

    /// Looks for replies.
    pub(crate) fn look(&mut self, now_ns: u64) {
        let mut knocks = Vec::new();
        for (domain, mailbox) in &mut self.mailboxes {
            match mailbox.turn(now_ns) {
                MailTurn::Nothing => {}
                MailTurn::Knock => knocks.push(*domain),
                MailTurn::Reply(token, reply) => drop(self.replies.insert(token, reply)),
            }
        }
        for domain in knocks {
            self.post(Ask::Knock { domain }, &[]);
        }
    }

    /// When to look for replies next.
    pub(crate) fn look_ns(&self, now_ns: u64) -> Option<u64> {
        let waits = self.mailboxes.values().any(Mailbox::waits);
        waits.then(|| now_ns.saturating_add(LOOK_NS))
    }

    /// The reply to what a domain was asked, if it is there.
    pub(crate) fn reply(&mut self, token: u32) -> Option<Reply> {
        self.replies.remove(&token)
    }

    /// Asks for something and waits for the answer. The core answers at once, and what netd has a
    /// part in when that has done it.
    pub(crate) fn ask(&mut self, message: Ask, fds: &[BorrowedFd<'_>]) -> Answer {
        let token = self.post(message, fds);
        self.await_answer(token)
    }

    /// The same, with bytes beside the ask.
    pub(crate) fn ask_with(&mut self, message: Ask, bytes: &[u8]) -> Answer {
        let token = self.post_with(message, bytes)?;
        self.await_answer(token)
    }

    /// As [`Core::post`], with bytes beside the ask.
    pub(crate) fn post_with(&mut self, message: Ask, bytes: &[u8]) -> Result<u32, Refusal> {
        let beside = sealed::write("beside", bytes).map_err(|e| e.to_string())?;
        Ok(self.post(message, &[beside.as_fd()]))
    }

    /// Waits for the answer to what was asked.
    pub(crate) fn await_answer(&mut self, token: u32) -> Answer {
        loop {
            if let Some(answer) = self.answers.remove(&token) {
                return answer;
            }
            if self.is_gone {
                return Err("the core is gone".to_owned().into());
            }
            self.link.wait(PollFlags::IN, None);
            self.take();
        }
    }

    /// The answer to what was asked, if it is there.
    pub(crate) fn answer(&mut self, token: u32) -> Option<Answer> {
        self.answers.remove(&token)
    }

    /// Whether the answer to what was asked is there.
    pub(crate) fn has_answer(&self, token: u32) -> bool {
        self.answers.contains_key(&token) || self.replies.contains_key(&token)
    }

    /// Whether there is something that the core has told of itself.
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Answers that nobody waits for any more are forgotten.
    pub(crate) fn forget_but(&mut self, is_waited_for: impl Fn(u32) -> bool) {
        self.answers.retain(|token, _| is_waited_for(*token));
        self.replies.retain(|token, _| is_waited_for(*token));
    }

    /// Takes everything that is there.
    pub(crate) fn take(&mut self) {
        loop {
            match self.link.receive::<Tell>() {
                Ok(Some(received)) => self.keep(received),
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

    fn keep(&mut self, received: Received<Tell>) {
        let Received { record, fds } = received;
        let answer = match record.message {
            Tell::Done { value } => Ok(Done { value, fds }),
            Tell::Refused { is_busy } => {
                let why = fds.first().map(|fd| sealed::read(fd, WHY_MAX));
                let why = why.and_then(Result::ok).unwrap_or_default();
                let why = String::from_utf8_lossy(&why).into_owned();
                Err(Refusal { why, is_busy })
            }
            news => return self.news.push_back((news, fds)),
        };
        self.answers.insert(record.token, answer);
    }

    /// What the core has told of itself next.
    pub(crate) fn news(&mut self) -> Option<(Tell, Vec<OwnedFd>)> {
        self.news.pop_front()
    }

    /// Waits for what the core tells first.
    pub(crate) fn first(&mut self) -> Option<(Tell, Vec<OwnedFd>)> {
        while self.news.is_empty() && !self.is_gone {
            self.link.wait(PollFlags::IN, None);
            self.take();
        }
        self.news()
    }
}
