//! Several kinds of traffic between pairs of guests.

use super::probe::{Probe, ProbeSpec, Probed};
use super::timeout::wait;
use crate::load::{Load, LoadRole, LoadSpec};
use crate::many_guests::GuestNamespace;
use std::net::SocketAddr;
use std::time::Instant;

/// Port of the receivers.
const PORT: u16 = 5500;
/// Size of a request and of its answer, bytes.
const REQUEST: usize = 512;
/// Maximum age of the last datagram of a working probe, nanoseconds.
const DATAGRAM_AGE_MAX_NS: u64 = 1_000_000_000;

/// Traffic of one pair.
#[derive(Debug)]
enum PairTraffic {
    /// Receiver and sender of a stream, whose data is copied or sent from a file.
    Stream([Load; 2]),
    /// Server and client of requests, one at a time.
    Requests([Load; 2]),
    /// A datagram every millisecond.
    Datagrams(Probe),
}

/// Results of all pairs since the last call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TrafficTotals {
    /// Number of bytes that streams delivered.
    pub(super) streamed: u64,
    /// Number of answered requests.
    pub(super) requests: u64,
    /// Datagrams of all probes. The longest outage is the maximum over the probes.
    pub(super) datagrams: Probed,
}

/// All pairs.
#[derive(Debug, Default)]
pub(super) struct MixedTraffic(Vec<PairTraffic>);

impl MixedTraffic {
    /// Starts the traffic of one more pair. Streams, files, requests and datagrams alternate.
    pub(super) fn add(&mut self, from: &GuestNamespace, to: &GuestNamespace) -> anyhow::Result<()> {
        let begun = |receives, sends| loads(receives, sends, from, to, PORT);
        self.0.push(match self.0.len() % 4 {
            0 => PairTraffic::Stream(begun(LoadRole::Sink, LoadRole::Source)?),
            1 => PairTraffic::Requests(begun(LoadRole::Echo, LoadRole::Client)?),
            2 => PairTraffic::Stream(begun(LoadRole::Sink, LoadRole::File)?),
            _ => PairTraffic::Datagrams(Probe::start(&ProbeSpec {
                from: from.0.clone(),
                to: to.0.clone(),
                address: SocketAddr::new(to.1, PORT),
            })?),
        });
        Ok(())
    }

    /// Waits until every pair works, and returns the results since the last call.
    pub(super) fn results(&mut self) -> anyhow::Result<TrafficTotals> {
        let (mut totals, began) = (TrafficTotals::default(), Instant::now());
        // This discards earlier results, which do not show recovery.
        for pair in &mut self.0 {
            pair.mark(&mut totals)?;
        }
        for (number, pair) in self.0.iter_mut().enumerate() {
            while !pair.mark(&mut totals)? {
                wait(
                    &format!("{} of pair {number} do not resume", pair.what()),
                    began,
                )?;
            }
        }
        Ok(totals)
    }
}

/// Starts a receiver at a port of `to` and a sender in `from`.
pub(super) fn loads(
    receives: LoadRole,
    sends: LoadRole,
    from: &GuestNamespace,
    to: &GuestNamespace,
    port: u16,
) -> anyhow::Result<[Load; 2]> {
    let load = |role, (netns, _): &GuestNamespace| {
        Load::start(&LoadSpec {
            role,
            netns: Some(netns.clone()),
            cpu: None,
            address: SocketAddr::new(to.1, port),
            size: REQUEST,
            flows: 1,
            bytes_per_s: None,
        })
    };
    let receiver = load(receives, to)?;
    let mut sender = load(sends, from)?;
    sender.go()?;
    Ok([receiver, sender])
}

impl PairTraffic {
    const fn what(&self) -> &'static str {
        match self {
            Self::Stream(_) => "bytes",
            Self::Requests(_) => "requests",
            Self::Datagrams(_) => "datagrams",
        }
    }

    /// Adds the results since the last call, and returns whether any data was delivered.
    fn mark(&mut self, totals: &mut TrafficTotals) -> anyhow::Result<bool> {
        Ok(match self {
            Self::Stream([receiver, _]) => {
                let bytes = receiver.mark()?.bytes;
                totals.streamed += bytes;
                bytes > 0
            }
            Self::Requests([_, client]) => {
                let answered = client.mark()?.operations;
                totals.requests += answered;
                answered > 0
            }
            Self::Datagrams(probe) => {
                let probed = probe.mark()?;
                totals.datagrams = totals.datagrams.and(probed);
                probed.received > 0 && probed.silent_ns < DATAGRAM_AGE_MAX_NS
            }
        })
    }
}
