//! Many guests under mixed traffic for minutes or hours. In each round a part of the machine is
//! killed, a further guest comes and goes, everything is profiled, and a packet is traced. Then the
//! machine must hold what it held before.
//!
//! `cargo xtask soak --guests` runs it as a helper, `internal guests`, and keeps what it tells.

use super::holdings::{HELPERS, Holdings};
use super::traffic::MixedTraffic;
use super::victim::{Life, Victim};
use super::waiting::wait;
use crate::crowd::{Crowd, GuestPlace};
use crate::kernel;
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

/// The driver domain is started again at once, however often it was killed.
const AT_ONCE: &str = "restart_pause_ms = 0";
/// Its name.
const DRIVER: &str = "driver";
/// A kill comes this long after a round has begun, at random.
const PAUSE_MS: u64 = 2000;
/// Seconds of a profile.
const PROFILE_S: &str = "1";
/// Seconds that a packet may take to be there to be followed.
const TRACE_S: &str = "20";

/// What the helper is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestsSpec {
    /// How many; each has its traffic with another one.
    pub guests: usize,
    /// No round begins after so many seconds of them.
    pub seconds: u64,
    /// Seed of victims and moments.
    pub seed: u64,
}

/// What a round came to: one line of the helper's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Its length.
    pub seconds: f64,
    /// Who was killed.
    pub killed: String,
    /// From the kill until it was there again, milliseconds.
    pub back_ms: f64,
    /// How long a guest took to come, milliseconds.
    pub attach_ms: f64,
    /// The same to go.
    pub detach_ms: f64,
    /// Domains that the profile tells of.
    pub profiled: usize,
    /// Hops of the packet that was followed.
    pub hops: usize,
    /// Bytes that streams brought.
    pub streamed: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Those of them that did not come.
    pub lost: u64,
    /// The longest silence of any probe, milliseconds.
    pub outage_ms: f64,
    /// What there is more of than before, or less; and whose process has ended, unasked.
    pub grown: BTreeMap<String, i64>,
    /// Memory, and descriptors of the driver domain.
    pub bounded: BTreeMap<String, i64>,
}

/// The helper: a line for each round.
///
/// # Errors
/// If the machine cannot run here, something does not come back or go on, or something grows.
pub fn main(spec: &GuestsSpec) -> anyhow::Result<()> {
    interrupt::watch();
    ensure!(
        spec.guests >= 2 && spec.guests.is_multiple_of(2),
        "`guests` is an even number above 0"
    );
    // The last one is the place of who comes and goes.
    let homes = (0..=spec.guests).map(|_| GuestPlace::new());
    let homes = homes.collect::<anyhow::Result<Vec<_>>>()?;
    let crowd = Crowd::start("guests", AT_ONCE)?;
    for (number, home) in homes.iter().take(spec.guests).enumerate() {
        crowd.attach(number, home)?;
    }
    let mut traffic = MixedTraffic::default();
    for from in (0..spec.guests).step_by(2) {
        let [from, to] = [from, from + 1].map(|number| homes[number].home(number));
        traffic.add(&from, &to)?;
    }
    let mut soak = Guests {
        traffic,
        crowd: &crowd,
        homes: &homes,
        folder: tempfile::tempdir()?,
        random: Xoshiro256PlusPlus::seed_from_u64(spec.seed),
        victims: Victim::ALL.into_iter().cycle(),
        lives: BTreeMap::new(),
    };
    soak.lives = soak.processes()?;
    // What is made once, for the first life after a kill, is there from now on.
    for _ in Victim::ALL {
        soak.round()?;
    }
    let before = Holdings::at_rest(&crowd, &homes)?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(spec.seconds) {
        let from = Instant::now();
        let mut record = soak.round()?;
        let now = before.wait_for(&crowd, &homes)?;
        record.grown.append(&mut before.grown(&now));
        record.bounded = now.bounded;
        record.seconds = from.elapsed().as_secs_f64();
        figures::helper::reply(&serde_json::to_value(&record)?);
        ensure!(record.grown.is_empty(), "grown: {:?}", record.grown);
    }
    drop(soak);
    crowd.down()
}

struct Guests<'a> {
    // First: loads end before the machine does.
    traffic: MixedTraffic,
    crowd: &'a Crowd,
    homes: &'a [GuestPlace],
    /// Profiles lie here while they are looked at.
    folder: TempDir,
    random: Xoshiro256PlusPlus,
    victims: Cycle<IntoIter<Victim, 4>>,
    /// Everybody's process, as nobody has killed it since.
    lives: BTreeMap<String, i32>,
}

impl Guests<'_> {
    fn round(&mut self) -> anyhow::Result<RoundRecord> {
        let pause = Duration::from_millis(self.random.next_u64() % PAUSE_MS);
        interrupt::sleep(pause)?;
        let victim = self.victims.next().context("no victim")?;
        let (killed, back_ms) = self.kill(victim)?;
        if let Some(next) = self.processes()?.remove(&killed) {
            self.lives.insert(killed.clone(), next);
        }
        let [.., home] = self.homes else {
            bail!("no place for who comes");
        };
        let comes = self.homes.len() - 1;
        let attach_ms = self.crowd.attach(comes, home)?;
        let came = Instant::now();
        while !home.reaches_neighbour()? {
            wait("a guest that has come is not heard", came)?;
        }
        let detach_ms = self.crowd.detach(comes)?;
        let profiled = self.profile()?;
        let hops = self.trace()?;
        let came = self.traffic.came()?;
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
            streamed: came.streamed,
            requests: came.requests,
            sent: came.datagrams.sent,
            lost: came.datagrams.sent.saturating_sub(came.datagrams.received),
            outage_ms: came.datagrams.longest_ns as f64 / 1e6,
            grown,
            bounded: BTreeMap::new(),
        })
    }

    /// Who may be killed, and the process of each.
    fn processes(&self) -> anyhow::Result<BTreeMap<String, i32>> {
        let machine = self.crowd.machine();
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

    /// Kills it, of guests any; its name, and how many milliseconds it took to be there again.
    fn kill(&mut self, victim: Victim) -> anyhow::Result<(String, f64)> {
        let (machine, began) = (self.crowd.machine(), Instant::now());
        let life = match victim {
            Victim::Guest => {
                let any = self.random.next_u64() % (self.homes.len() as u64 - 1);
                let guest = self
                    .crowd
                    .guest(any as usize)?
                    .context("a guest is missing")?;
                Life::of(&guest).kill()?
            }
            victim => victim.kill(machine)?,
        };
        loop {
            if let Some(back) = life.after(machine, began)? {
                let ms = back.connected_ms.unwrap_or(back.ready_ms);
                return Ok((life.name().to_owned(), ms));
            }
            wait(&format!("{} is not back", life.name()), began)?;
        }
    }

    /// Profiles everything; how many domains the profile tells of.
    fn profile(&self) -> anyhow::Result<usize> {
        let file = self.folder.path().join("round.prof");
        let path = file.to_str().context("the folder's name is no text")?;
        grantway(&["prof", "record", "--seconds", PROFILE_S, "-o", path])?;
        let report = grantway(&["prof", "report", path, "--json", "--functions", "0"])?;
        fs::remove_file(&file)?;
        let profiled = profiled(&report)?;
        ensure!(profiled.contains(DRIVER), "the profile has no {DRIVER}");
        Ok(profiled.len())
    }

    /// Follows a packet; how many hops it had.
    fn trace(&self) -> anyhow::Result<usize> {
        let name = self.crowd.machine().name();
        let trace = grantway(&["trace", "--wait", TRACE_S, "--json", "--name", name])?;
        let trace: Value = serde_json::from_str(&trace)?;
        let hops = trace["hops"].as_array().map_or(0, Vec::len);
        ensure!(hops > 0, "a packet was followed that was nowhere");
        Ok(hops)
    }
}

/// The domains that a report tells of.
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

/// Runs this program as a user does; what it printed.
fn grantway(args: &[&str]) -> anyhow::Result<String> {
    let own = std::env::current_exe()?;
    let own = own.to_str().context("this program's path is no text")?;
    kernel::run(&[&[own], args].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_of_a_report_are_told_apart() {
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
