//! The plan `prof-overhead`: what the profiler takes from the machine that it looks at.
//!
//! Two accounts that do not know of each other. The *direct* one multiplies: samples and stamps of
//! each core in each profiled window, times what one of them costs: a sample by a calibration of the
//! same run, a stamp by the domain's own timing. The *difference* compares throughput in pairs of
//! windows next to each other, one of them profiled, and so holds everything, the profiler's own
//! reading of its rings too. A third window beside each pair has the timers alone, as many interrupts
//! that take no sample: what of the difference is the machine's price for being interrupted.

use crate::exp::Args;
use crate::lane::machine::{self, OnWire, Running, What};
use crate::lane::window::Work;
use crate::lane::{Cores, Direction, Lane, Loads, Place};
use crate::plan::{Rounds, Wire};
use crate::runner::{Config, Samples};
use anyhow::Context as _;
use figures::helper::{self, LineChild};
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell, table};
use figures::sampler::{self, Costs, Counts, SamplerSpec};
use figures::stats::{self, Side};
use figures::{Failure, interrupt};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The plan's name.
pub const NAME: &str = "prof-overhead";
const PLAN: &str = include_str!("../plans/prof-overhead.toml");

/// The plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What it is about, for people.
    pub about: String,
    hz: u32,
    direction: Vec<Direction>,
    place: Vec<Place>,
    bar: Bars,
    full: Rounds,
    quick: Rounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bars {
    cpu: f64,
    throughput: f64,
}

impl Plan {
    /// The plan as a command line changes it.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub fn adjusted(args: &Args) -> Result<Self, Failure> {
        let mut plan: Self =
            toml::from_str(PLAN).map_err(|error| Failure::Usage(error.to_string()))?;
        plan.full = plan.full.adjusted(plan.quick, args)?;
        Ok(plan)
    }
}

const WAIT: Duration = Duration::from_secs(30);

/// What runs beside the load, as a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// The timers of a profiler, and no samples.
    Timers,
    Profiler,
}

impl Beside {
    const ALL: [Self; 3] = [Self::Nothing, Self::Timers, Self::Profiler];

    fn column(self) -> &'static str {
        match self {
            Self::Nothing => "bare",
            Self::Timers => "timers",
            Self::Profiler => "profiled",
        }
    }

    /// What the helper is asked before a window.
    fn start(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Timers => Some("timers"),
            Self::Profiler => Some("start"),
        }
    }
}

/// Losses of throughput: a metric, whose, and against what.
const LOSSES: [(&str, Beside, Beside); 3] = [
    ("loss.throughput", Beside::Profiler, Beside::Nothing),
    ("loss.timers", Beside::Timers, Beside::Nothing),
    ("loss.sampling", Beside::Profiler, Beside::Timers),
];

/// Runs the plan.
///
/// # Errors
/// [`Failure::CannotRun`] where sampling is refused or the machine does not start.
pub fn run(plan: &Plan, quick: bool) -> anyhow::Result<(Provenance, Vec<Figure>)> {
    let cores = Cores::choose();
    let provenance = Provenance::collect(
        format!(
            "wire on core {}, driver and guest on core {}; the profiler wherever there is room",
            cores.wire, cores.guest
        ),
        quick,
    );
    let mut command = helper::own(sampler::HELPER)?;
    let spec = SamplerSpec {
        hz: plan.hz,
        cpu: cores.guest,
    };
    command.arg(serde_json::to_string(&spec)?);
    let mut sampler = LineChild::start("sampler", command, WAIT)?;
    eprintln!("timing a sample");
    let costs: Costs = serde_json::from_value(sampler.ask("calibrate", WAIT)?)?;
    let calibration = Config::new("calibration", &[]).name();
    let cost = |metric: &str, pairs: &[f64]| {
        let estimate = stats::estimate(pairs, stats::seed(&[NAME, metric]));
        let estimate = estimate.context("the calibration gave nothing")?;
        anyhow::Ok(Figure::new(NAME, &calibration, metric, estimate))
    };
    let sample = cost("cost_ns.sample", &costs.sample_ns)?;
    let sample_ns = sample.value.unwrap_or_default();
    let mut figures = vec![
        sample,
        cost("cost_ns.interrupt", &costs.interrupt_ns)?,
        Figure::single(NAME, &calibration, "frames.sample", costs.frames),
    ];
    let mut run = Run {
        plan,
        cores,
        sample_ns,
        sampler,
        samples: Samples::default(),
    };
    for &place in &plan.place {
        for &direction in &plan.direction {
            run.pairs(place, direction)?;
        }
    }
    figures.extend(run.figures());
    Ok((provenance, figures))
}

struct Run<'a> {
    plan: &'a Plan,
    cores: Cores,
    sample_ns: f64,
    sampler: LineChild,
    samples: Samples,
}

impl Run<'_> {
    fn pairs(&mut self, place: Place, direction: Direction) -> anyhow::Result<()> {
        let loads = Loads {
            works: vec![Work::Stream],
            directions: vec![direction],
            ..Loads::default()
        };
        let speed = Wire::unbounded();
        let (near, what) = (OnWire::tap(&speed), What::default());
        let mut lane = machine::lane(place, near, what, self.cores, &loads)?;
        let rounds = self.plan.full.rounds;
        for round in 0..rounds {
            eprintln!("pair {} of {rounds}", round + 1);
            let first = round % Beside::ALL.len();
            let turn = Beside::ALL.into_iter().cycle().skip(first);
            for beside in turn.take(Beside::ALL.len()) {
                interrupt::check()?;
                self.window(&mut lane, place, direction, round, beside)?;
            }
        }
        Ok(())
    }

    fn window(
        &mut self,
        lane: &mut Lane,
        place: Place,
        direction: Direction,
        round: usize,
        beside: Beside,
    ) -> anyhow::Result<()> {
        let config = config(beside, place, direction);
        if let Some(start) = beside.start() {
            self.sampler.ask(start, WAIT)?;
        }
        let before = Stamps::read(lane)?;
        let window = lane.window(Work::Stream, direction, self.plan.full.times());
        let stamps = Stamps::read(lane)?.since(&before);
        let mut figures = BTreeMap::new();
        if beside.start().is_some() {
            let counts: Counts = serde_json::from_value(self.sampler.ask("stop", WAIT)?)?;
            if beside == Beside::Profiler {
                self.account(&counts, &stamps, place, &mut figures);
            }
        }
        let window = window?;
        if window.disturbed {
            self.samples.disturb(&config);
        }
        let seconds = window.mark.ns as f64 / 1e9;
        if seconds > 0.0 {
            let rate = window.mark.bytes as f64 * 8.0 / seconds / 1e9;
            figures.insert("throughput".to_owned(), rate);
        }
        self.samples.add(&config, round, &figures);
        Ok(())
    }

    /// The direct account of one window, in shares of a CPU.
    fn account(
        &self,
        counts: &Counts,
        stamps: &Stamped,
        place: Place,
        out: &mut BTreeMap<String, f64>,
    ) {
        let ran_s = counts.ran_ns as f64 / 1e9;
        if ran_s <= 0.0 {
            return;
        }
        for (cpu, core) in [(self.cores.wire, "wire"), (self.cores.guest, "guest")] {
            let samples = u32::try_from(cpu)
                .ok()
                .and_then(|cpu| counts.samples.get(&cpu))
                .map_or(0.0, |count| *count as f64 / ran_s);
            let mut own = Rates::default();
            if cpu == self.cores.driver(place) {
                own.add(stamps.rates("driver"));
            }
            if cpu == self.cores.guest {
                own.add(stamps.rates("guest"));
            }
            let samples_share = samples * self.sample_ns / 1e9;
            let stamps_share = own.cost;
            let left = (self.plan.bar.cpu - stamps_share).max(0.0);
            for (metric, value) in [
                ("rate.samples", samples),
                ("rate.stamps", own.stamps),
                ("rate.clock_reads", own.clock_reads),
                ("overhead.samples", samples_share),
                ("overhead.stamps", stamps_share),
                ("overhead.cpu", samples_share + stamps_share),
                ("rate.within_bar", left * 1e9 / self.sample_ns),
            ] {
                out.insert(format!("{metric}.{core}"), value);
            }
        }
        for (metric, value) in [
            ("cost_ns.stamp", stamps.stamp_ns),
            ("cost_ns.clock", stamps.clock_ns),
        ] {
            out.insert(metric.to_owned(), value);
        }
        let all: u64 = counts.samples.values().sum();
        out.insert(
            "overhead.profiler".to_owned(),
            counts.cpu_ns as f64 / counts.ran_ns as f64,
        );
        out.insert(
            "frames.load".to_owned(),
            counts.frames as f64 / all.max(1) as f64,
        );
        out.insert("lost.samples".to_owned(), counts.lost as f64);
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = self.samples.figures(NAME);
        for figure in &mut figures {
            if figure.metric.starts_with("overhead.cpu.") && figure.verdict.is_none() {
                against(figure, self.plan.bar.cpu);
            }
        }
        for &place in &self.plan.place {
            for &direction in &self.plan.direction {
                figures.extend(LOSSES.iter().filter_map(|&(metric, own, other)| {
                    let of = |beside| config(beside, place, direction);
                    self.loss(metric, &of(own), &of(other))
                }));
            }
        }
        figures
    }

    fn loss(&self, metric: &str, own: &Config, other: &Config) -> Option<Figure> {
        let of = |config| self.samples.series(config, "throughput");
        let losses: Vec<f64> = stats::ratios(of(own)?, of(other)?)
            .iter()
            .map(|ratio| 1.0 - ratio)
            .collect();
        let name = own.name();
        let estimate = stats::estimate(&losses, stats::seed(&[&name, metric]))?;
        let mut figure = Figure::new(NAME, &name, metric, estimate);
        if metric == "loss.throughput" {
            against(&mut figure, self.plan.bar.throughput);
        }
        Some(figure)
    }
}

fn config(beside: Beside, place: Place, direction: Direction) -> Config {
    let keys = [("dir", direction.name()), ("place", place.name())];
    Config::new(beside.column(), &keys)
}

/// The verdict on a share that should not be above `bar`, and the bound that the data give.
fn against(figure: &mut Figure, bar: f64) {
    let (Some(value), Some(lo), Some(hi)) = (figure.value, figure.lo, figure.hi) else {
        return;
    };
    let estimate = stats::Estimate {
        value,
        lo,
        hi,
        n: figure.n,
    };
    figure.verdict = Some(stats::against(&estimate, bar, Side::Below));
    figure.note = Some(format!(
        "at most {:.2} % with 95 % confidence; the bar is {:.0} %",
        hi * 100.0,
        bar * 100.0
    ));
}

/// What the ledgers of some domains do in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    stamps: f64,
    clock_reads: f64,
    /// Seconds that both take.
    cost: f64,
}

impl Rates {
    fn add(&mut self, other: Self) {
        self.stamps += other.stamps;
        self.clock_reads += other.clock_reads;
        self.cost += other.cost;
    }
}

/// What a ledger has counted about itself, and what it says that its parts cost.
#[derive(Clone, Copy, Debug)]
struct Count {
    part: &'static str,
    stamps: f64,
    clock_reads: f64,
    stamp_ns: f64,
    clock_ns: f64,
}

/// The ledgers of all domains at one moment.
#[derive(Clone, Debug)]
struct Stamps {
    at: Instant,
    by_domain: BTreeMap<String, Count>,
}

/// The same between two moments.
#[derive(Clone, Debug, Default)]
struct Stamped {
    by_part: BTreeMap<&'static str, Rates>,
    stamp_ns: f64,
    clock_ns: f64,
}

impl Stamps {
    fn read(lane: &Lane) -> anyhow::Result<Self> {
        let machine: &Running = lane.between().machine().context("no machine")?;
        let mut by_domain = BTreeMap::new();
        for (part, name) in machine.domains() {
            let stat = machine.stat(name)?;
            let ledger = &stat["ledger"];
            let number = |value: &Value| value.as_f64().unwrap_or(0.0);
            let count = Count {
                part,
                stamps: number(&ledger["stamps"]),
                clock_reads: number(&ledger["clock_reads"]),
                stamp_ns: number(&ledger["cost_ns"]["stamp"]),
                clock_ns: number(&ledger["cost_ns"]["clock_read"]),
            };
            by_domain.insert(name.to_owned(), count);
        }
        Ok(Self {
            at: Instant::now(),
            by_domain,
        })
    }

    fn since(&self, before: &Self) -> Stamped {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let mut stamped = Stamped::default();
        for (name, now) in &self.by_domain {
            let Some(earlier) = before.by_domain.get(name) else {
                continue;
            };
            let stamps = (now.stamps - earlier.stamps) / seconds;
            let clock_reads = (now.clock_reads - earlier.clock_reads) / seconds;
            stamped.by_part.entry(now.part).or_default().add(Rates {
                stamps,
                clock_reads,
                cost: (stamps * now.stamp_ns + clock_reads * now.clock_ns) / 1e9,
            });
            // The dearest domain's, where they differ.
            stamped.stamp_ns = stamped.stamp_ns.max(now.stamp_ns);
            stamped.clock_ns = stamped.clock_ns.max(now.clock_ns);
        }
        stamped
    }
}

impl Stamped {
    fn rates(&self, part: &str) -> Rates {
        self.by_part.get(part).copied().unwrap_or_default()
    }
}

/// The figures as text.
#[must_use]
pub fn tables(plan: &Plan, figures: &[Figure]) -> String {
    let index = Index::new(figures);
    let mut out = String::new();
    let calibrated = |metric| cell(index.get("calibration", metric));
    out.push_str(&format!(
        "a sample costs {} ns (call stack of {}); of that a timer's interrupt, whoever asks for it, {} ns\n\n",
        calibrated("cost_ns.sample"),
        calibrated("frames.sample"),
        calibrated("cost_ns.interrupt"),
    ));
    for &place in &plan.place {
        for &direction in &plan.direction {
            let [bare, timers, profiled] =
                Beside::ALL.map(|beside| config(beside, place, direction).name());
            let bound = |config: &str, metric: &str| {
                index
                    .get(config, metric)
                    .and_then(|figure| Some((figure.value?, figure.hi?)))
                    .map_or_else(
                        || "–".to_owned(),
                        |(value, hi)| format!("{:.2} (≤ {:.2})", value * 100.0, hi * 100.0),
                    )
            };
            let percent = |metric: &str| bound(&profiled, metric);
            let rows: Vec<Vec<String>> = ["wire", "guest"]
                .iter()
                .map(|core| {
                    let of = |metric: &str| format!("{metric}.{core}");
                    vec![
                        format!("core of the {core}"),
                        cell(index.get(&profiled, &of("rate.samples"))),
                        cell(index.get(&profiled, &of("rate.stamps"))),
                        percent(&of("overhead.samples")),
                        percent(&of("overhead.stamps")),
                        percent(&of("overhead.cpu")),
                        cell(index.get(&profiled, &of("rate.within_bar"))),
                    ]
                })
                .collect();
            let header = [
                profiled.as_str(),
                "samples/s",
                "stamps/s",
                "samples %",
                "stamps %",
                "together %",
                "samples/s within the bar",
            ];
            out.push_str(&table(&header, &rows));
            out.push_str(&format!(
                "\n\na stamp: {} ns, a look at the CPU clock: {} ns\n\
                 the profiler itself: {} % of one CPU\n\
                 throughput: {} Gb/s, with bare timers {} Gb/s, profiled {} Gb/s\n\
                 median loss of {} pairs: {} %; by the timers alone {} %, by sampling against timers {} %\n\n",
                cell(index.get(&profiled, "cost_ns.stamp")),
                cell(index.get(&profiled, "cost_ns.clock")),
                percent("overhead.profiler"),
                cell(index.get(&bare, "throughput")),
                cell(index.get(&timers, "throughput")),
                cell(index.get(&profiled, "throughput")),
                index
                    .get(&profiled, "loss.throughput")
                    .map_or(0, |figure| figure.n),
                percent("loss.throughput"),
                bound(&timers, "loss.timers"),
                percent("loss.sampling"),
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use figures::stats::Verdict;

    #[test]
    fn the_plan_is_valid_and_named_as_its_file() {
        let plan = Plan::adjusted(&Args::default()).unwrap();
        assert_eq!(plan.name, NAME);
        assert_eq!(plan.full.rounds, 30);
        let quick = Args {
            quick: true,
            ..Args::default()
        };
        let quick = Plan::adjusted(&quick).unwrap().full;
        assert!(quick.rounds >= 3 && quick.window_s <= 1.0);
        let none = Args {
            rounds: Some(2),
            ..Args::default()
        };
        assert!(Plan::adjusted(&none).is_err());
    }

    #[test]
    fn stamps_become_rates() {
        let now = Instant::now();
        let stamps = |at, stamps, clock_reads| {
            let count = Count {
                part: "driver",
                stamps,
                clock_reads,
                stamp_ns: 10.0,
                clock_ns: 500.0,
            };
            Stamps {
                at,
                by_domain: [("d".to_owned(), count)].into(),
            }
        };
        let later = stamps(now + Duration::from_secs(2), 500.0, 30.0);
        let stamped = later.since(&stamps(now, 100.0, 10.0));
        let rates = stamped.rates("driver");
        assert_eq!((rates.stamps, rates.clock_reads), (200.0, 10.0));
        assert!((rates.cost - 7e-6).abs() < 1e-12, "{rates:?}");
        assert_eq!((stamped.stamp_ns, stamped.clock_ns), (10.0, 500.0));
        assert_eq!(stamped.rates("guest"), Rates::default());
    }

    #[test]
    fn a_bound_is_said_with_its_verdict() {
        let mut figure = Figure::single(NAME, "profiled", "loss.throughput", 0.01);
        figure.hi = Some(0.025);
        against(&mut figure, 0.03);
        assert_eq!(figure.verdict, Some(Verdict::SameSign));
        assert!(figure.note.unwrap().contains("2.50 %"));
        let mut figure = Figure::single(NAME, "profiled", "loss.throughput", 0.04);
        against(&mut figure, 0.03);
        assert_eq!(figure.verdict, Some(Verdict::Opposite));
    }
}
