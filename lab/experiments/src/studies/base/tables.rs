//! A run's figures as tables.

use super::rows::{short, thesis_rows};
use super::{acks, frontier, points, vm_tables};
use crate::lane::ledgers;
use crate::papers::Paper;
use crate::plan::{
    Column, ColumnConfig, FileColumn, IdleState, PayloadDirection, Plan, Threshold, WireOffload,
    WireSpeed, Workload,
};
use crate::runner::words;
use figures::report::{Figure, Index, cell, number};
use figures::stats::ThresholdSide;
use figures::table::table;
use std::collections::BTreeMap;

/// Returns the figures as tables.
#[must_use]
pub(super) fn tables(plan: &Plan, figures: &[Figure]) -> String {
    let index = Index::new(figures);
    let mut out = String::new();
    if plan.as_thesis {
        out.push_str(&thesis_table(plan, &index));
        out.push_str(&pages_table(plan, &index));
        out.push_str(&acks::table(plan, &thesis_rows(plan), &index));
    }
    for &wake in plan.wake.iter().filter(|_| !plan.as_thesis) {
        for &direction in &plan.direction {
            for wire in &plan.wire {
                out.push_str(&lane_table(plan, &index, direction, wake, wire));
            }
        }
    }
    out.push_str(&vm_tables::parts_tables(plan, &index, figures));
    out.push_str(&points::receive_table(plan, &index));
    out.push_str(&points::web_table(plan, figures, &index));
    out.push_str(&frame_table(plan, &index));
    out.push_str(&vm_tables::idle_vms_table(plan, &index));
    out.push_str(&file_table(plan, &index));
    out.push_str(&frontier::tables(plan, &index));
    out.push_str(&paper_table(plan, figures, &index));
    out.push_str(&ratio_table(figures));
    out.push_str(&bar_table(plan, figures));
    for figure in figures.iter().filter(|f| f.metric == "up_ms") {
        out.push_str(&format!(
            "{}: up in {} ms\n",
            figure.config,
            cell(Some(figure))
        ));
    }
    out
}

/// Metrics of a stream, with column headings.
const STREAM: [(&str, &str); 4] = [
    ("throughput", "Gb/s"),
    ("cycles_per_byte.total", "cyc/B"),
    ("cycles_per_byte.receive_side", "receive side"),
    ("cycles_per_byte.uncounted", "uncounted ≤"),
];
/// Metrics of a stream in plans that switch LRO.
const LRO: [(&str, &str); 4] = [
    ("lro_rate", "LRO rate"),
    ("flush_latency_us.p50", "flush p50 us"),
    ("acks", "ACKs/GB"),
    ("segments", "segments/GB"),
];
/// Metrics of requests.
const REQUESTS: [(&str, &str); 3] = [
    ("transactions", "req/s"),
    ("latency_us.p50", "p50 us"),
    ("latency_us.p99", "p99 us"),
];

/// Returns the title of a row: the column's name, and the keys that distinguish its points.
fn row_title(column: &str, keys: &BTreeMap<String, String>) -> String {
    let mut title = match keys.get("place") {
        Some(place) => format!("{column} {place}"),
        None => column.to_owned(),
    };
    for key in [
        "guests",
        "rivals",
        "wires",
        "flows",
        "moderation",
        "message",
    ] {
        if let Some(value) = keys.get(key) {
            title += &format!(" {key}={value}");
        }
    }
    title
}

/// Returns the table of one direction, idle state and wire.
fn lane_table(
    plan: &Plan,
    index: &Index<'_>,
    direction: PayloadDirection,
    wake: IdleState,
    wire: &WireSpeed,
) -> String {
    let mut stream = STREAM.to_vec();
    if plan.column.iter().any(|column| column.lro.is_some()) {
        stream.truncate(2);
        stream.extend(LRO);
    }
    if plan
        .column
        .iter()
        .any(|column| column.offload == WireOffload::Segments)
    {
        stream.insert(1, ("frame_bytes", "B/frame"));
    }
    if plan.column.iter().any(|column| column.rivals != [0]) {
        stream.push(("throughput.rivals", "others Gb/s"));
    }
    if plan.column.iter().any(|column| column.mixed) {
        stream.push(("latency_us.rivals.web.p99", "web p99 us"));
        stream.push(("latency_us.rivals.requests.p99", "others' requests p99 us"));
    }
    let mut header = vec!["column".to_owned()];
    header.extend(stream.iter().map(|(_, title)| (*title).to_owned()));
    for size in &plan.requests {
        let titles = REQUESTS.iter().map(|(_, title)| match plan.requests.len() {
            1 => (*title).to_owned(),
            _ => format!("{title} ({size} B)"),
        });
        // With several sizes, only the median fits the table.
        header.extend(titles.take(if plan.requests.len() > 1 { 2 } else { 3 }));
    }
    let mut rows = Vec::new();
    let columns = plan.column.iter().filter(|c| plan.wires(c).contains(wire));
    for column in columns.filter(|column| column.runs_in(direction)) {
        let messages = |point| {
            plan.message
                .iter()
                .map(move |&bytes| plan.with_message(&point, bytes))
        };
        for point in plan.points(column, wire).into_iter().flat_map(messages) {
            let mut row = vec![row_title(&column.name, &point.keys)];
            let name = plan
                .with_workload(&point, Workload::Stream, direction, wake)
                .name();
            row.extend(
                stream
                    .iter()
                    .map(|(metric, _)| short(index.get(&name, metric))),
            );
            for &size in &plan.requests {
                let config = plan.with_workload(&point, Workload::Requests(size), direction, wake);
                let shown = if plan.requests.len() > 1 { 2 } else { 3 };
                let metrics = REQUESTS.iter().take(shown);
                row.extend(metrics.map(|(metric, _)| short(index.get(&config.name(), metric))));
            }
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    format!(
        "{}, cores {}, wire {}\n{}\n\n",
        direction.name(),
        wake.name(),
        match wire.mbps {
            Some(mbps) => format!("{} Gb/s", mbps / 1e3),
            None => wire.name.clone(),
        },
        table(&header, &rows)
    )
}

/// Returns the table of every column with the thesis's metrics, in its order.
fn thesis_table(plan: &Plan, index: &Index<'_>) -> String {
    const DEVICE: &str = "cycles_per_packet.nic_device";
    let mut metrics = vec![
        ("cycles_per_packet.driver", "driver"),
        ("cycles_per_packet.guest", "guest"),
        ("cycles_per_packet.total", "total"),
        ("cycles_per_packet.uncounted", "uncounted ≤"),
        ("throughput", "Gb/s"),
    ];
    let of_plan = thesis_rows(plan);
    let has_device = |(_, _, name): &(_, _, String)| index.get(name, DEVICE).is_some();
    if of_plan.iter().any(has_device) {
        metrics.push((DEVICE, "nic_device, in no sum"));
        metrics.push(("interrupts", "interrupts/s"));
    }
    let mut header = vec!["cycles per packet", "guests"];
    header.extend(metrics.iter().map(|(_, title)| title));
    let mut rows = Vec::new();
    for (column, guests, name) in of_plan {
        let mut row = vec![title(column, &name), guests.to_string()];
        row.extend(
            metrics
                .iter()
                .map(|(metric, _)| short(index.get(&name, metric))),
        );
        rows.push(row);
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!("{}\n\n", table(&header, &rows)),
    }
}

/// Returns the title of a row: the column, or the configuration if the column has several wires.
fn title(column: &Column, configuration: &str) -> String {
    match column.wires.len() > 1 || column.wire.len() > 1 {
        true => configuration.to_owned(),
        false => column.name.clone(),
    }
}

/// Returns the table of every ratio in the plan's paper, beside ours.
fn paper_table(plan: &Plan, figures: &[Figure], index: &Index<'_>) -> String {
    let Some(Ok(paper)) = plan.paper.as_deref().map(Paper::find) else {
        return String::new();
    };
    let mut rows = Vec::new();
    for figure in figures {
        let Some((column, metric)) = figure
            .metric
            .strip_prefix("quotient.")
            .and_then(|rest| rest.split_once('.'))
        else {
            continue;
        };
        let column_of = |name: &str| plan.column.iter().find(|column| column.name == name);
        let reproduced = |name: &str| column_of(name).and_then(|column| column.paper.as_deref());
        let own = figure.config.split('@').next().unwrap_or_default();
        let keys = ColumnConfig::keys_of(&figure.config);
        let ratio = reproduced(own).and_then(|config| {
            let mut ratios = paper.ratios(config).into_iter();
            ratios.find(|ratio| {
                ratio.metric == metric && reproduced(column) == Some(ratio.to) && ratio.is_of(&keys)
            })
        });
        let theirs = ratio.map_or(f64::NAN, |ratio| ratio.ratio);
        rows.push(vec![
            format!("{} ÷ {column}", figure.config),
            metric.to_owned(),
            short(index.get(&figure.config, metric)),
            short(index.get(&figure.config, &format!("paper.{metric}"))),
            number(figure.value.unwrap_or(f64::NAN) * theirs),
            number(theirs),
            cell(Some(figure)),
            figure.verdict.map_or("", words).to_owned(),
        ]);
    }
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "beside the paper",
        "metric",
        "ours",
        "paper's",
        "÷",
        "paper's ÷",
        "quotient",
        "verdict",
    ];
    format!("{}\n{}\n\n", paper.title, table(&header, &rows))
}

/// Returns the table of page reuse in a machine's buffers. Reuse grows with the length of the
/// window. In the thesis, 1114 pages received 2 996 824 packets in one window of unstated length.
fn pages_table(plan: &Plan, index: &Index<'_>) -> String {
    let rows: Vec<_> = thesis_rows(plan)
        .into_iter()
        .filter_map(|(column, guests, name)| {
            let reused = index.get(&name, "pages_reused")?;
            Some(vec![
                title(column, &name),
                guests.to_string(),
                short(Some(reused)),
                short(index.get(&name, "granted_anew")),
            ])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let packets = format!("packets/page granted in {} s", plan.full.window_s);
    let header = ["pages", "guests", &packets, "granted anew/packet"];
    format!("{}\n\n", table(&header, &rows))
}

/// Returns the table of files sent without copying, with the reuse of their pages by file size.
fn file_table(plan: &Plan, index: &Index<'_>) -> String {
    let metrics = [
        ("granted_anew", "anew/packet"),
        ("hit_rate", "hit rate"),
        ("packets_per_page_used", "packets/page used"),
        ("file_copied", "copied"),
        ("throughput", "Gb/s"),
        ("cycles_per_packet.driver", "driver cyc"),
    ];
    let mut header = vec!["file", "KB"];
    header.extend(metrics.map(|(_, title)| title));
    let sizes = plan.file.iter();
    let sizes = sizes.flat_map(|file| file.kb.iter().map(move |&kb| (file, kb)));
    let row = |(file, kb): (&FileColumn, u32)| {
        let name = file.config(kb).name();
        let mut row = vec![file.name.clone(), kb.to_string()];
        row.extend(metrics.map(|(metric, _)| short(index.get(&name, metric))));
        row
    };
    let rows: Vec<_> = sizes.map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("{}\n\n", table(&header, &rows)),
    }
}

/// Returns the row of a configuration with raw frames. `*` marks a corrected ledger.
fn frame_row(index: &Index<'_>, name: &str, touch: bool) -> Vec<String> {
    let medians = [
        "cycles_per_packet.guest",
        "cycles_per_packet.monitor",
        "closure.driver",
        "corrected_share.driver",
        "in_flight",
    ];
    let touch = if touch { "yes" } else { "no" };
    let title = match ledgers::correction(index, name, "driver") {
        Some(_) => format!("{name} *"),
        None => name.to_owned(),
    };
    [title]
        .into_iter()
        .chain(["packets", "cycles_per_packet.driver"].map(|m| cell(index.get(name, m))))
        .chain(medians.map(|metric| short(index.get(name, metric))))
        .chain([touch.to_owned()])
        .collect()
}

fn frame_table(plan: &Plan, index: &Index<'_>) -> String {
    let mut rows = Vec::new();
    let mut corrections = String::new();
    let mut add = |name: &str, touch| {
        rows.push(frame_row(index, name, touch));
        if let Some(text) = ledgers::correction(index, name, "driver") {
            corrections.push_str(&format!("* {name}, driver: {text}\n"));
        }
    };
    for frames in &plan.frames {
        for (size, load) in frames
            .size
            .iter()
            .flat_map(|&size| frames.load.iter().map(move |&load| (size, load)))
        {
            let name = frames.config(size, load).name();
            add(&name, frames.touch);
        }
    }
    for (peer, &size) in plan
        .peer
        .iter()
        .flat_map(|peer| peer.size.iter().map(move |size| (peer, size)))
    {
        let name = peer.config(size).name();
        add(&name, peer.touch);
    }
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "guest to guest",
        "Mpps",
        "driver cyc",
        "guests",
        "monitor",
        "closure",
        "corrected",
        "in flight",
        "touched",
    ];
    format!("{}\n{corrections}\n", table(&header, &rows))
}

/// Returns the verdict of a comparison as text.
fn verdict(figure: &Figure) -> String {
    figure
        .verdict
        .and_then(|verdict| serde_json::to_value(verdict).ok())
        .and_then(|verdict| verdict.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn ratio_table(figures: &[Figure]) -> String {
    let rows: Vec<Vec<String>> = figures
        .iter()
        // Figures without a verdict have a separate table.
        .filter(|f| f.verdict.is_some())
        .filter(|f| f.metric.starts_with("ratio.") || f.metric.starts_with("difference."))
        .map(|f| {
            vec![
                f.config.clone(),
                f.metric.clone(),
                cell(Some(f)),
                verdict(f),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "{}\n\n",
        table(&["configuration", "ratio", "own / other", "verdict"], &rows)
    )
}

/// Returns the table of figures that the plan compares with a bound. Ratios and differences may
/// have bounds, too; [`ratio_table`] has them.
fn bar_table(plan: &Plan, figures: &[Figure]) -> String {
    let mut rows = Vec::new();
    for figure in figures.iter().filter(|figure| figure.verdict.is_some()) {
        let Figure { config, metric, .. } = figure;
        if metric.starts_with("ratio.") || metric.starts_with("difference.") {
            continue;
        }
        let column = config.split('@').next().unwrap_or_default();
        let keys = ColumnConfig::keys_of(config);
        let mut bars = plan.threshold.iter();
        if let Some(bar) = bars.find(|bar| bar.applies(column, &keys, metric)) {
            rows.push(vec![
                config.clone(),
                metric.clone(),
                cell(Some(figure)),
                bound(bar),
                verdict(figure),
            ]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let header = ["configuration", "figure", "value", "bar", "verdict"];
    format!("{}\n\n", table(&header, &rows))
}

/// Returns a bound as text.
fn bound(bar: &Threshold) -> String {
    match bar.bound() {
        Some((least, ThresholdSide::Above)) => format!("≥ {least}"),
        Some((most, ThresholdSide::Below)) => format!("≤ {most}"),
        None => String::new(),
    }
}
