//! Ratios and differences of columns, computed round by round, with verdicts.

use super::samples::Samples;
use crate::plan::{ColumnConfig, Ratio, Threshold, names_column};
use figures::metric;
use figures::report::Figure;
use figures::stats::{self, ComparisonVerdict, Estimate, ThresholdSide};

impl Samples {
    /// Returns all figures and the ratios of columns, with their verdicts.
    #[must_use]
    pub fn figures_with_verdicts(
        &self,
        plan: &str,
        ratios: &[Ratio],
        thresholds: &[Threshold],
    ) -> Vec<Figure> {
        let mut figures = self.figures(plan);
        self.decide(&mut figures, thresholds);
        figures.extend(self.ratios(plan, ratios, thresholds));
        figures
    }

    /// Returns the ratios of columns with their verdicts.
    #[must_use]
    pub fn ratios(&self, plan: &str, ratios: &[Ratio], thresholds: &[Threshold]) -> Vec<Figure> {
        let mut out = Vec::new();
        for ratio in ratios {
            let own =
                |c: &&ColumnConfig| names_column(&ratio.own, &c.column) && c.column != ratio.to;
            for config in self.order.iter().filter(own) {
                let Some(other) = self.partner(config, &ratio.to) else {
                    continue;
                };
                for metric in compared(ratio, thresholds) {
                    out.extend(self.ratio(plan, config, &other, metric, thresholds));
                }
                for metric in SUBTRACTED {
                    out.extend(self.difference(plan, config, &other, metric, thresholds));
                }
            }
        }
        out
    }

    /// Sets the verdict of each figure that has a threshold.
    pub fn decide(&self, figures: &mut [Figure], thresholds: &[Threshold]) {
        for figure in figures {
            let mut configs = self.order.iter();
            let config = configs.find(|config| config.name() == figure.config);
            let line = config.and_then(|config| bound(thresholds, config, &figure.metric));
            let (Some((line, side)), Some(value), Some(lo), Some(hi)) =
                (line, figure.value, figure.lo, figure.hi)
            else {
                continue;
            };
            let n = figure.n;
            let found = stats::against(&Estimate { value, lo, hi, n }, line, side);
            // A disturbed figure keeps its verdict.
            figure.verdict.get_or_insert(found);
        }
    }

    /// Returns the other column's configuration at the same keys, except keys that it does not
    /// have.
    #[must_use]
    pub fn partner(&self, config: &ColumnConfig, column: &str) -> Option<ColumnConfig> {
        let same = |other: &&ColumnConfig| {
            let mut keys = other.keys.iter();
            other.column == column && keys.all(|(key, value)| config.keys.get(key) == Some(value))
        };
        // Requests of several sizes have one key more than a stream, so the closest match is used.
        let nearest = |other: &&ColumnConfig| other.keys.len();
        self.order.iter().filter(same).max_by_key(nearest).cloned()
    }

    /// Returns the difference of a metric between two columns, round by round.
    fn difference(
        &self,
        plan: &str,
        config: &ColumnConfig,
        other: &ColumnConfig,
        metric: &str,
        thresholds: &[Threshold],
    ) -> Option<Figure> {
        let name = format!("difference.{}.{metric}", other.column);
        let (line, side) = bound(thresholds, config, &name)?;
        let (own, theirs) = (self.series(config, metric)?, self.series(other, metric)?);
        let pairs: Vec<f64> = own
            .iter()
            .zip(theirs)
            .filter_map(|(own, theirs)| Some(own.as_ref()? - theirs.as_ref()?))
            .collect();
        self.compared(plan, [config, other], &name, &pairs, |estimate| {
            stats::against(estimate, line, side)
        })
    }

    fn ratio(
        &self,
        plan: &str,
        config: &ColumnConfig,
        other: &ColumnConfig,
        metric: &str,
        thresholds: &[Threshold],
    ) -> Option<Figure> {
        let name = format!("ratio.{}.{metric}", other.column);
        for side in [config, other] {
            if let Some(why) = self.absent.get(side) {
                return (COMPARED.first() == Some(&metric))
                    .then(|| Figure::not_measurable(plan, &config.name(), &name, why));
            }
        }
        let pairs = stats::ratios(self.series(config, metric)?, self.series(other, metric)?);
        self.compared(
            plan,
            [config, other],
            &name,
            &pairs,
            |estimate| match bound(thresholds, config, &name) {
                Some((line, side)) => stats::against(estimate, line, side),
                None => stats::compare(estimate, metric::better(metric)),
            },
        )
    }

    /// Creates the figure of a comparison. `decide` sets its verdict unless either side was
    /// disturbed.
    pub(super) fn compared(
        &self,
        plan: &str,
        sides: [&ColumnConfig; 2],
        name: &str,
        pairs: &[f64],
        decide: impl FnOnce(&Estimate) -> ComparisonVerdict,
    ) -> Option<Figure> {
        let full = sides[0].name();
        let estimate = stats::estimate(pairs)?;
        let mut figure = Figure::new(plan, &full, name, estimate);
        figure.note = self.remark(&sides);
        figure.verdict = Some(if sides.iter().any(|side| self.disturbed.contains(side)) {
            ComparisonVerdict::Unresolved
        } else {
            decide(&estimate)
        });
        Some(figure)
    }
}

/// Returns the metrics of a ratio: the default ones, those that the plan adds, and those with a
/// threshold.
fn compared<'a>(ratio: &'a Ratio, thresholds: &'a [Threshold]) -> Vec<&'a str> {
    let prefix = format!("ratio.{}.", ratio.to);
    let with_threshold = thresholds
        .iter()
        .filter_map(|threshold| threshold.metric.strip_prefix(&prefix));
    let mut all = COMPARED.to_vec();
    for metric in ratio
        .metrics
        .iter()
        .map(String::as_str)
        .chain(with_threshold)
    {
        if !all.contains(&metric) {
            all.push(metric);
        }
    }
    all
}

/// Returns the threshold of a comparison.
fn bound(
    thresholds: &[Threshold],
    config: &ColumnConfig,
    name: &str,
) -> Option<(f64, ThresholdSide)> {
    thresholds
        .iter()
        .find(|threshold| threshold.applies(&config.column, &config.keys(), name))
        .and_then(Threshold::bound)
}

/// Metrics that are subtracted if the plan has a threshold for the difference.
const SUBTRACTED: &[&str] = &["cycles_per_packet.driver"];

/// Metrics that are divided by default.
const COMPARED: &[&str] = &[
    "throughput",
    "packets",
    "transactions",
    "latency_us.p50",
    "latency_us.p99",
    "cycles_per_byte.total",
    "cycles_per_packet.total",
    "cycles_per_byte.receive_side",
    "cycles_per_byte.driver",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn one(metric: &str, value: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([(metric.to_owned(), value)])
    }

    fn thresholds() -> Vec<Threshold> {
        vec![Threshold {
            column: "grantway".to_owned(),
            metric: "ratio.forwarder.throughput".to_owned(),
            keys: [("dir".to_owned(), "to_guest".to_owned())].into(),
            at_least: Some(0.8),
            at_most: None,
        }]
    }

    fn to_forwarder() -> Vec<Ratio> {
        vec![Ratio {
            own: "grantway".to_owned(),
            to: "forwarder".to_owned(),
            ..Ratio::default()
        }]
    }

    #[test]
    fn a_figure_with_a_threshold_has_a_verdict() {
        let mut samples = Samples::default();
        let config = ColumnConfig::new("grantway", &[("guests", "64")]);
        for round in 0..3 {
            samples.add(&config, round, &one("attach_ms.p50", 8.0 + round as f64));
            samples.add(&config, round, &one("attach_ms.p99", 20.0));
        }
        let bar = |most| Threshold {
            column: "grantway".to_owned(),
            metric: "attach_ms.p50".to_owned(),
            keys: [("guests".to_owned(), "64".to_owned())].into(),
            at_least: None,
            at_most: Some(most),
        };
        for (most, verdict) in [
            (10.0, ComparisonVerdict::SameSign),
            (7.0, ComparisonVerdict::Opposite),
            (9.0, ComparisonVerdict::Unresolved),
        ] {
            let mut figures = samples.figures("attach");
            samples.decide(&mut figures, &[bar(most)]);
            let verdicts: Vec<_> = figures.iter().map(|figure| figure.verdict).collect();
            assert_eq!(verdicts, [Some(verdict), None]);
        }
        samples.disturb(&config);
        let mut figures = samples.figures("attach");
        samples.decide(&mut figures, &[bar(10.0)]);
        assert_eq!(figures[0].verdict, Some(ComparisonVerdict::Unresolved));
    }

    #[test]
    fn requests_are_compared_with_requests() {
        let mut samples = Samples::default();
        for column in ["adaptive", "poll"] {
            let stream = ColumnConfig::new(column, &[("wire", "5")]);
            let requests = stream.clone().with("req", "1");
            for round in 0..3 {
                samples.add(&stream, round, &one("throughput", 1.0));
                samples.add(&requests, round, &one("transactions", 1.0));
            }
        }
        let ratio = Ratio {
            own: "adaptive".to_owned(),
            to: "poll".to_owned(),
            ..Ratio::default()
        };
        let figures = samples.ratios("lro", &[ratio], &[]);
        let found: Vec<_> = figures
            .iter()
            .map(|figure| (figure.config.as_str(), figure.metric.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("adaptive@wire=5", "ratio.poll.throughput"),
                ("adaptive@req=1,wire=5", "ratio.poll.transactions"),
            ]
        );
    }

    #[test]
    fn ratios_pair_rounds_and_meet_their_threshold() {
        let mut samples = Samples::default();
        for (dir, own) in [("to_guest", 0.85), ("from_guest", 2.0)] {
            let ours = ColumnConfig::new("grantway", &[("dir", dir), ("place", "split")]);
            let theirs = ColumnConfig::new("forwarder", &[("dir", dir), ("place", "split")]);
            for round in 0..5 {
                let scale = 1.0 + round as f64;
                samples.add(&ours, round, &one("throughput", own * scale));
                samples.add(&theirs, round, &one("throughput", scale));
            }
        }
        let figures = samples.ratios("base", &to_forwarder(), &thresholds());
        assert_eq!(figures.len(), 2);
        let first = &figures[0];
        assert_eq!(first.config, "grantway@dir=to_guest,place=split");
        assert_eq!(first.metric, "ratio.forwarder.throughput");
        assert!((first.value.unwrap() - 0.85).abs() < 1e-12);
        assert_eq!(
            first.verdict,
            Some(ComparisonVerdict::SameSign),
            "0.85 meets 0.8"
        );
        assert_eq!(
            figures[1].verdict,
            Some(ComparisonVerdict::SameSign),
            "more is better"
        );
    }

    #[test]
    fn differences_pair_rounds_and_need_a_threshold() {
        let mut samples = Samples::default();
        let (ours, theirs) = (
            ColumnConfig::new("ngm", &[]),
            ColumnConfig::new("shared", &[]),
        );
        for (round, (own, other)) in [(120.0, 100.0), (190.0, 175.0), (90.0, 61.0)]
            .into_iter()
            .enumerate()
        {
            samples.add(&ours, round, &one("cycles_per_packet.driver", own));
            samples.add(&theirs, round, &one("cycles_per_packet.driver", other));
        }
        let ratio = [Ratio {
            own: "ngm".to_owned(),
            to: "shared".to_owned(),
            ..Ratio::default()
        }];
        assert!(samples.ratios("p", &ratio, &[]).is_empty());
        let threshold = Threshold {
            column: "ngm".to_owned(),
            metric: "difference.shared.cycles_per_packet.driver".to_owned(),
            keys: BTreeMap::new(),
            at_least: None,
            at_most: Some(30.0),
        };
        let figures = samples.ratios("p", &ratio, &[threshold]);
        assert_eq!(figures.len(), 1);
        assert_eq!((figures[0].value, figures[0].n), (Some(20.0), 3));
        assert_eq!(figures[0].verdict, Some(ComparisonVerdict::SameSign));
    }

    #[test]
    fn a_column_without_a_key_is_compared_at_the_others() {
        let mut samples = Samples::default();
        let ours = ColumnConfig::new("grantway", &[("dir", "to_guest"), ("place", "split")]);
        let theirs = ColumnConfig::new("forwarder", &[("dir", "to_guest")]);
        let elsewhere = ColumnConfig::new("forwarder", &[("dir", "from_guest")]);
        samples.add(&elsewhere, 0, &one("throughput", 9.0));
        samples.add(&ours, 0, &one("throughput", 3.0));
        samples.add(&theirs, 0, &one("throughput", 2.0));
        let figures = samples.ratios("base", &to_forwarder(), &[]);
        assert_eq!(figures.len(), 1);
        assert_eq!((figures[0].value, figures[0].n), (Some(1.5), 1));
    }

    #[test]
    fn disturbed_and_absent_columns_are_marked() {
        let mut samples = Samples::default();
        let ours = ColumnConfig::new("grantway", &[]);
        let theirs = ColumnConfig::new("forwarder", &[]);
        samples.add(&ours, 0, &one("throughput", 3.0));
        samples.disturb(&ours);
        samples.add(&theirs, 0, &one("throughput", 2.0));
        let figures = samples.figures("base");
        assert_eq!(figures[0].verdict, Some(ComparisonVerdict::Unresolved));
        assert_eq!(figures[1].verdict, None);
        let ratio = &samples.ratios("base", &to_forwarder(), &[])[0];
        assert_eq!(ratio.verdict, Some(ComparisonVerdict::Unresolved));
        samples.absent(&theirs, "no `ip`");
        let ratio = &samples.ratios("base", &to_forwarder(), &[])[0];
        assert_eq!(ratio.verdict, Some(ComparisonVerdict::NotMeasurable));
    }

    #[test]
    fn missing_rounds_do_not_shift_pairs() {
        let mut samples = Samples::default();
        let (ours, theirs) = (
            ColumnConfig::new("grantway", &[]),
            ColumnConfig::new("forwarder", &[]),
        );
        for round in [0, 2] {
            samples.add(&ours, round, &one("throughput", 10.0 * (round + 1) as f64));
        }
        for round in [1, 2] {
            samples.add(&theirs, round, &one("throughput", (round + 1) as f64));
        }
        let ratio = &samples.ratios("base", &to_forwarder(), &[])[0];
        assert_eq!((ratio.value, ratio.n), (Some(10.0), 1));
    }
}
