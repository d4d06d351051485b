//! The values of a paper's tables and figures beside ours.

use super::cell::Cell;
use crate::papers::{Item, Paper, Value};
use crate::plan::ColumnConfig;
use crate::runner::ReproducedConfigs;
use figures::report::{Figure, Index};
use figures::stats::ComparisonVerdict;
use std::collections::BTreeSet;

/// A paper, with our figures beside it.
#[derive(Clone, Copy, Debug)]
pub struct PaperPart<'a> {
    /// The paper.
    pub paper: &'a Paper,
    /// The paper's configuration that each column reproduces.
    pub reproduced: &'a ReproducedConfigs<'a>,
    /// Our figures.
    pub figures: &'a [Figure],
    /// Length of a window, seconds.
    pub window_s: f64,
}

/// Returns all values of an item, by configuration.
pub(super) fn cells<'a>(part: &PaperPart<'a>, item: &'a Item, index: &Index<'a>) -> Vec<Cell<'a>> {
    let mut cells = Vec::new();
    for theirs in &item.configs {
        let columns = part
            .reproduced
            .iter()
            .filter(|(_, other)| other.config == theirs);
        for (column, _) in columns {
            let of_column = |figure: &&Figure| {
                let name = figure.config.split('@').next().unwrap_or_default();
                name == *column
            };
            let mut configs: Vec<&str> = Vec::new();
            for figure in part.figures.iter().filter(of_column) {
                if item.has(&ColumnConfig::keys_of(&figure.config))
                    && !configs.contains(&figure.config.as_str())
                {
                    configs.push(&figure.config);
                }
            }
            for config in configs {
                let absent = absence(config, part.figures);
                for metric in &item.metrics {
                    for metric in matching(metric, config, index) {
                        let PaperValues {
                            value,
                            points,
                            used_in_ratios,
                        } = paper_values(part.paper, item, [theirs, config], &metric);
                        cells.push(Cell {
                            config: config.to_owned(),
                            theirs,
                            ours: index.get(config, &metric).or(absent),
                            paper: value,
                            points,
                            used_in_ratios,
                            metric,
                        });
                    }
                }
            }
        }
    }
    let Some(key) = &item.against else {
        // A value of the paper has a separate row only if none of our configurations reproduces it.
        let of = |cell: &Cell<'_>| (cell.theirs.to_owned(), cell.metric.clone());
        let measured = cells.iter().filter(|cell| cell.ours.is_some()).map(of);
        let measured: BTreeSet<_> = measured.collect();
        cells.retain(|cell| {
            cell.ours.is_some() || (cell.paper.is_some() && !measured.contains(&of(cell)))
        });
        return cells;
    };
    // Points on the axis are shown only in curves.
    cells.retain(|cell| cell.ours.is_some());
    let point = |cell: &Cell<'_>| ColumnConfig::keys_of(&cell.config).contains_key(key.as_str());
    let of = |cell: &Cell<'_>| (cell.theirs.to_owned(), cell.metric.clone());
    let curves: BTreeSet<_> = cells.iter().filter(|cell| point(cell)).map(of).collect();
    cells.retain(|cell| point(cell) || !curves.contains(&of(cell)));
    cells
}

/// Returns the figure with the reason why a configuration was not measured.
fn absence<'a>(config: &str, figures: &'a [Figure]) -> Option<&'a Figure> {
    let is_absent =
        |f: &&Figure| f.verdict == Some(ComparisonVerdict::NotMeasurable) && f.config == config;
    let mut of_itself = figures.iter().filter(|f| !f.metric.contains("quotient."));
    of_itself.find(is_absent)
}

/// The paper's values of a configuration, as an item shows them.
struct PaperValues {
    /// Value of the whole configuration.
    value: Option<f64>,
    /// Points on the item's axis.
    points: Vec<(f64, f64)>,
    /// True if the value is the paper's first statement, which ratios use.
    used_in_ratios: bool,
}

/// Returns the paper's values for a configuration. If the paper states a value twice, the result is
/// the statement in this item.
fn paper_values(
    paper: &Paper,
    item: &Item,
    [theirs, config]: [&str; 2],
    metric: &str,
) -> PaperValues {
    let shown = || {
        let values = paper.values(theirs, metric);
        values.filter(|(_, paper_values)| item.shows(paper_values))
    };
    let keys = ColumnConfig::keys_of(config);
    let here = || shown().filter(|(_, paper_values)| paper_values.is_of(&keys));
    let own = here().find(|(_, paper_values)| item.states(paper_values));
    let first = here().next();
    let point = |(value, paper_values): (f64, &Value)| {
        let at = item
            .against
            .as_ref()
            .and_then(|key| paper_values.at.get(key))?;
        Some((*at, value))
    };
    let found = own.or(first);
    PaperValues {
        value: found.map(|(value, _)| value),
        points: shown().filter_map(point).collect(),
        used_in_ratios: match (found, first) {
            (Some((_, found)), Some((_, first))) => std::ptr::eq(found, first),
            _ => true,
        },
    }
}

/// Returns the metrics of a configuration that match a name.
fn matching(metric: &str, config: &str, index: &Index<'_>) -> Vec<String> {
    let Some(start) = metric.strip_suffix('*') else {
        return vec![metric.to_owned()];
    };
    let below = index.below(config, start);
    below
        .iter()
        .map(|(rest, _)| format!("{start}{rest}"))
        .collect()
}
