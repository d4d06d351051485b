//! A probe, which sends a datagram every millisecond from one namespace to another. One helper
//! process has a socket in each, so that both ends use the same clock.

use crate::ns;
use anyhow::Context as _;
use figures::helper::{self, LineChild};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between datagrams.
const PERIOD: Duration = Duration::from_millis(1);
/// Number of recent datagrams that are recorded. An older one is a duplicate or ten seconds late.
const REMEMBERED: u64 = 10_000;
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSpec {
    /// Namespace of the sender.
    pub from: PathBuf,
    /// Namespace of the receiver.
    pub to: PathBuf,
    /// Address of the receiver.
    pub address: SocketAddr,
}

/// Results since the last mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probed {
    /// Number of sent datagrams.
    pub sent: u64,
    /// Number of received datagrams, without duplicates.
    pub received: u64,
    /// Number of duplicate datagrams.
    pub duplicates: u64,
    /// Longest time between the arrivals of two datagrams, nanoseconds.
    pub longest_ns: u64,
    /// Time since the last datagram arrived, nanoseconds.
    pub silent_ns: u64,
}

impl Probed {
    /// Returns these results combined with later ones.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            sent: self.sent + later.sent,
            received: self.received + later.received,
            duplicates: self.duplicates + later.duplicates,
            longest_ns: self.longest_ns.max(later.longest_ns),
            silent_ns: later.silent_ns,
        }
    }
}

/// One-way delays, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeTimes {
    /// Median.
    pub p50_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// A running probe.
#[derive(Debug)]
pub struct Probe(LineChild);

impl Probe {
    /// Starts the probe.
    ///
    /// # Errors
    /// Returns an error if a namespace or the address is not available.
    pub fn start(spec: &ProbeSpec) -> anyhow::Result<Self> {
        let mut command = helper::own("probe")?;
        command.arg(serde_json::to_string(spec)?);
        Ok(Self(LineChild::start("probe", command, REPLY_TIMEOUT)?))
    }

    /// Returns the results since the last call.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn mark(&mut self) -> anyhow::Result<Probed> {
        Ok(serde_json::from_value(
            self.0.request("mark", REPLY_TIMEOUT)?,
        )?)
    }

    /// Returns the one-way delays since the last call.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn times(&mut self) -> anyhow::Result<ProbeTimes> {
        Ok(serde_json::from_value(
            self.0.request("times", REPLY_TIMEOUT)?,
        )?)
    }
}

/// State of the receiver.
#[derive(Debug)]
struct Arrivals {
    last: Instant,
    highest: u64,
    /// Numbers of recently received datagrams.
    recent: BTreeSet<u64>,
    probed: Probed,
    /// One-way delays, nanoseconds.
    times: Histogram<u64>,
}

impl Arrivals {
    fn new(now: Instant) -> anyhow::Result<Self> {
        Ok(Self {
            last: now,
            highest: 0,
            recent: BTreeSet::new(),
            probed: Probed::default(),
            times: Histogram::new_with_max(60_000_000_000, 3)?,
        })
    }

    fn arrived(&mut self, number: u64, sent: Instant, now: Instant) {
        self.highest = self.highest.max(number);
        let oldest = self.highest.saturating_sub(REMEMBERED);
        self.recent = self.recent.split_off(&oldest);
        if number < oldest || !self.recent.insert(number) {
            self.probed.duplicates += 1;
            return;
        }
        self.probed.received += 1;
        let under_way = now.saturating_duration_since(sent);
        self.times.saturating_record(ns(under_way));
        self.probed.longest_ns = self.probed.longest_ns.max(ns(now - self.last));
        self.last = now;
    }

    /// Returns the results since the last mark.
    fn mark(&mut self, now: Instant) -> Probed {
        let silent_ns = ns(now.saturating_duration_since(self.last));
        Probed {
            silent_ns,
            ..std::mem::take(&mut self.probed)
        }
    }

    /// Returns the delays since the last call.
    fn times(&mut self) -> ProbeTimes {
        let us = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        let times = ProbeTimes {
            p50_us: us(0.5),
            p999_us: us(0.999),
        };
        self.times.reset();
        times
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Encodes a datagram: its number and send time.
fn datagram(number: u64, sent_ns: u64) -> [u8; 16] {
    ((u128::from(number) << 64) | u128::from(sent_ns)).to_be_bytes()
}

/// Decodes the number and send time of a datagram.
fn words(datagram: [u8; 16]) -> [u64; 2] {
    let both = u128::from_be_bytes(datagram);
    [(both >> 64) as u64, both as u64]
}

/// Runs the helper process.
///
/// # Errors
/// Returns an error if a namespace or the address is not available.
pub fn main(spec: &ProbeSpec) -> anyhow::Result<()> {
    ns::enter(&spec.to)?;
    let receiver = UdpSocket::bind(spec.address).with_context(|| spec.address.to_string())?;
    ns::enter(&spec.from)?;
    let sender = UdpSocket::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))?;
    let to = spec.address;
    let begun = Instant::now();
    let arrivals = Arc::new(Mutex::new(Arrivals::new(begun)?));
    let sent = Arc::new(AtomicU64::new(0));
    let (seen, counted) = (Arc::clone(&arrivals), Arc::clone(&sent));
    std::thread::Builder::new().spawn(move || {
        let mut bytes = [0; 16];
        while let Ok(count) = receiver.recv(&mut bytes) {
            let now = Instant::now();
            if count == bytes.len() {
                let [number, sent_ns] = words(bytes);
                let sent = begun + Duration::from_nanos(sent_ns);
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.arrived(number, sent, now);
            }
        }
    })?;
    std::thread::Builder::new().spawn(move || {
        for number in 1u64.. {
            let bytes = datagram(number, ns(begun.elapsed()));
            // A datagram that the kernel rejects counts as lost.
            let _taken = sender.send_to(&bytes, to);
            counted.store(number, Ordering::Relaxed);
            let due = PERIOD.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    })?;
    helper::reply(&serde_json::json!({"ready": true}));
    let mut before = 0;
    helper::serve(|line| {
        let now = sent.load(Ordering::Relaxed);
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if line == "times" {
            return Some(serde_json::json!(arrivals.times()));
        }
        let probed = Probed {
            sent: now - std::mem::replace(&mut before, now),
            ..arrivals.mark(Instant::now())
        };
        Some(serde_json::json!(probed))
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_duplicates_are_counted() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut arrivals = Arrivals::new(start).unwrap();
        for (number, ms) in [(1, 1), (2, 2), (5, 30), (4, 31), (5, 32), (6, 33)] {
            arrivals.arrived(number, start, at(ms));
        }
        let probed = arrivals.mark(at(43));
        assert_eq!((probed.received, probed.duplicates), (5, 1));
        assert_eq!(
            (probed.longest_ns, probed.silent_ns),
            (28_000_000, 10_000_000)
        );
        arrivals.arrived(REMEMBERED + 10, at(49), at(50));
        arrivals.arrived(6, at(49), at(51));
        let probed = arrivals.mark(at(51));
        assert_eq!((probed.received, probed.duplicates), (1, 1));
        assert_eq!(probed.longest_ns, 17_000_000, "across the mark");
        let times = arrivals.times();
        let near = |us: f64, ms: f64| (us / 1e3 - ms).abs() < ms / 100.0;
        assert!(near(times.p50_us, 2.0), "{times:?}");
        assert!(near(times.p999_us, 33.0), "{times:?}");
        assert_eq!(arrivals.times(), ProbeTimes::default());
    }

    #[test]
    fn a_datagram_decodes_to_its_contents() {
        assert_eq!(words(datagram(7, u64::MAX)), [7, u64::MAX]);
        assert_eq!(words(datagram(u64::MAX, 9)), [u64::MAX, 9]);
    }
}
