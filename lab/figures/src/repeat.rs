//! Compares a run with an earlier one, counts the ratios that it reproduces, and marks the others.

use crate::report::Figure;
use crate::stats;
use std::collections::BTreeMap;
use std::fmt;

/// Text in the note of a figure whose interval does not overlap that of the earlier run.
const DIFFERENCE_NOTE: &str = "the previous run differs";

/// Agreement of the ratios of two runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeated {
    /// Number of ratios in both runs.
    pub both: usize,
    /// Number of these ratios whose intervals overlap.
    pub overlap: usize,
    /// Median width of the intervals of both runs, as a share of the ratio. Wide intervals overlap
    /// easily.
    pub width: f64,
}

impl fmt::Display for Repeated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            both,
            overlap,
            width,
        } = self;
        let share = *overlap as f64 / (*both).max(1) as f64 * 100.0;
        let width = width * 100.0;
        write!(
            out,
            "{overlap} of {both} ratios ({share:.0} %) overlap those of the previous run; the \
             others are marked. Half of the intervals are wider than {width:.0} % of their ratio"
        )
    }
}

/// Marks each ratio whose interval does not overlap that of the earlier run. Returns `None` if the
/// runs have no ratio in common.
pub fn mark(figures: &mut [Figure], before: &[Figure]) -> Option<Repeated> {
    let interval = |figure: &Figure| figure.lo.zip(figure.hi);
    let mut widths = Vec::new();
    let known: BTreeMap<_, _> = before
        .iter()
        .filter_map(|f| Some(((f.config.as_str(), f.metric.as_str()), interval(f)?)))
        .collect();
    let (mut both, mut overlap) = (0, 0);
    for figure in figures.iter_mut().filter(|figure| is_ratio(&figure.metric)) {
        let key = (figure.config.as_str(), figure.metric.as_str());
        let (Some((lo, hi)), Some(own)) = (known.get(&key), interval(figure)) else {
            continue;
        };
        both += 1;
        let width = |(lo, hi): (f64, f64)| 2.0 * (hi - lo) / (hi + lo);
        widths.extend([width(own), width((*lo, *hi))]);
        if own.0 <= *hi && *lo <= own.1 {
            overlap += 1;
            continue;
        }
        let range = format!("{DIFFERENCE_NOTE}: {lo:.3} to {hi:.3}");
        figure.note = Some(match figure.note.take() {
            Some(note) => format!("{note}; {range}"),
            None => range,
        });
    }
    let width = stats::median(&widths);
    (both > 0).then_some(Repeated {
        both,
        overlap,
        width,
    })
}

/// Returns whether a figure was marked.
#[must_use]
pub fn differs_from_previous(figure: &Figure) -> bool {
    let note = figure.note.as_deref();
    note.is_some_and(|note| note.contains(DIFFERENCE_NOTE))
}

fn is_ratio(metric: &str) -> bool {
    metric.starts_with("ratio.") || metric.starts_with("quotient.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Estimate;

    fn figure(config: &str, metric: &str, lo: f64, hi: f64) -> Figure {
        let (value, n) = ((lo + hi) / 2.0, 9);
        Figure::new("oi", config, metric, Estimate { value, lo, hi, n })
    }

    #[test]
    fn ratios_that_do_not_overlap_are_marked() {
        let name = "quotient.oi-lro.throughput";
        let before = [
            figure("oi-da", name, 1.0, 1.2),
            figure("oi-bo", name, 1.0, 1.2),
            figure("oi-xen", "throughput", 1.0, 1.2),
        ];
        let mut now = [
            figure("oi-da", name, 1.2, 1.4),
            figure("oi-bo", name, 1.3, 1.4),
            // Absolute figures may differ from day to day, but ratios should not.
            figure("oi-xen", "throughput", 5.0, 6.0),
            figure("oi-new", name, 5.0, 6.0),
        ];
        now[1].note = Some("own ratio 1".to_owned());
        let found = mark(&mut now, &before).unwrap();
        assert_eq!((found.both, found.overlap), (2, 1));
        // The widths are 0.2 of 1.1 (twice), 0.2 of 1.3 and 0.1 of 1.35.
        assert!((found.width - 0.168).abs() < 0.001, "{}", found.width);
        assert!(found.to_string().starts_with("1 of 2 ratios (50 %) "));
        let marked: Vec<bool> = now.iter().map(differs_from_previous).collect();
        assert_eq!(marked, [false, true, false, false]);
        let note = now[1].note.as_deref().unwrap();
        assert_eq!(
            note,
            "own ratio 1; the previous run differs: 1.000 to 1.200"
        );
        assert_eq!(mark(&mut now[2..], &before), None);
    }
}
