//! The plan `attach`: the time to attach and to detach a guest on a running machine, and the effect
//! on the machine's other guests.
//!
//! Nothing is pinned. The machine has the default configuration. It starts with two guests, and all
//! others are attached.

mod machine;

use super::lane_study::{self, LanePlan};
use super::{Study, StudyOutcome};
use crate::kernel::require_programs;
use crate::many_guests::GuestPlace;
use crate::plan::{Adjustment, ColumnConfig, Ratio, Rounds, Threshold};
use crate::runner::Samples;
use anyhow::Context as _;
use figures::measure::HostCpuTimes;
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell};
use figures::stats::ranks;
use figures::table::table;
use figures::{Failure, interrupt};
use machine::{AttachMachine, AttachTimes, Neighbour};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Plan name.
pub const NAME: &str = "attach";
/// Text of the plan.
pub const TEXT: &str = include_str!("../../../plans/attach.toml");
/// Number of guests that a default machine can attach in addition to those of its file.
const GUESTS_MAX: u32 = 256;
/// Metrics, in table order.
const METRICS: [(&str, &str); 9] = [
    ("up_all_ms", "all come"),
    ("attach_ms.p50", "attach"),
    ("attach_ms.p99", "attach p99"),
    ("detach_ms.p50", "detach"),
    ("detach_ms.p99", "detach p99"),
    ("link_gone_ms.max", "link gone"),
    ("neighbour_p50_us", "probe, µs"),
    ("neighbour_p999_us", "probe p99.9, µs"),
    ("neighbour_lost", "lost"),
];
/// Metric: the neighbours' latency while guests are attached ÷ their latency while processes are
/// started.
const RATIO: &str = "ratio.fork-exec.neighbour_p999_us";

/// The plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachPlan {
    /// Plan name.
    pub name: String,
    /// One-line description for users.
    pub about: String,
    guests: Vec<u32>,
    every_ms: u64,
    column: Vec<Event>,
    ratio: Vec<Ratio>,
    bar: Vec<Threshold>,
    full: Rounds,
    quick: Rounds,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    name: String,
    #[serde(alias = "happens")]
    disturbance: Disturbance,
}

/// The disturbance of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Disturbance {
    /// None.
    Nothing,
    /// One guest is detached and attached again.
    Attach,
    /// As many processes are started as an attach starts.
    Spawn,
}

impl AttachPlan {
    /// Opens the plan in `text`.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the plan, with `by` applied, is not valid.
    pub fn open(text: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
        Ok(Box::new(Self::adjusted(text, by)?))
    }

    /// Parses the plan and applies command-line options.
    fn adjusted(text: &str, by: &Adjustment) -> Result<Self, Failure> {
        let mut plan = Self::parse(text, by)?;
        by.retain(&mut plan.column, |column| &column.name)?;
        let fits = |guests: &u32| (1..=GUESTS_MAX).contains(guests);
        if plan.every_ms == 0 || !plan.guests.iter().all(fits) {
            let why = format!("every_ms from 1, guests from 1 to {GUESTS_MAX}");
            return Err(Failure::Usage(why));
        }
        Ok(plan)
    }

    fn every(&self) -> Duration {
        Duration::from_millis(self.every_ms)
    }

    /// Measures all columns of one machine.
    fn round(
        &self,
        round: usize,
        places: &[GuestPlace],
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let times = self.full.times();
        let mut machine = AttachMachine::new(places)?;
        // Each attach starts two processes, the guest and its agent, unless a measured number is
        // available.
        let turns = times.window.as_millis() / self.every().as_millis().max(1);
        let mut processes = 2 * usize::try_from(turns)?;
        for column in &self.column {
            interrupt::sleep(times.warm_up)?;
            let before = HostCpuTimes::read();
            let mut figures = BTreeMap::new();
            let neighbour = match column.disturbance {
                Disturbance::Nothing => {
                    let nothing = |_: &AttachMachine<'_>| Ok(interrupt::sleep(times.window)?);
                    machine.observe_probe(nothing)?.1
                }
                Disturbance::Attach => {
                    let attaches = |machine: &AttachMachine<'_>| {
                        machine.attach_repeatedly(times.window, self.every())
                    };
                    let (durations, neighbour) = machine.observe_probe(attaches)?;
                    processes = durations.processes;
                    figures.extend(attach_figures(&durations));
                    let ms = machine.up_all.as_secs_f64() * 1e3;
                    figures.insert("up_all_ms".to_owned(), ms);
                    neighbour
                }
                Disturbance::Spawn => {
                    let spawn = |_: &AttachMachine<'_>| machine::spawn(times.window, processes);
                    machine.observe_probe(spawn)?.1
                }
            };
            figures.extend(neighbour_figures(&neighbour));
            let config = config(column, places.len());
            samples.add(&config, round, &figures);
            if HostCpuTimes::read().disturbed_since(before) {
                samples.disturb(&config);
            }
        }
        machine.end()
    }
}

fn config(column: &Event, guests: usize) -> ColumnConfig {
    ColumnConfig::new(&column.name, &[("guests", &guests.to_string())])
}

impl LanePlan for AttachPlan {
    fn rounds(&mut self) -> (&mut Rounds, Rounds) {
        (&mut self.full, self.quick)
    }
}

impl Study for AttachPlan {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn run(&self, _folder: Option<&Path>) -> anyhow::Result<StudyOutcome> {
        require_programs(&[machine::PROGRAM])?;
        let placement = "nothing is pinned".to_owned();
        let provenance = Provenance::collect(placement, self.full.is_short());
        let mut samples = Samples::default();
        let most = self.guests.iter().max().copied().unwrap_or(0);
        let places: Vec<GuestPlace> = (0..most)
            .map(|_| GuestPlace::new())
            .collect::<Result<_, _>>()?;
        lane_study::rounds(self.full.rounds, |round| {
            for &guests in &self.guests {
                interrupt::check()?;
                let places = places.get(..guests as usize).context("no namespace")?;
                self.round(round, places, &mut samples)
                    .with_context(|| format!("{guests} guests"))?;
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
        for &guests in &self.guests {
            for column in &self.column {
                let config = config(column, guests as usize).name();
                let mut row = vec![column.name.clone(), guests.to_string()];
                let metrics = METRICS.iter().map(|(metric, _)| *metric);
                let metrics = metrics.chain([RATIO]);
                row.extend(metrics.map(|metric| cell(index.get(&config, metric))));
                rows.push(row);
            }
        }
        let mut header = vec!["ms", "guests"];
        header.extend(METRICS.map(|(_, title)| title));
        header.push("÷ fork-exec");
        table(&header, &rows)
    }
}

/// Returns the figures of a round of attaches and detaches.
fn attach_figures(times: &AttachTimes) -> BTreeMap<String, f64> {
    let [attach, detach] = [&times.attach_ms, &times.detach_ms].map(|ms| ranks(ms, [0.5, 0.99]));
    let gone = times.link_gone_ms.iter().copied().fold(0.0, f64::max);
    let figures = [
        ("attach_ms.p50", attach[0]),
        ("attach_ms.p99", attach[1]),
        ("detach_ms.p50", detach[0]),
        ("detach_ms.p99", detach[1]),
        ("link_gone_ms.max", gone),
    ];
    figures.map(|(name, ms)| (name.to_owned(), ms)).into()
}

fn neighbour_figures(neighbour: &Neighbour) -> [(String, f64); 3] {
    let Neighbour { times, lost } = neighbour;
    [
        ("neighbour_p50_us".to_owned(), times.p50_us),
        ("neighbour_p999_us".to_owned(), times.p999_us),
        ("neighbour_lost".to_owned(), *lost as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(by: &Adjustment) -> Result<AttachPlan, Failure> {
        AttachPlan::adjusted(TEXT, by)
    }

    #[test]
    fn every_threshold_has_a_figure() {
        let plan = plan(&Adjustment::default()).unwrap();
        assert_eq!(plan.guests, [1, 64, 256]);
        for bar in &plan.bar {
            assert!(plan.column.iter().any(|column| column.name == bar.column));
            let mut metrics = METRICS.iter().map(|(metric, _)| *metric).chain([RATIO]);
            assert!(metrics.any(|metric| metric == bar.metric), "{bar:?}");
            assert!(bar.bound().is_some(), "{bar:?}");
        }
        for (metric, _) in METRICS {
            assert!(!figures::metric::unit(metric).is_empty(), "{metric}");
        }
    }

    #[test]
    fn too_many_guests_are_rejected() {
        let text = TEXT.replace("guests = [1, 64, 256]", "guests = [1, 257]");
        let error = AttachPlan::adjusted(&text, &Adjustment::default()).unwrap_err();
        assert!(error.to_string().contains("1 to 256"), "{error}");
    }
}
