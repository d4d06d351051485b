//! A running machine, and queries to its monitor and domains.

use crate::plan::{LroColumn, LroRules};
use abi::machine::{Audit, ConfigValue, DomainStatus, Machine, Program, Status};
use abi::mailbox::MailboxRequest;
use anyhow::{Context as _, ensure};
use client::{Instance, StartOptions};
use config::domain::GrantMode;
use config::{Config, ConfigFile, Problems};
use figures::measure::{CpuPart, SchedWaits, processes, waits};
use figures::{Failure, interrupt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Name prefix of guests that are not measured.
pub(super) const RIVAL: &str = "rival";
/// Part to which these guests and their loads are charged.
pub(super) const RIVALS: CpuPart = "rivals";
/// Part to which NICs' devices in software are charged. They represent hardware.
pub(crate) const NIC_DEVICE: CpuPart = "nic_device";

/// Returns whether a part is not in the machine under test, and so is in no sum.
pub(super) fn is_rival(part: CpuPart) -> bool {
    [RIVALS, NIC_DEVICE].contains(&part)
}

/// Timeout for a helper of the core to start.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of checks for a helper.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running machine.
#[derive(Debug)]
pub struct Running {
    // This field is dropped before the instance, whose drop shuts it down cleanly.
    _kill_on_interrupt: KillOnInterrupt,
    instance: Instance,
    // This field is dropped after the instance, when no process writes to the log any longer.
    _log: Log,
    /// Domain names by part, in start order.
    domains: Vec<(CpuPart, String)>,
    parts: Vec<(CpuPart, Vec<i32>)>,
    /// The process of each domain, by the domain's name.
    pids: BTreeMap<String, i32>,
    grants: GrantMode,
}

/// All running processes by parent.
struct Parents(BTreeMap<i32, Vec<i32>>);

impl Parents {
    /// Reads the process table.
    fn now() -> Self {
        let mut all: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for pid in processes() {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The program's name in parentheses may contain any characters.
            let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            if let Some(parent) = after_name
                .split(' ')
                .nth(1)
                .and_then(|word| word.parse().ok())
            {
                all.entry(parent).or_default().push(pid);
            }
        }
        Self(all)
    }

    fn children(&self, of: i32) -> &[i32] {
        self.0.get(&of).map_or(&[], Vec::as_slice)
    }

    /// Returns all descendants of a process.
    fn descendants(&self, of: i32) -> Vec<i32> {
        let mut all = self.children(of).to_vec();
        let mut at = 0;
        while let Some(&parent) = all.get(at) {
            all.extend(self.children(parent));
            at += 1;
        }
        all
    }
}

/// Returns a process and all of its descendants.
pub(super) fn family(pid: i32) -> Vec<i32> {
    let mut all = Parents::now().descendants(pid);
    all.push(pid);
    all
}

/// Returns an instance name that is unique across runs.
#[must_use]
pub(crate) fn unique_name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{what}-{}-{number}", std::process::id())
}

/// Maximum number of queries to a domain that does not answer. Each takes seconds.
const QUERY_ATTEMPTS: usize = 3;

impl Running {
    /// Starts a machine and waits until it is ready.
    ///
    /// # Errors
    /// Returns [`Failure::CannotRun`] if this system does not allow machines.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        Self::of(config, config.machine())
    }

    /// Starts a machine to which guests can be attached, from the text of its file.
    ///
    /// # Errors
    /// See [`Running::start`]. The file may also be invalid.
    pub fn start_live(what: &str, text: String) -> anyhow::Result<Self> {
        let name = what.to_owned();
        let wrong = |problems: Problems| Failure::Failed(problems.to_string());
        let mut config = config::parse(what, &text).map_err(wrong)?;
        config.name = unique_name(what);
        let machine = config::live::machine(&config, &[ConfigFile { name, text }]);
        Self::of(&config, machine)
    }

    fn of(config: &Config, machine: Result<Machine, Problems>) -> anyhow::Result<Self> {
        interrupt::check()?;
        let machine = machine.map_err(|problems| Failure::Failed(problems.to_string()))?;
        let log = client::runtime_dir()
            .map_err(failure)?
            .join(format!("{}.log", machine.name));
        let options = StartOptions {
            program: match config.driver.grants.needs_lab() {
                true => client::LAB_MONITOR,
                false => client::MONITOR,
            },
            log: client::LogDestination::File(log.clone()),
            ..StartOptions::default()
        };
        let instance = Instance::start(&machine, &options).map_err(failure)?;
        let status = instance.status().map_err(failure)?;
        let mut domains = Vec::new();
        let mut pids = BTreeMap::new();
        let mut by_part: BTreeMap<CpuPart, Vec<i32>> = BTreeMap::new();
        let core = status.pid.cast_signed();
        by_part.insert("monitor", vec![core]);
        for domain in &status.domains {
            let part = match domain.program {
                Program::Driver => "driver",
                Program::Guest if domain.name.starts_with(RIVAL) => RIVALS,
                Program::Guest => "guest",
                Program::Device => NIC_DEVICE,
            };
            domains.push((part, domain.name.clone()));
            pids.insert(domain.name.clone(), domain.pid);
            let of_part = by_part.entry(part).or_default();
            of_part.push(domain.pid);
            if domain.agent_pid > 0 {
                of_part.push(domain.agent_pid);
            }
        }
        // The core's other children belong to the monitor: netd and the manager.
        let of_domains: Vec<i32> = by_part.values().flatten().copied().collect();
        let mut rest = Parents::now().children(core).to_vec();
        rest.retain(|pid| !of_domains.contains(pid));
        by_part.entry("monitor").or_default().extend(rest);
        Ok(Self {
            _kill_on_interrupt: KillOnInterrupt(core),
            instance,
            _log: Log(log),
            domains,
            parts: by_part.into_iter().collect(),
            pids,
            grants: config.driver.grants,
        })
    }

    /// Returns the grant mechanism of the driver domain.
    #[must_use]
    pub fn grants(&self) -> GrantMode {
        self.grants
    }

    /// Returns the milliseconds from the monitor's start until every connection was up.
    #[must_use]
    pub fn up_ms(&self) -> f64 {
        self.instance.up_ms().unwrap_or(f64::NAN)
    }

    /// Returns the machine's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.instance.name()
    }

    /// Returns the monitor's status.
    ///
    /// # Errors
    /// Returns an error if the monitor does not answer.
    pub fn status(&self) -> anyhow::Result<Status> {
        Ok(self.instance.status().map_err(failure)?)
    }

    /// Returns the status of the driver domain.
    ///
    /// # Errors
    /// Returns an error if the monitor does not answer, or the machine has no driver domain.
    pub fn driver(&self) -> anyhow::Result<DomainStatus> {
        let mut domains = self.status()?.domains.into_iter();
        let driver = domains.find(|domain| domain.program == Program::Driver);
        driver.context("no driver domain")
    }

    /// Returns the process of a helper of the core. Waits for a helper that is starting.
    ///
    /// # Errors
    /// Returns an error if no helper with this name starts in time.
    pub fn helper(&self, name: &str) -> anyhow::Result<i32> {
        let is_named = |pid: &i32| {
            let path = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            path.file_name().is_some_and(|file| file == name)
        };
        let until = Instant::now() + HELPER_TIMEOUT;
        loop {
            if let Some(found) = self.children()?.into_iter().find(is_named) {
                return Ok(found);
            }
            ensure!(Instant::now() < until, "no {name} for {HELPER_TIMEOUT:?}");
            interrupt::sleep(POLL_INTERVAL)?;
        }
    }

    /// Returns all processes of the machine except the core.
    #[must_use]
    pub fn descendants(&self) -> Vec<i32> {
        let core = self.core().ok();
        core.map_or_else(Vec::new, |core| Parents::now().descendants(core))
    }

    /// Returns the core's process.
    ///
    /// # Errors
    /// Returns an error if this process did not start it.
    pub fn core(&self) -> anyhow::Result<i32> {
        Ok(self.instance.pid().context("no core")?.cast_signed())
    }

    /// Returns the running processes that the core started.
    ///
    /// # Errors
    /// See [`Running::core`].
    pub fn children(&self) -> anyhow::Result<Vec<i32>> {
        Ok(Parents::now().children(self.core()?).to_vec())
    }

    /// Attaches a guest, in the control socket's format, and waits until it is up.
    ///
    /// # Errors
    /// Returns an error if the description is invalid, or the guest does not connect.
    pub fn attach(&self, guest: Value) -> anyhow::Result<()> {
        let guest: ConfigValue = serde_json::from_value(guest)?;
        self.instance.attach(guest).map_err(failure)?;
        Ok(())
    }

    /// Detaches a guest and waits until it is removed.
    ///
    /// # Errors
    /// Returns an error if no guest has this name, or part of it remains.
    pub fn detach(&self, guest: &str) -> anyhow::Result<()> {
        self.instance.detach(guest).map_err(failure)?;
        Ok(())
    }

    /// Returns the audit of grants.
    ///
    /// # Errors
    /// Returns an error if the monitor does not answer.
    pub fn audit(&self) -> anyhow::Result<Audit> {
        Ok(self.instance.grants().map_err(failure)?)
    }

    /// Returns all counters of a domain. Retries if the domain does not answer, because a domain
    /// that has no CPU for a few seconds must not invalidate an hour of rounds.
    ///
    /// # Errors
    /// Returns an error if the domain does not answer.
    pub fn stat(&self, domain: &str) -> anyhow::Result<Value> {
        let mut times = QUERY_ATTEMPTS;
        loop {
            match self.instance.stat(domain) {
                Err(client::Error::Refused(why)) if times > 0 => {
                    eprintln!("{why}; retrying; this window's figures may be wrong");
                    times -= 1;
                }
                answer => {
                    let answer = answer.map_err(failure);
                    return answer.with_context(|| format!("the counters of {domain}"));
                }
            }
        }
    }

    /// Changes the LRO settings of all domains that have LRO.
    ///
    /// # Errors
    /// Returns an error if a domain rejects the change, or does not answer.
    pub fn set_lro(&self, lro: &LroColumn, rules: LroRules) -> anyhow::Result<()> {
        let domains = self.domains.iter();
        for (_, name) in domains.filter(|(part, _)| *part != NIC_DEVICE) {
            for (key, value) in rules.switches().into_iter().chain(lro.switches()) {
                let request = MailboxRequest::Set {
                    key: key.to_owned(),
                    value: value.to_owned(),
                };
                self.instance.relay(name, &request).map_err(failure)?;
            }
        }
        Ok(())
    }

    /// Returns the machine's processes, by part.
    #[must_use]
    pub fn processes(&self) -> &[(CpuPart, Vec<i32>)] {
        &self.parts
    }

    /// Returns the names of all domains, by part.
    #[must_use]
    pub fn domains(&self) -> &[(CpuPart, String)] {
        &self.domains
    }

    /// Returns the waits of a domain's first process for a CPU.
    pub(super) fn waits(&self, domain: &str) -> SchedWaits {
        let pid = self
            .pids
            .get(domain)
            .and_then(|&pid| u32::try_from(pid).ok());
        pid.map(waits).unwrap_or_default()
    }

    /// Stops the machine and waits until it is removed.
    ///
    /// # Errors
    /// Returns an error if it does not stop in time.
    pub fn down(self) -> anyhow::Result<()> {
        Ok(self.instance.down().map_err(failure)?)
    }
}

/// Kills the core on drop if the user has interrupted the run, because a clean shutdown of hundreds
/// of guests takes seconds.
#[derive(Debug)]
struct KillOnInterrupt(i32);

impl Drop for KillOnInterrupt {
    fn drop(&mut self) {
        if interrupt::check().is_err() {
            let core = Pid::from_raw(self.0);
            let _gone_already = core.map(|core| kill_process(core, Signal::KILL));
        }
    }
}

/// A monitor's log, which is deleted on drop. The log of a machine that did not start is kept,
/// because the error names it.
#[derive(Debug)]
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        for file in [self.0.clone(), self.0.with_extension("log.1")] {
            let _gone_already = std::fs::remove_file(file);
        }
    }
}

fn failure(error: client::Error) -> Failure {
    match error {
        error if error.cannot_run_here() => Failure::CannotRun(error.to_string()),
        error if error.is_usage() => Failure::Usage(error.to_string()),
        error => Failure::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_of_a_process_are_found() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let (own, all) = (std::process::id().cast_signed(), Parents::now());
        assert!(all.children(own).contains(&pid));
        assert!(all.children(pid).is_empty() && all.descendants(pid).is_empty());
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let further = all.descendants(parent);
        assert!(further.contains(&own) && further.contains(&pid));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
