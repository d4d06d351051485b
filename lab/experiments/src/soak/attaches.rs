//! Guests come and go by the thousand under two TCP streams between others, while the driver domain
//! and the manager are killed now and then in the midst of it. After every hundred the machine must
//! hold what it held before.
//!
//! `cargo xtask soak --attaches` runs it as a helper, `internal attaches`, and keeps what it tells.

use super::holdings::{Holdings, NETD};
use super::traffic::loads;
use super::victim::Victim;
use super::waiting::wait;
use crate::crowd::{Crowd, GuestPlace};
use crate::load::{Load, Role};
use anyhow::{Context as _, ensure};
use figures::interrupt;
use figures::stats::ranks;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// A kill comes this long after an attach has begun, at random: within it, and a little later.
const MIDST_US: u64 = 25_000;
/// The number of the guest that comes and goes, and of the one that stays.
const COMES: usize = 0;
const STAYS: usize = 1;
/// The streams' ports.
const PORT: u16 = 5400;
/// The driver domain is started again at once, however often it was killed.
const DRIVER: &str = "restart_pause_ms = 0";

/// What the helper is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachesSpec {
    /// How often a guest comes and goes.
    pub attaches: u64,
    /// After so many the machine is looked at, and a line is told.
    pub every: u64,
    /// Of so many, one is disturbed by a kill: of the driver domain and of the manager in turns.
    pub kill_every: u64,
    /// Seconds after which no further ones begin; none: as long as they take.
    pub seconds: Option<u64>,
    /// Seed of the moments.
    pub seed: u64,
}

/// What so many attaches came to: one line of the helper's output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttachesRecord {
    /// How many.
    pub attaches: u64,
    /// How long each took that nothing disturbed, in order of length: the median and the longest.
    pub attach_ms: [f64; 2],
    /// The same of detaches.
    pub detach_ms: [f64; 2],
    /// Kills of the driver domain in the midst of an attach.
    pub driver_kills: u64,
    /// The same of the manager.
    pub manager_kills: u64,
    /// How many of the disturbed ones were there afterwards, as a whole.
    pub whole: u64,
    /// How many of them were not there at all.
    pub not_at_all: u64,
    /// Bytes that both streams brought.
    pub streamed: u64,
    /// What there is more of than before, or less.
    pub grown: BTreeMap<String, i64>,
    /// Anonymous memory of the machine's processes, KiB; descriptors of the driver domain.
    pub bounded: BTreeMap<String, i64>,
}

/// The helper: a line for every hundred attaches.
///
/// # Errors
/// If the machine cannot run here, a guest does not come or go, a stream ends, or something grows.
pub fn main(spec: &AttachesSpec) -> anyhow::Result<()> {
    interrupt::watch();
    ensure!(spec.every > 0 && spec.kill_every > 0, "`every` is above 0");
    let homes = [GuestPlace::new()?, GuestPlace::new()?];
    let crowd = Crowd::start("attaches", DRIVER)?;
    let [_, stays] = &homes;
    crowd.attach(STAYS, stays)?;
    let mut soak = Attaches {
        streams: streams(&crowd)?,
        random: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
        crowd: &crowd,
        homes: &homes,
        record: AttachesRecord::default(),
        times: [Vec::new(), Vec::new()],
        kills: 0,
    };
    // What is made once, for the first lives and for the first ones after a kill, is there from
    // now on.
    for victim in [None, Some(Victim::Driver), Some(Victim::Manager), None] {
        soak.come_and_go(victim)?;
    }
    soak.take_record(0)?;
    let before = Holdings::at_rest(&crowd, &homes)?;
    let netd = crowd.machine().helper(NETD)?;
    let end = spec
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s));
    let mut done = 0;
    while done < spec.attaches && end.is_none_or(|end| Instant::now() < end) {
        let some = spec.every.min(spec.attaches - done);
        for number in done..done + some {
            let is_disturbed = number % spec.kill_every == spec.kill_every - 1;
            let victim = is_disturbed.then(|| soak.next_victim());
            soak.come_and_go(victim)?;
        }
        done += some;
        let mut record = soak.take_record(some)?;
        let now = before.wait_for(&crowd, &homes)?;
        record.grown = before.grown(&now);
        // Another one would have taken the place of one that has ended, unasked.
        let more = crowd.machine().helper(NETD)? - netd;
        if more != 0 {
            record.grown.insert(format!("process.{NETD}"), more.into());
        }
        record.bounded.clone_from(&now.bounded);
        figures::helper::reply(&serde_json::to_value(&record)?);
        ensure!(record.grown.is_empty(), "grown: {:?}", record.grown);
    }
    drop(soak);
    crowd.down()
}

/// Both ways between the neighbours.
fn streams(crowd: &Crowd) -> anyhow::Result<Vec<[Load; 2]>> {
    let [first, second] = crowd.neighbours();
    let mut streams = Vec::new();
    for (port, (from, to)) in (PORT..).zip([(&first, &second), (&second, &first)]) {
        streams.push(loads(Role::Sink, Role::Source, from, to, port)?);
    }
    Ok(streams)
}

struct Attaches<'a> {
    // First: loads end before the machine does.
    streams: Vec<[Load; 2]>,
    random: Xoshiro256PlusPlus,
    crowd: &'a Crowd,
    homes: &'a [GuestPlace; 2],
    record: AttachesRecord,
    /// Undisturbed attaches and detaches, milliseconds.
    times: [Vec<f64>; 2],
    kills: u64,
}

impl Attaches<'_> {
    fn next_victim(&mut self) -> Victim {
        self.kills += 1;
        match self.kills % 2 {
            0 => Victim::Driver,
            _ => Victim::Manager,
        }
    }

    /// A guest comes, and goes if it has come.
    fn come_and_go(&mut self, victim: Option<Victim>) -> anyhow::Result<()> {
        interrupt::check()?;
        let [home, _] = self.homes;
        let Some(victim) = victim else {
            self.times[0].push(self.crowd.attach(COMES, home)?);
            self.times[1].push(self.crowd.detach(COMES)?);
            return Ok(());
        };
        let began = Instant::now();
        let machine = self.crowd.machine();
        let killed = victim.pid(machine)?;
        let moment = Duration::from_micros(self.random.next_u64() % MIDST_US);
        thread::scope(|scope| -> anyhow::Result<()> {
            let kill = scope.spawn(move || -> anyhow::Result<()> {
                thread::sleep(moment);
                let pid = Pid::from_raw(killed).context("no process")?;
                Ok(kill_process(pid, Signal::KILL)?)
            });
            // Whether that became of it which was asked for is seen below.
            let _answer = self.crowd.attach(COMES, home);
            kill.join()
                .map_err(|_| anyhow::anyhow!("the killer has failed"))?
        })?;
        loop {
            if victim.pid(machine).is_ok_and(|pid| pid != killed) {
                break;
            }
            wait("who was killed is not back", began)?;
        }
        match victim {
            Victim::Driver => self.record.driver_kills += 1,
            _ => self.record.manager_kills += 1,
        }
        match self.is_whole(home, began)? {
            true => {
                self.record.whole += 1;
                self.crowd.detach(COMES)?;
            }
            false => self.record.not_at_all += 1,
        }
        // An interface that netd was making for who was killed may come, and go, only now.
        while self.crowd.attach(COMES, home).is_err() {
            wait("after a kill it does not come", began)?;
        }
        self.crowd.detach(COMES)?;
        Ok(())
    }

    /// Whether a guest whose coming was disturbed is there as a whole, or not at all. Anything else
    /// must pass.
    fn is_whole(&self, home: &GuestPlace, began: Instant) -> anyhow::Result<bool> {
        loop {
            // A manager that is about to be back does not answer yet.
            match self.crowd.guest(COMES) {
                Ok(None) if !home.has_interface()? => return Ok(false),
                Ok(Some(guest)) if guest.state == "running" && home.reaches_neighbour()? => {
                    return Ok(true);
                }
                _ => wait("a guest is neither there nor gone", began)?,
            }
        }
    }

    /// What came of so many, once both streams go on and the other guest is heard.
    fn take_record(&mut self, attaches: u64) -> anyhow::Result<AttachesRecord> {
        let [_, stays] = self.homes;
        let began = Instant::now();
        let mut streamed = 0;
        for [sink, _] in &mut self.streams {
            streamed += sink.mark()?.bytes;
            loop {
                let more = sink.mark()?.bytes;
                streamed += more;
                if more > 0 {
                    break;
                }
                wait("a stream does not go on", began)?;
            }
        }
        while !stays.reaches_neighbour()? {
            wait("a guest that has stayed is not heard", began)?;
        }
        let times = self.times.each_mut().map(std::mem::take);
        // A number that is none is no JSON: of none it is 0.
        let [attach_ms, detach_ms] = times.map(|ms| ranks(&ms, [0.5, 1.0]).map(|ms| ms.max(0.0)));
        Ok(AttachesRecord {
            attaches,
            attach_ms,
            detach_ms,
            streamed,
            ..std::mem::take(&mut self.record)
        })
    }
}
