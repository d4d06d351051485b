//! Measures pairs: a short run of each side in succession, in alternating order.

use super::aliases::{Aliases, NameKind};
use super::cells::{self, Cell};
use super::exp::{self, Readings};
use super::plans::Plan;
use super::sides::{Side, Sides};
use super::stored_pairs::{Pair, StoredPairs, Values};
use anyhow::{Context, Result};
use figures::interrupt;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Maximum retries of a pair whose run was disturbed or failed.
const RETRIES: usize = 2;

/// Parameters of the measurement.
#[derive(Debug)]
pub(super) struct Measure<'a> {
    pub(super) sides: &'a Sides,
    pub(super) aliases: &'a Aliases,
    pub(super) kept: StoredPairs,
    /// Maximum number of pairs per plan.
    pub(super) pairs: usize,
}

impl Measure<'_> {
    /// Measures plans in turn until each has all its pairs, has only narrow cells, or has used its
    /// time.
    pub(super) fn all(&mut self, plans: &[Plan]) -> Result<()> {
        let bar = progress((plans.len() * self.pairs) as u64);
        let mut spent = vec![Duration::ZERO; plans.len()];
        loop {
            let mut done = true;
            for (plan, spent) in plans.iter().zip(&mut spent) {
                let columns = self.open_columns(plan);
                if columns.is_empty() || spent.as_secs_f64() >= plan.minutes * 60.0 {
                    continue;
                }
                done = false;
                let measured: usize = plans
                    .iter()
                    .map(|plan| self.kept.of(&plan.name).len())
                    .sum();
                bar.set_position(measured as u64);
                let number = self.kept.of(&plan.name).len() + 1;
                bar.set_message(format!("{}, pair {number} of {}", plan.name, self.pairs));
                let begin = Instant::now();
                let pair = self.pair(plan, &columns)?;
                *spent += begin.elapsed();
                self.kept.add(pair)?;
            }
            if done {
                bar.finish_and_clear();
                return Ok(());
            }
        }
    }

    /// Returns the columns that need more pairs.
    fn open_columns(&self, plan: &Plan) -> Vec<String> {
        let pairs = self.kept.of(&plan.name);
        if pairs.is_empty() {
            return plan.columns.clone();
        }
        if pairs.len() >= self.pairs {
            return Vec::new();
        }
        let cells = cells::of(plan, pairs);
        let needs_pairs = |column: &&String| {
            let of_column = |cell: &&Cell| cell.column() == **column;
            cells.iter().filter(of_column).any(Cell::needs_pairs)
        };
        plan.columns.iter().filter(needs_pairs).cloned().collect()
    }

    fn pair(&self, plan: &Plan, columns: &[String]) -> Result<Pair> {
        let Sides { old, new, .. } = self.sides;
        let old_first = self.kept.of(&plan.name).len().is_multiple_of(2);
        let mut again = RETRIES;
        loop {
            let run = |side: &Side| self.run(side, plan, columns);
            let both = if old_first {
                run(old).and_then(|old| Ok((old, run(new)?)))
            } else {
                run(new).and_then(|new| Ok((run(old)?, new)))
            };
            interrupt::check()?;
            match both {
                // On a busy machine a domain may not answer in time.
                Err(_) if again > 0 => {}
                Ok((old, new)) if again > 0 && (old.disturbed || new.disturbed) => {}
                both => {
                    let (old, new) = both.with_context(|| {
                        let times = RETRIES + 1;
                        format!("plan {}, {times} times (is the machine busy?)", plan.name)
                    })?;
                    return Ok(paired(&self.sides.tree, plan, &old, &new));
                }
            }
            again -= 1;
        }
    }

    fn run(&self, side: &Side, plan: &Plan, columns: &[String]) -> Result<Readings> {
        let name = side.plan_name(&plan.name, self.aliases)?;
        // A side ignores unknown names, so it receives every name that a column has ever had.
        let names = columns
            .iter()
            .flat_map(|column| self.aliases.of(NameKind::Column, column));
        let only: Vec<String> = names.collect();
        let arguments = exp::arguments(plan, &name, &only, side.halts);
        let printed = exp::run(&side.program, &arguments, &self.sides.folder)?;
        Readings::parse(&printed, plan, self.aliases)
    }
}

/// Combines the values of both sides.
fn paired(tree: &str, plan: &Plan, old: &Readings, new: &Readings) -> Pair {
    let keys: BTreeSet<_> = old.values.keys().chain(new.values.keys()).collect();
    let values = |key: &(String, String)| Values {
        config: key.0.clone(),
        metric: key.1.clone(),
        old: old.values.get(key).copied(),
        new: new.values.get(key).copied(),
    };
    Pair {
        tree: tree.to_owned(),
        plan: plan.name.clone(),
        disturbed: old.disturbed || new.disturbed,
        values: keys.into_iter().map(values).collect(),
    }
}

/// Returns a progress bar, which is visible only on a terminal.
fn progress(pairs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} pairs, {elapsed}, {msg}");
    let bar = ProgressBar::new(pairs);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::plans;

    #[test]
    fn values_of_one_name_are_paired() {
        let plan = plans::read()
            .unwrap()
            .named(&["base".to_owned()])
            .unwrap()
            .remove(0);
        let readings = |disturbed, values: &[(&str, f64)]| Readings {
            values: values
                .iter()
                .map(|&(metric, value)| (("grantway".to_owned(), metric.to_owned()), value))
                .collect(),
            disturbed,
        };
        let old = readings(false, &[("throughput", 1.0), ("up_ms", 5.0)]);
        let new = readings(true, &[("throughput", 2.0), ("transactions", 7.0)]);
        let pair = paired("t", &plan, &old, &new);
        let both: Vec<_> = pair
            .values
            .iter()
            .map(|v| (v.metric.as_str(), v.old, v.new))
            .collect();
        assert_eq!(
            both,
            [
                ("throughput", Some(1.0), Some(2.0)),
                ("transactions", None, Some(7.0)),
                ("up_ms", Some(5.0), None),
            ]
        );
        assert!(pair.disturbed);
    }
}
