//! The plan `receive-buffer`: throughput against the size of the application's receive buffer, the
//! case study of the Xenoprof paper (figures 1 and 2).
//!
//! In the paper, the throughput of a receiver on Linux did not depend on the size, and that on Xen
//! was erratic. The study searches for *falls*, where a larger buffer has less throughput than the
//! next smaller one, and compares every step round by round.

use super::lane_study::{self, LaneColumn, LanePlan};
use super::{Study, StudyOutcome};
use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::{Lane, Loads, kernel_path, machine};
use crate::plan::{
    Adjustment, ColumnConfig, Gro, PayloadDirection, Place, Ratio, Rounds, Topology, WireSpeed,
    Workload,
};
use crate::runner::Samples;
use figures::Failure;
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell};
use figures::stats::{self, EQUIVALENCE, ThresholdSide};
use figures::table::table;
use serde::Deserialize;
use std::path::Path;

/// Plan name.
pub const NAME: &str = "receive-buffer";
/// Text of the plan.
pub const TEXT: &str = include_str!("../../plans/receive-buffer.toml");

/// Contents of the plan file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveBuffer {
    /// Plan name.
    pub name: String,
    /// One-line description for users.
    pub about: String,
    buffer: Vec<usize>,
    column: Vec<Receiver>,
    full: Rounds,
    quick: Rounds,
}

/// Location of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Receiver {
    Native,
    Local,
    Guest,
}

impl Receiver {
    const fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Local => "local",
            Self::Guest => "guest",
        }
    }

    fn config(self, buffer: usize) -> ColumnConfig {
        ColumnConfig::new(self.word(), &[("buffer", &buffer.to_string())])
    }
}

impl LaneColumn for Receiver {
    fn name(&self) -> &str {
        (*self).word()
    }

    fn may_lack(&self) -> bool {
        *self == Self::Native
    }

    fn lane(&self, cores: Cores) -> anyhow::Result<Lane> {
        let (wire, loads) = (
            WireSpeed::unbounded(),
            &Loads::of_stream(&[PayloadDirection::ToGuest]),
        );
        let (near, topology) = (OnWire::tap(&wire), Topology::default());
        match self {
            Self::Native => kernel_path::veth_lane(1, Gro::On, cores, loads),
            Self::Local => machine::local_lane(Place::OneCore, near, topology, cores, loads),
            Self::Guest => machine::lane(Place::OneCore, near, topology, cores, loads),
        }
    }
}

impl ReceiveBuffer {
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
        by.retain(&mut plan.column, |column| column.word())?;
        Ok(plan)
    }
}

impl LanePlan for ReceiveBuffer {
    fn rounds(&mut self) -> (&mut Rounds, Rounds) {
        (&mut self.full, self.quick)
    }
}

impl Study for ReceiveBuffer {
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
            "sender on core {}; receiver, guest and driver on core {}",
            cores.wire, cores.guest
        );
        let provenance = Provenance::collect(placement, plan.full.is_short());
        let mut samples = Samples::default();
        let configs = |column: &Receiver| {
            let config = |&buffer| column.config(buffer);
            plan.buffer.iter().map(config).collect()
        };
        let mut lanes = lane_study::lanes(&plan.column, configs, cores, &mut samples)?;
        let times = plan.full.times();
        let rounds = plan.full.rounds;
        lane_study::interleave(
            rounds,
            &plan.buffer,
            &mut lanes,
            |round, buffer, column, lane| {
                let config = column.config(buffer);
                lane.set_receive_size(PayloadDirection::ToGuest, buffer)?;
                let window = lane.window(Workload::Stream, PayloadDirection::ToGuest, times)?;
                if window.disturbed {
                    samples.disturb(&config);
                }
                let mut figures = window.figures(provenance.tsc_hz);
                if window.mark.operations > 0 {
                    let size = window.mark.bytes as f64 / window.mark.operations as f64;
                    figures.insert("bytes_per_receive".to_owned(), size);
                }
                samples.add(&config, round, &figures);
                Ok(())
            },
        )?;
        let mut figures = samples.figures(NAME);
        let to_native = ["local", "guest"].map(|own| Ratio {
            own: own.to_owned(),
            to: "native".to_owned(),
            ..Ratio::default()
        });
        figures.extend(samples.ratios(NAME, &to_native, &[]));
        for &(column, _) in &lanes {
            figures.extend(steps(plan, &samples, *column));
        }
        Ok(StudyOutcome {
            provenance,
            figures,
        })
    }

    fn tables(&self, figures: &[Figure]) -> String {
        let plan = self;
        let index = Index::new(figures);
        let mut rows = Vec::new();
        for &buffer in &plan.buffer {
            let mut row = vec![format!("{} KB", buffer / 1024)];
            for metric in ["throughput", "cycles_per_byte.receive_side"] {
                for column in &plan.column {
                    row.push(cell(index.get(&column.config(buffer).name(), metric)));
                }
            }
            rows.push(row);
        }
        let mut header = vec!["buffer".to_owned()];
        for unit in ["Gb/s", "cyc/B"] {
            for column in &plan.column {
                header.push(format!("{} {unit}", column.word()));
            }
        }
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut out = table(&header, &rows);
        out.push_str("\n\n");
        for column in &plan.column {
            out.push_str(&steepest(plan, &index, *column));
        }
        out
    }
}

/// Returns the throughput with each buffer ÷ that with the next smaller one.
fn steps(plan: &ReceiveBuffer, samples: &Samples, column: Receiver) -> Vec<Figure> {
    let step = |pair: &[usize]| {
        let &[smaller, larger] = pair else {
            return None;
        };
        let of = |buffer| samples.series(&column.config(buffer), "throughput");
        let ratios = stats::ratios(of(larger)?, of(smaller)?);
        let name = column.config(larger).name();
        let estimate = stats::estimate(&ratios)?;
        let mut figure = Figure::new(NAME, &name, "step.throughput", estimate);
        // A step within the margin of equality does not count as a fall.
        figure.verdict = Some(stats::against(
            &estimate,
            1.0 - EQUIVALENCE,
            ThresholdSide::Above,
        ));
        Some(figure)
    };
    plan.buffer.windows(2).filter_map(step).collect()
}

fn steepest(plan: &ReceiveBuffer, index: &Index<'_>, column: Receiver) -> String {
    let steps = plan.buffer.iter().filter_map(|&buffer| {
        let figure = index.get(&column.config(buffer).name(), "step.throughput")?;
        Some((buffer, figure))
    });
    let least = steps.min_by(|(_, a), (_, b)| a.value.partial_cmp(&b.value).unwrap_or(EQUAL));
    match least {
        Some((buffer, figure)) => format!(
            "{}: least step up to {} KB, × {}\n",
            column.word(),
            buffer / 1024,
            cell(Some(figure))
        ),
        None => String::new(),
    }
}

const EQUAL: std::cmp::Ordering = std::cmp::Ordering::Equal;

#[cfg(test)]
mod tests {
    use super::*;
    use figures::stats::ComparisonVerdict;
    use std::collections::BTreeMap;

    fn plan() -> ReceiveBuffer {
        ReceiveBuffer::adjusted(TEXT, &Adjustment::default()).unwrap()
    }

    #[test]
    fn the_plan_sweeps_the_parameters_of_the_paper() {
        let plan = plan();
        assert_eq!(plan.name, NAME);
        assert!(!plan.full.is_short(), "its figures are results");
        assert_eq!(plan.buffer.first(), Some(&1024));
        assert_eq!(plan.buffer.last(), Some(&(256 << 10)));
        assert!(plan.buffer.is_sorted());
        let only = |part: &str| {
            let args = Adjustment {
                only: Some(part.to_owned()),
                ..Adjustment::default()
            };
            ReceiveBuffer::adjusted(TEXT, &args)
        };
        assert_eq!(only("guest").unwrap().column, [Receiver::Guest]);
        let both = [Receiver::Local, Receiver::Guest];
        assert_eq!(only("local,guest").unwrap().column, both);
        assert!(only("domain0").is_err());
    }

    #[test]
    fn falls_are_found_and_rises_are_not() {
        let (plan, mut samples) = (plan(), Samples::default());
        for round in 0..5 {
            for (at, &buffer) in plan.buffer.iter().enumerate() {
                let rate = if at == 4 { 2.0 } else { 3.0 + at as f64 };
                let figures = BTreeMap::from([("throughput".to_owned(), rate)]);
                samples.add(&Receiver::Guest.config(buffer), round, &figures);
            }
        }
        let steps = steps(&plan, &samples, Receiver::Guest);
        assert_eq!(steps.len(), plan.buffer.len() - 1);
        let falls: Vec<&str> = steps
            .iter()
            .filter(|step| step.verdict == Some(ComparisonVerdict::Opposite))
            .map(|step| step.config.as_str())
            .collect();
        assert_eq!(falls, ["guest@buffer=16384"]);
        let text = plan.tables(&steps);
        assert!(text.contains("guest: least step up to 16 KB"), "{text}");
    }
}
