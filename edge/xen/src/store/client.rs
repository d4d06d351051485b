//! Requests to the xenstore, one at a time, and the changes of what is watched.
//!
//! The daemon may be slow, be started again, or never answer. A request waits `PATIENCE` and then
//! fails; an answer that comes later is known by its number and thrown away.

use super::wire::{HEADER, Header, Kind, Part, request, texts};
use crate::dev;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long a request waits for its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Changes that wait to be asked for; of more than these it is only known that there were some.
const EVENTS_MAX: usize = 4096;
/// How often a transaction that met another one is tried.
const ATTEMPTS: usize = 16;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The daemon refused: an errno by its name.
    #[error("the xenstore refuses: {0}")]
    Refused(String),
    /// The daemon did not answer in time.
    #[error("the xenstore does not answer")]
    Late,
    /// What came makes no sense.
    #[error("the xenstore's answer makes no sense")]
    Nonsense,
    /// The request is longer than any may be.
    #[error("too long for the xenstore")]
    TooLong,
    /// The device failed.
    #[error("the xenstore: {0}")]
    Io(#[from] io::Error),
}

impl StoreError {
    /// Whether the node is not there, or not for this domain: in a driver domain the nodes of a
    /// guest that has died are such.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Refused(errno) if errno == "ENOENT" || errno == "EACCES")
    }

    fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(errno) if errno == "EAGAIN")
    }
}

/// What carries messages: each is written as a whole, and read as header and payload.
pub trait Channel {
    /// Writes a whole message.
    ///
    /// # Errors
    /// The device's.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Waits until a message can be read; whether one can, within `limit`.
    ///
    /// # Errors
    /// The device's.
    fn wait(&mut self, limit: Duration) -> io::Result<bool>;

    /// Fills `bytes` from the message that waits.
    ///
    /// # Errors
    /// The device's.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The kernel's device for the xenstore.
#[derive(Debug)]
pub struct XenBus(File);

impl XenBus {
    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or not for us.
    pub fn open() -> io::Result<Self> {
        dev::open("/dev/xen/xenbus", 0).map(Self)
    }
}

impl AsFd for XenBus {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel for XenBus {
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
    /// Whether there were more than can wait.
    overflown: bool,
}

impl<C: Channel> Store<C> {
    /// A client over a channel that nobody else uses.
    pub fn new(channel: C) -> Self {
        Self {
            channel,
            number: 0,
            events: VecDeque::new(),
            overflown: false,
        }
    }

    /// What carries the messages.
    pub fn channel(&self) -> &C {
        &self.channel
    }

    /// The value of a node; none if it is gone.
    ///
    /// # Errors
    /// Any but that.
    pub fn read(&mut self, path: &str) -> Result<Option<String>, StoreError> {
        match self.ask(Kind::Read, 0, &[Part::Name(path)]) {
            Ok(payload) => Ok(Some(String::from_utf8_lossy(&payload).into_owned())),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names of a node's children; none of a node that is gone.
    ///
    /// # Errors
    /// Any but that.
    pub fn list(&mut self, path: &str) -> Result<Vec<String>, StoreError> {
        match self.ask(Kind::Directory, 0, &[Part::Name(path)]) {
            Ok(payload) => Ok(texts(&payload).collect()),
            Err(error) if error.is_gone() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Sets nodes below `base`, all at once, if `base` is there still: whether it is. A node that
    /// its owner has removed does not come back so.
    ///
    /// # Errors
    /// Any but that.
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
        let there = self.ask(Kind::Directory, transaction, &[Part::Name(base)]);
        match there {
            Ok(_) => {}
            Err(error) if error.is_gone() => return Ok(false),
            Err(error) => return Err(error),
        }
        for (name, value) in nodes {
            let path = format!("{base}/{name}");
            self.ask(
                Kind::Write,
                transaction,
                &[Part::Name(&path), Part::Value(value)],
            )?;
        }
        Ok(true)
    }

    fn begin(&mut self) -> Result<u32, StoreError> {
        // Its payload is an empty text.
        let payload = self.ask(Kind::TransactionStart, 0, &[Part::Name("")])?;
        let number = texts(&payload).next().and_then(|text| text.parse().ok());
        number
            .filter(|number| *number != 0)
            .ok_or(StoreError::Nonsense)
    }

    fn end(&mut self, transaction: u32, keep: bool) -> Result<(), StoreError> {
        let how = Part::Name(if keep { "T" } else { "F" });
        self.ask(Kind::TransactionEnd, transaction, &[how])
            .map(drop)
    }

    /// Removes a node and all below it, if it is there.
    ///
    /// # Errors
    /// Any but that it is gone.
    pub fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        match self.ask(Kind::Remove, 0, &[Part::Name(path)]) {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }

    /// From now on [`Store::event`] tells about changes of a node and below it, and once at once.
    ///
    /// # Errors
    /// The node cannot be watched.
    pub fn watch(&mut self, path: &str) -> Result<(), StoreError> {
        self.watching(Kind::Watch, path)
    }

    /// The contrary of [`Store::watch`].
    ///
    /// # Errors
    /// It was not watched.
    pub fn unwatch(&mut self, path: &str) -> Result<(), StoreError> {
        self.watching(Kind::Unwatch, path)
    }

    /// The token is the path: nothing is told apart by it.
    fn watching(&mut self, kind: Kind, path: &str) -> Result<(), StoreError> {
        self.ask(kind, 0, &[Part::Name(path), Part::Name(path)])
            .map(drop)
    }

    /// The path of something watched that has changed, if anything has, without waiting.
    ///
    /// # Errors
    /// The channel's. [`StoreError::Nonsense`]: there were more changes than could be kept.
    pub fn event(&mut self) -> Result<Option<String>, StoreError> {
        while self.channel.wait(Duration::ZERO)? {
            // An answer to a request that was given up.
            let _ = self.message()?;
        }
        if std::mem::take(&mut self.overflown) {
            self.events.clear();
            return Err(StoreError::Nonsense);
        }
        Ok(self.events.pop_front())
    }

    /// Whether [`Store::event`] has something that came between the answers to requests: the
    /// channel shows nothing of it any more.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.overflown || !self.events.is_empty()
    }

    /// Makes a request and waits for its answer.
    fn ask(
        &mut self,
        kind: Kind,
        transaction: u32,
        parts: &[Part<'_>],
    ) -> Result<Vec<u8>, StoreError> {
        self.number = self.number.wrapping_add(1);
        let message = request(kind, self.number, transaction, parts).ok_or(StoreError::TooLong)?;
        self.channel.send(&message)?;
        let end = Instant::now() + PATIENCE;
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
            if header.kind == Kind::Error as u32 {
                let errno = texts(&payload).next().unwrap_or_default();
                return Err(StoreError::Refused(errno));
            }
            if header.kind != kind as u32 {
                return Err(StoreError::Nonsense);
            }
            return Ok(payload);
        }
    }

    /// The next message, which waits; none: it was an event, and is kept.
    fn message(&mut self) -> Result<Option<(Header, Vec<u8>)>, StoreError> {
        let mut bytes = [0; HEADER];
        self.channel.receive(&mut bytes)?;
        let header = Header::decode(bytes).ok_or(StoreError::Nonsense)?;
        let mut payload = vec![0; header.length as usize];
        self.channel.receive(&mut payload)?;
        if header.kind != Kind::WatchEvent as u32 {
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
