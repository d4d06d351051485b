//! What runs, which way payload goes, and what idle cores do.

use super::config::Config;
use crate::load::TAKE_MAX;
use serde::{Deserialize, Serialize};

/// What runs in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// A TCP stream.
    Stream,
    /// Requests and responses of so many bytes, one at a time.
    Requests(usize),
}

impl Workload {
    /// A stream, and the smallest requests.
    pub const BOTH: [Self; 2] = [Self::Stream, Self::Requests(1)];
}

/// A web server under an open load, in the guest of every column that receives.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Web {
    /// Connections that are begun a second, a load for each; one request each.
    pub offered: Vec<u32>,
    /// Those of a short run; none: the same.
    #[serde(default)]
    pub quick: Vec<u32>,
    /// Bytes of the file that is asked for.
    pub bytes: usize,
}

/// A stream by the buffer that its receiver hands to the kernel, in the guest of every column that
/// receives.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receive {
    /// Bytes of the buffer, a window for each.
    pub buffer: Vec<usize>,
    /// Those of a short run; none: the same.
    #[serde(default)]
    pub quick: Vec<usize>,
}

impl Receive {
    /// The configuration of a stream with a buffer.
    #[must_use]
    pub fn by(stop: &Config, buffer: usize) -> Config {
        stop.clone().with("buffer", &buffer.to_string())
    }

    /// Says what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let fits = |bytes: &usize| (1..=TAKE_MAX).contains(bytes);
        match !self.buffer.is_empty() && self.buffer.iter().chain(&self.quick).all(fits) {
            true => Ok(()),
            false => Err(format!("receive: `buffer` from 1 to {TAKE_MAX} bytes")),
        }
    }
}

impl Web {
    /// The configuration of a web server under a load.
    #[must_use]
    pub fn asked(stop: &Config, offered: u32) -> Config {
        stop.clone().with("offered", &offered.to_string())
    }

    /// Says what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let rates = 1..=100_000;
        let mut all = self.offered.iter().chain(&self.quick);
        if self.offered.is_empty() || !all.all(|rate| rates.contains(rate)) {
            return Err("web: `offered` from 1 to 100000 connections a second".to_owned());
        }
        if !(1..=1 << 20).contains(&self.bytes) {
            return Err("web: `bytes` from 1 to 1048576".to_owned());
        }
        Ok(())
    }
}

/// Which way payload goes. In request and response: which way requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the wire to the guest.
    ToGuest,
    /// From the guest to the wire.
    FromGuest,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::ToGuest, Self::FromGuest];

    /// Its name as a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToGuest => "to_guest",
            Self::FromGuest => "from_guest",
        }
    }
}

/// What the cores do while no process needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wake {
    /// They are kept from halting.
    Awake,
    /// They halt, and are woken by an interrupt.
    Halt,
}

impl Wake {
    /// Its name as a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Awake => "awake",
            Self::Halt => "halt",
        }
    }
}
