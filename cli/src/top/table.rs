//! The table of `grantway top`.

use super::sample::{Interval, TopRow};
use crate::tables;
use comfy_table::CellAlignment;
use std::cmp::Reverse;
use tool::clean;

/// Sort order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Order {
    /// Most bytes sent first
    Sends,
    /// Most bytes received first
    Receives,
    /// Most dropped frames first
    Drops,
    /// Most CPU time first
    Cpu,
    /// By name
    Name,
}

/// Lines of the table's header.
pub(crate) const HEADER: usize = 2;

/// Sorts rows. Equal rows stay in the order of kinds and names.
pub(crate) fn sort(rows: &mut [TopRow], order: Order) {
    rows.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    let key = |row: &TopRow| match order {
        Order::Sends => row.counted.sent.bytes,
        Order::Receives => row.counted.received.bytes,
        Order::Drops => row.counted.dropped(),
        Order::Cpu => row.counted.cpu_ns,
        Order::Name => 0,
    };
    rows.sort_by_key(|row| Reverse(key(row)));
}

/// Returns the lines of the table: the header, and one for each row.
pub(crate) fn lines(span: &Interval) -> Vec<String> {
    let header = [
        "kind",
        "name",
        "sends/s",
        "Mb/s",
        "receives/s",
        "Mb/s",
        "drops/s",
        "main reason",
        "CPU %",
    ];
    let mut table = tables::table(&header, 2);
    if let Some(column) = table.column_mut(7) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    for row in &span.rows {
        let counted = &row.counted;
        let frames = |count| format!("{:.0}", span.rate(count));
        let megabits = |bytes: u64| format!("{:.1}", span.rate(bytes) * 8.0 / 1e6);
        table.add_row([
            row.kind.name().to_owned(),
            clean::line(&row.name).into_owned(),
            frames(counted.sent.frames),
            megabits(counted.sent.bytes),
            frames(counted.received.frames),
            megabits(counted.received.bytes),
            frames(counted.dropped()),
            // The text is cleaned, because domains choose the names of their counters.
            clean::line(counted.reason().unwrap_or_default()).into_owned(),
            format!("{:.1}", span.share(counted.cpu_ns) * 100.0),
        ]);
    }
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    table.to_string().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::span;
    use super::*;
    use std::time::Duration;

    fn first(order: Order) -> String {
        let mut span = span(Duration::from_secs(1));
        sort(&mut span.rows, order);
        span.rows[0].name.clone()
    }

    #[test]
    fn rows_are_in_the_requested_order() {
        assert_eq!(first(Order::Sends), "wire");
        assert_eq!(first(Order::Receives), "web-2");
        assert_eq!(first(Order::Drops), "web-2");
        assert_eq!(first(Order::Name), "wire");
    }

    #[test]
    fn each_line_gives_the_reason_for_drops() {
        let mut span = span(Duration::from_secs(1));
        let lines = lines(&span);
        assert_eq!(lines.len(), HEADER + span.rows.len());
        assert!(
            lines
                .iter()
                .any(|line| line.contains("web-2") && line.contains("no_request"))
        );
        // A domain chooses the names of its drop reasons, which must not contain terminal control
        // codes.
        let hostile = "\x1b[2J\nmonitor".to_owned();
        for row in &mut span.rows {
            row.counted.drops = [(hostile.clone(), 1000)].into();
        }
        let lines = super::lines(&span);
        assert_eq!(lines.len(), 2 + span.rows.len());
        assert!(!lines.concat().contains('\x1b'), "{lines:?}");
    }
}
