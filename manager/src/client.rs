//! One client of the control socket: lines in, lines out, never waited for.

use crate::access::Right;
use abi::DomId;
use abi::reload::REQUEST_MAX;
use rustix::io::Errno;
use serde::Serialize;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Bytes taken at once.
const CHUNK: usize = 16 * 1024;
/// How long a client may be silent, or leave an answer lying.
const PATIENCE_NS: u64 = 60_000_000_000;

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

    /// When what it waits for is looked at again, if nothing tells before.
    pub(crate) fn again_ns(&self) -> Option<u64> {
        match self.waits {
            Waits::Room(_, at) | Waits::Start(_, _, at) => Some(at),
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
                self.since_ns = now_ns;
                self.input
                    .extend_from_slice(chunk.get(..n).unwrap_or_default());
                if self.input.len() > REQUEST_MAX {
                    self.broken = true;
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
        let end = self.input.iter().position(|&byte| byte == b'\n')?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
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
                Ok(n) => {
                    self.sent += n;
                    self.since_ns = now_ns;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
        self.output = Vec::new();
        self.sent = 0;
    }
}
