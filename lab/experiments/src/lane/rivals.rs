//! Guests that compete with the measured ones, and their loads.

use super::pair::{Pair, PairRoles, Side, later};
use crate::load::{LoadRole, Mark};
use crate::plan::PayloadDirection;
use std::collections::BTreeMap;

/// Bytes of a web request, and of its reply.
const WEB_BYTES: usize = 1024;

/// Load of a competing guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RivalLoad {
    /// Connections one after another, with one request of 1 KB each.
    Web,
    /// Requests of a byte, one at a time.
    Requests,
    /// A stream.
    Stream,
    /// None.
    Idle,
}

impl RivalLoad {
    /// Loads of the first guests of a mixed machine. Further guests repeat them.
    const MIX: [Self; 4] = [Self::Web, Self::Requests, Self::Stream, Self::Idle];

    /// Returns the name in metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Requests => "requests",
            Self::Stream => "stream",
            Self::Idle => "idle",
        }
    }

    const fn roles(self) -> Option<PairRoles> {
        let (active, passive, size) = match self {
            Self::Web => (LoadRole::Visitor, LoadRole::Echo, WEB_BYTES),
            Self::Requests => (LoadRole::Client, LoadRole::Echo, 1),
            Self::Stream => (LoadRole::Source, LoadRole::Sink, 0),
            Self::Idle => return None,
        };
        Some(PairRoles {
            active,
            passive,
            size,
        })
    }
}

/// Load of one competing guest, in one direction.
pub(super) struct Rival {
    load: RivalLoad,
    pub(super) pair: Pair,
}

impl Rival {
    /// Starts the load of competing guest `number`: a stream, or in a `mixed` machine one of all
    /// loads. Returns `None` for an idle guest.
    ///
    /// # Errors
    /// Returns an error if the load cannot start or cannot connect.
    pub(super) fn start(
        (number, mixed): (usize, bool),
        way: PayloadDirection,
        ends: [&Side; 2],
        port: u16,
    ) -> anyhow::Result<Option<Self>> {
        let load = match mixed {
            true => RivalLoad::MIX.into_iter().cycle().nth(number),
            false => None,
        };
        let load = load.unwrap_or(RivalLoad::Stream);
        let Some(roles) = load.roles() else {
            return Ok(None);
        };
        let pair = Pair::start(roles, way, ends, port, 1)?;
        Ok(Some(Self { load, pair }))
    }

    /// Returns the counters since the last mark: those of a stream's receiver, or of a client.
    fn mark(&mut self) -> anyhow::Result<Mark> {
        match self.load {
            RivalLoad::Stream => self.pair.passive.mark(),
            _ => self.pair.active.mark(),
        }
    }
}

/// Returns the counters of competing guests since the last mark, by load. Latencies are those of
/// the slowest guest.
pub(super) fn marks<'a>(
    rivals: impl Iterator<Item = &'a mut Rival>,
) -> anyhow::Result<BTreeMap<RivalLoad, Mark>> {
    let mut all: BTreeMap<RivalLoad, Mark> = BTreeMap::new();
    for rival in rivals {
        let mark = rival.mark()?;
        let sum = all.entry(rival.load).or_default();
        sum.ns = sum.ns.max(mark.ns);
        sum.bytes += mark.bytes;
        sum.operations += mark.operations;
        sum.p50_us = later(sum.p50_us, mark.p50_us);
        sum.p99_us = later(sum.p99_us, mark.p99_us);
    }
    Ok(all)
}

/// Adds the figures of competing guests: `throughput.rivals` of streams, and for each other load
/// `transactions.rivals.LOAD` and `latency_us.rivals.LOAD.*`. `seconds` is the length of the
/// window.
pub(super) fn figures(
    marks: &BTreeMap<RivalLoad, Mark>,
    seconds: f64,
    out: &mut BTreeMap<String, f64>,
) {
    for (load, mark) in marks {
        if *load == RivalLoad::Stream {
            let rate = mark.bytes as f64 * 8.0 / seconds / 1e9;
            out.insert("throughput.rivals".to_owned(), rate);
            continue;
        }
        let name = load.name();
        let rate = mark.operations as f64 / seconds;
        out.insert(format!("transactions.rivals.{name}"), rate);
        for (quantile, value) in [("p50", mark.p50_us), ("p99", mark.p99_us)] {
            if let Some(us) = value {
                out.insert(format!("latency_us.rivals.{name}.{quantile}"), us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_rivals() {
        let stream = Mark {
            bytes: 125_000_000,
            operations: 9,
            ..Mark::default()
        };
        let web = Mark {
            bytes: 7,
            operations: 300,
            p50_us: Some(80.0),
            p99_us: Some(900.0),
            ..Mark::default()
        };
        let marks = [(RivalLoad::Stream, stream), (RivalLoad::Web, web)].into();
        let mut found = BTreeMap::new();
        figures(&marks, 0.5, &mut found);
        let wanted = [
            ("latency_us.rivals.web.p50", 80.0),
            ("latency_us.rivals.web.p99", 900.0),
            ("throughput.rivals", 2.0),
            ("transactions.rivals.web", 600.0),
        ];
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(found, wanted.into());
    }
}
