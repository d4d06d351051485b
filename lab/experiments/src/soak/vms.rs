//! Kills the driver domain, the shim of a virtual machine, and its monitor in turn. Meanwhile the
//! wire sends a datagram to the virtual machine every millisecond, which returns it.
//!
//! The monitor is the program `hostile-vm`, which reconnects immediately. QEMU reconnects within a
//! second. `cargo xtask soak --of vm` runs this as a helper, `internal vms`.

use super::timeout::{TIMEOUT, wait};
use super::victim::VictimProcess;
use crate::lane::running::Running;
use crate::ns::{self, NamedNamespace};
use crate::peers::process::{ForeignProgram, killed_with_parent};
use anyhow::Context as _;
use figures::interrupt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two datagrams.
const PERIOD: Duration = Duration::from_millis(1);
/// Range of the random delay of a kill after recovery from the last one, milliseconds.
const KILL_DELAY_MS: std::ops::Range<u64> = 50..200;
/// Consecutive datagrams after which the virtual machine counts as reachable again.
const RECOVERED_AFTER: u64 = 50;
const WIRE: &str = "10.7.0.1/24";
const VM: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const ECHO: u16 = 7;
/// Names of the guest, and of the program of its monitor.
const GUEST: &str = "vm";
const MONITOR: &str = "hostile-vm";
/// Processes that are killed, in this order.
const VICTIMS: [&str; 3] = ["driver", "shim", "monitor"];

/// Arguments of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmsSpec {
    /// Number of kills.
    kills: u64,
    /// Time limit for new kills, seconds; `None`: no limit.
    seconds: Option<u64>,
    /// Seed of the delays.
    seed: u64,
}

/// Echoed datagrams.
#[derive(Debug)]
struct Echoes {
    last: Instant,
    /// Longest time between the arrivals of two datagrams since the last mark, and the number of
    /// datagrams.
    longest: Duration,
    received: u64,
}

/// Starts the monitor.
fn monitor_at(socket: &Path) -> anyhow::Result<ForeignProgram> {
    let program = std::env::current_exe()?.with_file_name(MONITOR);
    let mut command = killed_with_parent(&program.display().to_string());
    ForeignProgram::start(command.arg(socket).arg(VM.to_string()))
}

/// Runs the helper, which prints a line for each kill.
///
/// # Errors
/// Returns an error if the machine cannot run here, the virtual machine does not answer again, or
/// grants leak.
pub fn main(spec: &VmsSpec) -> anyhow::Result<()> {
    interrupt::watch();
    let wire = NamedNamespace::new("wire")?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("vm.sock");
    let text = format!(
        "[driver]\nrestart_pause_ms = 0\n[[nic]]\nname = \"wire\"\nkind = \"tap\"\n\
         ifname = \"wire\"\nnetns = \"{}\"\naddresses = [\"{WIRE}\"]\n[[guest]]\n\
         name = \"{GUEST}\"\n[[guest.vif]]\nendpoint = \"vhost-user\"\nsocket = \"{}\"\n",
        wire.path().display(),
        socket.display()
    );
    let machine = Running::start_live("vms", text)?;
    let mut monitor = monitor_at(&socket)?;
    let echoes = probe(wire.path())?;
    recovered(&echoes, Instant::now())?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(spec.seed);
    let end = spec
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s));
    for (_, victim) in (0..spec.kills).zip(VICTIMS.iter().cycle()) {
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let pause =
            random.next_u64() % (KILL_DELAY_MS.end - KILL_DELAY_MS.start) + KILL_DELAY_MS.start;
        interrupt::sleep(Duration::from_millis(pause))?;
        mark(&echoes);
        let began = Instant::now();
        match *victim {
            "monitor" => {
                drop(monitor);
                monitor = monitor_at(&socket)?;
            }
            victim => kill(&machine, victim)?,
        }
        let outage = recovered(&echoes, began)?;
        let leaked = machine.audit()?.leaked;
        figures::helper::reply(&json!({
            "victim": victim,
            "outage_ms": outage.as_secs_f64() * 1e3,
            "leaked": { "grants": leaked },
        }));
    }
    drop(monitor);
    machine.down()
}

/// Kills a domain, and waits until its new process is connected.
fn kill(machine: &Running, victim: &str) -> anyhow::Result<()> {
    let domain = match victim {
        "driver" => machine.driver()?,
        _ => {
            let mut domains = machine.status()?.domains.into_iter();
            let shim = domains.find(|domain| domain.name == GUEST);
            shim.context("the shim is missing")?
        }
    };
    let began = Instant::now();
    let process = VictimProcess::of(&domain).kill()?;
    while process.after(machine, began)?.is_none() {
        wait("the killed process did not restart", began)?;
    }
    Ok(())
}

fn mark(echoes: &Mutex<Echoes>) -> (Duration, u64) {
    let mut echoes = echoes.lock().unwrap_or_else(PoisonError::into_inner);
    let received = std::mem::take(&mut echoes.received);
    (std::mem::take(&mut echoes.longest), received)
}

/// Waits until the virtual machine answers again. Returns the longest time without an answer since
/// the last mark.
fn recovered(echoes: &Mutex<Echoes>, began: Instant) -> anyhow::Result<Duration> {
    let mut longest = Duration::ZERO;
    // Datagrams that were in flight at the kill must not count.
    interrupt::sleep(PERIOD * 20)?;
    let mut received = 0;
    while received < RECOVERED_AFTER {
        wait("the virtual machine does not answer", began)?;
        let (silence, more) = mark(echoes);
        longest = longest.max(silence);
        received = match more {
            0 => 0,
            more => received + more,
        };
    }
    Ok(longest)
}

/// Starts the probe in the wire's namespace.
fn probe(wire: PathBuf) -> anyhow::Result<Arc<Mutex<Echoes>>> {
    let entering = thread::Builder::new().spawn(move || -> anyhow::Result<UdpSocket> {
        ns::enter(&wire)?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((VM, ECHO))?;
        Ok(socket)
    })?;
    let socket = entering.join().ok().context("the probe has panicked")??;
    let echoes = Arc::new(Mutex::new(Echoes {
        last: Instant::now(),
        longest: Duration::ZERO,
        received: 0,
    }));
    let (receiver, arrived) = (socket.try_clone()?, Arc::clone(&echoes));
    receiver.set_read_timeout(Some(TIMEOUT))?;
    thread::Builder::new().spawn(move || {
        let mut bytes = [0; 64];
        loop {
            // Errors include ICMP errors while ARP requests are unanswered.
            if receiver.recv(&mut bytes).is_err() {
                continue;
            }
            let now = Instant::now();
            let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
            let silence = now - arrived.last;
            arrived.longest = arrived.longest.max(silence);
            arrived.last = now;
            arrived.received += 1;
        }
    })?;
    thread::Builder::new().spawn(move || {
        loop {
            // A datagram that the kernel rejects is lost.
            let _lost = socket.send(&[0x5a; 32]);
            thread::sleep(PERIOD);
        }
    })?;
    Ok(echoes)
}
