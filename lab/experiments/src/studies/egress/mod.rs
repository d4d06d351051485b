//! The plan `egress`: limits of the traffic to guests.
//!
//! Nothing is pinned. Some columns measure whether streams reach a guest's limit, the others the
//! latency of another guest's requests, with and without a queue before the limit.

mod machine;

use super::lane_study::{self, LanePlan};
use super::{Study, StudyOutcome};
use crate::plan::{Adjustment, ColumnConfig, Ratio, Rounds, Threshold};
use crate::runner::Samples;
use anyhow::Context as _;
use figures::Failure;
use figures::interrupt;
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell};
use figures::table::table;
use machine::{EgressMachine, EgressWindow, LimitedStreams, Sender};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Plan name.
pub const NAME: &str = "egress";
/// Text of the plan.
pub const TEXT: &str = include_str!("../../../plans/egress.toml");
/// Metrics of streams, in table order.
const STREAM_METRICS: [(&str, &str); 2] = [("throughput", "Gb/s"), ("limit_share", "÷ limit")];
/// Metrics of requests, in table order.
const REQUEST_METRICS: [(&str, &str); 7] = [
    ("transactions", "1/s"),
    ("latency_us.p50", "p50, µs"),
    ("latency_us.p99", "p99, µs"),
    ("queue_ms", "queue, ms"),
    ("throughput", "streams, Gb/s"),
    ("ratio.paced.latency_us.p99", "p99 ÷ paced"),
    ("ratio.idle.latency_us.p99", "p99 ÷ idle"),
];
/// Range of limits, Mbit/s.
const MBPS: std::ops::RangeInclusive<u32> = 1..=100_000;
/// Maximum number of limits: each has a guest.
const LIMITS_MAX: usize = 16;
/// Range of numbers of streams.
const FLOWS: std::ops::RangeInclusive<usize> = 1..=64;
/// Range of sizes of requests, bytes.
const REQUEST_BYTES: std::ops::RangeInclusive<usize> = 1..=1 << 20;

/// Contents of the plan file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressPlan {
    /// Plan name.
    pub name: String,
    /// One-line description for users.
    pub about: String,
    mbps: Vec<u32>,
    flows: Vec<usize>,
    request: usize,
    beside_mbps: u32,
    paced_share: f64,
    column: Vec<EgressColumn>,
    ratio: Vec<Ratio>,
    bar: Vec<Threshold>,
    full: Rounds,
    quick: Rounds,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct EgressColumn {
    name: String,
    measures: EgressMeasurement,
}

/// The quantity that a column measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EgressMeasurement {
    /// The rate of streams from a wire.
    RateFromWire,
    /// The rate of streams from this system.
    RateFromHost,
    /// The rate of streams from another guest.
    RateFromGuest,
    /// The latency of requests without other traffic.
    Latency,
    /// The latency of requests beside streams below the limit of another guest.
    LatencyBesidePaced,
    /// The latency of requests beside streams that wait for the limit of another guest.
    LatencyBesideQueue,
}

impl EgressMeasurement {
    /// Returns the sender of streams whose rate is measured, or `None` for a column of latency.
    const fn sender(self) -> Option<Sender> {
        match self {
            Self::RateFromWire => Some(Sender::Wire),
            Self::RateFromHost => Some(Sender::Host),
            Self::RateFromGuest => Some(Sender::Guest),
            Self::Latency | Self::LatencyBesidePaced | Self::LatencyBesideQueue => None,
        }
    }
}

/// A window: its configuration and its streams.
#[derive(Clone, Debug, PartialEq)]
struct EgressPoint {
    config: ColumnConfig,
    streams: Option<LimitedStreams>,
}

impl EgressPlan {
    /// Opens the plan in `text`.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the plan is invalid before or after `by` is applied.
    pub fn open(text: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
        Ok(Box::new(Self::adjusted(text, by)?))
    }

    /// Parses the plan and applies command-line options.
    fn adjusted(text: &str, by: &Adjustment) -> Result<Self, Failure> {
        let mut plan = Self::parse(text, by)?;
        by.retain(&mut plan.column, |column| &column.name)?;
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), String> {
        let limits = self.mbps.iter().chain([&self.beside_mbps]);
        if self.limits().len() > LIMITS_MAX || !limits.into_iter().all(|mbps| MBPS.contains(mbps)) {
            let (least, most) = MBPS.into_inner();
            return Err(format!(
                "at most {LIMITS_MAX} limits, each from {least} to {most} Mbit/s"
            ));
        }
        if !self.flows.iter().all(|flows| FLOWS.contains(flows)) {
            let (least, most) = FLOWS.into_inner();
            return Err(format!("flows from {least} to {most}"));
        }
        if !REQUEST_BYTES.contains(&self.request) {
            let (least, most) = REQUEST_BYTES.into_inner();
            return Err(format!("request from {least} to {most} bytes"));
        }
        if !(0.01..=1.0).contains(&self.paced_share) {
            return Err("paced_share from 0.01 to 1".to_owned());
        }
        Ok(())
    }

    /// Returns all limits, each of which has a guest.
    fn limits(&self) -> Vec<u32> {
        let mut limits = self.mbps.clone();
        limits.push(self.beside_mbps);
        limits.sort_unstable();
        limits.dedup();
        limits
    }

    /// Returns the windows of a column.
    fn points(&self, column: &EgressColumn) -> Vec<EgressPoint> {
        let (name, mbps) = (&*column.name, self.beside_mbps);
        let beside = |share: Option<f64>| {
            let flows = self.flows.iter();
            flows.map(move |&flows| EgressPoint {
                config: ColumnConfig::new(name, &[("flows", &flows.to_string())]),
                streams: Some(LimitedStreams {
                    from: Sender::Wire,
                    mbps,
                    flows,
                    share,
                }),
            })
        };
        match (column.measures, column.measures.sender()) {
            (_, Some(from)) => {
                let limits = self.mbps.iter();
                let windows = limits.flat_map(|&mbps| self.flows.iter().map(move |&it| (mbps, it)));
                let point = |(mbps, flows): (u32, usize)| {
                    let keys = [("flows", flows.to_string()), ("mbps", mbps.to_string())];
                    let keys = keys.each_ref().map(|(key, value)| (*key, value.as_str()));
                    EgressPoint {
                        config: ColumnConfig::new(name, &keys),
                        streams: Some(LimitedStreams {
                            from,
                            mbps,
                            flows,
                            share: None,
                        }),
                    }
                };
                windows.map(point).collect()
            }
            (EgressMeasurement::LatencyBesidePaced, None) => {
                beside(Some(self.paced_share)).collect()
            }
            (EgressMeasurement::LatencyBesideQueue, None) => beside(None).collect(),
            (_, None) => vec![EgressPoint {
                config: ColumnConfig::new(name, &[]),
                streams: None,
            }],
        }
    }

    /// Measures all columns once.
    fn round(
        &self,
        round: usize,
        machine: &mut EgressMachine,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        for column in &self.column {
            let is_latency = column.measures.sender().is_none();
            let request = is_latency.then_some(self.request);
            for EgressPoint { config, streams } in self.points(column) {
                interrupt::check()?;
                let window = machine
                    .window(streams, request, self.full.times())
                    .with_context(|| config.name())?;
                if window.disturbed {
                    samples.disturb(&config);
                }
                samples.add(&config, round, &figures(&window, streams));
            }
        }
        Ok(())
    }

    /// Returns a table of the columns for which `is_shown`, with these metrics.
    fn table(
        &self,
        index: &Index<'_>,
        metrics: &[(&str, &str)],
        is_shown: impl Fn(&EgressColumn) -> bool,
    ) -> String {
        let mut rows = Vec::new();
        for column in self.column.iter().filter(|column| is_shown(column)) {
            for point in self.points(column) {
                let config = point.config.name();
                let mut row = vec![config.clone()];
                let cells = metrics.iter().map(|(metric, _)| metric);
                row.extend(cells.map(|metric| cell(index.get(&config, metric))));
                rows.push(row);
            }
        }
        let titles = metrics.iter().map(|(_, title)| *title);
        let header: Vec<&str> = ["column"].into_iter().chain(titles).collect();
        match rows.is_empty() {
            true => String::new(),
            false => table(&header, &rows),
        }
    }
}

impl LanePlan for EgressPlan {
    fn rounds(&mut self) -> (&mut Rounds, Rounds) {
        (&mut self.full, self.quick)
    }
}

impl Study for EgressPlan {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn run(&self, _folder: Option<&Path>) -> anyhow::Result<StudyOutcome> {
        let placement = "nothing is pinned".to_owned();
        let provenance = Provenance::collect(placement, self.full.is_short());
        let mut samples = Samples::default();
        let mut machine = EgressMachine::start(&self.limits())?;
        lane_study::rounds(self.full.rounds, |round| {
            self.round(round, &mut machine, &mut samples)
        })?;
        machine.end()?;
        Ok(StudyOutcome {
            provenance,
            figures: samples.figures_with_verdicts(NAME, &self.ratio, &self.bar),
        })
    }

    fn tables(&self, figures: &[Figure]) -> String {
        let index = Index::new(figures);
        let of_streams = |column: &EgressColumn| column.measures.sender().is_some();
        let streams = self.table(&index, &STREAM_METRICS, of_streams);
        let requests = self.table(&index, &REQUEST_METRICS, |column| !of_streams(column));
        format!("{streams}\n{requests}")
    }
}

/// Returns the figures of a window.
fn figures(window: &EgressWindow, streams: Option<LimitedStreams>) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    if let (Some(received), Some(streams)) = (&window.streamed, streams)
        && received.ns > 0
    {
        let gbps = received.bytes as f64 * 8.0 / received.ns as f64;
        all.insert("throughput", gbps);
        all.insert("limit_share", gbps * 1e3 / f64::from(streams.mbps));
        all.insert("queue_ms", window.queue_ms);
    }
    if let Some(requested) = &window.requested
        && requested.ns > 0
    {
        let seconds = requested.ns as f64 / 1e9;
        all.insert("transactions", requested.operations as f64 / seconds);
        all.extend(requested.p50_us.map(|us| ("latency_us.p50", us)));
        all.extend(requested.p99_us.map(|us| ("latency_us.p99", us)));
    }
    let owned = all.into_iter();
    owned
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Mark;
    use crate::plan::names_column;

    fn plan(text: &str) -> Result<EgressPlan, Failure> {
        EgressPlan::adjusted(text, &Adjustment::default())
    }

    #[test]
    fn ratios_and_thresholds_name_columns() {
        let plan = plan(TEXT).unwrap();
        let metrics = STREAM_METRICS.iter().chain(&REQUEST_METRICS);
        let metrics: Vec<&str> = metrics.map(|(metric, _)| *metric).collect();
        let is_column = |name: &str| plan.column.iter().any(|it| names_column(name, &it.name));
        for ratio in &plan.ratio {
            assert!(is_column(&ratio.own) && is_column(&ratio.to), "{ratio:?}");
        }
        for bar in &plan.bar {
            assert!(is_column(&bar.column), "{bar:?}");
            assert!(metrics.contains(&&*bar.metric), "{bar:?}");
            assert!(bar.bound().is_some(), "{bar:?}");
        }
        for metric in metrics {
            let ratio = metric.starts_with("ratio.");
            assert!(
                ratio || !figures::metric::unit(metric).is_empty(),
                "{metric}"
            );
        }
    }

    #[test]
    fn each_limit_has_a_window_per_number_of_streams() {
        let plan = plan(TEXT).unwrap();
        let names = |column: usize| -> Vec<String> {
            let points = plan.points(&plan.column[column]).into_iter();
            points.map(|point| point.config.name()).collect()
        };
        assert_eq!(names(0).len(), 8);
        assert_eq!(names(0)[7], "wire@flows=8,mbps=1000");
        assert_eq!(names(3), ["idle"]);
        assert_eq!(names(5), ["queued@flows=1", "queued@flows=8"]);
        assert_eq!(plan.limits(), [10, 50, 100, 1000]);
        let shares = |column: usize| {
            let points = plan.points(&plan.column[column]).into_iter();
            points
                .map(|it| it.streams.unwrap().share)
                .collect::<Vec<_>>()
        };
        assert_eq!(shares(4), [Some(0.97); 2]);
        assert_eq!(shares(5), [None; 2]);
    }

    #[test]
    fn invalid_values_are_rejected() {
        for (from, to, says) in [
            ("mbps = [10,", "mbps = [0,", "from 1 to 100000 Mbit/s"),
            ("flows = [1,", "flows = [0,", "flows from 1"),
            ("request = 64", "request = 0", "request from 1"),
            ("paced_share = 0.97", "paced_share = 1.1", "paced_share"),
        ] {
            let error = plan(&TEXT.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(says), "{from}: {error}");
        }
    }

    #[test]
    fn a_window_becomes_figures() {
        let mark = Mark {
            ns: 500_000_000,
            bytes: 5_625_000,
            operations: 5_000,
            p50_us: Some(50.0),
            p99_us: Some(90.0),
            ..Mark::default()
        };
        let window = EgressWindow {
            streamed: Some(mark),
            requested: Some(mark),
            queue_ms: 4.0,
            disturbed: false,
        };
        let streams = LimitedStreams {
            from: Sender::Wire,
            mbps: 100,
            flows: 1,
            share: None,
        };
        let found = figures(&window, Some(streams));
        assert_eq!((found["throughput"], found["limit_share"]), (0.09, 0.9));
        assert_eq!((found["transactions"], found["queue_ms"]), (10_000.0, 4.0));
        assert_eq!(found["latency_us.p99"], 90.0);
        let alone = EgressWindow {
            streamed: None,
            ..window
        };
        assert!(!figures(&alone, None).contains_key("throughput"));
    }
}
