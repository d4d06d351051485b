//! The driver domain, or another part of the machine, is killed again and again, at random moments,
//! under streams both ways between a wire and two guests, and a probe from guest to guest. After
//! each kill everything must be there as before, and nothing more.
//!
//! `cargo xtask soak` runs it as a helper, `internal soak`, and keeps what each kill came to.

pub mod attaches;
pub mod guests;
mod holdings;
pub mod probe;
mod traffic;
pub(crate) mod victim;
mod waiting;

use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::{Lane, Loads, machine, running::Running};
use crate::plan::{Direction, Place, Topology, Wire, Workload};
use anyhow::{Context as _, ensure};
use figures::interrupt;
use holdings::{HELPERS, descriptors, namespaces};
use probe::{Probe, ProbeSpec, Probed};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};
use victim::Victim;
use waiting::{LOOK, LOST, SETTLE, wait};

/// A kill comes this long after everything was well again, at random.
const PAUSE_MS: std::ops::Range<u64> = 5..400;
/// The probe goes on if its last datagram is no older than this.
const LIVELY_NS: u64 = 20_000_000;
/// After one kill of so many the probe is also watched for as long with nobody killed.
const QUIET_OF: u64 = 10;
/// The probe's port.
const PORT: u16 = 5300;

/// What the helper is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakSpec {
    /// Who is killed.
    victim: Victim,
    /// How many times.
    kills: u64,
    /// Seconds after which no further kill begins; none: as long as they take.
    seconds: Option<u64>,
    /// Seed of the moments.
    seed: u64,
}

/// What a kill came to: one line of the helper's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KillRecord {
    /// From the kill until the next process was ready, milliseconds.
    pub ready_ms: f64,
    /// The same until all connections of a domain were up; none: it was no domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected_ms: Option<f64>,
    /// The longest time without a datagram of the probe, milliseconds.
    pub outage_ms: f64,
    /// The same of as much time with nobody killed; none: not watched after this kill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_ms: Option<f64>,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Those that did not come.
    pub lost: u64,
    /// Those that came twice.
    pub duplicates: u64,
    /// Longest time until a stream of either direction went on, milliseconds.
    pub streams_ms: f64,
    /// What there is more than before.
    pub leaked: Leaked,
}

/// What there is more of than before the kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaked {
    /// Grants in use that no mapping accounts for, mappings without a grant, lost frames.
    pub grants: i64,
    /// Frames that domains own.
    pub frames: i64,
    /// Descriptors of the core and its helpers.
    pub descriptors: i64,
    /// Processes of the machine.
    pub processes: i64,
    /// Network namespaces of theirs.
    pub namespaces: i64,
}

/// The helper: a line for each kill.
///
/// # Errors
/// If the machine cannot run here, does not come back, or something is leaked.
pub fn main(spec: &SoakSpec) -> anyhow::Result<()> {
    interrupt::watch();
    let topology = Topology {
        guests: 2,
        restarts: true,
        ..Topology::default()
    };
    let loads = Loads {
        workloads: vec![Workload::Stream],
        ..Loads::default()
    };
    let speed = Wire::unbounded();
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
    for direction in Direction::BOTH {
        lane.stream(direction, true)?;
    }
    let mut soak = Soak {
        lane,
        victim: spec.victim,
        random: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
        before: Held::default(),
    };
    // What is made once, for the first life and for the first restart, is there from now on.
    soak.kill(&mut probe)?;
    soak.before = soak.held_at_rest()?;
    let end = spec
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s));
    for number in 0..spec.kills {
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let began = Instant::now();
        let mut record = soak.kill(&mut probe)?;
        if number % QUIET_OF == 0 {
            interrupt::sleep(began.elapsed())?;
            record.quiet_ms = Some(ms(probe.mark()?.longest_ns));
        }
        figures::helper::reply(&serde_json::to_value(&record)?);
        ensure!(
            record.leaked == Leaked::default(),
            "leaked: {:?}",
            record.leaked
        );
    }
    Ok(())
}

/// What a machine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    leaked: i64,
    frames: i64,
    descriptors: i64,
    processes: i64,
    namespaces: i64,
}

struct Soak {
    lane: Lane,
    victim: Victim,
    random: Xoshiro256PlusPlus,
    before: Held,
}

impl Soak {
    fn machine(&self) -> anyhow::Result<&Running> {
        self.lane.machine()
    }

    /// Kills the victim at some moment, and waits until all is well again.
    fn kill(&mut self, probe: &mut Probe) -> anyhow::Result<KillRecord> {
        let pause = self.random.next_u64() % (PAUSE_MS.end - PAUSE_MS.start) + PAUSE_MS.start;
        interrupt::sleep(Duration::from_millis(pause))?;
        // What came before is no business of this kill.
        probe.mark()?;
        let began = Instant::now();
        let life = self.victim.kill(self.machine()?)?;
        let mut probed = Probed::default();
        let back = loop {
            if let Some(back) = life.after(self.machine()?, began)? {
                break back;
            }
            wait("who was killed is not back", began)?;
        };
        let streams = self.streams(began)?;
        loop {
            let now = probe.mark()?;
            probed = probed.and(now);
            if now.silent_ns < LIVELY_NS && now.received > 0 {
                break;
            }
            wait("the probe does not go on", began)?;
        }
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
            leaked,
        })
    }

    /// Waits until both directions go on: how long that took since the kill.
    fn streams(&mut self, began: Instant) -> anyhow::Result<Duration> {
        for direction in Direction::BOTH {
            // What was under way when it died.
            self.lane.arrived(direction)?;
            while self.lane.arrived(direction)? == 0 {
                wait("a stream does not go on", began)?;
            }
        }
        Ok(began.elapsed())
    }

    /// What there is more than before; what is on its way out gets a moment for it.
    fn leaked(&self) -> anyhow::Result<Leaked> {
        let end = Instant::now() + LOST;
        loop {
            let now = self.held()?;
            if now == self.before || Instant::now() >= end || self.before == Held::default() {
                return Ok(Leaked {
                    grants: now.leaked,
                    frames: now.frames - self.before.frames,
                    descriptors: now.descriptors - self.before.descriptors,
                    processes: now.processes - self.before.processes,
                    namespaces: now.namespaces - self.before.namespaces,
                });
            }
            sleep(LOOK);
        }
    }

    /// What it holds when nothing is on its way out any more.
    fn held_at_rest(&self) -> anyhow::Result<Held> {
        let mut last = self.held()?;
        loop {
            interrupt::sleep(SETTLE)?;
            let now = self.held()?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
    }

    fn held(&self) -> anyhow::Result<Held> {
        let machine = self.machine()?;
        let everybody = machine.descendants();
        let mut open = descriptors(machine.core()?)?;
        for helper in HELPERS {
            open += descriptors(machine.helper(helper)?)?;
        }
        // Last: a question is a connection of its own for a moment.
        let audit = machine.audit()?;
        Ok(Held {
            leaked: audit.leaked as i64,
            frames: audit.domains.iter().map(|d| i64::from(d.owned)).sum(),
            descriptors: open as i64,
            processes: everybody.len() as i64,
            namespaces: namespaces(&everybody) as i64,
        })
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
