//! Comparison of a run's ratios with those of the paper that the plan reproduces.
//!
//! Absolute figures are not compared, because the machines are more than a decade apart. Each of
//! the paper's configurations has a ratio to the paper's baseline, and each of ours has a ratio to
//! our baseline at the same keys. The verdict is about the *quotient* of the two ratios.

use super::samples::Samples;
use crate::papers::{Paper, PaperRatio, SWEPT};
use crate::plan::{ColumnConfig, WireNic};
use figures::report::{Figure, number};
use figures::stats::{self, ComparisonVerdict, PublishedRatio};
use std::collections::{BTreeMap, BTreeSet};

/// The paper's configuration that each column reproduces.
pub type ReproducedConfigs<'a> = BTreeMap<&'a str, ReproducedConfig<'a>>;

/// A paper's configuration and the NIC on which a column reproduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReproducedConfig<'a> {
    /// Name of the configuration.
    pub config: &'a str,
    /// The column's NIC. Ratios relate columns of one NIC.
    pub nic: WireNic,
}

impl<'a> ReproducedConfig<'a> {
    /// Returns a configuration on the default NIC.
    #[must_use]
    pub fn usual(config: &'a str) -> Self {
        let nic = WireNic::default();
        Self { config, nic }
    }
}

impl Samples {
    /// Returns the paper's values as `paper.<metric>`, and a `quotient.<column>.<metric>` with a
    /// verdict for each ratio of the paper whose two configurations have columns here. A paper's
    /// value for one point does not apply to other points.
    #[must_use]
    pub fn paper_comparisons(
        &self,
        plan: &str,
        paper: &Paper,
        reproduced: &ReproducedConfigs<'_>,
    ) -> Vec<Figure> {
        let mut out = Vec::new();
        for config in &self.order {
            let Some(theirs) = reproduced.get(config.column.as_str()) else {
                continue;
            };
            if config.keys.keys().any(|key| SWEPT.contains(&key.as_str())) {
                continue;
            }
            let (name, keys) = (config.name(), config.keys());
            let values = paper.config(theirs.config);
            let values = values.into_iter().flat_map(|config| &config.values);
            let mut stated: BTreeSet<&str> = BTreeSet::new();
            for value in values.filter(|value| value.is_of(&keys)) {
                let measured = self.series(config, &value.metric).is_some();
                // If the paper states a value twice, the first statement counts.
                if let Some(known) = value.value.filter(|_| measured)
                    && stated.insert(&value.metric)
                {
                    let metric = format!("paper.{}", value.metric);
                    let mut figure = Figure::single(plan, &name, &metric, known);
                    figure.note = Some(value.source.clone());
                    out.push(figure);
                }
            }
            let ratios = paper.ratios(theirs.config).into_iter();
            for mut ratio in ratios.filter(|ratio| ratio.is_of(&keys)) {
                if ratio.comparable_on == Some(theirs.nic) {
                    ratio.not_comparable = None;
                }
                let base = ReproducedConfig {
                    config: ratio.to,
                    ..*theirs
                };
                let others = reproduced.iter().filter(|(_, other)| **other == base);
                for (column, _) in others {
                    out.extend(self.quotient(plan, config, column, &ratio));
                }
            }
        }
        out
    }

    fn quotient(
        &self,
        plan: &str,
        config: &ColumnConfig,
        column: &str,
        theirs: &PaperRatio<'_>,
    ) -> Option<Figure> {
        let other = self.partner(config, column)?;
        let name = format!("quotient.{column}.{}", theirs.metric);
        for side in [config, &other] {
            if let Some(why) = self.absent.get(side) {
                return Some(Figure::not_measurable(plan, &config.name(), &name, why));
            }
        }
        let of = |side| self.series(side, theirs.metric);
        let (ours, base) = (of(config)?, of(&other)?);
        let is_count = COUNTS.contains(&theirs.metric);
        if is_count && (never_occurred(ours) || never_occurred(base)) {
            let full = config.name();
            return Some(Figure::not_measurable(plan, &full, &name, NONE_OCCURRED));
        }
        let mut quotients = stats::ratios(ours, base);
        for quotient in &mut quotients {
            *quotient /= theirs.ratio;
        }
        let paper = PublishedRatio {
            ratio: theirs.ratio,
            claimed: theirs.effect,
        };
        let sides = [config, &other];
        let mut figure = self.compared(plan, sides, &name, &quotients, |quotient| {
            stats::compare_with_paper(quotient, paper)
        })?;
        let own = figure.value.map_or(f64::NAN, |value| value * theirs.ratio);
        let mut note = format!(
            "own ratio {}, the paper's {} ({})",
            number(own),
            number(theirs.ratio),
            theirs.source
        );
        if let Some(why) = theirs.not_comparable {
            figure.verdict = Some(ComparisonVerdict::NotComparable);
            note.push_str("; not comparable: ");
            note.push_str(why);
        }
        if let Some(remark) = &figure.note {
            note.push_str("; ");
            note.push_str(remark);
        }
        figure.note = Some(note);
        Some(figure)
    }
}

/// Counts of events that may never occur, and their shares.
const COUNTS: [&str; 2] = ["sacks", "sack_share"];
/// Reason why a ratio of counts was not measured: one of them is 0 in every round.
const NONE_OCCURRED: &str = "none occurred";

/// Returns whether there are samples of a count and every one is 0. No events in a few rounds do
/// not show that none occur, so neither side of 1 is supported.
fn never_occurred(series: &[Option<f64>]) -> bool {
    let mut samples = series.iter().flatten().peekable();
    samples.peek().is_some() && samples.all(|value| *value == 0.0)
}

/// Returns the verdict as text.
#[must_use]
pub fn words(verdict: ComparisonVerdict) -> &'static str {
    match verdict {
        ComparisonVerdict::Equal => "equal as in the paper",
        ComparisonVerdict::SameSign => "same sign",
        ComparisonVerdict::NoEffect => "no effect seen",
        ComparisonVerdict::DiffersInSize => "differs in size",
        ComparisonVerdict::Opposite => "opposite",
        ComparisonVerdict::Unresolved => "unresolved",
        ComparisonVerdict::NotComparable => "not comparable",
        ComparisonVerdict::NotMeasurable => "not measurable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the verdict and note for a ratio of `own` in each of five rounds.
    fn verdict(own: f64, metric: &str) -> (Option<ComparisonVerdict>, String) {
        let mut samples = Samples::default();
        let (ours, theirs) = (
            ColumnConfig::new("xen", &[]),
            ColumnConfig::new("linux", &[]),
        );
        for round in 0..5 {
            let scale = 1.0 + round as f64;
            let one = |value| BTreeMap::from([(metric.to_owned(), value)]);
            samples.add(&ours, round, &one(own * scale));
            samples.add(&theirs, round, &one(scale));
        }
        let reproduced = [("xen", "ram-xen"), ("linux", "ram-linux")];
        let reproduced = ReproducedConfigs::from(
            reproduced.map(|(column, config)| (column, ReproducedConfig::usual(config))),
        );
        let figures =
            samples.paper_comparisons("thesis", &Paper::find("ram").unwrap(), &reproduced);
        let name = format!("quotient.linux.{metric}");
        let found = figures.iter().find(|figure| figure.metric == name).unwrap();
        (found.verdict, found.note.clone().unwrap())
    }

    #[test]
    fn ratios_of_some_nics_apply_to_no_others() {
        let mut samples = Samples::default();
        let columns = ["linux", "domain0", "guest1", "send-linux", "send-domain0"];
        let columns = columns.map(|name| format!("menon-{name}"));
        for column in &columns {
            for wires in ["1", "2", "3", "4"] {
                let config = ColumnConfig::new(column, &[("wires", wires)]);
                for round in 0..5 {
                    let one = BTreeMap::from([("throughput".to_owned(), 2.0)]);
                    samples.add(&config, round, &one);
                }
            }
        }
        let names = columns.iter().map(String::as_str);
        let reproduced: ReproducedConfigs<'_> = names
            .map(|name| (name, ReproducedConfig::usual(name)))
            .collect();
        let figures =
            samples.paper_comparisons("menon", &Paper::find("menon").unwrap(), &reproduced);
        let named = |start: &str| {
            let found = figures.iter().filter(|f| f.metric.starts_with(start));
            let mut names: Vec<&str> = found.map(|f| f.config.as_str()).collect();
            names.sort_unstable();
            names
        };
        // The driver domain's two-NIC figure and Linux's three-NIC figure form no ratio. The text
        // states a ratio for three NICs.
        assert_eq!(
            named("quotient."),
            [
                "menon-domain0@wires=3",
                "menon-guest1@wires=1",
                "menon-send-domain0@wires=4"
            ]
        );
        let of = |config: &str| {
            let mut found = figures.iter();
            let found = found
                .find(|f| f.config == config && f.metric.starts_with("quotient."))
                .unwrap();
            (found.verdict, found.note.clone().unwrap())
        };
        assert_eq!(
            of("menon-domain0@wires=3").0,
            Some(ComparisonVerdict::NoEffect)
        );
        let (verdict, note) = of("menon-guest1@wires=1");
        assert_eq!(
            verdict,
            Some(ComparisonVerdict::NotComparable),
            "both were limited by the link"
        );
        assert!(note.contains("not comparable: both of theirs"), "{note}");
        assert_eq!(
            named("paper."),
            [
                "menon-domain0@wires=2",
                "menon-linux@wires=3",
                "menon-send-domain0@wires=4",
                "menon-send-linux@wires=4",
            ]
        );
    }

    #[test]
    fn counts_that_stay_0_get_no_verdict() {
        let verdict = |shares: [[f64; 5]; 2]| {
            let mut samples = Samples::default();
            let columns = ["hatori-guest1", "hatori-guest2"];
            for (column, shares) in columns.into_iter().zip(shares) {
                for (round, share) in shares.into_iter().enumerate() {
                    let one = BTreeMap::from([("sack_share".to_owned(), share)]);
                    samples.add(&ColumnConfig::new(column, &[]), round, &one);
                }
            }
            let reproduced = columns.map(|name| (name, ReproducedConfig::usual(name)));
            let paper = Paper::find("hatori").unwrap();
            let reproduced = ReproducedConfigs::from(reproduced);
            let figures = samples.paper_comparisons("hatori", &paper, &reproduced);
            let name = "quotient.hatori-guest1.sack_share";
            let found = figures.into_iter().find(|figure| figure.metric == name);
            let found = found.unwrap();
            (found.verdict.unwrap(), found.value, found.note.unwrap())
        };
        let (none, some) = ([0.0; 5], [0.08; 5]);
        for shares in [[some, none], [none, some], [none, none]] {
            let (found, value, note) = verdict(shares);
            assert_eq!(found, ComparisonVerdict::NotMeasurable, "{shares:?}");
            assert_eq!((value, note.as_str()), (None, "none occurred"));
        }
        let (found, value, _) = verdict([some, [0.0, 0.0, 0.0, 0.0, 0.08]]);
        assert_eq!(found, ComparisonVerdict::Unresolved, "one round has some");
        assert_eq!(value, Some(0.0));
    }

    /// Returns the configurations of columns, those with `soft` in their names on such a NIC.
    fn on_both_nics<'a>(
        columns: impl IntoIterator<Item = &'a str>,
        configs: [&'a str; 2],
    ) -> ReproducedConfigs<'a> {
        let nic = |column: &str| match column.contains("soft") {
            true => WireNic::Soft,
            false => WireNic::Tap,
        };
        let pairs = columns.into_iter().zip(configs.repeat(2));
        let each = pairs.map(|(column, config)| {
            let nic = nic(column);
            (column, ReproducedConfig { config, nic })
        });
        each.collect()
    }

    #[test]
    fn columns_of_different_nics_form_no_ratio() {
        let mut samples = Samples::default();
        let columns = ["oi-xen", "oi-lro", "oi-soft-xen", "oi-soft-lro"];
        for (column, throughput) in columns.into_iter().zip([1.0, 2.0, 4.0, 12.0]) {
            for round in 0..5 {
                let one = BTreeMap::from([("throughput".to_owned(), throughput)]);
                samples.add(&ColumnConfig::new(column, &[]), round, &one);
            }
        }
        let reproduced = on_both_nics(columns, ["oi-xen", "oi-lro"]);
        let figures = samples.paper_comparisons("oi", &Paper::find("oi").unwrap(), &reproduced);
        let quotients: Vec<_> = figures
            .iter()
            .filter(|figure| figure.metric.starts_with("quotient."))
            .map(|figure| (figure.config.as_str(), figure.metric.as_str()))
            .collect();
        assert_eq!(
            quotients,
            [
                ("oi-lro", "quotient.oi-xen.throughput"),
                ("oi-soft-lro", "quotient.oi-soft-xen.throughput")
            ]
        );
    }

    #[test]
    fn columns_of_one_nic_have_the_ratios_of_one() {
        let mut samples = Samples::default();
        let columns = ["domain0", "guest1", "soft-domain0", "soft-guest1"];
        let columns = columns.map(|name| format!("menon-{name}"));
        for (column, throughput) in columns.iter().zip([4.0, 2.0].repeat(2)) {
            for round in 0..5 {
                let one = BTreeMap::from([("throughput".to_owned(), throughput)]);
                samples.add(&ColumnConfig::new(column, &[]), round, &one);
            }
        }
        let reproduced = on_both_nics(
            columns.iter().map(String::as_str),
            ["menon-domain0", "menon-guest1"],
        );
        let paper = Paper::find("menon").unwrap();
        let figures = samples.paper_comparisons("menon", &paper, &reproduced);
        let verdicts: Vec<_> = figures
            .iter()
            .filter(|figure| figure.metric.starts_with("quotient."))
            .map(|figure| (figure.config.as_str(), figure.verdict.unwrap()))
            .collect();
        // The link limits the paper's ratio, as it does ours on a NIC of the kind `soft`.
        assert_eq!(
            verdicts,
            [
                ("menon-guest1", ComparisonVerdict::NotComparable),
                ("menon-soft-guest1", ComparisonVerdict::DiffersInSize)
            ]
        );
    }

    #[test]
    fn large_quotients_are_not_equal() {
        let total = "cycles_per_packet.total";
        let (found, note) = verdict(12.0, total);
        assert_eq!(found, Some(ComparisonVerdict::SameSign));
        assert!(
            note.starts_with("own ratio 12.0, the paper's 4.50 ("),
            "{note}"
        );
        assert_eq!(verdict(4.5 * 1.2, total).0, Some(ComparisonVerdict::Equal));
        assert_eq!(
            verdict(4.5 * 1.3, total).0,
            Some(ComparisonVerdict::SameSign)
        );
        assert_eq!(verdict(0.8, total).0, Some(ComparisonVerdict::Opposite));
        // The throughput in the thesis is a third of Linux's.
        assert_eq!(verdict(0.3, "throughput").0, Some(ComparisonVerdict::Equal));
        assert_eq!(
            verdict(0.9, "throughput").0,
            Some(ComparisonVerdict::SameSign)
        );
    }
}
