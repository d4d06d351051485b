//! Workload, payload direction, and idle state of the cores.

use super::config::ColumnConfig;
use crate::load::TAKE_MAX;
use serde::{Deserialize, Serialize};

/// The workload of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// A TCP stream.
    Stream,
    /// Requests and responses of N bytes, one at a time.
    Requests(usize),
}

impl Workload {
    /// A stream, and requests of the smallest size.
    pub const BOTH: [Self; 2] = [Self::Stream, Self::Requests(1)];
}

/// A web server under an open load, in the guest of every column that measures reception.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Web {
    /// Rates of new connections with one request each, per second. Each rate is one load.
    pub offered: Vec<u32>,
    /// Rates of a short run. Empty: those of a full run.
    #[serde(default)]
    pub quick: Vec<u32>,
    /// Size of the requested file, bytes.
    pub bytes: usize,
}

/// Streams by the buffer size that their receiver passes to the kernel, in the guest of every
/// column that measures reception.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveWorkload {
    /// Buffer sizes in bytes, with one window each.
    pub buffer: Vec<usize>,
    /// Sizes of a short run. Empty: those of a full run.
    #[serde(default)]
    pub quick: Vec<usize>,
}

impl ReceiveWorkload {
    /// Returns the configuration of a stream with this receive buffer.
    #[must_use]
    pub fn config(point: &ColumnConfig, buffer: usize) -> ColumnConfig {
        point.clone().with("buffer", &buffer.to_string())
    }

    /// Validates the buffer sizes.
    pub(super) fn check(&self) -> Result<(), String> {
        let fits = |bytes: &usize| (1..=TAKE_MAX).contains(bytes);
        match !self.buffer.is_empty() && self.buffer.iter().chain(&self.quick).all(fits) {
            true => Ok(()),
            false => Err(format!("receive: `buffer` from 1 to {TAKE_MAX} bytes")),
        }
    }
}

impl Web {
    /// Returns the configuration of a web server at this rate.
    #[must_use]
    pub fn config(point: &ColumnConfig, offered: u32) -> ColumnConfig {
        point.clone().with("offered", &offered.to_string())
    }

    /// Validates the load.
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

/// Direction of the payload, or of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadDirection {
    /// From the wire to the guest.
    ToGuest,
    /// From the guest to the wire.
    FromGuest,
}

impl PayloadDirection {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::ToGuest, Self::FromGuest];

    /// Returns the value of the `dir` key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToGuest => "to_guest",
            Self::FromGuest => "from_guest",
        }
    }
}

/// State of idle cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleState {
    /// Kept from halting.
    Awake,
    /// Halted until an interrupt.
    Halt,
}

impl IdleState {
    /// Returns the value of the `wake` key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Awake => "awake",
            Self::Halt => "halt",
        }
    }
}
