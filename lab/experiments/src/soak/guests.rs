//! Runs many guests under mixed traffic for minutes or hours. Each round kills a part of the
//! machine, attaches and detaches a further guest, profiles everything, and traces a packet. Then
//! the machine must hold the same resources as before.
//!
//! `cargo xtask soak --guests` runs it as a helper, `internal guests`, and records its output.

use super::resources::{HELPERS, Resources};
use super::timeout::wait;
use super::traffic::MixedTraffic;
use super::victim::{Victim, VictimProcess};
use crate::kernel;
use crate::many_guests::{GuestPlace, ManyGuests};
use anyhow::{Context as _, bail, ensure};
use figures::interrupt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::array::IntoIter;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Cycle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Setting with which the driver domain always restarts without delay.
const DRIVER_SETTINGS: &str = "restart_pause_ms = 0";
/// Name of the driver domain.
const DRIVER: &str = "driver";
/// Maximum delay of a kill after the start of a round.
const KILL_DELAY_MAX_MS: u64 = 2000;
/// Length of a profile, seconds.
const PROFILE_S: &str = "1";
/// Timeout for a packet to trace, seconds.
const TRACE_S: &str = "20";

/// Arguments of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestsSpec {
    /// Number of guests, which exchange traffic in pairs.
    pub guests: usize,
    /// Time limit for new rounds, seconds.
    pub seconds: u64,
    /// Seed of victims and delays.
    pub seed: u64,
}

/// Result of a round: one line of the helper's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Duration, seconds.
    pub seconds: f64,
    /// Name of the killed process.
    pub killed: String,
    /// Time from the kill until the process had restarted, milliseconds.
    pub back_ms: f64,
    /// Duration of the attach, milliseconds.
    pub attach_ms: f64,
    /// Duration of the detach, milliseconds.
    pub detach_ms: f64,
    /// Number of domains in the profile.
    pub profiled: usize,
    /// Number of hops of the traced packet.
    pub hops: usize,
    /// Number of bytes that streams delivered.
    pub streamed: u64,
    /// Number of answered requests.
    pub requests: u64,
    /// Number of sent datagrams.
    pub sent: u64,
    /// Number of lost datagrams.
    pub lost: u64,
    /// The longest outage of any probe, milliseconds.
    pub outage_ms: f64,
    /// Resources that increased or decreased, and processes that exited without being killed.
    pub grown: BTreeMap<String, i64>,
    /// Memory of processes, and descriptors of the driver domain.
    pub bounded: BTreeMap<String, i64>,
}

/// Runs the helper, which prints a line for each round.
///
/// # Errors
/// Returns an error if the machine cannot run here, a process or a stream does not recover, or the
/// use of a resource grows.
pub fn main(spec: &GuestsSpec) -> anyhow::Result<()> {
    interrupt::watch();
    ensure!(
        spec.guests >= 2 && spec.guests.is_multiple_of(2),
        "`guests` is an even number above 0"
    );
    // The last namespace is for the guest that is attached and detached.
    let places = (0..=spec.guests).map(|_| GuestPlace::new());
    let places = places.collect::<anyhow::Result<Vec<_>>>()?;
    let many_guests = ManyGuests::start("guests", DRIVER_SETTINGS)?;
    for (number, place) in places.iter().take(spec.guests).enumerate() {
        many_guests.attach(number, place)?;
    }
    let mut traffic = MixedTraffic::default();
    for from in (0..spec.guests).step_by(2) {
        let [from, to] = [from, from + 1].map(|number| places[number].guest_namespace(number));
        traffic.add(&from, &to)?;
    }
    let mut soak = Guests {
        traffic,
        many_guests: &many_guests,
        places: &places,
        folder: tempfile::tempdir()?,
        random: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
        victims: Victim::ALL.into_iter().cycle(),
        lives: BTreeMap::new(),
    };
    soak.lives = soak.processes()?;
    // The baseline includes resources that are created only for the first restart.
    for _ in Victim::ALL {
        soak.round()?;
    }
    let before = Resources::at_rest(&many_guests, &places)?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(spec.seconds) {
        let from = Instant::now();
        let mut record = soak.round()?;
        let now = before.wait_for(&many_guests, &places)?;
        record.grown.append(&mut before.grown(&now));
        record.bounded = now.bounded;
        record.seconds = from.elapsed().as_secs_f64();
        figures::helper::reply(&serde_json::to_value(&record)?);
        ensure!(record.grown.is_empty(), "grown: {:?}", record.grown);
    }
    drop(soak);
    many_guests.down()
}

struct Guests<'a> {
    // This is the first field, so that loads stop before the machine.
    traffic: MixedTraffic,
    many_guests: &'a ManyGuests,
    places: &'a [GuestPlace],
    /// Folder for profiles.
    folder: TempDir,
    random: Xoshiro256PlusPlus,
    victims: Cycle<IntoIter<Victim, 4>>,
    /// Expected process of each part. A different process shows an exit without a kill.
    lives: BTreeMap<String, i32>,
}

impl Guests<'_> {
    fn round(&mut self) -> anyhow::Result<RoundRecord> {
        let pause = Duration::from_millis(self.random.next_u64() % KILL_DELAY_MAX_MS);
        interrupt::sleep(pause)?;
        let victim = self.victims.next().context("no victim")?;
        let (killed, back_ms) = self.kill(victim)?;
        if let Some(next) = self.processes()?.remove(&killed) {
            self.lives.insert(killed.clone(), next);
        }
        let [.., place] = self.places else {
            bail!("no namespace for the further guest");
        };
        let number = self.places.len() - 1;
        let attach_ms = self.many_guests.attach(number, place)?;
        let began = Instant::now();
        while !place.reaches_neighbour()? {
            wait("an attached guest does not respond", began)?;
        }
        let detach_ms = self.many_guests.detach(number)?;
        let profiled = self.profile()?;
        let hops = self.trace()?;
        let traffic = self.traffic.results()?;
        let now = self.processes()?;
        let ended = self
            .lives
            .extract_if(.., |name, pid| now.get(name) != Some(pid));
        let unasked = ended.map(|(name, _)| (format!("process.{name}"), 1));
        let grown = unasked.collect();
        self.lives = now;
        Ok(RoundRecord {
            seconds: 0.0,
            killed,
            back_ms,
            attach_ms,
            detach_ms,
            profiled,
            hops,
            streamed: traffic.streamed,
            requests: traffic.requests,
            sent: traffic.datagrams.sent,
            lost: traffic
                .datagrams
                .sent
                .saturating_sub(traffic.datagrams.received),
            outage_ms: traffic.datagrams.longest_ns as f64 / 1e6,
            grown,
            bounded: BTreeMap::new(),
        })
    }

    /// Returns the processes that may be killed, by name.
    fn processes(&self) -> anyhow::Result<BTreeMap<String, i32>> {
        let machine = self.many_guests.machine();
        let domains = machine.status()?.domains;
        let domains = domains
            .iter()
            .map(|domain| (domain.name.clone(), domain.pid));
        let mut all: BTreeMap<String, i32> = domains.collect();
        for helper in HELPERS {
            all.insert(helper.to_owned(), machine.helper(helper)?);
        }
        Ok(all)
    }

    /// Kills a victim or a random guest. Returns its name, and the milliseconds until it had
    /// restarted.
    fn kill(&mut self, victim: Victim) -> anyhow::Result<(String, f64)> {
        let (machine, began) = (self.many_guests.machine(), Instant::now());
        let life = match victim {
            Victim::Guest => {
                let any = self.random.next_u64() % (self.places.len() as u64 - 1);
                let guest = self
                    .many_guests
                    .guest(any as usize)?
                    .context("a guest is missing")?;
                VictimProcess::of(&guest).kill()?
            }
            victim => victim.kill(machine)?,
        };
        loop {
            if let Some(back) = life.after(machine, began)? {
                let ms = back.connected_ms.unwrap_or(back.ready_ms);
                return Ok((life.name().to_owned(), ms));
            }
            wait(&format!("{} did not restart", life.name()), began)?;
        }
    }

    /// Profiles everything and returns the number of domains in the profile.
    fn profile(&self) -> anyhow::Result<usize> {
        let file = self.folder.path().join("round.prof");
        let path = file.to_str().context("the folder's name is not UTF-8")?;
        grantway(&["prof", "record", "--seconds", PROFILE_S, "-o", path])?;
        let report = grantway(&["prof", "report", path, "--json", "--functions", "0"])?;
        fs::remove_file(&file)?;
        let profiled = profiled(&report)?;
        ensure!(profiled.contains(DRIVER), "the profile has no {DRIVER}");
        Ok(profiled.len())
    }

    /// Traces a packet and returns the number of its hops.
    fn trace(&self) -> anyhow::Result<usize> {
        let name = self.many_guests.machine().name();
        let trace = grantway(&["trace", "--wait", TRACE_S, "--json", "--name", name])?;
        let trace: Value = serde_json::from_str(&trace)?;
        let hops = trace["hops"].as_array().map_or(0, Vec::len);
        ensure!(hops > 0, "the traced packet has no hops");
        Ok(hops)
    }
}

/// Returns the domains in a profile's report.
fn profiled(report: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut domains = BTreeSet::new();
    for line in report.lines() {
        let figure: Value = serde_json::from_str(line)?;
        let share = figure["metric"]
            .as_str()
            .and_then(|m| m.strip_prefix("share."));
        let domain = share.and_then(|share| Some(share.split_once(".class.")?.0));
        domains.extend(domain.map(str::to_owned));
    }
    Ok(domains)
}

/// Runs `grantway` like a user, and returns its output.
fn grantway(args: &[&str]) -> anyhow::Result<String> {
    let program = client::program_path("grantway")?;
    let program = program
        .to_str()
        .context("the program's path is not UTF-8")?;
    kernel::run(&[&[program], args].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_of_a_report_are_distinguished() {
        let report = r#"{"provenance": {}}
            {"metric": "share.driver.class.copy", "value": 0.2}
            {"metric": "share.driver.class.other", "value": 0.8}
            {"metric": "share.web.1.class.copy", "value": 1.0}
            {"metric": "share.driver.resolution", "value": 0.1}"#;
        let expected = ["driver", "web.1"].map(str::to_owned);
        assert_eq!(profiled(report).unwrap(), expected.into());
        assert!(profiled("no JSON").is_err());
    }
}
