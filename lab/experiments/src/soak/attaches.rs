//! Attaches and detaches guests thousands of times while two TCP streams run between other guests.
//! Kills the driver domain and the manager at random times during attaches. After every hundred
//! attaches, the machine must hold the same resources as before.
//!
//! `cargo xtask soak --attaches` runs it as a helper, `internal attaches`, and records its output.

use super::resources::{NETD, Resources};
use super::timeout::wait;
use super::traffic::loads;
use super::victim::Victim;
use crate::load::{Load, LoadRole};
use crate::many_guests::{GuestPlace, ManyGuests};
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

/// Maximum delay of a kill after the start of an attach, microseconds. The kill occurs during the
/// attach or shortly after it.
const KILL_DELAY_MAX_US: u64 = 25_000;
/// Guest numbers: of the guest that is attached and detached, and of the guest that remains.
const CYCLED_GUEST: usize = 0;
const REMAINING_GUEST: usize = 1;
/// Port of the streams.
const PORT: u16 = 5400;
/// Setting with which the driver domain always restarts without delay.
const DRIVER_SETTINGS: &str = "restart_pause_ms = 0";

/// Arguments of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachesSpec {
    /// Total number of attaches.
    pub attaches: u64,
    /// Number of attaches between two checks, each of which prints a line.
    pub every: u64,
    /// A kill disturbs one in `kill_every` attaches. The driver domain and the manager are killed
    /// in turn.
    pub kill_every: u64,
    /// Time limit for new attaches, seconds; `None`: no limit.
    pub seconds: Option<u64>,
    /// Seed of the kills' delays.
    pub seed: u64,
}

/// Result of some attaches: one line of the helper's output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttachesRecord {
    /// Number of attaches so far.
    pub attaches: u64,
    /// Duration of undisturbed attaches, milliseconds: median and maximum.
    pub attach_ms: [f64; 2],
    /// Duration of undisturbed detaches, milliseconds: median and maximum.
    pub detach_ms: [f64; 2],
    /// Number of kills of the driver domain during an attach.
    pub driver_kills: u64,
    /// Number of kills of the manager during an attach.
    pub manager_kills: u64,
    /// Number of disturbed attaches after which the guest was complete.
    pub whole: u64,
    /// Number of disturbed attaches after which no part of the guest existed.
    pub not_at_all: u64,
    /// Number of bytes that both streams delivered.
    pub streamed: u64,
    /// Resources that increased or decreased.
    pub grown: BTreeMap<String, i64>,
    /// Anonymous memory of the machine's processes, KiB, and descriptors of the driver domain.
    pub bounded: BTreeMap<String, i64>,
}

/// Runs the helper, which prints a line for every hundred attaches.
///
/// # Errors
/// Returns an error if the machine cannot run here, an attach or detach fails, a stream stops, or
/// the use of a resource grows.
pub fn main(spec: &AttachesSpec) -> anyhow::Result<()> {
    interrupt::watch();
    ensure!(
        spec.every > 0 && spec.kill_every > 0,
        "`every` and `kill_every` must be above 0"
    );
    let places = [GuestPlace::new()?, GuestPlace::new()?];
    let many_guests = ManyGuests::start("attaches", DRIVER_SETTINGS)?;
    let [_, remaining] = &places;
    many_guests.attach(REMAINING_GUEST, remaining)?;
    let mut soak = Attaches {
        streams: streams(&many_guests)?,
        random: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
        many_guests: &many_guests,
        places: &places,
        record: AttachesRecord::default(),
        times: [Vec::new(), Vec::new()],
        kills: 0,
    };
    // The baseline includes resources that are created only for the first attach and the first
    // restart.
    for victim in [None, Some(Victim::Driver), Some(Victim::Manager), None] {
        soak.cycle_guest(victim)?;
    }
    soak.take_record(0)?;
    let before = Resources::at_rest(&many_guests, &places)?;
    let netd = many_guests.machine().helper(NETD)?;
    let end = spec
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s));
    let mut done = 0;
    while done < spec.attaches && end.is_none_or(|end| Instant::now() < end) {
        let some = spec.every.min(spec.attaches - done);
        for number in done..done + some {
            let is_disturbed = number % spec.kill_every == spec.kill_every - 1;
            let victim = is_disturbed.then(|| soak.next_victim());
            soak.cycle_guest(victim)?;
        }
        done += some;
        let mut record = soak.take_record(some)?;
        let now = before.wait_for(&many_guests, &places)?;
        record.grown = before.grown(&now);
        // A changed process means that netd exited without being killed.
        let more = many_guests.machine().helper(NETD)? - netd;
        if more != 0 {
            record.grown.insert(format!("process.{NETD}"), more.into());
        }
        record.bounded.clone_from(&now.bounded);
        figures::helper::reply(&serde_json::to_value(&record)?);
        ensure!(record.grown.is_empty(), "grown: {:?}", record.grown);
    }
    drop(soak);
    many_guests.down()
}

/// Starts streams in both directions between the neighbours.
fn streams(many_guests: &ManyGuests) -> anyhow::Result<Vec<[Load; 2]>> {
    let [first, second] = many_guests.neighbours();
    let mut streams = Vec::new();
    for (port, (from, to)) in (PORT..).zip([(&first, &second), (&second, &first)]) {
        streams.push(loads(LoadRole::Sink, LoadRole::Source, from, to, port)?);
    }
    Ok(streams)
}

struct Attaches<'a> {
    // This is the first field, so that loads stop before the machine.
    streams: Vec<[Load; 2]>,
    random: Xoshiro256PlusPlus,
    many_guests: &'a ManyGuests,
    places: &'a [GuestPlace; 2],
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

    /// Attaches a guest, and detaches it if it was attached.
    fn cycle_guest(&mut self, victim: Option<Victim>) -> anyhow::Result<()> {
        interrupt::check()?;
        let [place, _] = self.places;
        let Some(victim) = victim else {
            self.times[0].push(self.many_guests.attach(CYCLED_GUEST, place)?);
            self.times[1].push(self.many_guests.detach(CYCLED_GUEST)?);
            return Ok(());
        };
        let began = Instant::now();
        let machine = self.many_guests.machine();
        let killed = victim.pid(machine)?;
        let moment = Duration::from_micros(self.random.next_u64() % KILL_DELAY_MAX_US);
        thread::scope(|scope| -> anyhow::Result<()> {
            let kill = scope.spawn(move || -> anyhow::Result<()> {
                thread::sleep(moment);
                let pid = Pid::from_raw(killed).context("no process")?;
                Ok(kill_process(pid, Signal::KILL)?)
            });
            // The outcome of the request is checked below.
            let _answer = self.many_guests.attach(CYCLED_GUEST, place);
            kill.join()
                .map_err(|_| anyhow::anyhow!("the kill failed"))?
        })?;
        loop {
            if victim.pid(machine).is_ok_and(|pid| pid != killed) {
                break;
            }
            wait("the killed process did not restart", began)?;
        }
        match victim {
            Victim::Driver => self.record.driver_kills += 1,
            _ => self.record.manager_kills += 1,
        }
        match self.is_complete(place, began)? {
            true => {
                self.record.whole += 1;
                self.many_guests.detach(CYCLED_GUEST)?;
            }
            false => self.record.not_at_all += 1,
        }
        // Only now may netd create and remove an interface for the killed process.
        while self.many_guests.attach(CYCLED_GUEST, place).is_err() {
            wait("the guest cannot be attached after a kill", began)?;
        }
        self.many_guests.detach(CYCLED_GUEST)?;
        Ok(())
    }

    /// Returns whether the guest of a disturbed attach is complete (`true`) or does not exist
    /// (`false`). Waits while it is in another state.
    fn is_complete(&self, place: &GuestPlace, began: Instant) -> anyhow::Result<bool> {
        loop {
            // A manager that is restarting does not answer yet.
            match self.many_guests.guest(CYCLED_GUEST) {
                Ok(None) if !place.has_interface()? => return Ok(false),
                Ok(Some(guest)) if guest.state == "running" && place.reaches_neighbour()? => {
                    return Ok(true);
                }
                _ => wait("a guest is partly removed", began)?,
            }
        }
    }

    /// Waits until both streams and the other guest respond; returns the results since the last
    /// record.
    fn take_record(&mut self, attaches: u64) -> anyhow::Result<AttachesRecord> {
        let [_, remaining] = self.places;
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
                wait("a stream does not resume", began)?;
            }
        }
        while !remaining.reaches_neighbour()? {
            wait("the remaining guest does not respond", began)?;
        }
        let times = self.times.each_mut().map(std::mem::take);
        // Without samples, the value is 0 because JSON has no NaN.
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
