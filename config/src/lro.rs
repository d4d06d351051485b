//! Large receive offload: what can be chosen about it. The same words in the file (`[lro]`), in
//! what domains are told, and in `grantway set DOMAIN lro.KEY VALUE`.

use crate::words;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Large receive offload, of the whole machine in a file, of one domain in what it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lro {
    /// Where packets are merged.
    pub at: At,
    /// Which packets may be merged.
    pub rules: Rules,
    /// Whether PSH ends an aggregate.
    pub psh: Psh,
    /// What an aggregate is made of.
    pub buffers: Form,
    /// How it goes over the bridge.
    pub backend: Backend,
    /// Where its segment size travels on a ring.
    pub meta: Meta,
    /// How long it waits for more.
    pub flush: Flush,
    /// Flows that are followed at once, for each NIC and vif.
    pub flows: u32,
    /// Packets of an aggregate.
    pub segments: u32,
}

impl Default for Lro {
    fn default() -> Self {
        Self {
            // What these rules merge can be cut again, so it may go to anybody.
            at: At::Physical,
            rules: Rules::Gro,
            psh: Psh::Flush,
            buffers: Form::Skb,
            backend: Backend::Scatter,
            meta: Meta::Response,
            // What is sparse goes on at once, what is dense waits for more.
            flush: Flush::Adaptive,
            flows: 1024,
            segments: 64,
        }
    }
}

/// Where packets are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum At {
    /// Nowhere.
    None,
    /// In the driver domain, as NICs yield them.
    Physical,
    /// In guests, as netfronts yield them.
    Virtual,
    /// In both.
    Both,
}

impl At {
    /// Whether the driver domain merges.
    #[must_use]
    pub const fn physical(self) -> bool {
        matches!(self, Self::Physical | Self::Both)
    }

    /// Whether guests merge.
    #[must_use]
    pub const fn is_virtual(self) -> bool {
        matches!(self, Self::Virtual | Self::Both)
    }
}

/// Which packets may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rules {
    /// Only those that segmentation gives back byte for byte, so aggregates may be forwarded.
    Gro,
    /// As Linux' `inet_lro` did (the papers): only where the guest is the packets' last receiver.
    Lro,
}

/// Whether PSH ends an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Psh {
    /// Such a packet takes the aggregate with it at once.
    Flush,
    /// It is merged like any other.
    Merge,
}

/// What an aggregate is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Every packet's buffer, one behind the other.
    Skb,
    /// The first packet's header, and payload fragments.
    Page,
}

/// How an aggregate goes over the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Copied into one buffer before.
    Linearize,
    /// As the chain of buffers that it is.
    Scatter,
}

/// Where the segment size of a packet to a guest travels. Agreed on at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Meta {
    /// In the place of a response, so that a request is consumed whose buffer is not used (netif;
    /// Ram's thesis, 5.1).
    Request,
    /// In the packet's first response, if the guest can read it there.
    Response,
}

/// How long an aggregate waits for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Flush {
    /// To the end of the poll: `poll`.
    Poll,
    /// To the end of every n-th poll (delayed aggregation): `da2`.
    Polls(u32),
    /// For this many microseconds: `t50`.
    After(u32),
    /// As long as it pays at the load that there is: `adaptive`.
    Adaptive,
}

/// Polls that [`Flush::Polls`] may wait for.
const POLLS: std::ops::RangeInclusive<u32> = 2..=1000;
/// Microseconds that [`Flush::After`] may wait for.
const HOLD_US: std::ops::RangeInclusive<u32> = 1..=10_000;
/// Flows that may be followed.
pub(crate) const FLOWS: std::ops::RangeInclusive<u32> = 8..=65_536;
/// Packets that an aggregate may have: as many as segmentation makes of one.
pub(crate) const SEGMENTS: std::ops::RangeInclusive<u32> = 2..=512;

/// What [`Flush`] is written like.
pub(crate) const FLUSH_REMEDY: &str =
    "write \"poll\", \"da2\" (every second poll), \"t50\" (after 50 µs) or \"adaptive\"";

/// A word that [`Flush`] does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{FLUSH_REMEDY}")]
pub struct NotAFlush;

impl FromStr for Flush {
    type Err = NotAFlush;

    fn from_str(text: &str) -> Result<Self, NotAFlush> {
        let number = |digits: &str, good: &std::ops::RangeInclusive<u32>| {
            let number = digits.parse().ok().filter(|n| good.contains(n));
            // No sign, no leading zeros: one way to write each.
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
                    .ok_or(NotAFlush)
            }
        }
    }
}

impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poll => f.write_str("poll"),
            Self::Polls(polls) => write!(f, "da{polls}"),
            Self::After(us) => write!(f, "t{us}"),
            Self::Adaptive => f.write_str("adaptive"),
        }
    }
}

impl TryFrom<String> for Flush {
    type Error = NotAFlush;

    fn try_from(text: String) -> Result<Self, NotAFlush> {
        text.parse()
    }
}

impl From<Flush> for String {
    fn from(flush: Flush) -> Self {
        flush.to_string()
    }
}

/// What can be changed while traffic runs: keys of [`Lro::set`].
pub const SWITCHES: [&str; 7] = [
    "at", "rules", "psh", "buffers", "backend", "flush", "segments",
];

impl Lro {
    /// Microseconds that packets wait at the most where `flush` goes by polls or by load: as long
    /// as 64 KB take at 2.6 Gb/s.
    pub const HOLD_MAX_US: u32 = 200;

    /// Changes one value by the key that it has in a file; nothing is changed if it is wrong.
    ///
    /// # Errors
    /// What is wrong with key or value, and what would be right.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let mut new = *self;
        match key {
            "at" => new.at = word(value)?,
            "rules" => new.rules = word(value)?,
            "psh" => new.psh = word(value)?,
            "buffers" => new.buffers = word(value)?,
            "backend" => new.backend = word(value)?,
            "flush" => {
                new.flush = value
                    .parse()
                    .map_err(|wrong: NotAFlush| wrong.to_string())?
            }
            "segments" => new.segments = number(value, &SEGMENTS)?,
            _ => return Err(format!("known here: {}", SWITCHES.join(", "))),
        }
        *self = new;
        Ok(())
    }

    /// Microseconds that no packet waits longer for more of its stream: as long as `flush` says, or
    /// [`Lro::HOLD_MAX_US`] where it goes by polls or by load.
    #[must_use]
    pub fn hold_max_us(&self) -> u32 {
        match self.flush {
            Flush::After(us) => us,
            Flush::Poll | Flush::Polls(_) | Flush::Adaptive => Self::HOLD_MAX_US,
        }
    }

    /// Whether what it merges must not be forwarded: what [`Rules::Lro`] merges cannot be cut into
    /// what it was.
    #[must_use]
    pub fn spoils_forwarding(&self) -> bool {
        self.rules == Rules::Lro && self.at != At::None
    }
}

fn word<T: DeserializeOwned>(value: &str) -> Result<T, String> {
    words::read(value).map_err(|unknown| unknown.to_string())
}

fn number(value: &str, good: &std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.parse().ok().filter(|n| good.contains(n));
    number.ok_or_else(|| format!("write a number from {} to {}", good.start(), good.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flush_is_read_as_it_is_written() {
        for (text, flush) in [
            ("poll", Flush::Poll),
            ("da2", Flush::Polls(2)),
            ("da16", Flush::Polls(16)),
            ("t20", Flush::After(20)),
            ("t50", Flush::After(50)),
            ("adaptive", Flush::Adaptive),
        ] {
            assert_eq!(text.parse(), Ok(flush));
            assert_eq!(flush.to_string(), text);
            let json = serde_json::to_string(&flush).unwrap();
            assert_eq!(serde_json::from_str::<Flush>(&json).unwrap(), flush);
        }
        for text in [
            "", "polls", "da", "da0", "da1", "da02", "da1001", "t", "t0", "t+5", "t20us", "t10001",
        ] {
            assert_eq!(text.parse::<Flush>(), Err(NotAFlush), "{text}");
        }
    }

    #[test]
    fn switches_change_one_thing_and_say_what_is_right() {
        let mut lro = Lro::default();
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
        let wanted = Lro {
            at: At::Both,
            rules: Rules::Lro,
            psh: Psh::Merge,
            buffers: Form::Page,
            backend: Backend::Linearize,
            meta: Meta::Response,
            flush: Flush::Polls(2),
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
    fn only_what_merges_irreversibly_spoils_forwarding() {
        let mut lro = Lro {
            at: At::Physical,
            ..Lro::default()
        };
        assert!(!lro.spoils_forwarding());
        lro.rules = Rules::Lro;
        assert!(lro.spoils_forwarding());
        lro.at = At::None;
        assert!(!lro.spoils_forwarding());
    }

    #[test]
    fn places_are_the_driver_s_the_guests_or_both() {
        let places = [At::None, At::Physical, At::Virtual, At::Both];
        let at = places.map(|at| (at.physical(), at.is_virtual()));
        assert_eq!(
            at,
            [(false, false), (true, false), (false, true), (true, true)]
        );
    }
}
