//! Measures the cost of the LRO engine alone: cycles and instructions per packet by number of
//! interleaved flows. `cargo bench -p net --bench lro` ends with one table of all cells.
//!
//! Every flow sends 32 segments of 1448 bytes, interleaved with the other flows; polls take 64
//! packets, and aggregates are held until every flow has sent its train. So the LRO rate is the
//! same in every cell, for any number of flows. (If aggregates were flushed at every poll, 64
//! packets of 512 flows could not merge at all.) The measurement covers the polls and the final
//! flush; the columns are in [`packets::Column`]. Cycles are time stamp counter cycles.

mod count;
mod packets;

use criterion::{Criterion, Throughput};
use packets::{Cell, PACKETS, Packets, Room, cells};
use std::time::Duration;

/// The figures of a cell.
struct Row {
    cell: Cell,
    cycles: f64,
    rate: f64,
}

fn main() {
    if count::run_if_counted() {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    let rows = engine(&mut criterion);
    criterion.final_summary();
    if !rows.is_empty() {
        table(&rows);
    }
}

fn engine(criterion: &mut Criterion) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut group = criterion.benchmark_group("lro");
    group
        .throughput(Throughput::Elements(PACKETS as u64))
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    for cell in cells() {
        let packets = Packets::new(cell.flows);
        let mut lro = cell.engine();
        let mut room = Room::default();
        let mut passes = Vec::new();
        group.bench_function(cell.to_string(), |b| {
            b.iter_custom(|iterations| {
                let mut spent = 0;
                for _ in 0..iterations {
                    let cycles = packets.pass(&mut lro, cell.column, &mut room);
                    passes.push(cycles);
                    spent += cycles;
                }
                let ns = u128::from(spent) * 1_000_000_000;
                Duration::from_nanos((ns / u128::from(shmem::time::tsc_hz())) as u64)
            });
        });
        passes.sort_unstable();
        if let Some(median) = passes.get(passes.len() / 2) {
            rows.push(Row {
                cell,
                cycles: *median as f64 / PACKETS as f64,
                rate: lro.counters().rate(),
            });
        }
    }
    group.finish();
    rows
}

/// Prints the medians of all passes.
fn table(rows: &[Row]) {
    println!(
        "\n{:<6} {:<5} {:<9} {:>5} {:>14} {:>11} {:>20} {:>9}",
        "rules",
        "form",
        "headers",
        "flows",
        "cycles/packet",
        "÷ one flow",
        "instructions/packet",
        "LRO rate"
    );
    let mut skipped = None;
    for Row { cell, cycles, rate } in rows {
        let same = |row: &&Row| {
            let one = Cell { flows: 1, ..*cell };
            row.cell == one
        };
        let ratio = match rows.iter().find(same) {
            Some(one) => format!("{:.2}", cycles / one.cycles),
            None => String::new(),
        };
        let instructions = match skipped {
            Some(_) => Err(String::new()),
            None => count::instructions(*cell),
        };
        let instructions = match instructions {
            Ok(count) => format!("{count:.0}"),
            Err(why) => {
                skipped.get_or_insert(why);
                "skipped".into()
            }
        };
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        println!(
            "{:<6} {:<5} {:<9} {:>5} {cycles:>14.1} {ratio:>11} {instructions:>20} {rate:>9.2}",
            name(&cell.rules),
            name(&cell.form),
            name(&cell.column),
            cell.flows,
        );
    }
    if let Some(why) = skipped {
        println!("instructions skipped: {why}");
    }
}
