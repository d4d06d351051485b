//! Client of the xenstore: sends requests, one at a time, and receives watch events.
//!
//! The daemon may be slow, restart, or never answer. A request fails after `ANSWER_TIMEOUT`; the
//! client recognizes a later answer by its number and drops it.

use super::wire::{HEADER, Header, MessageType, PayloadPart, request, texts};
use crate::dev;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Deadline of an answer to a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of queued events. For further ones, the client records only that they were
/// dropped.
const EVENTS_MAX: usize = 4096;
/// Maximum number of attempts of a transaction that conflicts with others.
const ATTEMPTS: usize = 16;

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The daemon rejected the request, with the name of an errno.
    #[error("the xenstore rejected the request: {0}")]
    Refused(String),
    /// The daemon did not answer in time.
    #[error("the xenstore does not answer")]
    Late,
    /// The daemon sent an invalid message.
    #[error("the xenstore's answer is invalid")]
    Nonsense,
    /// The request is too long.
    #[error("the request is too long for the xenstore")]
    TooLong,
    /// The device failed.
    #[error("the xenstore: {0}")]
    Io(#[from] io::Error),
}

impl StoreError {
    /// Returns whether the node does not exist or is inaccessible to this domain, as the nodes of a
    /// dead guest are in a driver domain.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Refused(errno) if errno == "ENOENT" || errno == "EACCES")
    }

    fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(errno) if errno == "EAGAIN")
    }
}

/// A channel of messages. Each is written as a whole, and read as a header and a payload.
pub trait StoreChannel {
    /// Writes a whole message.
    ///
    /// # Errors
    ///
    /// Returns the device's error.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Waits up to `limit` for a message; returns whether one can be read.
    ///
    /// # Errors
    ///
    /// Returns the device's error.
    fn wait(&mut self, limit: Duration) -> io::Result<bool>;

    /// Fills `bytes` from the next message.
    ///
    /// # Errors
    ///
    /// Returns the device's error.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The kernel's device for the xenstore.
#[derive(Debug)]
pub struct XenBus(File);

impl XenBus {
    /// Opens the device.
    ///
    /// # Errors
    ///
    /// Returns an error if the device does not exist or is inaccessible.
    pub fn open() -> io::Result<Self> {
        dev::open("/dev/xen/xenbus", 0).map(Self)
    }
}

impl AsFd for XenBus {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl StoreChannel for XenBus {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(message)
    }

    fn wait(&mut self, limit: Duration) -> io::Result<bool> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(bytes)
    }
}

/// A client of the xenstore.
#[derive(Debug)]
pub struct Store<C> {
    channel: C,
    number: u32,
    /// Paths of watched nodes that have changed.
    events: VecDeque<String>,
    /// Whether events were dropped because too many were queued.
    overflown: bool,
}

impl<C: StoreChannel> Store<C> {
    /// Returns a client over a channel that nothing else uses.
    pub fn new(channel: C) -> Self {
        Self {
            channel,
            number: 0,
            events: VecDeque::new(),
            overflown: false,
        }
    }

    /// Returns the channel of messages.
    pub fn channel(&self) -> &C {
        &self.channel
    }

    /// Returns the value of a node, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns any other failure.
    pub fn read(&mut self, path: &str) -> Result<Option<String>, StoreError> {
        match self.request(MessageType::Read, 0, &[PayloadPart::Name(path)]) {
            Ok(payload) => Ok(Some(String::from_utf8_lossy(&payload).into_owned())),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the names of a node's children; none if the node does not exist.
    ///
    /// # Errors
    ///
    /// Returns any other failure.
    pub fn list(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        match self.request(MessageType::Directory, 0, &[PayloadPart::Name(path)]) {
            Ok(payload) => Ok(texts(&payload).collect()),
            Err(error) if error.is_gone() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Sets nodes below `base` atomically if `base` still exists, and returns whether it does. So
    /// it never recreates a node that its owner has removed.
    ///
    /// # Errors
    ///
    /// Returns any other failure.
    pub fn write_all(&mut self, base: &str, nodes: &[(&str, String)]) -> Result<bool, StoreError> {
        for _ in 0..ATTEMPTS {
            let transaction = self.begin()?;
            let written = self.write_within(transaction, base, nodes);
            let keep = matches!(written, Ok(true));
            match (self.end(transaction, keep), written) {
                (Err(error), _) if error.is_conflict() => {}
                (Err(error), Ok(_)) => return Err(error),
                (_, outcome) => return outcome,
            }
        }
        Err(StoreError::Refused("EAGAIN".into()))
    }

    fn write_within(
        &mut self,
        transaction: u32,
        base: &str,
        nodes: &[(&str, String)],
    ) -> Result<bool, StoreError> {
        let there = self.request(
            MessageType::Directory,
            transaction,
            &[PayloadPart::Name(base)],
        );
        match there {
            Ok(_) => {}
            Err(error) if error.is_gone() => return Ok(false),
            Err(error) => return Err(error),
        }
        for (name, value) in nodes {
            let path = format!("{base}/{name}");
            self.request(
                MessageType::Write,
                transaction,
                &[PayloadPart::Name(&path), PayloadPart::Value(value)],
            )?;
        }
        Ok(true)
    }

    fn begin(&mut self) -> Result<u32, StoreError> {
        // The payload is an empty text.
        let payload = self.request(MessageType::TransactionStart, 0, &[PayloadPart::Name("")])?;
        let number = texts(&payload).next().and_then(|text| text.parse().ok());
        number
            .filter(|number| *number != 0)
            .ok_or(StoreError::Nonsense)
    }

    fn end(&mut self, transaction: u32, keep: bool) -> Result<(), StoreError> {
        let how = PayloadPart::Name(if keep { "T" } else { "F" });
        self.request(MessageType::TransactionEnd, transaction, &[how])
            .map(drop)
    }

    /// Removes a node and all nodes below it, if it exists.
    ///
    /// # Errors
    ///
    /// Returns an error if the removal failed. A missing node is not an error.
    pub fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        match self.request(MessageType::Remove, 0, &[PayloadPart::Name(path)]) {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }

    /// Watches a node and all nodes below it. From now on [`Store::event`] returns an event for
    /// each change, and one event immediately.
    ///
    /// # Errors
    ///
    /// Returns an error if the node cannot be watched.
    pub fn watch(&mut self, path: &str) -> Result<(), StoreError> {
        self.watching(MessageType::Watch, path)
    }

    /// Ends a watch.
    ///
    /// # Errors
    ///
    /// Returns an error if the node was not watched.
    pub fn unwatch(&mut self, path: &str) -> Result<(), StoreError> {
        self.watching(MessageType::Unwatch, path)
    }

    /// Starts or ends a watch. The path serves as the token, because the client does not need
    /// tokens.
    fn watching(&mut self, kind: MessageType, path: &str) -> Result<(), StoreError> {
        self.request(kind, 0, &[PayloadPart::Name(path), PayloadPart::Name(path)])
            .map(drop)
    }

    /// Returns the path of a watched node that has changed, if any, without waiting.
    ///
    /// # Errors
    ///
    /// Returns the channel's error, or [`StoreError::Nonsense`] if events were dropped.
    pub fn event(&mut self) -> Result<Option<String>, StoreError> {
        while self.channel.wait(Duration::ZERO)? {
            // Drops the answer to a request that has timed out.
            let _ = self.message()?;
        }
        if std::mem::take(&mut self.overflown) {
            self.events.clear();
            return Err(StoreError::Nonsense);
        }
        Ok(self.events.pop_front())
    }

    /// Returns whether [`Store::event`] has events that arrived before an answer, and that the
    /// channel therefore no longer signals.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.overflown || !self.events.is_empty()
    }

    /// Sends a request and waits for its answer.
    fn request(
        &mut self,
        kind: MessageType,
        transaction: u32,
        parts: &[PayloadPart<'_>],
    ) -> Result<Vec<u8>, StoreError> {
        self.number = self.number.wrapping_add(1);
        let message = request(kind, self.number, transaction, parts).ok_or(StoreError::TooLong)?;
        self.channel.send(&message)?;
        let end = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !self.channel.wait(left)? {
                return Err(StoreError::Late);
            }
            let Some((header, payload)) = self.message()? else {
                continue;
            };
            if header.request != self.number {
                continue;
            }
            if header.kind == MessageType::Error as u32 {
                let errno = texts(&payload).next().unwrap_or_default();
                return Err(StoreError::Refused(errno));
            }
            if header.kind != kind as u32 {
                return Err(StoreError::Nonsense);
            }
            return Ok(payload);
        }
    }

    /// Receives the next message. Queues an event and then returns `None`.
    fn message(&mut self) -> Result<Option<(Header, Vec<u8>)>, StoreError> {
        let mut bytes = [0; HEADER];
        self.channel.receive(&mut bytes)?;
        let header = Header::decode(bytes).ok_or(StoreError::Nonsense)?;
        let mut payload = vec![0; header.length as usize];
        self.channel.receive(&mut payload)?;
        if header.kind != MessageType::WatchEvent as u32 {
            return Ok(Some((header, payload)));
        }
        if self.events.len() < EVENTS_MAX {
            self.events.extend(texts(&payload).next());
        } else {
            self.overflown = true;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
