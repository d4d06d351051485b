//! Formats the cells as tables and as JSON.

use super::cells::{Cell, Outcome};
use super::instructions::Count;
use super::sides::Sides;
use figures::metric;
use figures::report::number;
use figures::stats::ThresholdSide;
use figures::table::table;
use serde_json::{Value, json};

/// Returns a table per plan, and the instruction counts.
pub(super) fn tables(sides: &Sides, cells: &[(Cell, Outcome)], counts: &[Count]) -> String {
    let mut text = format!(
        "old: commit {}   new: the tree ({:.12})\n\
         ratio: new / old of throughput, packets and transactions; old / new of cycles and times;\n\
         so more than 1 is always better\n",
        sides.commit, sides.tree
    );
    let (mut plan, mut config) = ("", "");
    for (cell, verdict) in cells {
        if cell.plan != plan {
            plan = &cell.plan;
            config = "";
            let header = ["old", "new", "ratio", "95 %", "pairs"].map(str::to_owned);
            text.push_str(&format!("\n{}", line(plan, &header, "verdict")));
        }
        if cell.config != config {
            config = &cell.config;
            text.push_str(&format!("  {config}\n"));
        }
        let metric = format!("    {}", cell.metric);
        text.push_str(&line(&metric, &numbers(cell), &word(verdict)));
    }
    if cells.iter().any(|(cell, _)| cell.disturbed > 0) {
        text.push_str("\n? CPU time was stolen during some pairs, even when they were repeated\n");
    }
    if !counts.is_empty() {
        let rows: Vec<_> = counts.iter().map(count_row).collect();
        let header = ["bench, instructions", "old", "new", "new / old"];
        text.push_str(&format!("\n{}\n", table(&header, &rows)));
    }
    text
}

/// Returns a line of a plan's table. Configurations have separate lines, because they are too long
/// for a column.
fn line(metric: &str, [old, new, ratio, interval, pairs]: &[String; 5], verdict: &str) -> String {
    format!("{metric:<32} {old:>8} {new:>8} {ratio:>6} {interval:>12} {pairs:>5}  {verdict}\n")
}

/// Returns a cell's result as text.
fn numbers(cell: &Cell) -> [String; 5] {
    let value = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    let mark = if cell.disturbed > 0 { " ?" } else { "" };
    let [ratio, interval, pairs] = match cell.ratio {
        Some(ratio) => [
            format!("{:.3}", ratio.value),
            format!("{:.3}–{:.3}", ratio.lo, ratio.hi),
            format!("{}{mark}", ratio.n),
        ],
        None => Default::default(),
    };
    [value(cell.old), value(cell.new), ratio, interval, pairs]
}

fn count_row(count: &Count) -> Vec<String> {
    vec![
        format!("{}: {}", count.bench, count.function),
        number(count.old as f64),
        number(count.new as f64),
        format!("{:.4}", count.ratio()),
    ]
}

fn word(verdict: &Outcome) -> String {
    match verdict {
        Outcome::Pass => "pass".to_owned(),
        Outcome::Fail => "FAIL".to_owned(),
        Outcome::PassByInstructions(most) => format!("pass (instr. {most:.3})"),
        Outcome::FailByInstructions(most) => format!("FAIL (instr. {most:.3})"),
        Outcome::Unresolved => "unresolved".to_owned(),
        Outcome::OnlyOld => "FAIL (only old)".to_owned(),
        Outcome::OnlyNew => "only new".to_owned(),
        Outcome::Shown => "not judged".to_owned(),
    }
}

/// Returns a JSON line that describes the comparison, then a line per cell and per bench function.
pub(super) fn lines(sides: &Sides, cells: &[(Cell, Outcome)], counts: &[Count]) -> String {
    let head = json!({"compare": {"old": sides.commit, "new": sides.tree}});
    let cells = cells.iter().map(|(cell, verdict)| cell_line(cell, verdict));
    let counts = counts.iter().map(|count| {
        json!({
            "bench": count.bench, "function": count.function,
            "old": count.old, "new": count.new, "value": count.ratio(), "unit": "new/old",
        })
    });
    let lines = std::iter::once(head).chain(cells).chain(counts);
    lines.map(|line| format!("{line}\n")).collect()
}

fn cell_line(cell: &Cell, verdict: &Outcome) -> Value {
    let (kind, instructions) = match verdict {
        Outcome::Pass => ("pass", None),
        Outcome::Fail | Outcome::OnlyOld => ("fail", None),
        Outcome::PassByInstructions(most) => ("pass", Some(most)),
        Outcome::FailByInstructions(most) => ("fail", Some(most)),
        Outcome::Unresolved | Outcome::OnlyNew => ("unresolved", None),
        Outcome::Shown => ("not-judged", None),
    };
    let of = match metric::better(&cell.metric) {
        ThresholdSide::Above => "new/old",
        ThresholdSide::Below => "old/new",
    };
    let ratio = cell.ratio.as_ref();
    json!({
        "plan": cell.plan, "config": cell.config, "metric": cell.metric,
        "old": cell.old, "new": cell.new,
        "value": ratio.map(|r| r.value), "lo": ratio.map(|r| r.lo), "hi": ratio.map(|r| r.hi),
        "unit": of, "n": ratio.map_or(0, |r| r.n),
        "disturbed": cell.disturbed, "verdict": kind, "instructions": instructions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::plans::Part;
    use figures::stats::Estimate;

    fn cell(config: &str, metric: &str, ratio: f64, disturbed: usize) -> Cell {
        Cell {
            plan: "isolation".to_owned(),
            config: config.to_owned(),
            metric: metric.to_owned(),
            part: Part::Key,
            old: Some(10.0),
            new: Some(10.0 * ratio),
            ratio: Some(Estimate {
                value: ratio,
                lo: ratio - 0.01,
                hi: ratio + 0.01,
                n: 12,
            }),
            disturbed,
        }
    }

    fn sides() -> Sides {
        Sides::for_tests("78ba09737163", "0123456789abcdef")
    }

    #[test]
    fn a_table_fits_in_98_columns() {
        let long = "xdp-mq+ngm-rules@dir=from_guest,guests=64,place=one-core,wake=awake,wire=5";
        let cells = [
            (cell("ngm-64@load=1", "packets", 1.0, 0), Outcome::Pass),
            (
                cell("ngm-64@load=1", "cycles_per_packet.driver", 0.9, 1),
                Outcome::FailByInstructions(1.234),
            ),
            (cell(long, "cycles_per_packet.total", 0.9, 0), Outcome::Fail),
        ];
        let count = Count {
            bench: "path".to_owned(),
            function: "bridge/wire-to-64-guests".to_owned(),
            old: 10_000,
            new: 12_340,
        };
        let text = tables(&sides(), &cells, &[count]);
        for part in [
            "old: commit 78ba09737163   new: the tree (0123456789ab)",
            "\nisolation  ",
            "packets",
            "0.990–1.010",
            "12 ?",
            "FAIL (instr. 1.234)",
            "1.2340",
            "CPU time was stolen",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("ngm-64@load=1").count(), 1, "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(98), "{text}");
    }

    #[test]
    fn json_has_a_line_per_cell() {
        let cells = [
            (cell("a@load=1", "packets", 1.0, 0), Outcome::Pass),
            (
                cell("a@load=1", "cycles_per_byte.total", 1.0, 0),
                Outcome::PassByInstructions(1.0),
            ),
        ];
        let text = lines(&sides(), &cells, &[]);
        let lines: Vec<Value> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(lines[0]["compare"]["old"], "78ba09737163");
        assert_eq!(lines[1]["unit"], "new/old");
        assert_eq!(lines[1]["n"], 12);
        assert_eq!(lines[2]["unit"], "old/new");
        assert_eq!(lines[2]["verdict"], "pass");
        assert_eq!(lines[2]["instructions"], 1.0);
    }
}
