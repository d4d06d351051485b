//! `hostile-run --seconds N [--only ROLE]` runs sixteen innocent guests, eight probes that send a
//! thousand datagrams per second between them, and a busy domain. Then it runs the same machine
//! with an attacker instead of the busy domain. In the machines of the role `flow`, all guests have
//! a stateful firewall: the attacker sends SYNs of new flows, the busy guest those of one flow, and
//! the probes are round trips in established flows and new connections. It prints the times of the
//! probes, the domains that died, and the size of the log. `cargo xtask hostile` builds and runs
//! it.
//!
//! Its folder must contain the monitor's programs, `device`, and `hostile-domain` as `driver` and
//! as `guest`.

mod flood;
mod machines;
mod probe;
mod streams;

use abi::machine::Status;
use anyhow::{Context, Result, bail};
use client::{Instance, StartOptions};
use flood::Flood;
use machines::{AttackerRole, Behaviour, MachineUnderTest};
use netdev::netns::Namespace;
use probe::{Delays, Probes};
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};
use streams::Streams;

/// Interval of status queries.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum ratio of the delay beside the attacker to the delay beside the busy domain.
const WORSE_MAX: f64 = 2.0;
/// Maximum size of the log in bytes: the current file and the rotated file.
const LOG_MAX: u64 = 2 * (4 << 20) + (64 << 10);

/// The innocent guest that a flood targets: the server of the first pair.
const VICTIM: usize = 1;

/// Maximum share of lost messages in addition to those lost beside the busy domain.
const LOST_MAX: f64 = 0.01;

/// Numbers of segments and flows of a flood.
#[derive(Clone, Copy)]
struct FloodCounts {
    /// Number of segments that the attacker's kernel accepted.
    sent: u64,
    /// Number of flows that the victim's table admitted, including those of the probes.
    admitted: u64,
}

/// Times of each kind of probe.
type ProbeDelays = Vec<(&'static str, Delays)>;

/// Results of one machine.
struct Outcome {
    machine: MachineUnderTest,
    delays: ProbeDelays,
    /// Innocent domains that died or were restarted.
    dead: Vec<String>,
    /// State of the attacker or busy domain: its number of restarts, or that it is dead.
    attacker: String,
    flood: Option<FloodCounts>,
    /// Frames per second that the device has written into the innocent guest's pages.
    direct_rate: Option<f64>,
    /// Number of pages that were revoked by force.
    forced: u64,
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
    if let Some((command, args)) = args.split_first()
        && command == flood::COMMAND
    {
        return flood::run(args).map(|()| true);
    }
    let (seconds, only) = match args {
        [option, seconds] if option == "--seconds" => (seconds, None),
        [option, seconds, only, role] if option == "--seconds" && only == "--only" => {
            (seconds, Some(AttackerRole::from_name(role)?))
        }
        _ => bail!("usage: hostile-run --seconds N [--only guest|driver|vm|flow|queue]"),
    };
    let time = Duration::from_secs(seconds.parse().context("--seconds")?);
    let mut good = true;
    println!(
        "attacker  behaviour  probes         p50 us   p99 us   lost    dead  attacker          \
         log KB  leaked"
    );
    let roles = AttackerRole::ALL.into_iter();
    for role in roles.filter(|role| only.is_none_or(|only| only == *role)) {
        let [busy, hostile] = [Behaviour::Busy, Behaviour::Hostile].map(|behaviour| {
            let outcome = observe(MachineUnderTest { role, behaviour }, time)?;
            print(&outcome);
            anyhow::Ok(outcome)
        });
        let (busy, hostile) = (busy?, hostile?);
        good &= is_orderly(&busy) && is_orderly(&hostile);
        good &= is_within_limits(&busy, &hostile);
    }
    Ok(good)
}

/// Returns whether nothing died, leaked or grew without limit.
fn is_orderly(outcome: &Outcome) -> bool {
    outcome.dead.is_empty() && outcome.leaked == 0 && outcome.log_bytes <= LOG_MAX
}

/// Prints how much longer the probes took beside an attacker than beside a busy domain. Returns
/// whether this is within the limits.
fn is_within_limits(busy: &Outcome, hostile: &Outcome) -> bool {
    let role = hostile.machine.role;
    let mut good = true;
    for ((name, calm), (_, disturbed)) in busy.delays.iter().zip(&hostile.delays) {
        let worse = disturbed.us(0.99) / calm.us(0.99).max(f64::MIN_POSITIVE);
        println!("{role:?}, {name}: p99 {worse:.2} times a busy domain's (at most {WORSE_MAX})");
        good &= worse <= WORSE_MAX;
        good &= disturbed.lost_share() <= calm.lost_share() + LOST_MAX;
    }
    if let (Some(one), Some(many)) = (busy.flood, hostile.flood) {
        println!(
            "{role:?}: {} SYNs of one flow; {} SYNs of new flows, {} flows admitted by the victim",
            one.sent, many.sent, many.admitted
        );
        // A flood of new flows must reach the victim's table.
        good &= one.sent > 0 && many.admitted > many.sent / 10;
    }
    if let (Some(calm), Some(disturbed)) = (busy.direct_rate, hostile.direct_rate) {
        println!(
            "{role:?}: {disturbed:.0} frames per second in another queue, {calm:.0} beside a busy \
             guest (at least as many); {} pages revoked by force",
            hostile.forced
        );
        // The busy guest receives half of the wire's frames, the attacker hardly any.
        good &= calm > 0.0 && disturbed >= calm && hostile.forced > 0;
    }
    good
}

/// Runs one machine.
fn observe(machine: MachineUnderTest, time: Duration) -> Result<Outcome> {
    let namespace = || Namespace::new().context("network namespaces");
    let places: Vec<Namespace> = (0..machine.places())
        .map(|_| namespace())
        .collect::<Result<_>>()?;
    let folder = tempfile::tempdir()?;
    let options = StartOptions {
        log: client::LogDestination::File(folder.path().join("log")),
        ..StartOptions::default()
    };
    let socket = folder.path().join("vm.sock");
    let instance = Instance::start(&machine.machine(&places, &socket)?, &options)?;
    let monitor = machine
        .monitor()
        .map(|words| Monitor::start(&socket, &words));
    let monitor = monitor.transpose()?;
    let probes = Running::start(machine, &places)?;
    let before = instance.status()?;
    let direct_before = direct_packets(machine, &instance)?;
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::sleep(CHECK_INTERVAL);
        instance.status()?;
    }
    let (delays, syns) = probes.stop()?;
    let flood = match syns {
        Some(sent) => Some(FloodCounts {
            sent,
            admitted: admitted(&instance)?,
        }),
        None => None,
    };
    drop(monitor);
    let direct = direct_packets(machine, &instance)?.zip(direct_before);
    let direct_rate =
        direct.map(|(after, before)| after.saturating_sub(before) as f64 / time.as_secs_f64());
    let after = instance.status()?;
    let grants = instance.grants()?;
    let log_bytes = bytes_in(folder.path())?;
    instance.down()?;
    Ok(Outcome {
        machine,
        delays,
        dead: dead(&before, &after),
        attacker: attacker(&after)?,
        flood,
        direct_rate,
        log_bytes,
        leaked: grants.leaked,
        forced: grants.forced,
    })
}

/// The probes of a machine.
enum Running {
    Datagrams(Probes),
    Flows(Streams, Flood),
}

impl Running {
    fn start(machine: MachineUnderTest, places: &[Namespace]) -> Result<Self> {
        let Some((last, innocents)) = places
            .split_last()
            .filter(|_| machine.role == AttackerRole::Flow)
        else {
            return Ok(Self::Datagrams(Probes::start(places)?));
        };
        let streams = Streams::start(innocents)?;
        let flood = Flood::start(last, VICTIM, machine.behaviour == Behaviour::Hostile)?;
        Ok(Self::Flows(streams, flood))
    }

    /// Stops the probes. Returns their times, and the number of SYNs sent, if any.
    fn stop(self) -> Result<(ProbeDelays, Option<u64>)> {
        Ok(match self {
            Self::Datagrams(probes) => (vec![("datagrams", probes.stop())], None),
            Self::Flows(streams, flood) => {
                let delays = streams.stop();
                (delays, Some(flood.stop()?))
            }
        })
    }
}

/// Returns the number of flows that the victim's table has admitted.
fn admitted(instance: &Instance) -> Result<u64> {
    let stat = instance.stat("driver")?;
    let port = format!("vif.innocent-{VICTIM}-0");
    let flows = &stat["ports"][&port]["flows"];
    flows["admitted"].as_u64().context("no flows of the victim")
}

/// Returns the number of frames that the device has written into the innocent guest's pages, or
/// `None` if the machine has no device.
fn direct_packets(machine: MachineUnderTest, instance: &Instance) -> Result<Option<u64>> {
    if machine.role != AttackerRole::Queue {
        return Ok(None);
    }
    let stat = instance.stat("driver")?;
    let port = format!("vif.{}-0", machines::QUEUE_USER);
    let packets = &stat["ports"][&port]["queue"]["direct_packets"];
    let packets = packets.as_u64();
    packets.context("no queue of the innocent guest").map(Some)
}

/// A virtual machine's monitor, which is killed on drop.
struct Monitor(Child);

impl Monitor {
    fn start(socket: &Path, words: &[&str]) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("hostile-vm");
        let child = Command::new(program).arg(socket).args(words).spawn();
        Ok(Self(child.context("hostile-vm")?))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may already have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// Returns the innocent domains whose process has changed.
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

/// Returns the state of the attacker or busy domain.
fn attacker(after: &Status) -> Result<String> {
    let found = after
        .domains
        .iter()
        .find(|d| machines::is_attacker(&d.name));
    let found = found.context("no attacker")?;
    let again = found.restarts.as_ref().map_or(0, |restarts| restarts.count);
    Ok(match found.alive {
        true => format!("alive, {again} restarts"),
        false => found.state.clone(),
    })
}

fn print(outcome: &Outcome) {
    let Outcome { machine, .. } = outcome;
    for (name, delays) in &outcome.delays {
        println!(
            "{:<9} {:<10} {name:<12} {:>8.0} {:>8.0} {:>6} {:>7}  {:<17} {:>6} {:>7}",
            format!("{:?}", machine.role),
            format!("{:?}", machine.behaviour),
            delays.us(0.5),
            delays.us(0.99),
            delays.lost(),
            outcome.dead.len(),
            outcome.attacker,
            outcome.log_bytes / 1024,
            outcome.leaked,
        );
    }
    for name in &outcome.dead {
        println!("  died: {name}");
    }
}
