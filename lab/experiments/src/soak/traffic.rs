//! Traffic of several kinds between pairs of guests.

use super::probe::{Probe, ProbeSpec, Probed};
use super::waiting::wait;
use crate::crowd::GuestHome;
use crate::load::{Load, LoadSpec, Role};
use std::net::SocketAddr;
use std::time::Instant;

/// Where its receivers listen.
const PORT: u16 = 5500;
/// Bytes of a request, and of its answer.
const REQUEST: usize = 512;
/// A datagram that is older than this is the last one of a probe that has stopped.
const LIVELY_NS: u64 = 1_000_000_000;

/// What one pair does.
#[derive(Debug)]
enum Talk {
    /// Who receives a stream, and who sends it, copied or out of a file.
    Stream([Load; 2]),
    /// Who answers requests, and who asks, one after another.
    Requests([Load; 2]),
    /// A datagram every millisecond.
    Datagrams(Probe),
}

/// What came of all pairs since this was asked last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Came {
    /// Bytes of streams.
    pub(super) streamed: u64,
    /// Requests that were answered.
    pub(super) requests: u64,
    /// Datagrams, of all probes together; the longest silence is the longest of any.
    pub(super) datagrams: Probed,
}

/// All pairs.
#[derive(Debug, Default)]
pub(super) struct MixedTraffic(Vec<Talk>);

impl MixedTraffic {
    /// Begins one more pair: streams, files, requests and datagrams in turns.
    pub(super) fn add(&mut self, from: &GuestHome, to: &GuestHome) -> anyhow::Result<()> {
        let begun = |receives, sends| loads(receives, sends, from, to, PORT);
        self.0.push(match self.0.len() % 4 {
            0 => Talk::Stream(begun(Role::Sink, Role::Source)?),
            1 => Talk::Requests(begun(Role::Echo, Role::Client)?),
            2 => Talk::Stream(begun(Role::Sink, Role::File)?),
            _ => Talk::Datagrams(Probe::start(&ProbeSpec {
                from: from.0.clone(),
                to: to.0.clone(),
                address: SocketAddr::new(to.1, PORT),
            })?),
        });
        Ok(())
    }

    /// What came since the last time, once every pair goes on.
    pub(super) fn came(&mut self) -> anyhow::Result<Came> {
        let (mut came, began) = (Came::default(), Instant::now());
        // What came before is told, and is no sign of going on.
        for pair in &mut self.0 {
            pair.mark(&mut came)?;
        }
        for (number, pair) in self.0.iter_mut().enumerate() {
            while !pair.mark(&mut came)? {
                wait(
                    &format!("{} of pair {number} do not go on", pair.what()),
                    began,
                )?;
            }
        }
        Ok(came)
    }
}

/// Who receives at a port of `to`'s, and who sends there from `from`, at work.
pub(super) fn loads(
    receives: Role,
    sends: Role,
    from: &GuestHome,
    to: &GuestHome,
    port: u16,
) -> anyhow::Result<[Load; 2]> {
    let load = |role, (netns, _): &GuestHome| {
        Load::start(&LoadSpec {
            role,
            netns: Some(netns.clone()),
            cpu: None,
            address: SocketAddr::new(to.1, port),
            size: REQUEST,
            flows: 1,
        })
    };
    let receiver = load(receives, to)?;
    let mut sender = load(sends, from)?;
    sender.go()?;
    Ok([receiver, sender])
}

impl Talk {
    const fn what(&self) -> &'static str {
        match self {
            Self::Stream(_) => "bytes",
            Self::Requests(_) => "requests",
            Self::Datagrams(_) => "datagrams",
        }
    }

    /// Adds what came since the last time; whether anything did.
    fn mark(&mut self, came: &mut Came) -> anyhow::Result<bool> {
        Ok(match self {
            Self::Stream([receiver, _]) => {
                let bytes = receiver.mark()?.bytes;
                came.streamed += bytes;
                bytes > 0
            }
            Self::Requests([_, client]) => {
                let answered = client.mark()?.operations;
                came.requests += answered;
                answered > 0
            }
            Self::Datagrams(probe) => {
                let probed = probe.mark()?;
                came.datagrams = came.datagrams.and(probed);
                probed.received > 0 && probed.silent_ns < LIVELY_NS
            }
        })
    }
}
