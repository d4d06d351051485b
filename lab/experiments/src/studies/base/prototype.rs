//! How far each hop is from what it cost where the data path was measured by itself.

use crate::plan::{Frames, Plan, Prototype};
use crate::runner::Samples;
use figures::report::{Figure, Index, number, table};
use figures::stats;

/// `difference.prototype.<metric>` of each hop that the plan knows the prototype's cycles of:
/// cycles that the machine takes more for a packet.
#[must_use]
pub(super) fn figures(plan: &Plan, samples: &Samples) -> Vec<Figure> {
    let mut out = Vec::new();
    for (frames, size) in of_one_size(plan) {
        for config in samples.of_column(&frames.name) {
            for prototype in &plan.prototype {
                let metric = prototype.metric();
                let (Some(theirs), Some(own)) =
                    (prototype.cycles.get(&size), samples.series(config, &metric))
                else {
                    continue;
                };
                let more: Vec<f64> = own.iter().flatten().map(|own| own - theirs).collect();
                let (name, metric) = (config.name(), format!("difference.prototype.{metric}"));
                let estimate = stats::estimate(&more, stats::seed(&[&name, &metric]));
                out.extend(estimate.map(|estimate| Figure {
                    note: samples.remark(&[config]),
                    ..Figure::new(&plan.name, &name, &metric, estimate)
                }));
            }
        }
    }
    out
}

/// The plan's columns that have frames of one size.
fn of_one_size(plan: &Plan) -> impl Iterator<Item = (&Frames, u32)> {
    plan.frames
        .iter()
        .filter_map(|frames| match frames.size.as_slice() {
            [size] => Some((frames, *size)),
            _ => None,
        })
}

/// A row for the prototype, and one for each column: by how many cycles it exceeds those. Medians
/// alone, intervals of so many hops do not fit a line.
#[must_use]
pub(super) fn tables(plan: &Plan, index: &Index<'_>) -> String {
    let mut sizes: Vec<u32> = of_one_size(plan).map(|(_, size)| size).collect();
    sizes.dedup();
    let mut out = String::new();
    for size in sizes {
        let hops: Vec<(&Prototype, f64)> = plan
            .prototype
            .iter()
            .filter_map(|hop| Some((hop, *hop.cycles.get(&size)?)))
            .collect();
        if hops.is_empty() {
            continue;
        }
        let row = |name: &str, cells: &dyn Fn(&(&Prototype, f64)) -> String| -> Vec<String> {
            let cells = hops.iter().map(cells);
            std::iter::once(name.to_owned()).chain(cells).collect()
        };
        let mut rows = vec![row("the path alone", &|(_, cycles)| number(*cycles))];
        for (frames, _) in of_one_size(plan).filter(|(_, own)| *own == size) {
            rows.push(row(&frames.name, &|(hop, _)| {
                let metric = format!("difference.prototype.{}", hop.metric());
                let more = index.get(&frames.name, &metric).and_then(|f| f.value);
                more.map_or_else(|| "–".to_owned(), |more| format!("{more:+.0}"))
            }));
        }
        let titles = row("cycles a packet", &|(hop, _)| {
            format!("{} {}", hop.part, hop.hop)
        });
        let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
        out.push_str(&table(&titles, &rows));
        out.push_str("\n\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Config;
    use std::collections::BTreeMap;

    #[test]
    fn a_hop_is_told_from_the_prototypes_of_its_size() {
        let plan = Plan::parse(include_str!("../../../plans/small.toml")).unwrap();
        let mut samples = Samples::default();
        let config = Config::new("ngm-64", &[]);
        for (round, cycles) in [38.0, 31.0, 33.0].into_iter().enumerate() {
            let metric = "cycles_per_packet.driver.hop.netback".to_owned();
            samples.add(&config, round, &BTreeMap::from([(metric, cycles)]));
        }
        samples.note(&config, "payload not touched");
        let found = figures(&plan, &samples);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].config, "ngm-64");
        assert_eq!(
            found[0].metric,
            "difference.prototype.cycles_per_packet.driver.hop.netback"
        );
        assert_eq!(found[0].value, Some(5.0));
        assert_eq!(found[0].unit, "cycles/packet");
        assert_eq!(found[0].note.as_deref(), Some("payload not touched"));
        let text = tables(&plan, &Index::new(&found));
        let mut rows = text.lines().map(|line| line.split_whitespace().collect());
        let cells: Vec<&str> = rows
            .find(|cells: &Vec<&str>| cells.first() == Some(&"ngm-64"))
            .expect("a row");
        assert_eq!(cells, ["ngm-64", "+5", "–", "–", "–", "–", "–"], "{text}");
    }
}
