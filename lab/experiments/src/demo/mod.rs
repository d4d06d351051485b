//! The command `demo`: a whole machine on this computer for half a minute, with ordinary sockets
//! at both ends, and a report.

mod home;
mod sim;
mod text;

use crate::lane::machine::{self, OnWire, Running, What};
use crate::lane::window::{Times, Work};
use crate::lane::{Cores, Direction, Lane, Loads, Place};
use crate::plan::Wire;
use crate::runner::{Config, Samples};
use abi::machine::Program;
use anyhow::Context as _;
use figures::interrupt;
use figures::provenance::Provenance;
use figures::report::{self, Figure};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// Print JSON lines instead of tables.
    pub json: bool,
    /// At most 15 seconds.
    pub quick: bool,
    /// Without TAPs, even where they can be had: a wire in memory, TCP/IP inside the domains.
    pub sim: bool,
}

/// The plan's name in figures.
const PLAN: &str = "demo";
/// The column's name in figures.
const COLUMN: &str = "grantway";

/// Rounds, and how long each window is.
fn schedule(quick: bool) -> (usize, Times) {
    let ms = Duration::from_millis;
    if quick {
        let times = Times {
            warm_up: ms(100),
            window: ms(400),
        };
        (3, times)
    } else {
        let times = Times {
            warm_up: ms(300),
            window: ms(1000),
        };
        (5, times)
    }
}

/// What a demonstration found, for the report.
#[derive(Debug, Default)]
struct Findings {
    figures: Vec<Figure>,
    /// What the driver domain could reach.
    reach: Reach,
    /// Lines for people: what was left out and why.
    notes: Vec<String>,
}

/// What the driver domain could touch, as the monitor accounts for it.
#[derive(Clone, Debug, Default)]
struct Reach {
    granted: u64,
    owned: u64,
    leaked: u64,
    system_calls: u64,
    hypercalls: u64,
    operations: u64,
    missing: Vec<String>,
}

/// Runs the demonstration and prints its report.
///
/// # Errors
/// [`figures::Failure`]s carry their exit status; see [`figures::exit_code`].
pub fn run(args: &Args) -> anyhow::Result<()> {
    // Before any thread is started: a user namespace is only for processes with one.
    let mut notes = Vec::new();
    match home::find(args)? {
        home::Home::Here => {}
        home::Home::Elsewhere(status) if status.success() => return Ok(()),
        home::Home::Elsewhere(status) => {
            std::process::exit(status.code().unwrap_or(1));
        }
        home::Home::NoTap(why) => notes.push(format!(
            "without TAPs ({why}): a wire in memory, TCP/IP inside the domains"
        )),
    }
    interrupt::watch();
    let on_taps = notes.is_empty();
    let cores = Cores::choose();
    let place = Place::OneCore;
    let placement = if on_taps {
        format!(
            "the wire's socket on core {}, driver, guest and the guest's socket on core {}",
            cores.wire, cores.guest
        )
    } else {
        format!(
            "driver on core {}, guest on core {}",
            cores.wire, cores.guest
        )
    };
    let provenance = Provenance::collect(placement, args.quick);
    for note in &notes {
        eprintln!("{note}");
    }
    let mut found = if on_taps {
        on_taps_found(args, cores, place, provenance.tsc_hz)?
    } else {
        sim::found(args, cores, provenance.tsc_hz)?
    };
    found.notes.splice(0..0, notes);
    if args.json {
        report::print_json(&provenance, &found.figures)
    } else {
        print!("{}", text::report(&provenance, &found));
        Ok(())
    }
}

fn on_taps_found(args: &Args, cores: Cores, place: Place, tsc_hz: u64) -> anyhow::Result<Findings> {
    let speed = Wire::unbounded();
    let near = OnWire::tap(&speed);
    let mut lane = machine::lane(place, near, What::default(), cores, &Loads::default())?;
    let (rounds, times) = schedule(args.quick);
    let mut samples = Samples::default();
    let windows = rounds * Work::BOTH.len() * Direction::BOTH.len();
    let bar = progress(windows as u64);
    let mut reach = None;
    // Half the windows may be opened again because of steal: the demonstration has to end in time.
    let mut redo = windows / 2;
    for round in 0..rounds {
        for work in Work::BOTH {
            for direction in Direction::BOTH {
                bar.set_message(match work {
                    Work::Stream => format!("a TCP stream, {}", direction.name()),
                    Work::Requests(_) => format!("requests and responses, {}", direction.name()),
                });
                let config = Config::new(COLUMN, &[("dir", direction.name())]);
                let mut window = lane.window(work, direction, times)?;
                if window.disturbed && redo > 0 {
                    redo -= 1;
                    window = lane.window(work, direction, times)?;
                }
                if window.disturbed {
                    samples.disturb(&config);
                }
                samples.add(&config, round, &window.figures(tsc_hz));
                bar.inc(1);
            }
        }
        // In the middle of the work: what is granted then is what a driver can reach.
        if reach.is_none() {
            reach = Some(look(running(&lane)?)?);
        }
    }
    bar.finish_and_clear();
    let mut found = Findings {
        figures: samples.figures(PLAN),
        reach: reach.unwrap_or_default(),
        notes: Vec::new(),
    };
    let up_ms = running(&lane)?.up_ms();
    add_reach(&mut found, up_ms);
    Ok(found)
}

fn running(lane: &Lane) -> anyhow::Result<&Running> {
    lane.between().machine().context("not a machine")
}

/// Asks the monitor what the driver domain can reach.
fn look(running: &Running) -> anyhow::Result<Reach> {
    let status = running.status()?;
    let audit = running.audit()?;
    let guests: Vec<&str> = status
        .domains
        .iter()
        .filter(|domain| domain.program == Program::Guest)
        .map(|domain| domain.name.as_str())
        .collect();
    let mut reach = Reach {
        leaked: audit.leaked,
        missing: status.missing.clone(),
        ..Reach::default()
    };
    for domain in &audit.domains {
        if guests.contains(&domain.name.as_str()) {
            reach.granted += u64::from(domain.granted);
            reach.owned += u64::from(domain.owned);
        }
    }
    for domain in &status.domains {
        if domain.program == Program::Driver {
            reach.system_calls = u64::from(domain.system_calls);
            reach.hypercalls = domain.hypercalls;
            reach.operations = domain.operations;
        }
    }
    Ok(reach)
}

/// The monitor's figures, which belong to no direction.
fn add_reach(found: &mut Findings, up_ms: f64) {
    let reach = &found.reach;
    for (metric, value) in [
        ("grants.granted", reach.granted as f64),
        ("grants.owned", reach.owned as f64),
        ("grants.leaked", reach.leaked as f64),
        ("system_calls", reach.system_calls as f64),
        ("up_ms", up_ms),
    ] {
        found
            .figures
            .push(Figure::single(PLAN, COLUMN, metric, value));
    }
}

fn progress(windows: u64) -> ProgressBar {
    ProgressBar::new(windows).with_style(
        ProgressStyle::with_template("{bar:30} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}
