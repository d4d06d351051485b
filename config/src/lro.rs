//! Settings of large receive offload. The file (`[lro]`), the domains' configurations, and
//! `grantway set DOMAIN lro.KEY VALUE` use the same words.

use crate::keywords;
use crate::text::as_text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Settings of large receive offload. In a file they apply to the whole machine, in a domain's
/// configuration to that domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LroConfig {
    /// The place where packets are merged.
    pub at: Placement,
    /// The packets that may be merged.
    pub rules: RulesKey,
    /// Whether PSH ends an aggregate.
    pub psh: PshConfig,
    /// The structure of an aggregate.
    pub buffers: FormKey,
    /// Form in which an aggregate passes the bridge.
    pub backend: AggregateDelivery,
    /// The slot of a ring that stores its segment size.
    pub meta: Meta,
    /// Time for which an aggregate waits for more packets.
    pub flush: FlushConfig,
    /// Maximum number of flows tracked, for each NIC and vif.
    pub flows: u32,
    /// Maximum number of packets in an aggregate.
    pub segments: u32,
}

impl Default for LroConfig {
    fn default() -> Self {
        Self {
            // These rules merge reversibly, so any port may receive the result.
            at: Placement::Physical,
            rules: RulesKey::Gro,
            psh: PshConfig::Flush,
            buffers: FormKey::Skb,
            backend: AggregateDelivery::Scatter,
            meta: Meta::Auto,
            // Adaptive: at a low rate packets pass immediately, at a high rate they wait for more.
            flush: FlushConfig::Adaptive,
            flows: 1024,
            segments: 64,
        }
    }
}

/// The place where packets are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Nowhere: LRO is off.
    None,
    /// In the driver domain, on packets from NICs.
    Physical,
    /// In guests, on packets from netfronts.
    Virtual,
    /// In both.
    Both,
}

impl Placement {
    /// Returns whether the driver domain merges.
    #[must_use]
    pub const fn physical(self) -> bool {
        matches!(self, Self::Physical | Self::Both)
    }

    /// Returns whether guests merge.
    #[must_use]
    pub const fn is_virtual(self) -> bool {
        matches!(self, Self::Virtual | Self::Both)
    }
}

/// The packets that may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesKey {
    /// Only packets that segmentation restores byte for byte, so aggregates may be forwarded.
    Gro,
    /// The rules of Linux' `inet_lro`, which the papers use. Valid only if the guest is the
    /// packets' final receiver.
    Lro,
}

/// Whether PSH ends an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PshConfig {
    /// The packet and its aggregate are passed on immediately.
    Flush,
    /// The packet is merged like any other.
    Merge,
}

/// Structure of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FormKey {
    /// A chain of the packets' buffers.
    Skb,
    /// The first packet's header, and payload fragments.
    Page,
}

/// Form in which an aggregate passes the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AggregateDelivery {
    /// Copied into one buffer first.
    Linearize,
    /// As a chain of buffers.
    Scatter,
}

/// The slot that stores the segment size of a packet to a guest. Negotiated when a connection
/// starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Meta {
    /// As `Request` if LRO holds packets in guests' pages, otherwise as `Response`.
    Auto,
    /// In an extra slot in place of a response, which consumes a request whose buffer stays unused
    /// (netif; Ram's thesis, 5.1).
    Request,
    /// In the packet's first response, if the guest supports it.
    Response,
}

/// Time for which an aggregate waits for more packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushConfig {
    /// Until the end of the poll: `poll`.
    Poll,
    /// Until the end of every n-th poll (delayed aggregation): `da2`.
    Polls(u32),
    /// For this many microseconds: `t50`.
    After(u32),
    /// For a time that depends on the load: `adaptive`.
    Adaptive,
}

/// Valid numbers of polls of [`FlushConfig::Polls`].
const POLLS: std::ops::RangeInclusive<u32> = 2..=1000;
/// Valid times of [`FlushConfig::After`], microseconds.
const HOLD_US: std::ops::RangeInclusive<u32> = 1..=10_000;
/// Valid numbers of tracked flows.
pub(crate) const FLOWS: std::ops::RangeInclusive<u32> = 8..=65_536;
/// Valid numbers of packets in an aggregate, up to the maximum that segmentation creates.
pub(crate) const SEGMENTS: std::ops::RangeInclusive<u32> = 2..=512;

/// The remedy for an invalid [`FlushConfig`].
const FLUSH_REMEDY: &str =
    "write \"poll\", \"da2\" (every second poll), \"t50\" (after 50 µs) or \"adaptive\"";

/// Error: a text is not a [`FlushConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{FLUSH_REMEDY}")]
pub struct InvalidFlush;

impl FromStr for FlushConfig {
    type Err = InvalidFlush;

    fn from_str(text: &str) -> Result<Self, InvalidFlush> {
        let number = |digits: &str, good: &std::ops::RangeInclusive<u32>| {
            let number = digits.parse().ok().filter(|n| good.contains(n));
            // A sign and leading zeros are rejected, so that each value has one form.
            number.filter(|n: &u32| n.to_string() == digits)
        };
        match text {
            "poll" => Ok(Self::Poll),
            "adaptive" => Ok(Self::Adaptive),
            _ => {
                let polls = text.strip_prefix("da").and_then(|n| number(n, &POLLS));
                let us = text.strip_prefix('t').and_then(|n| number(n, &HOLD_US));
                polls
                    .map(Self::Polls)
                    .or(us.map(Self::After))
                    .ok_or(InvalidFlush)
            }
        }
    }
}

impl fmt::Display for FlushConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poll => f.write_str("poll"),
            Self::Polls(polls) => write!(f, "da{polls}"),
            Self::After(us) => write!(f, "t{us}"),
            Self::Adaptive => f.write_str("adaptive"),
        }
    }
}

as_text!(FlushConfig, |_| FLUSH_REMEDY);

/// Keys of [`LroConfig::set`], which can change while traffic runs.
pub const SWITCHES: [&str; 7] = [
    "at", "rules", "psh", "buffers", "backend", "flush", "segments",
];

impl LroConfig {
    /// Longest time for which packets wait if `flush` depends on polls or load, microseconds: the
    /// transmission time of 64 KB at 2.6 Gb/s.
    pub const HOLD_MAX_US: u32 = 200;

    /// Changes the value of a key, named as in a file. On an error, changes nothing.
    ///
    /// # Errors
    ///
    /// Returns the remedy as text if the key or the value is invalid.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let mut new = *self;
        match key {
            "at" => new.at = keywords::read(value)?,
            "rules" => new.rules = keywords::read(value)?,
            "psh" => new.psh = keywords::read(value)?,
            "buffers" => new.buffers = keywords::read(value)?,
            "backend" => new.backend = keywords::read(value)?,
            "flush" => new.flush = value.parse().map_err(|InvalidFlush| FLUSH_REMEDY)?,
            "segments" => new.segments = number(value, &SEGMENTS)?,
            _ => return Err(format!("known here: {}", SWITCHES.join(", "))),
        }
        *self = new;
        Ok(())
    }

    /// Returns the longest time for which a packet waits for more of its stream, microseconds: that
    /// of `flush`, or [`LroConfig::HOLD_MAX_US`] if `flush` depends on polls or load.
    #[must_use]
    pub fn hold_max_us(&self) -> u32 {
        match self.flush {
            FlushConfig::After(us) => us,
            FlushConfig::Poll | FlushConfig::Polls(_) | FlushConfig::Adaptive => Self::HOLD_MAX_US,
        }
    }

    /// Returns whether aggregates must not be forwarded. Those of [`RulesKey::Lro`] cannot be
    /// segmented into the original packets.
    #[must_use]
    pub fn prevents_forwarding(&self) -> bool {
        self.rules == RulesKey::Lro && self.at != Placement::None
    }
}

fn number(value: &str, good: &std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.parse().ok().filter(|n| good.contains(n));
    number.ok_or_else(|| format!("write a number from {} to {}", good.start(), good.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flush_round_trips() {
        for (text, flush) in [
            ("poll", FlushConfig::Poll),
            ("da2", FlushConfig::Polls(2)),
            ("da16", FlushConfig::Polls(16)),
            ("t20", FlushConfig::After(20)),
            ("t50", FlushConfig::After(50)),
            ("adaptive", FlushConfig::Adaptive),
        ] {
            assert_eq!(text.parse(), Ok(flush));
            assert_eq!(flush.to_string(), text);
            let json = serde_json::to_string(&flush).unwrap();
            assert_eq!(serde_json::from_str::<FlushConfig>(&json).unwrap(), flush);
        }
        for text in [
            "", "polls", "da", "da0", "da1", "da02", "da1001", "t", "t0", "t+5", "t20us", "t10001",
        ] {
            assert_eq!(text.parse::<FlushConfig>(), Err(InvalidFlush), "{text}");
        }
    }

    #[test]
    fn set_changes_one_value_and_explains_errors() {
        let mut lro = LroConfig::default();
        for (key, value) in [
            ("at", "both"),
            ("rules", "lro"),
            ("psh", "merge"),
            ("buffers", "page"),
            ("backend", "linearize"),
            ("flush", "da2"),
            ("segments", "32"),
        ] {
            let before = lro;
            assert!(SWITCHES.contains(&key));
            lro.set(key, value).unwrap();
            assert_ne!(lro, before, "{key}");
        }
        let wanted = LroConfig {
            at: Placement::Both,
            rules: RulesKey::Lro,
            psh: PshConfig::Merge,
            buffers: FormKey::Page,
            backend: AggregateDelivery::Linearize,
            meta: Meta::Auto,
            flush: FlushConfig::Polls(2),
            segments: 32,
            flows: 1024,
        };
        assert_eq!(lro, wanted);
        for (key, value, says) in [
            (
                "at",
                "here",
                "write \"none\", \"physical\", \"virtual\" or \"both\"",
            ),
            ("flush", "later", FLUSH_REMEDY),
            ("flush", "t10001", FLUSH_REMEDY),
            ("segments", "1", "write a number from 2 to 512"),
            (
                "flows",
                "8",
                "known here: at, rules, psh, buffers, backend, flush, segments",
            ),
        ] {
            assert_eq!(lro.set(key, value), Err(says.to_owned()));
            assert_eq!(lro, wanted, "{key}");
        }
    }

    #[test]
    fn only_irreversible_merging_prevents_forwarding() {
        let mut lro = LroConfig {
            at: Placement::Physical,
            ..LroConfig::default()
        };
        assert!(!lro.prevents_forwarding());
        lro.rules = RulesKey::Lro;
        assert!(lro.prevents_forwarding());
        lro.at = Placement::None;
        assert!(!lro.prevents_forwarding());
    }

    #[test]
    fn merging_is_in_the_driver_the_guests_or_both() {
        let places = [
            Placement::None,
            Placement::Physical,
            Placement::Virtual,
            Placement::Both,
        ];
        let at = places.map(|at| (at.physical(), at.is_virtual()));
        assert_eq!(
            at,
            [(false, false), (true, false), (false, true), (true, true)]
        );
    }
}
