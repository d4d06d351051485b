//! A cell: a metric of a configuration on both sides, their ratio, and the verdict.

use super::aliases::Config;
use super::plans::{Part, Plan};
use super::stored_pairs::Pair;
use figures::metric;
use figures::stats::{self, Estimate, ThresholdSide};
use std::collections::BTreeMap;

/// A cell fails if the whole interval of its ratio lies below this.
pub(super) const FLOOR: f64 = 0.97;
/// Maximum half width of a precise cell's interval, as a fraction of the ratio.
pub(super) const WIDTH: f64 = 0.03;
/// Maximum ratio of instruction counts that are considered equal.
pub(super) const INSTRUCTIONS: f64 = 1.01;
/// The minimum number of pairs for a 95 % interval: with n pairs, the interval from the smallest to
/// the largest covers 1 - 2 / 2^n: 97 % for 6, 94 % for 5.
pub(super) const PAIRS_MIN: usize = 6;

/// A metric of a configuration on both sides.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) plan: String,
    pub(super) config: String,
    pub(super) metric: String,
    pub(super) part: Part,
    /// Medians of both sides; `None` if a side has no such figure.
    pub(super) old: Option<f64>,
    pub(super) new: Option<f64>,
    /// The ratio over all pairs; more than 1 is better.
    pub(super) ratio: Option<Estimate>,
    /// Pairs during which CPU time was stolen.
    pub(super) disturbed: usize,
}

/// The result of counting a plan's benches: the largest ratio of instructions, new / old.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Counts {
    Most(f64),
    /// The benches were not counted, for this reason.
    None(String),
}

/// The verdict on a cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Pass,
    Fail,
    /// The interval is too wide, but the instructions have not increased.
    PassByInstructions(f64),
    FailByInstructions(f64),
    Unresolved,
    /// One side has no such figure.
    OnlyOld,
    OnlyNew,
    Shown,
}

impl Outcome {
    pub(super) fn fails(&self) -> bool {
        // If only the commit has a figure, the cell fails, because the figure would no longer be
        // checked.
        matches!(
            self,
            Self::Fail | Self::FailByInstructions(_) | Self::OnlyOld
        )
    }
}

/// Returns all cells of a plan's pairs, ordered by name.
pub(super) fn of(plan: &Plan, pairs: &[Pair]) -> Vec<Cell> {
    let mut seen: BTreeMap<(&str, &str), Samples> = BTreeMap::new();
    for pair in pairs {
        for values in &pair.values {
            let samples = seen.entry((&values.config, &values.metric)).or_default();
            samples.old.push(values.old);
            samples.new.push(values.new);
            samples.disturbed += usize::from(pair.disturbed);
        }
    }
    let cell = |((config, metric), samples)| cell(plan, config, metric, &samples);
    seen.into_iter().filter_map(cell).collect()
}

/// A cell's values, pair by pair.
#[derive(Debug, Default)]
struct Samples {
    old: Vec<Option<f64>>,
    new: Vec<Option<f64>>,
    disturbed: usize,
}

fn cell(plan: &Plan, config: &str, metric: &str, samples: &Samples) -> Option<Cell> {
    let part = plan.part(config, metric)?;
    let (old, new) = (&samples.old, &samples.new);
    let ratios = match metric::better(metric) {
        ThresholdSide::Above => stats::ratios(new, old),
        ThresholdSide::Below => stats::ratios(old, new),
    };
    let median = |side: &[Option<f64>]| {
        let values: Vec<f64> = side.iter().flatten().copied().collect();
        (!values.is_empty()).then(|| stats::median(&values))
    };
    Some(Cell {
        plan: plan.name.clone(),
        config: config.to_owned(),
        metric: metric.to_owned(),
        part,
        old: median(old),
        new: median(new),
        ratio: stats::estimate(&ratios),
        disturbed: samples.disturbed,
    })
}

impl Cell {
    /// Returns the cell's column.
    pub(super) fn column(&self) -> String {
        Config::parse(&self.config).column
    }

    /// Returns whether the cell's interval is narrow enough.
    pub(super) fn is_narrow(&self) -> bool {
        self.ratio.is_some_and(|ratio| {
            ratio.n >= PAIRS_MIN && (ratio.hi - ratio.lo) / 2.0 <= WIDTH * ratio.value
        })
    }

    /// Returns whether the cell needs more pairs: it is judged and is not precise enough.
    pub(super) fn needs_pairs(&self) -> bool {
        self.part == Part::Key && !self.is_narrow() && self.old.is_some() && self.new.is_some()
    }

    /// Returns whether instruction counts must decide, because the interval is still wide and the
    /// cell may be too slow.
    pub(super) fn needs_counts(&self) -> bool {
        let decided =
            |ratio: Estimate| ratio.n >= PAIRS_MIN && (ratio.lo >= FLOOR || ratio.hi < FLOOR);
        self.needs_pairs() && !self.ratio.is_some_and(decided)
    }

    /// Returns the verdict. `counts` holds the counts of the plan's benches, if they were counted.
    pub(super) fn verdict(&self, counts: Option<&Counts>) -> Outcome {
        if self.part == Part::Shown {
            return Outcome::Shown;
        }
        match (self.old, self.new) {
            (Some(_), None) => return Outcome::OnlyOld,
            (None, _) => return Outcome::OnlyNew,
            _ => {}
        }
        if self.needs_counts() {
            return match counts {
                Some(&Counts::Most(most)) if most <= INSTRUCTIONS => {
                    Outcome::PassByInstructions(most)
                }
                Some(&Counts::Most(most)) => Outcome::FailByInstructions(most),
                _ => Outcome::Unresolved,
            };
        }
        match self.ratio {
            Some(ratio) if ratio.hi < FLOOR => Outcome::Fail,
            Some(_) => Outcome::Pass,
            None => Outcome::Unresolved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::plans;
    use crate::compare::stored_pairs::Values;

    fn isolation() -> Plan {
        let plans = plans::read().unwrap();
        plans.named(&["isolation".to_owned()]).unwrap().remove(0)
    }

    /// Returns a cell with these values of both sides.
    fn of_values(metric: &str, load: &str, values: &[(Option<f64>, Option<f64>)]) -> Cell {
        let pair = |&(old, new): &(Option<f64>, Option<f64>)| Pair {
            tree: String::new(),
            plan: "isolation".to_owned(),
            disturbed: false,
            values: vec![Values {
                config: format!("ngm-64@load={load}"),
                metric: metric.to_owned(),
                old,
                new,
            }],
        };
        let pairs: Vec<Pair> = values.iter().map(pair).collect();
        of(&isolation(), &pairs).remove(0)
    }

    /// Returns a cell whose ratio has the interval from `lo` to `hi`.
    fn between(lo: f64, hi: f64, n: usize) -> Cell {
        let step = (hi - lo) / (n - 1) as f64;
        let both = |i| (Some(10.0), Some(10.0 * (lo + step * i as f64)));
        let values: Vec<_> = (0..n).map(both).collect();
        of_values("packets", "1", &values)
    }

    #[test]
    fn more_than_one_figure_is_always_better() {
        let values = [(Some(10.0), Some(20.0)); 6];
        let packets = of_values("packets", "1", &values);
        assert_eq!(packets.ratio.unwrap().value, 2.0);
        let cycles = of_values("cycles_per_packet.total", "1", &values);
        assert_eq!(cycles.ratio.unwrap().value, 0.5);
        assert_eq!((cycles.old, cycles.new), (Some(10.0), Some(20.0)));
        assert_eq!(packets.verdict(None), Outcome::Pass);
        assert_eq!(cycles.verdict(None), Outcome::Fail);
    }

    #[test]
    fn narrow_cells_fail_below_the_floor_only() {
        for (lo, hi, verdict) in [
            (0.995, 1.005, Outcome::Pass),
            (0.96, 0.98, Outcome::Pass),
            (0.94, 0.96, Outcome::Fail),
            (1.2, 1.21, Outcome::Pass),
        ] {
            let cell = between(lo, hi, 20);
            assert!(cell.is_narrow() && !cell.needs_pairs(), "{cell:?}");
            assert_eq!(cell.verdict(None), verdict, "{lo} {hi}");
        }
    }

    #[test]
    fn wide_cells_are_decided_by_instructions() {
        let cell = between(0.7, 1.3, 40);
        assert!(cell.needs_pairs() && cell.needs_counts());
        let none = Counts::None("no valgrind".to_owned());
        for (counts, verdict) in [
            (None, Outcome::Unresolved),
            (Some(none), Outcome::Unresolved),
            (Some(Counts::Most(1.01)), Outcome::PassByInstructions(1.01)),
            (Some(Counts::Most(1.02)), Outcome::FailByInstructions(1.02)),
        ] {
            assert_eq!(cell.verdict(counts.as_ref()), verdict);
        }
        // The whole interval, although wide, lies on one side.
        let counts = Counts::Most(2.0);
        let better = between(1.2, 2.0, 40);
        assert_eq!(better.verdict(Some(&counts)), Outcome::Pass);
        let worse = between(0.4, 0.8, 40);
        assert!(worse.needs_pairs());
        assert_eq!(worse.verdict(Some(&Counts::Most(1.0))), Outcome::Fail);
    }

    #[test]
    fn few_pairs_give_no_interval() {
        let cell = between(0.5, 0.501, PAIRS_MIN - 1);
        assert!(cell.needs_pairs());
        assert_eq!(cell.verdict(None), Outcome::Unresolved);
        assert_eq!(between(0.5, 0.501, PAIRS_MIN).verdict(None), Outcome::Fail);
    }

    #[test]
    fn a_figure_that_one_side_lacks_is_not_compared() {
        let lost = of_values("packets", "1", &[(Some(1.0), None); 6]);
        assert_eq!(lost.verdict(None), Outcome::OnlyOld);
        assert!(lost.verdict(None).fails() && !lost.needs_pairs());
        let added = of_values("packets", "1", &[(None, Some(1.0)); 6]);
        assert_eq!(added.verdict(None), Outcome::OnlyNew);
        assert!(!added.verdict(None).fails() && !added.needs_pairs());
    }

    #[test]
    fn shown_cells_decide_nothing() {
        let values = [(Some(10.0), Some(100.0)); 6];
        let cell = of_values("cycles_per_packet.total", "0.5", &values);
        assert_eq!(cell.verdict(None), Outcome::Shown);
        assert!(!cell.needs_pairs() && !cell.verdict(None).fails());
    }
}
