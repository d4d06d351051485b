//! One client of the control socket. Requests and answers are lines of JSON; the server never
//! blocks on a client.

use crate::access::Right;
use abi::machine::{ConfigValue, ControlRequest};
use abi::reload::REQUEST_MAX;
use rustix::io::Errno;
use serde::Serialize;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Bytes of one read.
const CHUNK: usize = 16 * 1024;
/// Time limit for an idle client, for the receipt of one request, and for an unread answer.
const CLIENT_TIMEOUT_NS: u64 = 60_000_000_000;
/// Time after which a client with an unread answer may be evicted for a new client.
const UNREAD_TIMEOUT_NS: u64 = 1_000_000_000;

/// The event that a client waits for.
#[derive(Debug)]
pub(crate) enum ClientWait {
    /// No event: the client's next line is a request.
    Nothing,
    /// A domain's reply, with this token.
    Reply(u32),
    /// The machine to be complete. The server then serves this request.
    Complete(ControlRequest),
    /// The removal of a guest of the same name. The server then attaches this guest.
    Free(ConfigValue),
    /// An edit, a restart or a reload.
    Change,
    /// The end of the machine.
    End,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    pub(crate) right: Right,
    /// The client's user; `None` for an internal client.
    pub(crate) user: Option<u32>,
    input: Vec<u8>,
    /// Number of bytes of `input` that are known to contain no line end.
    searched: usize,
    output: Vec<u8>,
    sent: usize,
    pub(crate) waits: ClientWait,
    since_ns: u64,
    broken: bool,
    /// Whether the client is a part of this program: it has no deadline and counts towards no
    /// limit.
    pub(crate) is_internal: bool,
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
            waits: ClientWait::Nothing,
            since_ns: now_ns,
            broken: false,
            is_internal: false,
        }
    }

    /// Returns an internal client: a part of this program.
    pub(crate) fn internal(stream: UnixStream) -> Self {
        Self {
            is_internal: true,
            ..Self::new(stream, (Right::Query, None), 0)
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns whether a part of the answer is unsent. The server does not read from the client
    /// until then.
    pub(crate) fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Returns whether the server must close the connection: the client has disconnected or is too
    /// slow.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.broken || self.deadline_ns().is_some_and(|at| now_ns >= at)
    }

    /// Returns the time at which the client counts as too slow, or `None` while it waits for an
    /// event.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let idle = matches!(self.waits, ClientWait::Nothing) && !self.is_internal;
        idle.then(|| self.since_ns.saturating_add(CLIENT_TIMEOUT_NS))
    }

    /// Returns the time from which the client may be evicted for a new client: immediately if it
    /// has sent no complete request, later if it has an unread answer, never while it waits for an
    /// event.
    pub(crate) fn evictable_from_ns(&self) -> Option<u64> {
        let since_ns = self.deadline_ns()?.saturating_sub(CLIENT_TIMEOUT_NS);
        match (self.has_output(), self.line_end()) {
            (true, _) => Some(since_ns.saturating_add(UNREAD_TIMEOUT_NS)),
            (false, None) => Some(since_ns),
            (false, Some(_)) => None,
        }
    }

    /// Returns the position of the first line end in the input.
    fn line_end(&self) -> Option<usize> {
        let rest = self.input.get(self.searched..)?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        Some(self.searched + end)
    }

    /// Returns whether [`Client::next_line`] would return a request.
    pub(crate) fn has_request(&self) -> bool {
        let may_ask = matches!(self.waits, ClientWait::Nothing) && !self.has_output();
        may_ask && self.line_end().is_some()
    }

    /// Returns the token of the pending request.
    pub(crate) fn token(&self) -> Option<u32> {
        match self.waits {
            ClientWait::Reply(token) => Some(token),
            _ => None,
        }
    }

    /// Reads from the client.
    pub(crate) fn receive(&mut self, now_ns: u64) {
        let mut chunk = [0; CHUNK];
        match rustix::io::read(&self.stream, &mut chunk) {
            Ok(0) => self.broken = true,
            Ok(n) => {
                // A request that arrives byte by byte does not extend the deadline.
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

    /// Returns the next request, unless the client waits for an event.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        if !matches!(self.waits, ClientWait::Nothing) || self.has_output() {
            return None;
        }
        let end = self.line_end()?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        self.searched = 0;
        Some(line)
    }

    /// Answers the request.
    pub(crate) fn answer(&mut self, answer: &impl Serialize, now_ns: u64) {
        self.waits = ClientWait::Nothing;
        self.since_ns = now_ns;
        self.output.clear();
        self.sent = 0;
        match serde_json::to_writer(&mut self.output, answer) {
            Ok(()) => self.output.push(b'\n'),
            Err(_) => self.broken = true,
        }
        self.send(now_ns);
    }

    /// Sends the answer until the socket is full.
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
    use rustix::event::PollFlags;
    use std::io::Write;
    use std::net::Shutdown;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Runs the main loop's steps for a client up to `turns` times without waiting. Returns how
    /// often the client's descriptor was ready.
    fn ready_turns(client: &mut Client, turns: usize) -> usize {
        let mut ready = 0;
        for _ in 0..turns {
            let flags = match client.has_output() {
                true => PollFlags::OUT,
                false => PollFlags::IN,
            };
            let sources = [((), client.fd(), flags)];
            if client.is_over(0) || link::wait_for(&sources, Some(0)).is_empty() {
                break;
            }
            ready += 1;
            match client.has_output() {
                true => client.send(0),
                false => client.receive(0),
            }
        }
        ready
    }

    /// The descriptor of a peer that has disconnected is always ready, so the loop must close it
    /// after a few turns in every state.
    #[test]
    fn a_client_that_hangs_up_is_closed_in_any_state() {
        let waits: [fn() -> ClientWait; 3] = [
            || ClientWait::Nothing,
            || ClientWait::Change,
            || ClientWait::End,
        ];
        for waits in waits {
            for sent in [&b""[..], b"{\"op\":", &[b' '; 3 * CHUNK]] {
                let (mut peer, stream) = UnixStream::pair().unwrap();
                stream.set_nonblocking(true).unwrap();
                let mut client = Client::new(stream, (Right::Query, None), 0);
                client.waits = waits();
                peer.write_all(sent).unwrap();
                assert!(ready_turns(&mut client, 100) <= 4);
                assert!(!client.is_over(0));
                // The peer has closed its writing end: no further request can arrive.
                peer.shutdown(Shutdown::Write).unwrap();
                assert_eq!(ready_turns(&mut client, 100), 1);
                assert!(client.is_over(0));
            }
        }
        // A peer that disconnects and leaves an answer unread.
        let (peer, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut client = Client::new(stream, (Right::Query, None), 0);
        client.answer(&"x".repeat(4 << 20), 0);
        assert!(client.has_output());
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(
            ready_turns(&mut client, 100),
            0,
            "it waits for space in the socket"
        );
        drop(peer);
        assert_eq!(ready_turns(&mut client, 100), 1);
        assert!(client.is_over(0));
    }

    #[test]
    fn a_request_byte_by_byte_gets_no_extra_time() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        let mut client = Client::new(stream, (Right::Query, None), 0);
        let mut send = |client: &mut Client, second: u64| {
            peer.write_all(b"{").unwrap();
            client.receive(second * SECOND_NS);
        };
        for second in (50..110).step_by(10) {
            send(&mut client, second);
            assert!(!client.is_over(second * SECOND_NS));
        }
        assert_eq!(client.deadline_ns(), Some(110 * SECOND_NS));
        assert_eq!(client.evictable_from_ns(), Some(50 * SECOND_NS));
        assert!(client.is_over(110 * SECOND_NS));
        // A client that waits for an event has no deadline and is not evicted.
        client.waits = ClientWait::Change;
        assert_eq!(
            (client.deadline_ns(), client.evictable_from_ns()),
            (None, None)
        );
        client.answer(&"done", 200 * SECOND_NS);
        assert_eq!(client.deadline_ns(), Some(260 * SECOND_NS));
    }
}
