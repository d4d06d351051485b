//! Tables of virtual machines: cycles per byte of each part and hop, and figures of idle virtual
//! machines.

use crate::plan::{IdleState, Plan, WireSpeed, Workload};
use figures::report::{Figure, Index, cell, number};
use figures::table::table;

/// Parts of a path to a virtual machine, with row titles.
const PARTS: [(&str, &str); 10] = [
    ("vm", "virtual machine"),
    ("guest", "shim"),
    ("driver", "driver domain, or back end"),
    ("monitor", "monitor"),
    ("nic_kernel", "kernel threads of ports"),
    ("wire_kernel", "kernel threads of the wire"),
    ("sender", "wire's sender"),
    ("receiver", "wire's receiver"),
    ("total", "total"),
    ("uncounted", "uncounted ≤"),
];
/// Minimum cycles per byte of a hop with a row.
const HOP_CYCLES_MIN: f64 = 0.005;
/// Metrics of many idle virtual machines.
const IDLE_VM_METRICS: [(&str, &str); 5] = [
    ("attach_ms.p50", "attach, ms"),
    ("attach_ms.max", "longest attach, ms"),
    ("shim_rss_mb.p50", "resident memory of a shim, MB"),
    ("shim_rss_mb.max", "largest shim, MB"),
    ("idle_cpu", "CPU of an idle shim, share of a core"),
];

/// Returns the cycles per byte of streams, by part and hop, of each direction.
pub(super) fn parts_tables(plan: &Plan, index: &Index<'_>, figures: &[Figure]) -> String {
    let mut out = String::new();
    let columns: Vec<_> = plan.column.iter().filter(|c| c.path.has_vm()).collect();
    if columns.is_empty() {
        return out;
    }
    for &direction in &plan.direction {
        let names: Vec<String> = columns
            .iter()
            .flat_map(|column| plan.points(column, &WireSpeed::unbounded()))
            .map(|point| {
                plan.with_workload(&point, Workload::Stream, direction, IdleState::Halt)
                    .name()
            })
            .collect();
        let row = |title: String, metric: &str, scale: f64| {
            let values = names.iter().map(|name| index.get(name, metric));
            let values = values.map(|figure| match figure.and_then(|f| f.value) {
                Some(value) => number(value / scale),
                None => "–".to_owned(),
            });
            [title].into_iter().chain(values).collect::<Vec<_>>()
        };
        let mut rows = Vec::new();
        for (part, title) in PARTS {
            rows.push(row(
                title.to_owned(),
                &format!("cycles_per_byte.{part}"),
                1.0,
            ));
            for hop in hops(part, &names, figures) {
                let metric = format!("cycles_per_packet.{part}.hop.{hop}");
                rows.push(row(
                    format!("  {hop}"),
                    &metric,
                    figures::metric::SEGMENT_BYTES,
                ));
            }
        }
        rows.retain(|row| row.iter().skip(1).any(|value| value != "–" && value != "0"));
        let title = format!("{}, cycles per byte", direction.name());
        let columns = columns.iter().map(|column| column.name.as_str());
        let header: Vec<&str> = [title.as_str()].into_iter().chain(columns).collect();
        out.push_str(&format!("{}\n\n", table(&header, &rows)));
    }
    out
}

/// Returns the hops of a domain that cost enough for a row, the most expensive first.
fn hops(part: &str, names: &[String], figures: &[Figure]) -> Vec<String> {
    let prefix = format!("cycles_per_packet.{part}.hop.");
    let mut hops: Vec<(f64, String)> = figures
        .iter()
        .filter(|figure| names.contains(&figure.config))
        .filter_map(|figure| {
            let hop = figure.metric.strip_prefix(&prefix)?;
            let bytes = figures::metric::SEGMENT_BYTES;
            let cycles = figure
                .value
                .filter(|value| *value >= HOP_CYCLES_MIN * bytes)?;
            Some((cycles, hop.to_owned()))
        })
        .collect();
    hops.sort_by(|a, b| b.0.total_cmp(&a.0));
    hops.into_iter().map(|(_, hop)| hop).collect()
}

/// Returns the figures of many idle virtual machines.
pub(super) fn idle_vms_table(plan: &Plan, index: &Index<'_>) -> String {
    let Some(idle_vms) = &plan.idle_vms else {
        return String::new();
    };
    let rows: Vec<Vec<String>> = IDLE_VM_METRICS
        .iter()
        .map(|(metric, title)| {
            let figure = index.get(&idle_vms.column, metric);
            vec![(*title).to_owned(), cell(figure)]
        })
        .collect();
    let title = format!("{} idle virtual machines", idle_vms.vms);
    format!("{}\n\n", table(&[&title, "figure"], &rows))
}
