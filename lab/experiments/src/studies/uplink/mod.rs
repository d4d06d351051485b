//! The plan `uplink`: connections of a machine to the host's network, compared with the kernel
//! alone.
//!
//! Nothing is pinned, and processes are not distinguished. The cost of a load is the CPU time
//! during which the whole system was not idle while the load ran.

mod ends;

use super::lane_study::{self, LanePlan};
use super::{Study, StudyOutcome};
use crate::load::{Load, LoadRole, LoadSpec, Mark};
use crate::plan::{Adjustment, ColumnConfig, Ratio, Rounds, Threshold, Times};
use crate::runner::Samples;
use anyhow::Context as _;
use ends::{UplinkEnds, UplinkPath};
use figures::measure::HostCpuTimes;
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell};
use figures::table::table;
use figures::{Failure, interrupt};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

/// Plan name.
pub const NAME: &str = "uplink";
/// Text of the plan.
pub const TEXT: &str = include_str!("../../../plans/uplink.toml");
/// First port of the loads.
const PORT: u16 = 7100;
/// Metrics, in table order.
const METRICS: [(&str, &str); 4] = [
    ("throughput", "Gb/s"),
    ("cpu_s_per_gb", "s/GB"),
    ("cycles_per_byte.total", "cyc/B"),
    ("one_way_us.p50", "µs one way"),
];

/// The one-process column, with which machines are also compared.
const FORWARDER: &str = "forwarder-uplink";
/// Ratios to the kernel, or to the one-process column.
const RATIOS: [(&str, bool, &str); 5] = [
    ("throughput", true, "÷ kernel, Gb/s"),
    ("cycles_per_byte.total", true, "÷ kernel, cyc/B"),
    ("one_way_us.p50", true, "÷ kernel, µs"),
    ("throughput", false, "÷ process, Gb/s"),
    ("cycles_per_byte.total", false, "÷ process, cyc/B"),
];

/// Contents of the plan file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkPlan {
    /// Plan name.
    pub name: String,
    /// One-line description for users.
    pub about: String,
    flows: Vec<usize>,
    request: usize,
    column: Vec<UplinkColumn>,
    #[serde(default)]
    ratio: Vec<Ratio>,
    #[serde(default)]
    bar: Vec<Threshold>,
    full: Rounds,
    quick: Rounds,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct UplinkColumn {
    name: String,
    between: UplinkPath,
}

/// The traffic of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    /// N concurrent streams to the far end.
    Streams(usize),
    /// N concurrent streams to the near end, from a guest to the wire.
    StreamsToWire(usize),
    /// Requests of N bytes, one at a time.
    Requests(usize),
}

impl Traffic {
    fn config(self, column: &str) -> ColumnConfig {
        match self {
            Self::Streams(flows) => ColumnConfig::new(column, &[("flows", &flows.to_string())]),
            Self::StreamsToWire(flows) => {
                let keys = [("dir", "from_guest"), ("flows", &flows.to_string())];
                ColumnConfig::new(column, &keys)
            }
            Self::Requests(bytes) => ColumnConfig::new(column, &[("req", &bytes.to_string())]),
        }
    }

    const fn roles(self) -> [LoadRole; 2] {
        match self {
            Self::Streams(_) | Self::StreamsToWire(_) => [LoadRole::Sink, LoadRole::Source],
            Self::Requests(_) => [LoadRole::Echo, LoadRole::Client],
        }
    }
}

/// The two ends of a traffic.
struct TrafficPair {
    /// The end that receives a stream, or answers requests.
    server: Load,
    /// The end that sends a stream, or requests.
    client: Load,
}

impl TrafficPair {
    fn start(traffic: Traffic, ends: &UplinkEnds, port: u16) -> anyhow::Result<Self> {
        let [server, client] = traffic.roles();
        let (flows, size) = match traffic {
            Traffic::Streams(flows) | Traffic::StreamsToWire(flows) => (flows, 0),
            Traffic::Requests(bytes) => (1, bytes),
        };
        let (address, to, from) = match traffic {
            Traffic::StreamsToWire(_) => (ends::NEAR, &ends.near, &ends.far),
            _ => (ends::FAR, &ends.far, &ends.near),
        };
        let spec = |role, netns| LoadSpec {
            role,
            netns: Some(netns),
            cpu: None,
            address: SocketAddr::new(address, port),
            size,
            flows,
            bytes_per_s: None,
        };
        Ok(Self {
            server: Load::start(&spec(server, to.path()))?,
            client: Load::start(&spec(client, from.path()))?,
        })
    }

    /// Runs one window.
    fn window(&mut self, times: Times) -> anyhow::Result<BusyWindow> {
        self.server.go()?;
        self.client.go()?;
        interrupt::sleep(times.warm_up)?;
        self.server.mark()?;
        self.client.mark()?;
        let (before, began) = (HostCpuTimes::read(), Instant::now());
        interrupt::sleep(times.window)?;
        let server = self.server.mark()?;
        let client = self.client.mark()?;
        let (now, wall) = (HostCpuTimes::read(), began.elapsed());
        self.client.stop()?;
        self.server.stop()?;
        // Data in flight must be delivered first.
        interrupt::sleep(times.warm_up)?;
        Ok(BusyWindow {
            server,
            client,
            busy_s: now.busy_since(before, wall).as_secs_f64(),
            disturbed: now.disturbed_since(before),
        })
    }
}

/// Result of a window.
struct BusyWindow {
    server: Mark,
    client: Mark,
    /// CPU time of the whole system.
    busy_s: f64,
    disturbed: bool,
}

impl BusyWindow {
    fn figures(&self, traffic: Traffic, tsc_hz: u64) -> BTreeMap<String, f64> {
        let mut all = BTreeMap::new();
        match traffic {
            Traffic::Streams(_) | Traffic::StreamsToWire(_)
                if self.server.bytes > 0 && self.server.ns > 0 =>
            {
                let bytes = self.server.bytes as f64;
                all.insert("throughput", bytes * 8.0 / self.server.ns as f64);
                all.insert("cpu_s_per_gb", self.busy_s / (bytes / 1e9));
                let cycles = self.busy_s * tsc_hz as f64;
                all.insert("cycles_per_byte.total", cycles / bytes);
            }
            Traffic::Requests(_) if self.client.ns > 0 => {
                let seconds = self.client.ns as f64 / 1e9;
                all.insert("transactions", self.client.operations as f64 / seconds);
                let times = [("p50", self.client.p50_us), ("p99", self.client.p99_us)];
                for (quantile, there_and_back) in times {
                    let Some(us) = there_and_back else { continue };
                    let (latency, one_way) = match quantile {
                        "p50" => ("latency_us.p50", "one_way_us.p50"),
                        _ => ("latency_us.p99", "one_way_us.p99"),
                    };
                    all.insert(latency, us);
                    all.insert(one_way, us / 2.0);
                }
            }
            _ => {}
        }
        let owned = all.into_iter();
        owned
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

impl UplinkPlan {
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
        Ok(plan)
    }

    /// Returns the kinds of traffic that a path carries, in the order of their measurement.
    fn traffic(&self, between: UplinkPath) -> Vec<Traffic> {
        let flows = || self.flows.iter().copied();
        let mut all: Vec<_> = flows().map(Traffic::Streams).collect();
        if between.has_wire() {
            all.extend(flows().map(Traffic::StreamsToWire));
        }
        all.push(Traffic::Requests(self.request));
        all
    }

    /// Measures one column. Its machine and loads stop before the next column is set up, because an
    /// idle machine uses some CPU time.
    fn round(
        &self,
        round: usize,
        column: &UplinkColumn,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let traffic = self.traffic(column.between);
        let configs = traffic.iter().map(|traffic| traffic.config(&column.name));
        let ends = UplinkEnds::of(column.between);
        let Some(ends) = samples.setup_result(&column.name, ends, true, configs)? else {
            return Ok(());
        };
        for (port, &traffic) in (PORT..).zip(&traffic) {
            let config = traffic.config(&column.name);
            let measure = || {
                let mut pair = TrafficPair::start(traffic, &ends, port)?;
                pair.window(self.full.times())
            };
            let window = measure().with_context(|| config.name())?;
            if window.disturbed {
                samples.disturb(&config);
            }
            let figures = window.figures(traffic, shmem::time::tsc_hz());
            samples.add(&config, round, &figures);
        }
        ends.end()
    }
}

impl LanePlan for UplinkPlan {
    fn rounds(&mut self) -> (&mut Rounds, Rounds) {
        (&mut self.full, self.quick)
    }
}

impl Study for UplinkPlan {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn run(&self, _folder: Option<&Path>) -> anyhow::Result<StudyOutcome> {
        let placement = "nothing is pinned; all CPU time of the system is counted".to_owned();
        let provenance = Provenance::collect(placement, self.full.is_short());
        let mut samples = Samples::default();
        lane_study::rounds(self.full.rounds, |round| {
            for column in &self.column {
                interrupt::check()?;
                self.round(round, column, &mut samples)?;
            }
            Ok(())
        })?;
        Ok(StudyOutcome {
            provenance,
            figures: samples.figures_with_verdicts(NAME, &self.ratio, &self.bar),
        })
    }

    fn tables(&self, figures: &[Figure]) -> String {
        let index = Index::new(figures);
        let mut rows = Vec::new();
        for column in &self.column {
            for traffic in self.traffic(column.between) {
                let config = traffic.config(&column.name).name();
                let mut row = vec![config.clone()];
                row.extend(METRICS.map(|(metric, _)| cell(index.get(&config, metric))));
                let ratio = |metric: &str, of_kernel: bool| {
                    let others = self.ratio.iter().map(|ratio| &*ratio.to);
                    let mut others = others.filter(|to| (*to != FORWARDER) == of_kernel);
                    others.find_map(|to| index.get(&config, &format!("ratio.{to}.{metric}")))
                };
                row.extend(RATIOS.map(|(metric, of_kernel, _)| cell(ratio(metric, of_kernel))));
                rows.push(row);
            }
        }
        let mut header = vec!["column"];
        header.extend(METRICS.map(|(_, unit)| unit));
        header.extend(RATIOS.map(|(.., title)| title));
        table(&header, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> UplinkPlan {
        UplinkPlan::adjusted(TEXT, &Adjustment::default()).unwrap()
    }

    #[test]
    fn ratios_and_thresholds_name_columns() {
        let plan = plan();
        let names: Vec<&str> = plan.column.iter().map(|column| &*column.name).collect();
        for ratio in &plan.ratio {
            assert!(names.contains(&&*ratio.to), "{ratio:?}");
        }
        for bar in &plan.bar {
            let named = |name: &&&str| crate::plan::names_column(&bar.column, name);
            assert!(names.iter().any(|name| named(&name)), "{bar:?}");
            assert!(bar.bound().is_some(), "{bar:?}");
            let to = bar.metric.strip_prefix("ratio.").unwrap_or("");
            assert!(names.iter().any(|name| to.starts_with(name)), "{bar:?}");
        }
    }

    #[test]
    fn a_window_becomes_figures() {
        let window = BusyWindow {
            server: Mark {
                ns: 1_000_000_000,
                bytes: 2_500_000_000,
                ..Mark::default()
            },
            client: Mark {
                ns: 500_000_000,
                operations: 10_000,
                p50_us: Some(50.0),
                ..Mark::default()
            },
            busy_s: 2.0,
            disturbed: false,
        };
        let streams = window.figures(Traffic::Streams(1), 2_000_000_000);
        assert_eq!(streams["throughput"], 20.0);
        assert_eq!(streams["cpu_s_per_gb"], 0.8);
        assert_eq!(streams["cycles_per_byte.total"], 1.6);
        let requests = window.figures(Traffic::Requests(64), 1);
        assert_eq!(requests["transactions"], 20_000.0);
        assert_eq!(requests["one_way_us.p50"], 25.0);
        assert!(!requests.contains_key("throughput") && !streams.contains_key("transactions"));
    }
}
