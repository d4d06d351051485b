//! Samples of a run by round and configuration, and the figures computed from them.

use crate::plan::ColumnConfig;
use figures::Failure;
use figures::correction::Correction;
use figures::report::Figure;
use figures::stats::{self, ComparisonVerdict};
use std::collections::{BTreeMap, BTreeSet};

/// Values of one metric, by round.
pub type Series = Vec<Option<f64>>;

/// All samples of a run.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    series: BTreeMap<ColumnConfig, BTreeMap<String, Series>>,
    /// Configurations with rounds that were disturbed even after repetition.
    pub(super) disturbed: BTreeSet<ColumnConfig>,
    /// Configurations that are not available, with the reasons.
    pub(super) absent: BTreeMap<ColumnConfig, String>,
    /// Conditions under which a configuration was measured.
    notes: BTreeMap<ColumnConfig, String>,
    pub(super) order: Vec<ColumnConfig>,
}

impl Samples {
    /// Adds the figures of one round. Drops in several windows of a round are summed.
    pub fn add(&mut self, config: &ColumnConfig, round: usize, figures: &BTreeMap<String, f64>) {
        self.register(config);
        let metrics = self.series.entry(config.clone()).or_default();
        for (metric, value) in figures {
            let series = metrics.entry(metric.clone()).or_default();
            if series.len() <= round {
                series.resize(round + 1, None);
            }
            if let Some(slot) = series.get_mut(round) {
                let before = slot.filter(|_| metric.starts_with("drops.")).unwrap_or(0.0);
                *slot = Some(before + value);
            }
        }
    }

    /// Adds `peak_<metric>` to a column: for each round the maximum of the metric over all values
    /// of `key`, stored under the configuration without that key.
    pub fn peaks(&mut self, column: &str, key: &str, metric: &str) {
        let mut peaks: BTreeMap<ColumnConfig, Vec<f64>> = BTreeMap::new();
        let mut disturbed = BTreeSet::new();
        let points = self.of_column(column).filter(|c| c.keys.contains_key(key));
        for (config, series) in points.filter_map(|c| Some((c, self.series(c, metric)?))) {
            let mut whole = config.clone();
            whole.keys.remove(key);
            if self.disturbed.contains(config) {
                disturbed.insert(whole.clone());
            }
            let most = peaks.entry(whole).or_default();
            most.resize(most.len().max(series.len()), f64::NAN);
            for (most, value) in most.iter_mut().zip(series) {
                *most = most.max(value.unwrap_or(f64::NAN));
            }
        }
        self.disturbed.extend(disturbed);
        for (config, most) in peaks {
            for (round, value) in most.into_iter().enumerate().filter(|(_, v)| v.is_finite()) {
                let figures = BTreeMap::from([(format!("peak_{metric}"), value)]);
                self.add(&config, round, &figures);
            }
        }
    }

    /// Marks a configuration as disturbed after all repetitions.
    pub fn disturb(&mut self, config: &ColumnConfig) {
        self.disturbed.insert(config.clone());
    }

    /// Returns the value of a column's set-up. If this system cannot run the column and `may_lack`
    /// allows that, returns `None` and records its configurations as not measurable.
    ///
    /// # Errors
    /// Returns any other failure, with the column's name.
    pub fn setup_result<T>(
        &mut self,
        column: &str,
        made: anyhow::Result<T>,
        may_lack: bool,
        configs: impl IntoIterator<Item = ColumnConfig>,
    ) -> anyhow::Result<Option<T>> {
        match made {
            Ok(made) => Ok(Some(made)),
            Err(error) => match error.downcast_ref::<Failure>() {
                Some(Failure::CannotRun(why)) if may_lack => {
                    for config in configs {
                        self.absent(&config, why);
                    }
                    Ok(None)
                }
                _ => Err(error.context(format!("column {column}"))),
            },
        }
    }

    /// Records that a configuration is not available.
    pub fn absent(&mut self, config: &ColumnConfig, why: &str) {
        self.register(config);
        self.absent.insert(config.clone(), why.to_owned());
    }

    /// Records the conditions of a configuration, which are printed beside its figures.
    pub fn note(&mut self, config: &ColumnConfig, conditions: &str) {
        self.notes.insert(config.clone(), conditions.to_owned());
    }

    /// Returns all configurations of a column.
    pub fn of_column<'a>(&'a self, column: &'a str) -> impl Iterator<Item = &'a ColumnConfig> {
        self.order
            .iter()
            .filter(move |config| config.column == column)
    }

    /// Returns the remark to print beside a figure that compares these configurations. The figure
    /// belongs to the first of them.
    #[must_use]
    pub fn remark(&self, sides: &[&ColumnConfig]) -> Option<String> {
        let disturbed = sides.iter().any(|side| self.disturbed.contains(side));
        let mut words: Vec<&str> = disturbed.then_some(DISTURBED).into_iter().collect();
        let mut conditions: Vec<&str> = sides
            .iter()
            .filter_map(|side| self.notes.get(side).map(String::as_str))
            .collect();
        conditions.dedup();
        let conditions = conditions.join(" – against: ");
        if !conditions.is_empty() {
            words.push(&conditions);
        }
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// Returns the sentence about a large correction of a domain's ledger.
    fn correction(&self, config: &ColumnConfig, domain: &str) -> Option<String> {
        Correction::text_of_medians(domain, |metric| {
            let series = self.series(config, metric)?;
            let samples: Vec<f64> = series.iter().flatten().copied().collect();
            stats::estimate(&samples).map(|median| median.value)
        })
    }

    fn register(&mut self, config: &ColumnConfig) {
        if !self.order.contains(config) {
            self.order.push(config.clone());
        }
    }

    /// Returns the values of a metric by round.
    #[must_use]
    pub fn series(&self, config: &ColumnConfig, metric: &str) -> Option<&Series> {
        self.series.get(config)?.get(metric)
    }

    /// Returns all figures, medians with intervals, in the order in which configurations were first
    /// sampled.
    #[must_use]
    pub fn figures(&self, plan: &str) -> Vec<Figure> {
        let mut out = Vec::new();
        for config in &self.order {
            let name = config.name();
            if let Some(why) = self.absent.get(config) {
                for metric in ["throughput", "transactions"] {
                    out.push(Figure::not_measurable(plan, &name, metric, why));
                }
            }
            for (metric, series) in self.series.get(config).into_iter().flatten() {
                let samples: Vec<f64> = series.iter().flatten().copied().collect();
                let Some(estimate) = stats::estimate(&samples) else {
                    continue;
                };
                let mut figure = Figure::new(plan, &name, metric, estimate);
                let of_ledger = metric.strip_prefix("closure.");
                let of_ledger = of_ledger.and_then(|domain| self.correction(config, domain));
                let notes = self.remark(&[config]).into_iter().chain(of_ledger);
                figure.note = notes.reduce(|all, note| format!("{all}; {note}"));
                if self.disturbed.contains(config) {
                    figure.verdict = Some(ComparisonVerdict::Unresolved);
                }
                out.push(figure);
            }
        }
        out
    }
}

const DISTURBED: &str = "more than 1 % of the CPU time was stolen, also when repeated";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::ledgers;
    use figures::report::Index;

    fn one(metric: &str, value: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([(metric.to_owned(), value)])
    }

    #[test]
    fn a_peak_is_the_maximum_of_one_round() {
        let mut samples = Samples::default();
        for (wires, rates) in [("1", [3.0, 1.0]), ("2", [2.0, 5.0])] {
            let config = ColumnConfig::new("linux", &[("wires", wires)]);
            for (round, rate) in rates.into_iter().enumerate() {
                samples.add(&config, round, &one("throughput", rate));
            }
        }
        samples.disturb(&ColumnConfig::new("linux", &[("wires", "2")]));
        samples.peaks("linux", "wires", "throughput");
        let whole = ColumnConfig::new("linux", &[]);
        assert!(
            samples.remark(&[&whole]).is_some(),
            "one point was disturbed"
        );
        let peaks = samples.series(&whole, "peak_throughput").unwrap();
        assert_eq!(*peaks, [Some(3.0), Some(5.0)]);
    }

    #[test]
    fn closure_states_the_causes_of_its_correction() {
        let mut samples = Samples::default();
        let config = ColumnConfig::new("grantway", &[]);
        samples.note(&config, "payload touched");
        for (round, preemption) in [0.01, 0.3, 0.2].into_iter().enumerate() {
            let figures = [
                ("closure.guest", 1.3),
                ("corrected_share.guest", preemption + 0.04),
                ("corrected_share.guest.preemption", preemption),
                ("corrected_share.guest.steal", 0.0),
                ("corrected_share.guest.wake_up", 0.04),
                ("closure.driver", 1.0),
                ("corrected_share.driver", 0.04),
                ("corrected_share.driver.preemption", 0.0),
                ("corrected_share.driver.steal", 0.0),
                ("corrected_share.driver.wake_up", 0.04),
            ];
            let figures = figures.map(|(name, value)| (name.to_owned(), value));
            samples.add(&config, round, &figures.into());
        }
        let figures = samples.figures("demo");
        let note = |metric: &str| {
            let figure = figures.iter().find(|figure| figure.metric == metric);
            figure.and_then(|figure| figure.note.clone()).unwrap()
        };
        let text = note("closure.guest");
        assert!(
            text.starts_with("payload touched; its ledger was"),
            "{text}"
        );
        let causes = "corrected by 24 % to its CPU clock: preemption 20 %, sleeps and wake-ups 4 %";
        assert!(text.ends_with(causes), "{text}");
        assert_eq!(note("closure.driver"), "payload touched");
    }

    #[test]
    fn a_correction_with_another_cause_in_each_round_is_large() {
        let mut samples = Samples::default();
        let config = ColumnConfig::new("grantway", &[]);
        for (round, cause) in Correction::CAUSES.into_iter().enumerate() {
            samples.add(&config, round, &one("closure.guest", 1.1));
            samples.add(&config, round, &one("corrected_share.guest", 0.1));
            for any in Correction::CAUSES {
                let share = if any == cause { 0.1 } else { 0.0 };
                let metric = format!("corrected_share.guest.{any}");
                samples.add(&config, round, &one(&metric, share));
            }
        }
        let figures = samples.figures("demo");
        let index = Index::new(&figures);
        let text = "its ledger was corrected by 10 % to its CPU clock";
        let closure = index.get(&config.name(), "closure.guest").unwrap();
        assert_eq!(closure.note.as_deref(), Some(text));
        let in_tables = ledgers::correction(&index, &config.name(), "guest");
        assert_eq!(in_tables.as_deref(), Some(text));
    }

    #[test]
    fn drops_of_a_rounds_windows_add_up() {
        let mut samples = Samples::default();
        let config = ColumnConfig::new("grantway", &[]);
        for (drops, rate) in [(2.0, 1.0), (3.0, 5.0)] {
            samples.add(&config, 0, &one("drops.no_buffer", drops));
            samples.add(&config, 0, &one("throughput", rate));
        }
        let figures = samples.figures("base");
        let values: Vec<Option<f64>> = figures.iter().map(|f| f.value).collect();
        assert_eq!(values, [Some(5.0), Some(5.0)]);
    }
}
