//! One client of the control socket: lines in, lines out, never waited for.

use crate::access::Right;
use abi::DomId;
use abi::machine::{Control, Setting};
use abi::reload::REQUEST_MAX;
use rustix::io::Errno;
use serde::Serialize;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Bytes taken at once.
const CHUNK: usize = 16 * 1024;
/// How long a client may be silent, take for a request, or leave an answer unread.
const PATIENCE_NS: u64 = 60_000_000_000;
/// How long a client may leave an answer unread before it yields its place to a newcomer.
const UNREAD_NS: u64 = 1_000_000_000;

/// A request that is passed on to a domain.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    pub(crate) to: DomId,
    pub(crate) request: Vec<u8>,
    /// Until when it waits for room in the domain's mailbox.
    pub(crate) until_ns: u64,
}

/// What a client waits for.
#[derive(Debug)]
pub(crate) enum Waits {
    /// Nothing: the next line is a request.
    Nothing,
    /// Room in a domain's mailbox: it is tried again at the time given.
    Room(Relay, u64),
    /// A domain's reply, which comes under this token.
    Reply(Relay, u32),
    /// A domain's next start, by its place in the machine and its starts before, until the time
    /// given.
    Start(usize, u64, u64),
    /// The machine, which is not complete yet: then this request is seen to.
    Complete(Control),
    /// The end of a guest of the same name, until the time given: then this guest is attached.
    Free(Setting, u64),
    /// A guest that comes or goes, or several: their attach, detach or reload answers.
    Change,
    /// The end of everything.
    End,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    pub(crate) right: Right,
    /// The user that it is; none: a part of this program.
    pub(crate) user: Option<u32>,
    input: Vec<u8>,
    /// Bytes of `input` that are known to have no end of a line.
    searched: usize,
    output: Vec<u8>,
    sent: usize,
    pub(crate) waits: Waits,
    since_ns: u64,
    broken: bool,
    /// Whether it is a part of this program: it may be silent for as long as it likes, and does not
    /// count among the clients.
    pub(crate) stays: bool,
}

impl Client {
    pub(crate) fn new(
        stream: UnixStream,
        (right, user): (Right, Option<u32>),
        now_ns: u64,
    ) -> Self {
        Self {
            stream,
            right,
            user,
            input: Vec::new(),
            searched: 0,
            output: Vec::new(),
            sent: 0,
            waits: Waits::Nothing,
            since_ns: now_ns,
            broken: false,
            stays: false,
        }
    }

    /// A part of this program.
    pub(crate) fn staying(stream: UnixStream) -> Self {
        Self {
            stays: true,
            ..Self::new(stream, (Right::Look, None), 0)
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether it has an answer to take; else it is listened to.
    pub(crate) fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Whether it is over with it: gone, broken, or too slow.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.broken || self.deadline_ns().is_some_and(|at| now_ns >= at)
    }

    /// When it becomes too slow; never while it is we who are waited for.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let idle = matches!(self.waits, Waits::Nothing) && !self.stays;
        idle.then(|| self.since_ns.saturating_add(PATIENCE_NS))
    }

    /// Returns the time from which it yields its place to a newcomer: at once while it has no
    /// whole request here, later while it has an answer to read, never while it waits for us.
    pub(crate) fn yields_ns(&self) -> Option<u64> {
        let since_ns = self.deadline_ns()?.saturating_sub(PATIENCE_NS);
        match (self.has_output(), self.line_end()) {
            (true, _) => Some(since_ns.saturating_add(UNREAD_NS)),
            (false, None) => Some(since_ns),
            (false, Some(_)) => None,
        }
    }

    /// The place of the first end of a line in what it has sent.
    fn line_end(&self) -> Option<usize> {
        let rest = self.input.get(self.searched..)?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        Some(self.searched + end)
    }

    /// Whether [`Client::next_line`] returns a request.
    pub(crate) fn has_request(&self) -> bool {
        let may_ask = matches!(self.waits, Waits::Nothing) && !self.has_output();
        may_ask && self.line_end().is_some()
    }

    /// When what it waits for is looked at again, if nothing tells before.
    pub(crate) fn again_ns(&self) -> Option<u64> {
        match self.waits {
            Waits::Room(_, at) | Waits::Start(_, _, at) | Waits::Free(_, at) => Some(at),
            _ => None,
        }
    }

    /// The token of the answer that it waits for.
    pub(crate) fn token(&self) -> Option<u32> {
        match self.waits {
            Waits::Reply(_, token) => Some(token),
            _ => None,
        }
    }

    /// Takes what it has sent.
    pub(crate) fn receive(&mut self, now_ns: u64) {
        let mut chunk = [0; CHUNK];
        match rustix::io::read(&self.stream, &mut chunk) {
            Ok(0) => self.broken = true,
            Ok(n) => {
                // Who sends a request byte by byte has no more time for it.
                if self.input.is_empty() {
                    self.since_ns = now_ns;
                }
                self.input
                    .extend_from_slice(chunk.get(..n).unwrap_or_default());
                if self.input.len() > REQUEST_MAX {
                    self.broken = true;
                }
                if self.line_end().is_none() {
                    self.searched = self.input.len();
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.broken = true,
        }
    }

    /// The next request, if it waits for nothing.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        if !matches!(self.waits, Waits::Nothing) || self.has_output() {
            return None;
        }
        let end = self.line_end()?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        self.searched = 0;
        Some(line)
    }

    /// Answers its request.
    pub(crate) fn answer(&mut self, answer: &impl Serialize, now_ns: u64) {
        self.waits = Waits::Nothing;
        self.since_ns = now_ns;
        self.output.clear();
        self.sent = 0;
        match serde_json::to_writer(&mut self.output, answer) {
            Ok(()) => self.output.push(b'\n'),
            Err(_) => self.broken = true,
        }
        self.send(now_ns);
    }

    /// Sends as much as it takes.
    pub(crate) fn send(&mut self, now_ns: u64) {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.stream, rest, flags) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
        self.since_ns = now_ns;
        self.output = Vec::new();
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_request_that_comes_byte_by_byte_has_its_time_and_no_more() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        let mut client = Client::new(stream, (Right::Look, None), 0);
        let mut send = |client: &mut Client, second: u64| {
            peer.write_all(b"{").unwrap();
            client.receive(second * SECOND_NS);
        };
        for second in (50..110).step_by(10) {
            send(&mut client, second);
            assert!(!client.is_over(second * SECOND_NS));
        }
        assert_eq!(client.deadline_ns(), Some(110 * SECOND_NS));
        assert_eq!(client.yields_ns(), Some(50 * SECOND_NS));
        assert!(client.is_over(110 * SECOND_NS));
        // Who waits for us yields to nobody.
        client.waits = Waits::Change;
        assert_eq!((client.deadline_ns(), client.yields_ns()), (None, None));
        client.answer(&"done", 200 * SECOND_NS);
        assert_eq!(client.deadline_ns(), Some(260 * SECOND_NS));
    }
}
