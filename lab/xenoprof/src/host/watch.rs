//! Which processes are domains, and what they use: looked at again and again while a session runs,
//! because domains come and go.
//!
//! Finds instances by their sockets in the runtime directory; each reports its domains. Reads a
//! domain's counters and the scheduler's account of its process at the same moment, so that the
//! two can be compared.

use super::process::{self, Process};
use crate::model::{Domain, Kind, Mode, Traffic};
use abi::machine::{Program, Status};
use abi::mailbox::Request;
use client::Instance;
use figures::measure;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The domain of every process of an instance that the session is not about.
pub const OTHER_INSTANCES: &str = "other instances";

/// A process that was seen.
#[derive(Clone, Debug)]
struct Seen {
    process: Process,
    /// CPU time when the session began; 0 if the process began later.
    from_ns: u64,
    /// CPU time when it was last seen.
    to_ns: u64,
}

/// One instance of the machine.
struct Found {
    instance: Instance,
    monitor: u32,
    domains: BTreeMap<String, Running>,
    /// It let us wait once and is not asked again: its domains keep what they had.
    silent: bool,
}

/// A domain of an instance, and every process that was it.
#[derive(Debug)]
struct Running {
    program: Program,
    lives: Vec<Life>,
}

/// A domain from its start to its end.
#[derive(Debug)]
struct Life {
    pid: u32,
    agent: u32,
    first: Option<Reading>,
    last: Option<Reading>,
}

/// What a domain's counters and the scheduler said at one moment.
#[derive(Clone, Debug, Default)]
struct Reading {
    hops: BTreeMap<String, u64>,
    stamps: u64,
    traffic: Traffic,
    cpu_ns: u64,
}

/// What has been seen so far.
#[derive(Default)]
pub struct Watch {
    seen: BTreeMap<u32, Seen>,
    found: BTreeMap<String, Found>,
    /// Process domains by name, as the user gave them.
    named: Vec<(String, Vec<u32>)>,
    /// The command of this session.
    command: Option<(u32, String)>,
    /// The only instance that the session is about; none: all of them.
    only: Option<String>,
    looks: u32,
}

impl Watch {
    /// Begins to watch. `named` are processes that the user declares to be domains; `only` is the
    /// instance that the session is about, `None` for every instance.
    #[must_use]
    pub fn new(named: Vec<(String, Vec<u32>)>, only: Option<String>) -> Self {
        let mut watch = Self {
            named,
            only,
            ..Self::default()
        };
        watch.look();
        watch
    }

    /// Notes that these processes are a domain because it says so itself.
    pub fn domain(&mut self, name: &str, pids: impl IntoIterator<Item = u32>) {
        self.named
            .push((name.to_owned(), pids.into_iter().collect()));
    }

    /// Notes the command of the session.
    pub fn command(&mut self, pid: u32, name: &str) {
        self.command = Some((pid, name.to_owned()));
    }

    /// Processes that are there.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.seen.keys().copied()
    }

    /// Looks at everything once.
    pub fn look(&mut self) {
        let first = self.looks == 0;
        self.looks += 1;
        for pid in measure::processes().into_iter().map(i32::cast_unsigned) {
            if self.seen.contains_key(&pid) {
                continue;
            }
            let Some(process) = process::read(pid) else {
                continue;
            };
            let to_ns = cpu_ns(pid).unwrap_or(0);
            let from_ns = if first { to_ns } else { 0 };
            let seen = Seen {
                process,
                from_ns,
                to_ns,
            };
            self.seen.insert(pid, seen);
        }
        for (pid, seen) in &mut self.seen {
            // An id that was given to another process counts from 0 again: the old sum stays.
            if let Some(ns) = cpu_ns(*pid)
                && ns >= seen.to_ns
            {
                seen.to_ns = ns;
            }
        }
        self.instances();
    }

    fn instances(&mut self) {
        for name in client::listed().unwrap_or_default() {
            if !self.found.contains_key(&name)
                && let Ok(instance) = Instance::connect(&name)
                && let Ok(status) = instance.status()
            {
                let monitor = status.pid;
                let found = Found {
                    instance,
                    monitor,
                    domains: BTreeMap::new(),
                    silent: false,
                };
                self.found.insert(name, found);
            }
        }
        for (name, found) in &mut self.found {
            if found.silent {
                continue;
            }
            match found.instance.status() {
                Ok(status) => {
                    found.take(&status);
                    if is_profiled(self.only.as_deref(), name) {
                        found.read();
                    }
                }
                Err(client::Error::Late { .. }) => found.silent = true,
                // One that has gone stays known by its last words.
                Err(_) => {}
            }
        }
    }

    /// The domain of each process, and the domains. `parents` knows about processes that came
    /// and went between two looks.
    #[must_use]
    pub fn domains(&self, parents: &BTreeMap<u32, u32>) -> Assigned {
        let mut assigned = Assigned::default();
        let own = std::process::id();
        assigned.put(0, "idle", Kind::Idle);
        assigned.put(own, "profiler", Kind::Profiler);
        let names = self.qualified();
        for (instance, found) in self.profiled() {
            let monitor = name(&names, instance, "monitor");
            assigned.put(found.monitor, &monitor, Kind::Monitor);
            for (domain, running) in &found.domains {
                let kind = match running.program {
                    Program::Driver => Kind::Driver,
                    Program::Guest => Kind::Guest,
                };
                let name = name(&names, instance, domain);
                for life in &running.lives {
                    assigned.put(life.pid, &name, kind);
                    assigned.put(life.agent, &name, kind);
                }
            }
        }
        for (name, pids) in &self.named {
            for pid in pids {
                assigned.put(*pid, name, Kind::Process);
            }
        }
        let has_machine = self.has_machine();
        let pids: BTreeSet<u32> = self.seen.keys().chain(parents.keys()).copied().collect();
        for pid in pids {
            let (name, kind) = match self.instance_of(pid, parents) {
                Some((instance, false)) => (name(&names, instance, "monitor"), Kind::Monitor),
                Some((_, true)) => (OTHER_INSTANCES.to_owned(), Kind::Other),
                None => self.other(pid, parents, has_machine),
            };
            assigned.put(pid, &name, kind);
        }
        self.account(&mut assigned);
        assigned
    }

    /// Instances that the session is about.
    fn profiled(&self) -> impl Iterator<Item = (&String, &Found)> {
        let only = self.only.as_deref();
        self.found
            .iter()
            .filter(move |(name, _)| is_profiled(only, name))
    }

    /// Whether an instance that the session is about was seen.
    #[must_use]
    pub fn has_machine(&self) -> bool {
        self.profiled().next().is_some()
    }

    /// Names of the instances that the session is about.
    pub fn machines(&self) -> Vec<&str> {
        self.profiled().map(|(name, _)| name.as_str()).collect()
    }

    /// The instance whose monitor has started a process, and whether it is one that the session is
    /// not about. Of a profiled instance only the monitor's own helpers (netd, the manager) are
    /// found so: its domains have names.
    fn instance_of(&self, pid: u32, parents: &BTreeMap<u32, u32>) -> Option<(&str, bool)> {
        let only = self.only.as_deref();
        self.found.iter().find_map(|(name, found)| {
            let is_other = !is_profiled(only, name);
            let seen = self.seen.get(&pid);
            let is_helper = seen.is_some_and(|seen| {
                seen.process.parent == found.monitor && seen.process.name.starts_with("grantway-")
            });
            let is_its = match is_other {
                true => self.descends(pid, found.monitor, parents),
                false => is_helper,
            };
            is_its.then_some((name.as_str(), is_other))
        })
    }

    /// The domain of a process that no instance and no user named.
    fn other(&self, pid: u32, parents: &BTreeMap<u32, u32>, machine: bool) -> (String, Kind) {
        let seen = self.seen.get(&pid);
        if seen.is_some_and(|seen| seen.process.kernel) {
            return ("kernel".to_owned(), Kind::Kernel);
        }
        let load = seen.and_then(|seen| load_role(&seen.process.args));
        match (&self.command, load) {
            (_, Some(role)) if machine => (role.to_owned(), Kind::Process),
            (Some((command, name)), _) if self.descends(pid, *command, parents) => {
                let name = if machine { "command" } else { name };
                (name.to_owned(), Kind::Process)
            }
            _ => ("other".to_owned(), Kind::Other),
        }
    }

    fn descends(&self, pid: u32, from: u32, parents: &BTreeMap<u32, u32>) -> bool {
        const DEPTH_MAX: usize = 64;
        let parent = |pid: u32| {
            let seen = self.seen.get(&pid).map(|seen| seen.process.parent);
            // What the kernel said at the fork stays true when the parent ends.
            parents.get(&pid).copied().or(seen)
        };
        std::iter::successors(Some(pid), |pid| parent(*pid))
            .take(DEPTH_MAX)
            .any(|pid| pid == from)
    }

    /// Names that occur in more than one instance.
    fn qualified(&self) -> BTreeSet<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, found) in self.profiled() {
            for name in found.domains.keys().map(String::as_str).chain(["monitor"]) {
                *counts.entry(name).or_default() += 1;
            }
        }
        counts
            .into_iter()
            .filter(|(_, count)| *count > 1)
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    /// The name of the domain that the command is, where it is one as a whole.
    #[must_use]
    pub fn lone_command(&self) -> Option<&str> {
        let (_, name) = self.command.as_ref().filter(|_| !self.has_machine())?;
        Some(name)
    }

    /// Adds exact CPU times, ledgers and traffic.
    fn account(&self, assigned: &mut Assigned) {
        for (pid, seen) in &self.seen {
            if let Some(domain) = assigned.domain_mut(*pid)
                && domain.kind != Kind::Idle
            {
                *domain.cpu_ns.get_or_insert(0) += seen.to_ns.saturating_sub(seen.from_ns);
            }
        }
        let profiled = self.profiled();
        for running in profiled.flat_map(|(_, found)| found.domains.values()) {
            for life in &running.lives {
                let agent_ns = self
                    .seen
                    .get(&life.agent)
                    .map(|seen| seen.to_ns.saturating_sub(seen.from_ns));
                let Some(domain) = assigned.domain_mut(life.pid) else {
                    continue;
                };
                *domain.agent_ns.get_or_insert(0) += agent_ns.unwrap_or(0);
                let (Some(first), Some(last)) = (&life.first, &life.last) else {
                    domain.missing = Some("its counters could not be read".to_owned());
                    continue;
                };
                let ledger = domain.ledger.get_or_insert_default();
                ledger.cpu_ns += last.cpu_ns.saturating_sub(first.cpu_ns);
                ledger.stamps += last.stamps.saturating_sub(first.stamps);
                for (hop, cycles) in &last.hops {
                    let before = first.hops.get(hop).copied().unwrap_or(0);
                    *ledger.hops.entry(hop.clone()).or_default() += cycles.saturating_sub(before);
                }
                if running.program == Program::Driver {
                    let traffic = domain.traffic.get_or_insert_default();
                    traffic.frames += last.traffic.frames.saturating_sub(first.traffic.frames);
                    traffic.bytes += last.traffic.bytes.saturating_sub(first.traffic.bytes);
                }
            }
        }
    }
}

fn is_profiled(only: Option<&str>, instance: &str) -> bool {
    only.is_none_or(|only| only == instance)
}

fn name(qualified: &BTreeSet<String>, instance: &str, name: &str) -> String {
    if qualified.contains(name) {
        format!("{instance}/{name}")
    } else {
        name.to_owned()
    }
}

/// `sender` or `receiver` if these are the arguments of an experiment's load.
fn load_role(args: &[String]) -> Option<&'static str> {
    let [_, internal, load, spec, ..] = args else {
        return None;
    };
    if (internal.as_str(), load.as_str()) != ("internal", "load") {
        return None;
    }
    let spec: Value = serde_json::from_str(spec).ok()?;
    match spec["role"].as_str()? {
        "source" | "client" => Some("sender"),
        "sink" | "echo" => Some("receiver"),
        _ => None,
    }
}

impl Found {
    fn take(&mut self, status: &Status) {
        for domain in &status.domains {
            let running = self
                .domains
                .entry(domain.name.clone())
                .or_insert_with(|| Running {
                    program: domain.program,
                    lives: Vec::new(),
                });
            let pid = domain.pid.unsigned_abs();
            if domain.alive && running.lives.last().is_none_or(|life| life.pid != pid) {
                running.lives.push(Life {
                    pid,
                    agent: domain.agent_pid.unsigned_abs(),
                    first: None,
                    last: None,
                });
            }
        }
    }

    fn read(&mut self) {
        for (name, running) in &mut self.domains {
            let Some(life) = running.lives.last_mut() else {
                continue;
            };
            let stat = match self.instance.relay(name, &Request::Stat) {
                Ok(stat) => stat,
                Err(client::Error::Late { .. }) => {
                    self.silent = true;
                    return;
                }
                Err(_) => continue,
            };
            let Some(cpu_ns) = cpu_ns(life.pid) else {
                continue;
            };
            let reading = reading(&stat, cpu_ns);
            if life.first.is_none() {
                life.first = Some(reading.clone());
            }
            life.last = Some(reading);
        }
    }
}

fn cpu_ns(pid: u32) -> Option<u64> {
    measure::cpu_ns(pid.cast_signed())
}

/// Reads a domain's answer, which the domain makes up as it likes: anything malformed counts as 0.
///
/// Every frame enters the bridge by exactly one port, so the sum over the ports' inputs counts each
/// frame once: from a NIC, to a NIC, and between guests.
fn reading(stat: &Value, cpu_ns: u64) -> Reading {
    let ledger = &stat["ledger"];
    let hops = ledger["hops"].as_object();
    let mut traffic = Traffic::default();
    for (_, counters) in stat["ports"].as_object().into_iter().flatten() {
        let of = |name: &str| counters["traffic"][name].as_u64().unwrap_or(0);
        traffic.frames = traffic.frames.saturating_add(of("in_packets"));
        traffic.bytes = traffic.bytes.saturating_add(of("in_bytes"));
    }
    Reading {
        hops: hops
            .into_iter()
            .flatten()
            .filter_map(|(hop, entry)| Some((hop.clone(), entry["cycles"].as_u64()?)))
            .collect(),
        stamps: ledger["stamps"].as_u64().unwrap_or(0),
        traffic,
        cpu_ns,
    }
}

/// The domains of a session, and whose each process is.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// The domains.
    pub domains: Vec<Domain>,
    by_pid: BTreeMap<u32, u32>,
}

impl Assigned {
    /// The domain of a process; one that nobody knew is somebody else's.
    #[must_use]
    pub fn of(&mut self, pid: u32) -> u32 {
        if let Some(domain) = self.by_pid.get(&pid) {
            return *domain;
        }
        self.put(pid, "other", Kind::Other)
    }

    /// The first who claims a process has it.
    fn put(&mut self, pid: u32, name: &str, kind: Kind) -> u32 {
        if let Some(domain) = self.by_pid.get(&pid) {
            return *domain;
        }
        // A process that calls itself `driver` is not the driver domain.
        let is_it = |domain: &Domain| domain.name == name && domain.kind == kind;
        let found = self.domains.iter().position(is_it);
        let index = found.unwrap_or_else(|| {
            self.domains.push(Domain {
                name: name.to_owned(),
                kind,
                mode: Mode::Passive,
                cpu_ns: None,
                agent_ns: None,
                ledger: None,
                traffic: None,
                buffer: None,
                missing: None,
            });
            self.domains.len() - 1
        });
        self.by_pid.insert(pid, index as u32);
        index as u32
    }

    fn domain_mut(&mut self, pid: u32) -> Option<&mut Domain> {
        let index = *self.by_pid.get(&pid)?;
        self.domains.get_mut(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(parent: u32, args: &[&str], ns: [u64; 2]) -> Seen {
        Seen {
            process: Process {
                parent,
                name: "x".to_owned(),
                kernel: false,
                args: args.iter().map(|&arg| arg.to_owned()).collect(),
            },
            from_ns: ns[0],
            to_ns: ns[1],
        }
    }

    #[test]
    fn a_command_without_domains_is_one_domain() {
        let watch = Watch {
            seen: [
                (10, seen(1, &["sh"], [5, 5])),
                (20, seen(10, &["make"], [0, 100])),
                (21, seen(20, &["cc"], [0, 1000])),
            ]
            .into(),
            command: Some((20, "make".to_owned())),
            ..Watch::default()
        };
        let mut assigned = watch.domains(&[(30, 21)].into());
        let name = |assigned: &mut Assigned, pid| {
            let index = assigned.of(pid);
            assigned.domains[index as usize].name.clone()
        };
        assert_eq!(name(&mut assigned, 20), "make");
        assert_eq!(name(&mut assigned, 21), "make");
        assert_eq!(name(&mut assigned, 30), "make", "came and went unseen");
        assert_eq!(name(&mut assigned, 10), "other");
        assert_eq!(name(&mut assigned, 99), "other");
        assert_eq!(name(&mut assigned, 0), "idle");
        let make = assigned.domains.iter().find(|d| d.name == "make").unwrap();
        assert_eq!(make.cpu_ns, Some(1100));
    }

    #[test]
    fn loads_are_known_by_their_role() {
        let args = |role: &str| -> Vec<String> {
            let spec = format!("{{\"role\":\"{role}\"}}");
            ["grantway", "internal", "load", &spec]
                .map(str::to_owned)
                .into()
        };
        assert_eq!(load_role(&args("source")), Some("sender"));
        assert_eq!(load_role(&args("echo")), Some("receiver"));
        assert_eq!(load_role(&args("x")), None);
        assert_eq!(load_role(&["internal".to_owned()]), None);
    }

    #[test]
    fn a_domains_answer_is_read_and_nonsense_is_nothing() {
        let stat = serde_json::json!({
            "ledger": {"hops": {"nic": {"cycles": 7}, "copy": 3}, "stamps": 4},
            "ports": {
                "nic.wire": {"traffic": {"in_packets": 2, "in_bytes": 3028,
                                          "out_packets": 1, "out_bytes": 66}},
                "vif.a-0": {"traffic": {"in_packets": 1, "in_bytes": 66}},
                "vif.b-0": "nonsense",
            },
        });
        let read = reading(&stat, 5);
        assert_eq!(read.hops, [("nic".to_owned(), 7)].into());
        assert_eq!((read.stamps, read.cpu_ns), (4, 5));
        assert_eq!(
            read.traffic,
            Traffic {
                frames: 3,
                bytes: 3094
            }
        );
        let nothing = reading(&serde_json::json!({"ledger": [], "ports": 3}), 5);
        assert_eq!(nothing.traffic, Traffic::default());
        assert!(nothing.hops.is_empty());
    }

    /// Frames between guests count, each once, whatever a NIC carries beside them.
    #[test]
    fn frames_between_guests_are_counted_once() {
        let traffic = |pings: u64, frames: u64| {
            let port = |input: u64, output: u64| {
                serde_json::json!({"traffic": {"in_packets": input, "in_bytes": input * 1514,
                                               "out_packets": output, "out_bytes": output * 1514}})
            };
            let stat = serde_json::json!({"ports": {
                "nic.wire": port(pings, pings),
                "vif.a-0": port(frames + pings, 2 + pings),
                "vif.b-0": port(2, frames),
            }});
            reading(&stat, 5).traffic
        };
        let before = traffic(0, 100);
        let after = traffic(4, 900);
        assert_eq!(after.frames - before.frames, 800 + 2 * 4);
        assert_eq!(after.bytes - before.bytes, (800 + 2 * 4) * 1514);
    }

    #[test]
    fn a_pid_has_one_domain() {
        let mut assigned = Assigned::default();
        let driver = assigned.put(5, "driver", Kind::Driver);
        assert_eq!(assigned.put(5, "other", Kind::Other), driver);
        assert_eq!(assigned.put(6, "driver", Kind::Driver), driver);
        assert_eq!(assigned.domains.len(), 1);
        assert_ne!(assigned.put(7, "driver", Kind::Process), driver);
    }
}
