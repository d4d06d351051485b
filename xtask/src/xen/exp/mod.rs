//! `cargo xtask xen exp`: compares `grantway-xen` and the kernel's netback in one emulated machine.
//!
//! | module | purpose |
//! |---|---|
//! | `cells` | the cells to measure |
//! | `stored_windows` | windows on disk |
//! | `summary` | figures, table, verdict |
//!
//! The comparison is an xtask because it shares packages, images and the emulator with `xen`.
//!
//! A later call resumes the measurement. Each window is a line of JSON in a file whose name depends
//! on everything under test: images, hypervisor, emulator, plan. Each run of the machine serves one
//! round, and measures the windows of the round that the file lacks.

mod cells;
mod stored_windows;
mod summary;

use super::laboratory::{Laboratory, deadline_factor, home};
use super::machine::{Task, XenMachine};
use anyhow::{Context, Result, bail, ensure};
use cells::{COLUMNS, WIRES};
use figures::provenance::Provenance;
use figures::report;
use std::fs;
use std::path::Path;
use std::time::Duration;
use stored_windows::{StoredWindows, Window};

const USAGE: &str = "\
usage: cargo xtask xen exp [--rounds N] [--json] [--kept] [--fresh] [COLUMN…]

Compares the driver domain with the kernel's xen-netback in one emulated machine, by work per
packet, not by speed. Columns: netback, grantway-copy, grantway-map; default: all. Each run of the
machine is one of N rounds (default: 3), and measures only missing windows. --fresh discards stored
windows; --kept prints them without running anything. --json prints JSON lines.

example: cargo xtask xen exp --rounds 2 netback grantway-copy";

/// Deadline of a round on a system with a free CPU, seconds.
const DEADLINE_S: u64 = 1200;
/// Default number of rounds.
const ROUNDS: u32 = 3;

/// Parsed options.
#[derive(Debug, PartialEq, Eq)]
struct Comparison {
    rounds: u32,
    json: bool,
    kept: bool,
    fresh: bool,
    columns: Vec<&'static str>,
}

pub(super) fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    let wanted = read(args)?;
    let mut kept = if wanted.kept {
        StoredWindows::newest(&home()?)?
    } else {
        let Some(laboratory) = Laboratory::ready(true)? else {
            return Ok(());
        };
        let tested_inputs = tested_inputs(&laboratory)?;
        let mut kept = StoredWindows::open(&laboratory.home, &tested_inputs, wanted.fresh)?;
        measure(&laboratory, &wanted, &mut kept)?;
        kept
    };
    kept.only(&wanted.columns);
    let figures = summary::figures(&kept.windows, &wanted.columns);
    ensure!(!figures.is_empty(), "no window was measured yet");
    if wanted.json {
        let placement = "one emulated machine with one processor".to_owned();
        let provenance = Provenance::collect(placement, false);
        return report::print_json(&provenance, &figures);
    }
    println!("{}", summary::text(&figures, &wanted.columns));
    Ok(())
}

fn read(args: &[String]) -> Result<Comparison> {
    let mut wanted = Comparison {
        rounds: ROUNDS,
        json: false,
        kept: false,
        fresh: false,
        columns: Vec::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => {
                let rounds = args.next().context("--rounds needs a value")?;
                wanted.rounds = rounds.parse().context("--rounds")?;
            }
            "--json" => wanted.json = true,
            "--kept" => wanted.kept = true,
            "--fresh" => wanted.fresh = true,
            name => match COLUMNS.iter().find(|column| **column == name) {
                Some(column) => wanted.columns.push(column),
                None => bail!("xen exp has no option or column {name}\n\n{USAGE}"),
            },
        }
    }
    ensure!(wanted.rounds > 0, "--rounds: at least one");
    if wanted.columns.is_empty() {
        wanted.columns = COLUMNS.to_vec();
    }
    Ok(wanted)
}

/// Returns the machine that runs a round.
fn machine(laboratory: &Laboratory) -> Result<XenMachine<'_>> {
    Ok(XenMachine {
        kernels: &laboratory.kernels,
        image: &laboratory.image,
        packages: &laboratory.packages,
        log: laboratory.home.join("exp.log"),
        memory_mib: 2048,
        has_nic: false,
        // Deadlines need no factor, because time inside the machine advances only with
        // instructions.
        slow: 1,
        deadline: Duration::from_secs(DEADLINE_S * u64::from(deadline_factor()?)),
        counts_instructions: true,
    })
}

/// Returns everything on which windows depend. The image contains the programs under test, and the
/// kernels and programs of dom0 and the guests.
fn tested_inputs(laboratory: &Laboratory) -> Result<Vec<Vec<u8>>> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let home = laboratory.home.display().to_string();
    Ok(vec![
        read(&laboratory.image)?,
        read(&laboratory.kernels.linux)?,
        read(&laboratory.kernels.xen)?,
        // Windows do not depend on the tree's path.
        machine(laboratory)?.describe()?.replace(&home, "").into(),
        format!("{COLUMNS:?} {WIRES:?}").into(),
    ])
}

/// Runs the machine for each incomplete round.
fn measure(laboratory: &Laboratory, wanted: &Comparison, kept: &mut StoredWindows) -> Result<()> {
    for round in 0..wanted.rounds {
        let groups = missing(round, &wanted.columns, kept);
        if groups.is_empty() {
            continue;
        }
        eprintln!("round {} of {}", round + 1, wanted.rounds);
        let machine = machine(laboratory)?;
        let mut on_window = |json: &str| {
            let window = Window::read(round, json)?;
            eprintln!("{}", window.cell);
            kept.add(window)
        };
        machine.run(Task {
            argument: &format!("xexp={}", groups.join("+")),
            wanted: &["exp"],
            on_window: &mut on_window,
        })?;
    }
    Ok(())
}

/// Returns the missing cells of a round in the input format of `exp.sh`. Each round starts with a
/// different column.
fn missing(round: u32, columns: &[&str], kept: &StoredWindows) -> Vec<String> {
    let mut columns = columns.to_vec();
    let first = round as usize % columns.len().max(1);
    columns.rotate_left(first);
    let mut groups = Vec::new();
    for column in columns {
        for (wire, cells) in WIRES {
            let lacks = |cell: &&&str| !kept.has(round, &format!("{column}.{wire}.{cell}"));
            let cells: Vec<_> = cells.iter().filter(lacks).copied().collect();
            if !cells.is_empty() {
                groups.push(format!("{column}.{wire}.{}", cells.join(".")));
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_and_columns_are_read() {
        let all = read(&[]).unwrap();
        assert_eq!((all.rounds, all.columns), (ROUNDS, COLUMNS.to_vec()));
        let some = read(&words("--rounds 5 --json netback")).unwrap();
        assert_eq!((some.rounds, some.json), (5, true));
        assert_eq!(some.columns, ["netback"]);
        for bad in ["--rounds", "--rounds 0", "--rounds x", "bridge"] {
            assert!(read(&words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_round_measures_missing_cells() {
        let folder = tempfile::tempdir().unwrap();
        let tested_inputs = [b"x".to_vec()];
        let mut kept = StoredWindows::open(folder.path(), &tested_inputs, false).unwrap();
        let all = missing(0, &COLUMNS, &kept);
        assert_eq!(all.first().unwrap(), "netback.large.r1.r2.t1.t2");
        assert_eq!(all.len(), COLUMNS.len() * WIRES.len());
        let other_order = missing(1, &COLUMNS, &kept);
        assert_eq!(
            other_order.first().unwrap(),
            "grantway-copy.large.r1.r2.t1.t2"
        );
        for (_, cells) in WIRES.iter().take(1) {
            for cell in cells.iter().skip(1) {
                let json = stored_windows::tests::line(&format!("netback.large.{cell}"), 1);
                kept.add(Window::read(0, &json).unwrap()).unwrap();
            }
        }
        let again = StoredWindows::open(folder.path(), &tested_inputs, false).unwrap();
        assert_eq!(
            missing(0, &COLUMNS, &again).first().unwrap(),
            "netback.large.r1"
        );
        assert_eq!(missing(1, &COLUMNS, &again).len(), all.len());
    }
}
