//! Acknowledgements: how many, and what one costs.

use super::rows::{Measured, short};
use crate::plan::{Column, Plan, Ratio};
use crate::runner::{Samples, Series};
use figures::report::{self, Figure, Index};
use figures::stats;

/// Acknowledgements, where a plan spoils the wire or changes them.
pub(super) fn table(plan: &Plan, all: &[Measured<'_>], index: &Index<'_>) -> String {
    let is_about = |column: &Column| column.quick_ack || column.faults.is_some();
    if !plan.column.iter().any(is_about) {
        return String::new();
    }
    let metrics = [
        ("throughput", "Gb/s"),
        ("lro_rate", "LRO rate"),
        ("segments", "seg/GB"),
        ("acks", "ACKs/GB"),
        ("segments_per_ack", "seg/ACK"),
        ("sack_share", "SACKs"),
        ("cycles_per_ack", "cyc/ACK"),
        ("ack_share", "of all"),
    ];
    let mut header = vec!["acknowledgements"];
    header.extend(metrics.map(|(_, title)| title));
    let row = |(column, _, name): &Measured<'_>| {
        // What a column is measured with is said where that is more than one thing.
        let same = all.iter().filter(|(other, _, _)| other.name == column.name);
        let title = if same.count() > 1 { name } else { &column.name };
        let mut row = vec![title.clone()];
        row.extend(metrics.map(|(metric, _)| short(index.get(name, metric))));
        row
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    format!("{}\n\n", report::table(&header, &rows))
}

/// What an acknowledgement costs, `cycles_per_ack`, and what all of a column's come to,
/// `ack_share` of its cycles: the most that one could save who spared a guest all of them. For each
/// pair that a plan divides whose first column acknowledges at once and whose second does not; it
/// is what more acknowledgements change, whatever that is.
pub(super) fn figures(plan: &Plan, samples: &Samples) -> Vec<Figure> {
    let column = |name: &str| plan.column.iter().find(|column| column.name == name);
    let at_once = |name: &str| column(name).is_some_and(|column| column.quick_ack);
    let pairs = plan.ratio.iter();
    let pairs = pairs.filter(|pair| at_once(&pair.own) && !at_once(&pair.to));
    pairs
        .flat_map(|pair| of_pair(plan, samples, pair))
        .collect()
}

fn of_pair(plan: &Plan, samples: &Samples, pair: &Ratio) -> Vec<Figure> {
    let mut out = Vec::new();
    for (own, other) in samples
        .of_column(&pair.own)
        .zip(samples.of_column(&pair.to))
    {
        let of = |config, metric| {
            samples
                .series(config, metric)
                .map_or(&[][..], Series::as_slice)
        };
        let total = "cycles_per_byte.total";
        let both = of(own, "acks").iter().zip(of(own, total));
        let others = of(other, "acks").iter().zip(of(other, total));
        let mut each = Vec::new();
        let mut shares = Vec::new();
        for ((more, dear), (few, cheap)) in both.zip(others) {
            let (Some(more), Some(dear), Some(few), Some(cheap)) = (more, dear, few, cheap) else {
                continue;
            };
            // Acknowledgements are counted by the gigabyte.
            if *more > few * MORE {
                let cost = (dear - cheap) * 1e9 / (more - few);
                each.push(cost);
                shares.push(cost * few / 1e9 / cheap);
            }
        }
        for (config, metric, values) in
            [(own, "cycles_per_ack", each), (other, "ack_share", shares)]
        {
            let name = config.name();
            out.push(match stats::estimate(&values) {
                Some(estimate) => Figure::new(&plan.name, &name, metric, estimate),
                None => Figure::not_measurable(&plan.name, &name, metric, WHY),
            });
        }
    }
    out
}

/// So many times as many acknowledgements must there be: what a few more cost is lost in what
/// differs from window to window.
const MORE: f64 = 1.3;
const WHY: &str = "without delay there are hardly more acknowledgements";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Config;
    use crate::studies::base::rows::thesis_rows;
    use std::collections::BTreeMap;

    fn plan() -> Plan {
        let plans = crate::studies::base::PLANS;
        let text = plans.iter().find(|(name, _)| *name == "acks").unwrap().1;
        Plan::parse(text).unwrap()
    }

    fn sampled(all: &[(&str, &str, f64, f64)]) -> Samples {
        let mut samples = Samples::default();
        for (column, wires, acks, cycles) in all {
            let keys = [("wires", *wires)];
            let keys = if wires.is_empty() {
                &keys[..0]
            } else {
                &keys[..]
            };
            for round in 0..3 {
                let figures = [("acks", *acks), ("cycles_per_byte.total", *cycles)];
                let figures = figures.map(|(name, value)| (name.to_owned(), value));
                samples.add(&Config::new(column, keys), round, &BTreeMap::from(figures));
            }
        }
        samples
    }

    #[test]
    fn an_acknowledgement_costs_what_more_of_them_do() {
        let samples = sampled(&[
            ("guest1-clean", "", 300e3, 8.0),
            ("guest1-clean-quick-ack", "", 700e3, 9.0),
            ("guest3-clean", "", 100e3, 5.0),
            ("guest3-clean-quick-ack", "", 110e3, 5.5),
        ]);
        let figures = figures(&plan(), &samples);
        let of = |config: &str, metric: &str| {
            let mut figures = figures.iter();
            let found = figures
                .find(|f| f.config == config && f.metric == metric)
                .unwrap();
            found.value
        };
        // A cycle a byte more for 400 000 more in a gigabyte; 300 000 of them are 0.75 of 8.
        assert_eq!(of("guest1-clean-quick-ack", "cycles_per_ack"), Some(2500.0));
        assert_eq!(of("guest1-clean", "ack_share"), Some(0.75 / 8.0));
        assert_eq!(of("guest3-clean", "ack_share"), None, "hardly more of them");
        assert_eq!(
            figures.len(),
            4,
            "nothing of columns that were not measured"
        );
    }

    #[test]
    fn a_table_says_what_was_measured_in_several_ways() {
        let mut plan = plan();
        plan.column
            .retain(|column| ["guest1", "guest3-quick-ack"].contains(&column.name.as_str()));
        plan.column[0].wires = vec![1, 4];
        let samples = sampled(&[
            ("guest1", "1", 111e3, 8.0),
            ("guest1", "4", 444e3, 9.0),
            ("guest3-quick-ack", "", 777e3, 5.5),
        ]);
        let measured = samples.figures("acks");
        let text = table(&plan, &thesis_rows(&plan), &Index::new(&measured));
        let row = |start: &str| {
            let mut lines = text.lines().map(|line| line.replace('\u{202f}', " "));
            let line = lines.find(|line| line.trim_start().starts_with(&format!("{start} ")));
            line.unwrap_or_else(|| panic!("no {start}: {text}"))
        };
        assert!(row("guest1@wires=1").contains("111 000"), "{text}");
        assert!(row("guest1@wires=4").contains("444 000"), "{text}");
        assert!(row("guest3-quick-ack").contains("777 000"), "{text}");
        // A plan that changes none of it has no such table.
        plan.column.retain(|column| !column.quick_ack);
        plan.column[0].faults = None;
        assert_eq!(
            table(&plan, &thesis_rows(&plan), &Index::new(&measured)),
            ""
        );
    }
}
