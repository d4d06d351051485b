//! Windows with the profiler, its timers alone, or nothing beside the load.

use super::plan::{Activity, LOSSES, NAME, OverheadPlan, config};
use super::stamps::{Rates, Stamped, Stamps};
use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::{Lane, Loads, machine};
use crate::plan::{ColumnConfig, PayloadDirection, Place, Topology, WireSpeed, Workload};
use crate::runner::Samples;
use crate::studies::StudyOutcome;
use anyhow::Context as _;
use figures::helper::{self, LineChild};
use figures::interrupt;
use figures::provenance::Provenance;
use figures::report::Figure;
use figures::sampler::{self, Costs, SampleCounts, SamplerSpec};
use figures::stats::{self, ThresholdSide};
use std::collections::BTreeMap;
use std::time::Duration;

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the plan.
///
/// # Errors
/// Returns [`Failure::CannotRun`] if the kernel refuses sampling or the machine does not start.
pub(super) fn run(plan: &OverheadPlan) -> anyhow::Result<StudyOutcome> {
    let cores = Cores::choose();
    let provenance = Provenance::collect(
        format!(
            "wire on core {}, driver and guest on core {}; the profiler on any core",
            cores.wire, cores.guest
        ),
        plan.full.is_short(),
    );
    let mut command = helper::own(sampler::HELPER)?;
    let spec = SamplerSpec {
        hz: plan.hz,
        cpu: cores.guest,
    };
    command.arg(serde_json::to_string(&spec)?);
    let mut sampler = LineChild::start("sampler", command, REPLY_TIMEOUT)?;
    eprintln!("timing a sample");
    let costs: Costs = serde_json::from_value(sampler.request("calibrate", REPLY_TIMEOUT)?)?;
    let calibration = ColumnConfig::new("calibration", &[]).name();
    let cost = |metric: &str, pairs: &[f64]| {
        let estimate = stats::estimate(pairs);
        let estimate = estimate.context("the calibration has no result")?;
        anyhow::Ok(Figure::new(NAME, &calibration, metric, estimate))
    };
    let sample = cost("cost_ns.sample", &costs.sample_ns)?;
    let sample_ns = sample.value.unwrap_or_default();
    let mut figures = vec![
        sample,
        cost("cost_ns.interrupt", &costs.interrupt_ns)?,
        Figure::single(NAME, &calibration, "frames.sample", costs.frames),
    ];
    let mut run = OverheadRun {
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
    Ok(StudyOutcome {
        provenance,
        figures,
    })
}

/// A run of the plan.
struct OverheadRun<'a> {
    plan: &'a OverheadPlan,
    cores: Cores,
    sample_ns: f64,
    sampler: LineChild,
    samples: Samples,
}

impl OverheadRun<'_> {
    fn pairs(&mut self, place: Place, direction: PayloadDirection) -> anyhow::Result<()> {
        let loads = Loads::of_stream(&[direction]);
        let speed = WireSpeed::unbounded();
        let (near, topology) = (OnWire::tap(&speed), Topology::default());
        let mut lane = machine::lane(place, near, topology, self.cores, &loads)?;
        let rounds = self.plan.full.rounds;
        for round in 0..rounds {
            eprintln!("pair {} of {rounds}", round + 1);
            let first = round % Activity::ALL.len();
            let turn = Activity::ALL.into_iter().cycle().skip(first);
            for activity in turn.take(Activity::ALL.len()) {
                interrupt::check()?;
                self.window(&mut lane, place, direction, round, activity)?;
            }
        }
        Ok(())
    }

    fn window(
        &mut self,
        lane: &mut Lane,
        place: Place,
        direction: PayloadDirection,
        round: usize,
        activity: Activity,
    ) -> anyhow::Result<()> {
        let config = config(activity, place, direction);
        if let Some(start) = activity.start() {
            self.sampler.request(start, REPLY_TIMEOUT)?;
        }
        let before = Stamps::read(lane)?;
        let window = lane.window(Workload::Stream, direction, self.plan.full.times());
        let stamps = Stamps::read(lane)?.since(&before);
        let mut figures = BTreeMap::new();
        if activity.start().is_some() {
            let counts: SampleCounts =
                serde_json::from_value(self.sampler.request("stop", REPLY_TIMEOUT)?)?;
            if activity == Activity::Profiler {
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

    /// Computes the cost in one window from counts and unit costs, as shares of a CPU.
    fn account(
        &self,
        counts: &SampleCounts,
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
            let left = (self.plan.most.cpu - stamps_share).max(0.0);
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
                against(figure, self.plan.most.cpu);
            }
        }
        for &place in &self.plan.place {
            for &direction in &self.plan.direction {
                figures.extend(LOSSES.iter().filter_map(|&(metric, own, other)| {
                    let of = |activity| config(activity, place, direction);
                    self.loss(metric, &of(own), &of(other))
                }));
            }
        }
        figures
    }

    fn loss(&self, metric: &str, own: &ColumnConfig, other: &ColumnConfig) -> Option<Figure> {
        let of = |config| self.samples.series(config, "throughput");
        let losses: Vec<f64> = stats::ratios(of(own)?, of(other)?)
            .iter()
            .map(|ratio| 1.0 - ratio)
            .collect();
        let name = own.name();
        let estimate = stats::estimate(&losses)?;
        let mut figure = Figure::new(NAME, &name, metric, estimate);
        if metric == "loss.throughput" {
            against(&mut figure, self.plan.most.throughput);
        }
        Some(figure)
    }
}

/// Sets the verdict on a share that must not exceed `most`, and a note with the bound from the
/// data.
fn against(figure: &mut Figure, most: f64) {
    let (Some(value), Some(lo), Some(hi)) = (figure.value, figure.lo, figure.hi) else {
        return;
    };
    let estimate = stats::Estimate {
        value,
        lo,
        hi,
        n: figure.n,
    };
    figure.verdict = Some(stats::against(&estimate, most, ThresholdSide::Below));
    figure.note = Some(format!(
        "at most {:.2} % by an interval that covers {:.0} %; the bar is {:.0} %",
        hi * 100.0,
        stats::coverage(figure.n) * 100.0,
        most * 100.0
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use figures::stats::ComparisonVerdict;

    #[test]
    fn a_verdict_has_its_bound() {
        let mut figure = Figure::single(NAME, "profiled", "loss.throughput", 0.01);
        figure.hi = Some(0.025);
        against(&mut figure, 0.03);
        assert_eq!(figure.verdict, Some(ComparisonVerdict::SameSign));
        assert!(figure.note.unwrap().contains("2.50 %"));
        let mut figure = Figure::single(NAME, "profiled", "loss.throughput", 0.04);
        against(&mut figure, 0.03);
        assert_eq!(figure.verdict, Some(ComparisonVerdict::Opposite));
    }
}
