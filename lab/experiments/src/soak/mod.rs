//! Repeatedly kills the driver domain, or another part of the machine, at random times. Meanwhile,
//! streams run in both directions between a wire and two guests with stateful firewalls, and a
//! probe runs between the guests. After each kill, everything must recover without leaks; the
//! firewalls must still know the flows, and deny unsolicited datagrams.
//!
//! `cargo xtask soak` runs it as a helper, `internal soak`, and records the result of each kill.

pub mod attaches;
mod flow_tables;
pub mod guests;
pub mod probe;
mod resources;
mod timeout;
mod traffic;
pub(crate) mod victim;
pub mod vms;

use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::{Lane, Loads, machine, running::Running};
use crate::plan::{Mechanisms, PayloadDirection, Place, Topology, WireSpeed, Workload};
use anyhow::{Context as _, ensure};
use figures::interrupt;
use flow_tables::FlowTables;
use probe::{Probe, ProbeSpec, Probed};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use resources::{HELPERS, descriptors, namespaces};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};
use timeout::{POLL_INTERVAL, SETTLE_INTERVAL, TIMEOUT, wait};
use victim::Victim;

/// Range of the random delay of a kill after full recovery from the last one, milliseconds.
const KILL_DELAY_MS: std::ops::Range<u64> = 5..400;
/// Maximum age of the last datagram of a working probe, nanoseconds.
const DATAGRAM_AGE_MAX_NS: u64 = 20_000_000;
/// After every `QUIET_EVERY`-th kill, the probe is also observed for the same time without a kill.
const QUIET_EVERY: u64 = 10;
/// Port of the probe.
const PORT: u16 = 5300;

/// Arguments of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakSpec {
    /// The process to kill.
    victim: Victim,
    /// Number of kills.
    kills: u64,
    /// Time limit for new kills, seconds; `None`: no limit.
    seconds: Option<u64>,
    /// Seed of the delays.
    seed: u64,
}

/// Result of a kill: one line of the helper's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KillRecord {
    /// Time from the kill until the new process was ready, milliseconds.
    pub ready_ms: f64,
    /// Time from the kill until all connections of the domain were up, milliseconds. `None` for a
    /// process that is not a domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected_ms: Option<f64>,
    /// The longest time without a datagram of the probe, milliseconds.
    pub outage_ms: f64,
    /// The longest time without a datagram in an equal period without a kill; `None` if it was not
    /// measured after this kill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_ms: Option<f64>,
    /// Number of sent datagrams.
    pub sent: u64,
    /// Number of lost datagrams.
    pub lost: u64,
    /// Number of duplicate datagrams.
    pub duplicates: u64,
    /// Time from the kill until streams in both directions had resumed, milliseconds.
    pub streams_ms: f64,
    /// Flows that the guests' tables admitted after the kill, although no flow is new.
    pub readmitted: u64,
    /// Unsolicited datagrams that the guests' firewalls denied.
    pub denied: u64,
    /// Leaked resources.
    pub leaked: Leaked,
}

/// Increase of resources since before the kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaked {
    /// Number of grants in use without a mapping, mappings without a grant, and lost frames.
    pub grants: i64,
    /// Number of frames owned by domains.
    pub frames: i64,
    /// Number of descriptors of the core and its helpers.
    pub descriptors: i64,
    /// Number of the machine's processes.
    pub processes: i64,
    /// Number of network namespaces of these processes.
    pub namespaces: i64,
}

/// Runs the helper, which prints a line for each kill.
///
/// # Errors
/// Returns an error if the machine cannot run here or does not recover, or resources leak.
pub fn main(spec: &SoakSpec) -> anyhow::Result<()> {
    interrupt::watch();
    let mechanisms = Mechanisms {
        stateful: true,
        ..Mechanisms::default()
    };
    let topology = Topology {
        mechanisms,
        guests: 2,
        restarts: true,
        ..Topology::default()
    };
    let loads = Loads {
        workloads: vec![Workload::Stream],
        ..Loads::default()
    };
    let speed = WireSpeed::unbounded();
    let wire = OnWire::tap(&speed);
    let mut lane = machine::lane(Place::Split, wire, topology, Cores::choose(), &loads)?;
    let mut ends = lane.ends().guests();
    let (from, _) = ends.next().context("no guest")?;
    let (to, address) = ends.next().context("no second guest")?;
    let probe = ProbeSpec {
        from: from.path(),
        to: to.path(),
        address: SocketAddr::new(address, PORT),
    };
    drop(ends);
    let mut probe = Probe::start(&probe)?;
    for direction in PayloadDirection::BOTH {
        lane.stream(direction, true)?;
    }
    let mut soak = Soak {
        flow_tables: FlowTables::of(&lane)?,
        lane,
        victim: spec.victim,
        random: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
        before: HeldResources::default(),
    };
    // The baseline includes resources that are created only for the first start and the first
    // restart.
    soak.kill(&mut probe)?;
    soak.before = soak.settled_resources()?;
    let end = spec
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s));
    for number in 0..spec.kills {
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let began = Instant::now();
        let mut record = soak.kill(&mut probe)?;
        if number % QUIET_EVERY == 0 {
            interrupt::sleep(began.elapsed())?;
            record.quiet_ms = Some(ms(probe.mark()?.longest_ns));
        }
        figures::helper::reply(&serde_json::to_value(&record)?);
        ensure!(
            record.leaked == Leaked::default(),
            "leaked: {:?}",
            record.leaked
        );
        ensure!(
            record.readmitted == 0,
            "the flow tables admitted {} known flows anew",
            record.readmitted
        );
    }
    Ok(())
}

/// Resources held by a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeldResources {
    leaked: i64,
    frames: i64,
    descriptors: i64,
    processes: i64,
    namespaces: i64,
}

struct Soak {
    lane: Lane,
    flow_tables: FlowTables,
    victim: Victim,
    random: Xoshiro256PlusPlus,
    before: HeldResources,
}

impl Soak {
    fn machine(&self) -> anyhow::Result<&Running> {
        self.lane.machine()
    }

    /// Kills the victim at a random time, and waits for full recovery.
    fn kill(&mut self, probe: &mut Probe) -> anyhow::Result<KillRecord> {
        let pause = self.random.next_u64() % (KILL_DELAY_MS.end - KILL_DELAY_MS.start)
            + KILL_DELAY_MS.start;
        interrupt::sleep(Duration::from_millis(pause))?;
        // This discards results from before the kill.
        probe.mark()?;
        let admitted = self.flow_tables.admitted(self.victim, self.machine()?)?;
        let began = Instant::now();
        let life = self.victim.kill(self.machine()?)?;
        let mut probed = Probed::default();
        let back = loop {
            if let Some(back) = life.after(self.machine()?, began)? {
                break back;
            }
            wait("the killed process did not restart", began)?;
        };
        let streams = self.streams(began)?;
        loop {
            let now = probe.mark()?;
            probed = probed.and(now);
            if now.silent_ns < DATAGRAM_AGE_MAX_NS && now.received > 0 {
                break;
            }
            wait("the probe does not resume", began)?;
        }
        let checked = self.flow_tables.check(self.machine()?, admitted, began)?;
        let leaked = self.leaked()?;
        Ok(KillRecord {
            ready_ms: back.ready_ms,
            connected_ms: back.connected_ms,
            outage_ms: ms(probed.longest_ns),
            quiet_ms: None,
            sent: probed.sent,
            lost: probed.sent.saturating_sub(probed.received),
            duplicates: probed.duplicates,
            streams_ms: streams.as_secs_f64() * 1e3,
            readmitted: checked.readmitted,
            denied: checked.denied,
            leaked,
        })
    }

    /// Waits until streams in both directions resume, and returns the time since the kill.
    fn streams(&mut self, began: Instant) -> anyhow::Result<Duration> {
        for direction in PayloadDirection::BOTH {
            // This discards data that was in flight at the kill.
            self.lane.received_bytes(direction)?;
            while self.lane.received_bytes(direction)? == 0 {
                wait("a stream does not resume", began)?;
            }
        }
        Ok(began.elapsed())
    }

    /// Waits for resources to be released, and returns their increase.
    fn leaked(&self) -> anyhow::Result<Leaked> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let now = self.held()?;
            if now == self.before
                || Instant::now() >= end
                || self.before == HeldResources::default()
            {
                return Ok(Leaked {
                    grants: now.leaked,
                    frames: now.frames - self.before.frames,
                    descriptors: now.descriptors - self.before.descriptors,
                    processes: now.processes - self.before.processes,
                    namespaces: now.namespaces - self.before.namespaces,
                });
            }
            sleep(POLL_INTERVAL);
        }
    }

    /// Waits until two consecutive readings of the resources are equal, and returns them.
    fn settled_resources(&self) -> anyhow::Result<HeldResources> {
        let mut last = self.held()?;
        loop {
            interrupt::sleep(SETTLE_INTERVAL)?;
            let now = self.held()?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
    }

    fn held(&self) -> anyhow::Result<HeldResources> {
        let machine = self.machine()?;
        let all_processes = machine.descendants();
        let mut open = descriptors(machine.core()?)?;
        for helper in HELPERS {
            open += descriptors(machine.helper(helper)?)?;
        }
        // These are read last, because a query briefly opens another connection.
        let audit = machine.audit()?;
        Ok(HeldResources {
            leaked: audit.leaked as i64,
            frames: audit.domains.iter().map(|d| i64::from(d.owned)).sum(),
            descriptors: open as i64,
            processes: all_processes.len() as i64,
            namespaces: namespaces(&all_processes) as i64,
        })
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
