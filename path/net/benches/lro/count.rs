//! Counts instructions per packet by running this program again in valgrind, one cell at a time.
//!
//! The machine's load does not affect the counts, so they can distinguish two revisions.

use crate::packets::{Cell, PACKETS, Packets, Room, cells};
use std::process::Command;

/// Environment variable with the cell that the process runs once before it exits.
const CELL: &str = "LRO_BENCH_CELL";

/// Runs the cell that [`CELL`] names, if it is set; returns whether it was.
pub(crate) fn run_if_counted() -> bool {
    let Ok(name) = std::env::var(CELL) else {
        return false;
    };
    let cell = cells().find(|cell| cell.to_string() == name);
    let cell = cell.expect("a cell's name");
    let (mut lro, mut room) = (cell.engine(), Room::default());
    let packets = Packets::new(cell.flows);
    packets.warm_up(&mut lro, cell.column, &mut room);
    packets.pass(&mut lro, cell.column, &mut room);
    true
}

/// Returns the instructions per packet of a pass. It is the second pass of its engine, so one-time
/// allocations do not count.
///
/// # Errors
/// Returns the reason why instructions cannot be counted.
pub(crate) fn instructions(cell: Cell) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*measured_part")
        .arg(program)
        .env(CELL, cell.to_string())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse::<u64>().ok());
    match count {
        Some(count) if output.status.success() && count > 0 => Ok(count as f64 / PACKETS as f64),
        _ => Err(format!("valgrind: {}", said.lines().last().unwrap_or(""))),
    }
}
