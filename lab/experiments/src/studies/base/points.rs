//! Points of curves as text: streams by receive buffer, web servers by request rate.

use super::rows::short;
use crate::plan::{ColumnConfig, PayloadDirection, Plan, ReceiveWorkload};
use figures::report::{Figure, Index};
use figures::table::table;

/// Returns the table of throughput by receive buffer, with a column for each configuration.
pub(super) fn receive_table(plan: &Plan, index: &Index<'_>) -> String {
    let Some(receive) = &plan.receive else {
        return String::new();
    };
    let columns = plan
        .column
        .iter()
        .filter(|column| column.runs_in(PayloadDirection::ToGuest));
    let points = columns.flat_map(|column| {
        let wires = plan.wires(column).iter();
        wires.flat_map(|wire| plan.points(column, wire))
    });
    let of = |point: &ColumnConfig, buffer| {
        index.get(&ReceiveWorkload::config(point, buffer).name(), "throughput")
    };
    let any = |point: &ColumnConfig| {
        receive
            .buffer
            .iter()
            .any(|&buffer| of(point, buffer).is_some())
    };
    let points: Vec<ColumnConfig> = points.filter(any).collect();
    if points.is_empty() {
        return String::new();
    }
    let names: Vec<String> = points.iter().map(ColumnConfig::name).collect();
    let mut header = vec!["receive buffer, KB: Gb/s"];
    header.extend(names.iter().map(String::as_str));
    let row = |&buffer: &usize| {
        let kb = format!("{}", buffer as f64 / 1024.0);
        let cells = points.iter().map(|point| short(of(point, buffer)));
        std::iter::once(kb).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = receive.buffer.iter().map(row).collect();
    format!("{}\n\n", table(&header, &rows))
}

/// Returns the table of a web server's replies by request rate.
pub(super) fn web_table(plan: &Plan, figures: &[Figure], index: &Index<'_>) -> String {
    if plan.web.is_none() {
        return String::new();
    }
    let metrics = [
        ("replies", "replies/s"),
        ("unanswered", "unanswered"),
        ("connection_ms.p50", "p50 ms"),
        ("cycles_per_request.driver", "driver cyc/request"),
        ("cycles_per_request.total", "total"),
    ];
    let mut header = vec!["web server"];
    header.extend(metrics.map(|(_, title)| title));
    header.push("peak");
    let mut rows = Vec::new();
    for figure in figures.iter().filter(|f| f.metric == "replies") {
        let name = figure.config.as_str();
        let mut row = vec![name.to_owned()];
        row.extend(metrics.map(|(metric, _)| short(index.get(name, metric))));
        rows.push(row);
    }
    for figure in figures.iter().filter(|f| f.metric == "peak_replies") {
        let mut row = vec![figure.config.clone()];
        row.resize(metrics.len() + 1, String::new());
        row.push(short(Some(figure)));
        rows.push(row);
    }
    if rows.is_empty() {
        let why = figures.iter().find(|f| f.config.ends_with("offered=any"));
        let why = why.and_then(|f| f.note.as_deref()).unwrap_or_default();
        return format!("web server: not measurable: {why}\n\n");
    }
    format!("{}\n\n", table(&header, &rows))
}
