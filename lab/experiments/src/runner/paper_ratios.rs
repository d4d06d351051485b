//! Comparison of a run's ratios with those of the paper that the plan reproduces.
//!
//! Absolute figures are not compared, because the machines are more than a decade apart. Each of
//! the paper's configurations has a ratio to the paper's baseline, and each of ours has a ratio to
//! our baseline at the same keys. The verdict is about the *quotient* of the two.

use super::samples::Samples;
use crate::papers::{Paper, PaperRatio, SWEPT};
use crate::plan::Config;
use figures::report::{Figure, number};
use figures::stats::{self, Beside, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// The paper's configuration that each column reproduces.
pub type Stands<'a> = BTreeMap<&'a str, &'a str>;

impl Samples {
    /// Returns the paper's values as `paper.<metric>`, and a `quotient.<column>.<metric>` with a
    /// verdict for each ratio of the paper whose two configurations have columns here. A paper's
    /// value for one point is not applied to other points.
    #[must_use]
    pub fn beside(&self, plan: &str, paper: &Paper, stands: &Stands<'_>) -> Vec<Figure> {
        let mut out = Vec::new();
        for config in &self.order {
            let Some(theirs) = stands.get(config.column.as_str()) else {
                continue;
            };
            if config.keys.keys().any(|key| SWEPT.contains(&key.as_str())) {
                continue;
            }
            let (name, keys) = (config.name(), config.keys());
            let values = paper.config(theirs).into_iter().flat_map(|c| &c.values);
            let mut told: BTreeSet<&str> = BTreeSet::new();
            for value in values.filter(|value| value.is_of(&keys)) {
                let measured = self.series(config, &value.metric).is_some();
                // If the paper states a value twice, the first statement counts.
                if let Some(known) = value.value.filter(|_| measured)
                    && told.insert(&value.metric)
                {
                    let metric = format!("paper.{}", value.metric);
                    let mut figure = Figure::single(plan, &name, &metric, known);
                    figure.note = Some(value.source.clone());
                    out.push(figure);
                }
            }
            let ratios = paper.ratios(theirs).into_iter();
            for ratio in ratios.filter(|ratio| ratio.is_of(&keys)) {
                let others = stands
                    .iter()
                    .filter(|(_, stands_for)| **stands_for == ratio.to);
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
        config: &Config,
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
        let mut quotients = stats::ratios(of(config)?, of(&other)?);
        for quotient in &mut quotients {
            *quotient /= theirs.ratio;
        }
        let paper = Beside {
            ratio: theirs.ratio,
            claimed: theirs.effect,
        };
        let sides = [config, &other];
        let mut figure = self.compared(plan, sides, &name, &quotients, |quotient| {
            stats::beside(quotient, paper)
        })?;
        let own = figure.value.map_or(f64::NAN, |value| value * theirs.ratio);
        let mut note = format!(
            "own ratio {}, the paper's {} ({})",
            number(own),
            number(theirs.ratio),
            theirs.source
        );
        if let Some(why) = theirs.not_comparable {
            figure.verdict = Some(Verdict::NotComparable);
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

/// Returns the verdict in words.
#[must_use]
pub fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equal => "equal as in the paper",
        Verdict::SameSign => "same sign",
        Verdict::NoEffect => "no effect seen",
        Verdict::DiffersInSize => "differs in size",
        Verdict::Opposite => "opposite",
        Verdict::Unresolved => "unresolved",
        Verdict::NotComparable => "not comparable",
        Verdict::NotMeasurable => "not measurable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the verdict and note for a ratio of `own` in each of five rounds.
    fn verdict(own: f64, metric: &str) -> (Option<Verdict>, String) {
        let mut samples = Samples::default();
        let (ours, theirs) = (Config::new("xen", &[]), Config::new("linux", &[]));
        for round in 0..5 {
            let scale = 1.0 + round as f64;
            let one = |value| BTreeMap::from([(metric.to_owned(), value)]);
            samples.add(&ours, round, &one(own * scale));
            samples.add(&theirs, round, &one(scale));
        }
        let stands = Stands::from([("xen", "ram-xen"), ("linux", "ram-linux")]);
        let figures = samples.beside("thesis", &Paper::find("ram").unwrap(), &stands);
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
                let config = Config::new(column, &[("wires", wires)]);
                for round in 0..5 {
                    let one = BTreeMap::from([("throughput".to_owned(), 2.0)]);
                    samples.add(&config, round, &one);
                }
            }
        }
        let stands: Stands<'_> = columns.iter().map(|c| (c.as_str(), c.as_str())).collect();
        let figures = samples.beside("menon", &Paper::find("menon").unwrap(), &stands);
        let named = |start: &str| {
            let found = figures.iter().filter(|f| f.metric.starts_with(start));
            let mut names: Vec<&str> = found.map(|f| f.config.as_str()).collect();
            names.sort_unstable();
            names
        };
        // The driver domain's two-NIC figure and Linux's three-NIC figure form no ratio; the text
        // states one for three NICs.
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
        assert_eq!(of("menon-domain0@wires=3").0, Some(Verdict::NoEffect));
        let (verdict, note) = of("menon-guest1@wires=1");
        assert_eq!(
            verdict,
            Some(Verdict::NotComparable),
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
    fn large_quotients_are_not_equal() {
        let total = "cycles_per_packet.total";
        let (found, note) = verdict(12.0, total);
        assert_eq!(found, Some(Verdict::SameSign));
        assert!(
            note.starts_with("own ratio 12.0, the paper's 4.50 ("),
            "{note}"
        );
        assert_eq!(verdict(4.5 * 1.2, total).0, Some(Verdict::Equal));
        assert_eq!(verdict(4.5 * 1.3, total).0, Some(Verdict::SameSign));
        assert_eq!(verdict(0.8, total).0, Some(Verdict::Opposite));
        // Throughput is lower than Linux's: in the thesis a third of it.
        assert_eq!(verdict(0.3, "throughput").0, Some(Verdict::Equal));
        assert_eq!(verdict(0.9, "throughput").0, Some(Verdict::SameSign));
    }
}
