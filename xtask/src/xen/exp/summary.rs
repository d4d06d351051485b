//! Summarizes the windows: figures of each column and cell, a table, and the verdict.

use super::cells::{COLUMNS, cells};
use super::stored_windows::Window;
use figures::report::{self, Figure, Index, cell, number};
use figures::stats::{ComparisonVerdict, ThresholdSide, against, estimate, ratios};
use figures::table::table;
use std::collections::BTreeMap;

/// The plan's name.
const PLAN: &str = "xen";
/// Minimum share of netback's throughput for large segments.
const GOAL: f64 = 0.7;
const EXPLANATION: &str = "\
÷ netback: throughput ÷ netback's; emulated time is work, not speed. Per packet (1514 bytes):
instructions of the machine (instr.); hypercalls of all domains (calls), among them returns from
system calls and interrupts of PV domains (iret), hypercalls for grants (grants) with their
operations (ops), and for event channels (notified). Only received packets count; again: the share
of them that was retransmitted.
";
const RATIO: &str = "ratio.netback.throughput";
const RATIO_OF_CALLS: &str = "ratio.netback.hypercalls_per_packet";

/// A metric: its name, and the function that computes it from a window.
type Metric = (&'static str, fn(&Window) -> f64);

const THROUGHPUT: Metric = ("throughput", Window::throughput);
const CALLS: Metric = ("hypercalls_per_packet", |window| window.calls(|_| true));

/// The metrics of the table's columns.
const TABLE_METRICS: [Metric; 7] = [
    ("instructions_per_packet", Window::instructions),
    CALLS,
    ("hypercalls_per_packet.iret", |window| {
        window.calls(|name| name == "iret")
    }),
    ("hypercalls_per_packet.grant", |window| {
        window.calls(|name| name.starts_with("grant_"))
    }),
    ("grant_operations_per_packet", Window::operations),
    ("notifications_per_packet", |window| {
        window.calls(|name| name == "event_channel_op")
    }),
    ("loss", Window::loss),
];

/// Returns the configuration of a cell.
fn config(column: &str, wire: &str, name: &str) -> String {
    let (direction, guests) = name.split_at(1);
    let direction = match direction {
        "r" => "to_guest",
        _ => "from_guest",
    };
    let keys = [("wire", wire), ("dir", direction), ("guests", guests)];
    let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned()));
    report::config(column, &BTreeMap::from(keys))
}

/// Returns the values of a metric, round by round.
fn values(windows: &[Window], cell: &str, of: fn(&Window) -> f64) -> Vec<Option<f64>> {
    let rounds = windows.iter().map(|window| window.round + 1).max();
    let value = |round| {
        let mut windows = windows.iter();
        let found = windows.find(|window| window.round == round && window.cell == cell);
        found.map(of)
    };
    (0..rounds.unwrap_or(0)).map(value).collect()
}

/// Returns the figures of each measured cell of each column.
pub(super) fn figures(windows: &[Window], columns: &[&str]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (wire, name) in cells() {
        for column in columns {
            let config = config(column, wire, name);
            let of =
                |column: &str, metric| values(windows, &format!("{column}.{wire}.{name}"), metric);
            for (metric, compute) in [THROUGHPUT].into_iter().chain(TABLE_METRICS) {
                let found = of(column, compute)
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>();
                let found = estimate(&found);
                figures.extend(found.map(|found| Figure::new(PLAN, &config, metric, found)));
            }
            if column == &COLUMNS[0] {
                continue;
            }
            for (ratio, metric, threshold, side) in [
                (RATIO, THROUGHPUT.1, GOAL, ThresholdSide::Above),
                (RATIO_OF_CALLS, CALLS.1, 1.0, ThresholdSide::Below),
            ] {
                let found = ratios(&of(column, metric), &of(COLUMNS[0], metric));
                figures.extend(estimate(&found).map(|found| Figure {
                    verdict: (wire == "large").then(|| against(&found, threshold, side)),
                    ..Figure::new(PLAN, &config, ratio, found)
                }));
            }
        }
    }
    figures
}

/// Returns the table, and the verdict.
pub(super) fn text(figures: &[Figure], columns: &[&str]) -> String {
    let index = Index::new(figures);
    let header = [
        "",
        "÷ netback",
        "instr.",
        "calls",
        "iret",
        "grants",
        "ops",
        "notified",
        "again",
    ];
    let mut rows = Vec::new();
    for (wire, name) in cells() {
        rows.push(vec![format!("{wire} {}", title(name))]);
        for column in columns {
            let config = config(column, wire, name);
            let shown = TABLE_METRICS.iter().map(|(metric, _)| {
                let value = index.get(&config, metric).and_then(|figure| figure.value);
                number(value.unwrap_or(f64::NAN))
            });
            let ratio = cell(index.get(&config, RATIO));
            rows.push(
                [format!("  {column}"), ratio]
                    .into_iter()
                    .chain(shown)
                    .collect(),
            );
        }
    }
    let mut text = format!("{}\n{}\n", table(&header, &rows), report::covered(figures));
    text.push_str(EXPLANATION);
    for column in columns.iter().filter(|column| **column != COLUMNS[0]) {
        text.push_str(&verdict(&index, column));
    }
    text
}

/// Returns a cell's title.
fn title(name: &str) -> String {
    let (direction, guests) = name.split_at(1);
    let direction = match direction {
        "r" => "receive",
        _ => "transmit",
    };
    format!("{direction} {guests}")
}

/// Returns the verdict on the goals.
fn verdict(index: &Index<'_>, column: &str) -> String {
    let mut text = String::new();
    for (ratio, goal) in [
        (RATIO_OF_CALLS, "fewer hypercalls per packet than netback"),
        (RATIO, "at least 0.7 of netback's throughput"),
    ] {
        let large = cells().filter(|(wire, _)| *wire == "large");
        let verdicts: Vec<_> = large
            .filter_map(|(wire, name)| {
                let figure = index.get(&config(column, wire, name), ratio)?;
                let came_to = match figure.verdict? {
                    ComparisonVerdict::SameSign => "yes",
                    ComparisonVerdict::Opposite => "no",
                    _ => "unresolved",
                };
                Some(format!(
                    "{} {} ({came_to})",
                    title(name),
                    cell(Some(figure))
                ))
            })
            .collect();
        if !verdicts.is_empty() {
            let verdicts = verdicts.join("\n  ");
            text.push_str(&format!(
                "{column}, large segments, {goal}:\n  {verdicts}\n"
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::stored_windows::tests::line;
    use super::*;

    #[test]
    fn ratios_compare_windows_of_one_round() {
        let window = |round, cell: &str, calls| Window::read(round, &line(cell, calls)).unwrap();
        let windows = [
            window(0, "netback.large.r1", 2),
            window(0, "grantway-copy.large.r1", 1),
            window(1, "netback.large.r1", 5),
        ];
        let figures = figures(&windows, &COLUMNS);
        let index = Index::new(&figures);
        let ours = config("grantway-copy", "large", "r1");
        let calls = index.get(&ours, RATIO_OF_CALLS).unwrap();
        assert_eq!((calls.value, calls.n), (Some(1.75 / 2.75), 1));
        assert_eq!(calls.verdict, Some(ComparisonVerdict::SameSign));
        let theirs = config("netback", "large", "r1");
        assert_eq!(index.get(&theirs, "hypercalls_per_packet").unwrap().n, 2);
        assert!(index.get(&theirs, RATIO).is_none());
        let text = text(&figures, &COLUMNS);
        assert!(text.contains("large receive 1"), "{text}");
        assert!(text.contains("receive 1 0.636 (yes)"), "{text}");
    }
}
