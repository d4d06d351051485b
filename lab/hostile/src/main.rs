//! `hostile-run --seconds N`: sixteen innocent guests, eight probes of a thousand datagrams a
//! second between them, and an attacker; then a domain in the attacker's place that is only busy.
//! Prints the probes' delays, who died, and how long the log is. `cargo xtask hostile` builds and
//! runs it.
//!
//! It lies in a folder with the monitor's programs and with `hostile-domain` as `driver` and as
//! `guest`.

mod machines;
mod probe;

use abi::machine::Status;
use anyhow::{Context, Result, bail};
use client::{Instance, Options};
use machines::{INNOCENTS, Role, Scene, Temper};
use netdev::netns::Namespace;
use probe::{Delays, Probes};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often the machine is asked who is alive.
const LOOK: Duration = Duration::from_millis(250);
/// How many times the busy domain's delay the attacker's may be.
const WORSE_MAX: f64 = 2.0;
/// Bytes that the log may have: the file, and the one before it.
const LOG_MAX: u64 = 2 * (4 << 20) + (64 << 10);

/// What a machine came to.
struct Outcome {
    scene: Scene,
    delays: Delays,
    /// Innocents that ended, and those that were started again.
    dead: Vec<String>,
    /// How often the domain in the attacker's place was started again, or that it is dead.
    attacker: String,
    log_bytes: u64,
    leaked: u64,
}

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hostile-run: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<bool> {
    let seconds = match args {
        [option, seconds] if option == "--seconds" => seconds.parse().context("--seconds")?,
        _ => bail!("usage: hostile-run --seconds N"),
    };
    let time = Duration::from_secs(seconds);
    let mut good = true;
    println!(
        "attacker  temper      p50 us   p99 us   lost    dead  attacker          log KB  leaked"
    );
    for role in [Role::Guest, Role::Driver] {
        let mut p99 = [0.0; 2];
        for (at, temper) in [Temper::Busy, Temper::Hostile].into_iter().enumerate() {
            let outcome = observe(Scene { role, temper }, time)?;
            print(&outcome);
            p99[at] = outcome.delays.us(0.99);
            good &= outcome.dead.is_empty() && outcome.leaked == 0;
            good &= outcome.log_bytes <= LOG_MAX;
        }
        let worse = p99[1] / p99[0].max(f64::MIN_POSITIVE);
        println!("{role:?}: p99 {worse:.2} times a busy domain's (at most {WORSE_MAX})");
        good &= worse <= WORSE_MAX;
    }
    Ok(good)
}

/// Runs one machine.
fn observe(scene: Scene, time: Duration) -> Result<Outcome> {
    let namespace = || Namespace::new().context("network namespaces");
    let places: Vec<Namespace> = (0..INNOCENTS).map(|_| namespace()).collect::<Result<_>>()?;
    let folder = tempfile::tempdir()?;
    let options = Options {
        log: client::Log::File(folder.path().join("log")),
        ..Options::default()
    };
    let instance = Instance::start(&scene.machine(&places)?, &options)?;
    let probes = Probes::start(&places)?;
    let before = instance.status()?;
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::sleep(LOOK);
        instance.status()?;
    }
    let delays = probes.stop();
    let after = instance.status()?;
    let leaked = instance.grants()?.leaked;
    let log_bytes = bytes_in(folder.path())?;
    instance.down()?;
    Ok(Outcome {
        scene,
        delays,
        dead: dead(&before, &after),
        attacker: attacker(&after)?,
        log_bytes,
        leaked,
    })
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// Innocents that are not the process that they were.
fn dead(before: &Status, after: &Status) -> Vec<String> {
    let innocent = before
        .domains
        .iter()
        .filter(|d| machines::is_innocent(&d.name));
    let lives = |name: &str, pid| {
        after
            .domains
            .iter()
            .any(|d| d.name == name && d.pid == pid && d.alive)
    };
    let gone = innocent.filter(|d| !lives(&d.name, d.pid));
    gone.map(|d| d.name.clone()).collect()
}

/// What became of the domain in the attacker's place.
fn attacker(after: &Status) -> Result<String> {
    let found = after
        .domains
        .iter()
        .find(|d| machines::is_attacker(&d.name));
    let found = found.context("no attacker")?;
    let again = found.restarts.as_ref().map_or(0, |restarts| restarts.count);
    Ok(match found.alive {
        true => format!("alive, again {again}"),
        false => found.state.clone(),
    })
}

fn print(outcome: &Outcome) {
    let Outcome { scene, delays, .. } = outcome;
    println!(
        "{:<9} {:<9} {:>8.0} {:>8.0} {:>6} {:>7}  {:<17} {:>6} {:>7}",
        format!("{:?}", scene.role),
        format!("{:?}", scene.temper),
        delays.us(0.5),
        delays.us(0.99),
        delays.lost(),
        outcome.dead.len(),
        outcome.attacker,
        outcome.log_bytes / 1024,
        outcome.leaked,
    );
    for name in &outcome.dead {
        println!("  died: {name}");
    }
}
