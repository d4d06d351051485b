//! The plan `restart`: the time for which guests have no network when the driver domain is killed
//! during a stream.
//!
//! The receiver is an ordinary socket behind a guest's TAP (or the wire's), and measures the time
//! without a byte. The monitor reports when the new driver domain was ready and when all guests
//! were connected. The remaining time is the delay until TCP's sender retransmits.

use super::lane_study::{self, LaneColumn, LanePlan};
use super::{Study, StudyOutcome};
use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::{Lane, Loads, machine};
use crate::plan::{
    Adjustment, ColumnConfig, Mechanisms, PayloadDirection, Place, Rounds, Topology, WireNic,
    WireSpeed,
};
use crate::runner::Samples;
use crate::soak::victim::Victim;
use anyhow::Context as _;
use config::domain::GrantMode;
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell};
use figures::table::table;
use figures::{Failure, interrupt, stats};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Plan name.
pub const NAME: &str = "restart";
/// Text of the plan.
pub const TEXT: &str = include_str!("../../plans/restart.toml");
/// Interval at which the receiver is polled.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Minimum number of kills of a full run, over all rounds.
const FULL_KILLS: usize = 40;
/// Timeout for a stream to resume.
const RESUME_TIMEOUT: Duration = Duration::from_secs(20);
/// Metrics, in table order.
const METRICS: [(&str, &str); 5] = [
    ("outage_ms.ready", "ready"),
    ("outage_ms.connected", "connected"),
    ("outage_ms.first_byte", "first byte"),
    ("outage_ms.p50", "no byte"),
    ("outage_ms.max", "at most"),
];

/// Contents of the plan file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// Plan name.
    pub name: String,
    /// One-line description for users.
    pub about: String,
    kills: usize,
    quick_kills: usize,
    column: Vec<RestartColumn>,
    full: Rounds,
    quick: Rounds,
}

/// A column, which is one machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RestartColumn {
    name: String,
    #[serde(default)]
    nic: WireNic,
    #[serde(default)]
    grants: GrantMode,
    #[serde(default)]
    vmq: bool,
    #[serde(default = "one")]
    guests: u32,
}

fn one() -> u32 {
    1
}

impl RestartColumn {
    fn config(&self, direction: PayloadDirection) -> ColumnConfig {
        let guests = self.guests.to_string();
        let keys = [("dir", direction.name()), ("guests", &guests)];
        ColumnConfig::new(&self.name, &keys)
    }
}

impl LaneColumn for RestartColumn {
    fn name(&self) -> &str {
        &self.name
    }

    fn may_lack(&self) -> bool {
        self.nic == WireNic::Xdp
    }

    fn lane(&self, cores: Cores) -> anyhow::Result<Lane> {
        let speed = WireSpeed::unbounded();
        let wire = OnWire {
            nic: self.nic,
            ..OnWire::tap(&speed)
        };
        let topology = Topology {
            mechanisms: Mechanisms {
                grants: self.grants,
                vmq: self.vmq,
                ..Mechanisms::default()
            },
            guests: self.guests,
            restarts: true,
            ..Topology::default()
        };
        let loads = Loads::of_stream(&PayloadDirection::BOTH);
        machine::lane(Place::OneCore, wire, topology, cores, &loads)
    }
}

impl Restart {
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
        if by.quick {
            plan.kills = plan.quick_kills;
        }
        by.retain(&mut plan.column, |column| &column.name)?;
        Ok(plan)
    }

    /// Returns whether the run has too few kills for results.
    fn is_short(&self) -> bool {
        self.full.rounds * self.kills < FULL_KILLS
    }
}

impl LanePlan for Restart {
    fn rounds(&mut self) -> (&mut Rounds, Rounds) {
        (&mut self.full, self.quick)
    }
}

impl Study for Restart {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn run(&self, _folder: Option<&Path>) -> anyhow::Result<StudyOutcome> {
        let plan = self;
        let cores = Cores::choose();
        let placement = format!(
            "wire's socket on core {}; driver, guests and their sockets on core {}",
            cores.wire, cores.guest
        );
        let provenance = Provenance::collect(placement, plan.is_short());
        let mut samples = Samples::default();
        let configs =
            |column: &RestartColumn| PayloadDirection::BOTH.map(|way| column.config(way)).into();
        let mut lanes = lane_study::lanes(&plan.column, configs, cores, &mut samples)?;
        let (rounds, ways) = (plan.full.rounds, &PayloadDirection::BOTH);
        lane_study::interleave(
            rounds,
            ways,
            &mut lanes,
            |round, direction, column, lane| {
                let config = column.config(direction);
                let outages = outages(plan, lane, direction).with_context(|| config.name())?;
                samples.add(&config, round, &figures(&outages));
                Ok(())
            },
        )?;
        Ok(StudyOutcome {
            provenance,
            figures: samples.figures(NAME),
        })
    }

    fn tables(&self, figures: &[Figure]) -> String {
        let plan = self;
        let index = Index::new(figures);
        let mut rows = Vec::new();
        for column in &plan.column {
            for direction in PayloadDirection::BOTH {
                let config = column.config(direction).name();
                let (guests, way) = (column.guests.to_string(), direction.name().to_owned());
                let mut row = vec![column.name.clone(), guests, way];
                row.extend(METRICS.map(|(metric, _)| cell(index.get(&config, metric))));
                rows.push(row);
            }
        }
        let mut header = vec!["ms", "guests", "stream"];
        header.extend(METRICS.map(|(_, title)| title));
        table(&header, &rows)
    }
}

/// Outage caused by one kill, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outage {
    ready: f64,
    connected: f64,
    first_byte: f64,
    without_a_byte: f64,
}

/// Measures the kills of one round.
fn outages(
    plan: &Restart,
    lane: &mut Lane,
    direction: PayloadDirection,
) -> anyhow::Result<Vec<Outage>> {
    let times = plan.full.times();
    lane.stream(direction, true)?;
    sleep(times.warm_up);
    let kills = (0..plan.kills).map(|_| {
        interrupt::check()?;
        outage(lane, direction, times.window)
    });
    let outages = kills.collect::<anyhow::Result<_>>()?;
    lane.stream(direction, false)?;
    // Data in flight must be delivered first.
    sleep(times.warm_up);
    Ok(outages)
}

fn outage(lane: &mut Lane, direction: PayloadDirection, watch: Duration) -> anyhow::Result<Outage> {
    lane.received_bytes(direction)?;
    let began = Instant::now();
    let life = Victim::Driver.kill(lane.machine()?)?;
    let mut stall = Stall::new();
    loop {
        let now = began.elapsed();
        if lane.received_bytes(direction)? > 0 {
            stall.arrived(now);
        }
        if now >= watch && stall.is_over(now) {
            break;
        }
        if now >= watch + RESUME_TIMEOUT {
            let left = (watch + RESUME_TIMEOUT).as_secs();
            anyhow::bail!("the stream did not resume within {left} s");
        }
        sleep(POLL_INTERVAL);
    }
    let back = life.after(lane.machine()?, began)?;
    let back = back.context("the driver domain did not restart")?;
    let in_ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Outage {
        ready: back.ready_ms,
        connected: back.connected_ms.unwrap_or(f64::NAN),
        first_byte: in_ms(stall.end),
        without_a_byte: in_ms(stall.length),
    })
}

/// The longest time without a byte, relative to the kill.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stall {
    last: Duration,
    length: Duration,
    end: Duration,
}

impl Stall {
    fn new() -> Self {
        Self {
            last: Duration::ZERO,
            length: Duration::ZERO,
            end: Duration::ZERO,
        }
    }

    fn arrived(&mut self, now: Duration) {
        let length = now.saturating_sub(self.last);
        if length > self.length {
            (self.length, self.end) = (length, now);
        }
        self.last = now;
    }

    /// Returns whether no stall is in progress at `now`.
    fn is_over(&self, now: Duration) -> bool {
        self.end > Duration::ZERO && now.saturating_sub(self.last) < self.length
    }
}

fn figures(outages: &[Outage]) -> BTreeMap<String, f64> {
    let all = |of: fn(&Outage) -> f64| outages.iter().map(of).collect::<Vec<_>>();
    let without = all(|outage| outage.without_a_byte);
    let values = [
        stats::median(&all(|outage| outage.ready)),
        stats::median(&all(|outage| outage.connected)),
        stats::median(&all(|outage| outage.first_byte)),
        stats::median(&without),
        without.iter().copied().fold(0.0, f64::max),
    ];
    let names = METRICS.iter().map(|(metric, _)| (*metric).to_owned());
    names.zip(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjusted(by: &Adjustment) -> Result<Restart, Failure> {
        Restart::adjusted(TEXT, by)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_plan_has_kills_and_windows() {
        let plan = adjusted(&Adjustment::default()).unwrap();
        assert_eq!(plan.name, NAME);
        let name = plan.column[1].config(PayloadDirection::ToGuest).name();
        assert_eq!(name, "tap@dir=to_guest,guests=16");
        let args = Adjustment {
            quick: true,
            only: Some("xdp,vmq".to_owned()),
            ..Adjustment::default()
        };
        let quick = adjusted(&args).unwrap();
        assert!(quick.kills < plan.kills);
        assert!(quick.is_short() && !plan.is_short());
        let names: Vec<&str> = quick.column.iter().map(|column| &*column.name).collect();
        assert_eq!(names, ["tap-vmq", "xdp", "soft-vmq"]);
        let args = Adjustment {
            only: Some("frames".to_owned()),
            ..Adjustment::default()
        };
        assert!(adjusted(&args).is_err());
    }

    #[test]
    fn the_longest_time_without_a_byte_is_found() {
        let mut stall = Stall::new();
        assert!(!stall.is_over(ms(5)), "no byte has arrived yet");
        for now in [1, 2, 232, 233, 240] {
            stall.arrived(ms(now));
        }
        assert_eq!((stall.length, stall.end), (ms(230), ms(232)));
        assert!(stall.is_over(ms(469)));
        assert!(
            !stall.is_over(ms(470)),
            "the current stall is longer than the longest one"
        );
    }

    #[test]
    fn a_round_has_median_and_maximum() {
        let outage = |without_a_byte| Outage {
            ready: 1.0,
            connected: 2.0,
            first_byte: without_a_byte + 1.0,
            without_a_byte,
        };
        let found = figures(&[outage(30.0), outage(10.0), outage(20.0)]);
        let values: Vec<f64> = METRICS.iter().map(|(name, _)| found[*name]).collect();
        assert_eq!(values, [1.0, 2.0, 21.0, 20.0, 30.0]);
    }
}
