//! The number of acknowledgements, and the marginal cost of one.

use super::rows::{Measured, short};
use crate::plan::{Column, ColumnConfig, Plan, Ratio};
use crate::runner::{Samples, Series};
use figures::report::{Figure, Index};
use figures::{stats, table};

/// Returns the table of acknowledgements, for plans with wire faults or quick ACKs.
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
        // The moderation and the faults of a column are shown only if they distinguish columns.
        let same = all.iter().filter(|(other, _, _)| other.name == column.name);
        let title = if same.count() > 1 { name } else { &column.name };
        let mut row = vec![title.clone()];
        row.extend(metrics.map(|(metric, _)| short(index.get(name, metric))));
        row
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    format!("{}\n\n", table::table(&header, &rows))
}

/// Returns figures for each pair in the plan's ratios whose first column acknowledges immediately
/// and whose second delays. `cycles_per_ack` is the marginal cost of an acknowledgement, including
/// every side effect of more acknowledgements. `ack_share` is the share of a column's cycles that
/// all of its acknowledgements take at this cost.
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
    for own in samples.of_column(&pair.own) {
        let Some(other) = samples.partner(own, &pair.to) else {
            continue;
        };
        let rounds = rounds(samples, [own, &other]);
        let (costs, shares, remark) = marginal(&rounds);
        for (config, metric, values) in [
            (own, "cycles_per_ack", costs),
            (&other, "ack_share", shares),
        ] {
            let name = config.name();
            out.push(match stats::estimate(&values) {
                Some(estimate) => {
                    let mut figure = Figure::new(&plan.name, &name, metric, estimate);
                    figure.note = Some(remark.clone());
                    figure
                }
                None => Figure::not_measurable(&plan.name, &name, metric, TOO_FEW_ACKS),
            });
        }
    }
    out
}

/// Values of both columns in one round.
struct Round {
    /// Acknowledgements per gigabyte: immediate, delayed.
    acks: [f64; 2],
    /// Cycles per byte.
    cycles: [f64; 2],
}

/// Returns the rounds in which every value was measured.
fn rounds(samples: &Samples, sides: [&ColumnConfig; 2]) -> Vec<Round> {
    let of = |metric: &str| {
        let series = sides.map(|side| samples.series(side, metric));
        let series = series.map(|series| series.map_or(&[][..], Series::as_slice));
        let pairs = series[0].iter().zip(series[1]);
        let pairs = pairs.map(|(own, other)| Some([(*own)?, (*other)?]));
        pairs.collect::<Vec<_>>()
    };
    let (acks, cycles) = (of("acks"), of("cycles_per_byte.total"));
    let both = acks.into_iter().zip(cycles);
    both.filter_map(|(acks, cycles)| {
        Some(Round {
            acks: acks?,
            cycles: cycles?,
        })
    })
    .collect()
}

/// Returns the marginal cost of an acknowledgement round by round, the share of the delayed
/// acknowledgements at this cost, and a note with the number of rounds and the ratio of
/// acknowledgements. Medians decide whether the ratio is large enough, because a decision per round
/// would select rounds by their outcome.
fn marginal(rounds: &[Round]) -> (Vec<f64>, Vec<f64>, String) {
    let median = |of: &dyn Fn(&Round) -> f64| {
        let values: Vec<f64> = rounds.iter().map(of).collect();
        stats::median(&values)
    };
    let (more, few) = (median(&|r| r.acks[0]), median(&|r| r.acks[1]));
    let cheap = median(&|r| r.cycles[1]);
    if more <= few * ACK_RATIO_MIN {
        return (Vec::new(), Vec::new(), String::new());
    }
    // Acknowledgements are counted per gigabyte.
    let cost = |round: &Round| (round.cycles[0] - round.cycles[1]) * 1e9 / (more - few);
    let remark = format!(
        "marginal cost; {} rounds, {:.1} times as many acknowledgements",
        rounds.len(),
        more / few
    );
    let costs: Vec<f64> = rounds.iter().map(cost).collect();
    let shares = costs.iter().map(|cost| cost * few / 1e9 / cheap).collect();
    (costs, shares, remark)
}

/// Minimum ratio of acknowledgements. Below it, noise between windows hides their cost.
const ACK_RATIO_MIN: f64 = 1.3;
const TOO_FEW_ACKS: &str = "quick ACKs hardly increase the number of acknowledgements";

#[cfg(test)]
mod tests {
    use super::*;
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
                samples.add(
                    &ColumnConfig::new(column, keys),
                    round,
                    &BTreeMap::from(figures),
                );
            }
        }
        samples
    }

    #[test]
    fn an_acknowledgement_has_a_marginal_cost() {
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
        // 400 000 more acknowledgements per gigabyte cost one cycle per byte, so 300 000 cost 0.75
        // of 8 cycles.
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
    fn no_round_is_omitted_for_its_outcome() {
        let mut samples = Samples::default();
        let mut add = |column: &str, wires: &str, all: [(f64, f64); 3]| {
            let config = ColumnConfig::new(column, &[("wires", wires)]);
            for (round, (acks, cycles)) in all.into_iter().enumerate() {
                let figures = [("acks", acks), ("cycles_per_byte.total", cycles)];
                let figures = figures.map(|(name, value)| (name.to_owned(), value));
                samples.add(&config, round, &BTreeMap::from(figures));
            }
        };
        // In the last round, the configuration sent only slightly more acknowledgements, at no
        // additional cost.
        let once = [(700e3, 9.0), (700e3, 10.0), (310e3, 8.0)];
        add("guest1-clean-quick-ack", "4", once);
        // The keys are in a different order than those of the first column, which also lacks one
        // key.
        add("guest1-clean", "1", [(50e3, 1.0); 3]);
        add("guest1-clean", "4", [(300e3, 8.0); 3]);
        let figures = figures(&plan(), &samples);
        let of = |metric: &str| {
            let mut of = figures.iter().filter(|f| f.metric == metric);
            let found = of.next().unwrap();
            assert!(of.next().is_none(), "{metric}");
            (found.config.as_str(), found.value, found.n)
        };
        let name = "guest1-clean-quick-ack@wires=4";
        assert_eq!(of("cycles_per_ack"), (name, Some(2500.0), 3));
        let share = Some(0.75 / 8.0);
        assert_eq!(of("ack_share"), ("guest1-clean@wires=4", share, 3));
        let note = figures[0].note.as_deref().unwrap();
        assert!(
            note.starts_with("marginal cost; 3 rounds, 2.3 times"),
            "{note}"
        );
    }

    #[test]
    fn a_table_names_variants_of_columns() {
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
        // A plan without quick ACKs and faults has no such table.
        plan.column.retain(|column| !column.quick_ack);
        plan.column[0].faults = None;
        assert_eq!(
            table(&plan, &thesis_rows(&plan), &Index::new(&measured)),
            ""
        );
    }
}
