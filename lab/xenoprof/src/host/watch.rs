//! Finds the domains among the processes and reads their CPU use. Repeats this while a session
//! runs, because domains are added and removed.
//!
//! Instances are found by their sockets in the runtime directory, and report their domains. A
//! domain's counters and the scheduler's account of its process are read at the same time, so that
//! they can be compared.

use super::assignment::Assigned;
use super::instance::{ObservedInstance, cpu_ns};
use super::process::{self, ProcessInfo};
use crate::model::{DomainKind, Marker};
use abi::machine::Program;
use client::Instance;
use figures::measure;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The domain of all processes of instances outside the session.
pub const OTHER_INSTANCES: &str = "other instances";

/// A process that was observed.
#[derive(Clone, Debug)]
struct ObservedProcess {
    process: ProcessInfo,
    /// CPU time at the session's start; 0 if the process started later.
    from_ns: u64,
    /// CPU time at the last reading.
    to_ns: u64,
}

/// Processes that started during the session, and their parents.
pub type Parents = BTreeMap<u32, u32>;

/// The instances of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InstanceScope {
    /// Every instance of the host.
    #[default]
    All,
    /// The instance with this name.
    Named(String),
    /// The instances that the session's command started.
    OfCommand,
}

/// Everything observed so far.
#[derive(Default)]
pub struct Watch {
    seen: BTreeMap<u32, ObservedProcess>,
    found: BTreeMap<String, ObservedInstance>,
    /// Instances that ran before the session.
    earlier: BTreeSet<String>,
    /// Process domains named by the user.
    named: Vec<(String, Vec<u32>)>,
    /// The session's command.
    command: Option<(u32, String)>,
    scope: InstanceScope,
    looks: u32,
}

impl Watch {
    /// Starts watching. `named` are processes that the user declares to be domains.
    #[must_use]
    pub fn new(named: Vec<(String, Vec<u32>)>, scope: InstanceScope) -> Self {
        let mut watch = Self {
            named,
            scope,
            ..Self::default()
        };
        watch.scan();
        watch.earlier = watch.found.keys().cloned().collect();
        watch
    }

    /// Adds a domain that a participant declared.
    pub fn domain(&mut self, name: &str, pids: impl IntoIterator<Item = u32>) {
        self.named
            .push((name.to_owned(), pids.into_iter().collect()));
    }

    /// Sets the session's command.
    pub fn command(&mut self, pid: u32, name: &str) {
        self.command = Some((pid, name.to_owned()));
    }

    /// Returns the running processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.seen.keys().copied()
    }

    /// Reads everything once.
    pub fn scan(&mut self) {
        self.scan_all(false);
    }

    /// Reads everything a last time.
    pub fn finish(&mut self) {
        self.scan_all(true);
    }

    fn scan_all(&mut self, is_last: bool) {
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
            let seen = ObservedProcess {
                process,
                from_ns,
                to_ns,
            };
            self.seen.insert(pid, seen);
        }
        for (pid, seen) in &mut self.seen {
            // The CPU time of a reused process id starts at 0 again, so the old sum is kept.
            if let Some(ns) = cpu_ns(*pid)
                && ns >= seen.to_ns
            {
                seen.to_ns = ns;
            }
        }
        self.instances(is_last);
    }

    fn instances(&mut self, is_last: bool) {
        for name in client::listed_instances().unwrap_or_default() {
            if !self.found.contains_key(&name)
                && let Ok(instance) = Instance::connect(&name)
                && let Ok(status) = instance.status()
            {
                let found = ObservedInstance::new(instance, status.pid);
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
                    let may_be_profiled = match &self.scope {
                        InstanceScope::All => true,
                        InstanceScope::Named(only) => only == name,
                        InstanceScope::OfCommand => self.looks > 1 && !self.earlier.contains(name),
                    };
                    if may_be_profiled {
                        found.read(is_last);
                    }
                }
                Err(client::Error::TimedOut { .. }) => found.silent = true,
                // An exited domain keeps its last values.
                Err(_) => {}
            }
        }
    }

    /// Returns the domains, and the domain of each process. `parents` covers processes that started
    /// and exited between two readings.
    #[must_use]
    pub fn domains(&self, parents: &Parents) -> Assigned {
        let mut assigned = Assigned::default();
        let own = std::process::id();
        assigned.put(0, "idle", DomainKind::Idle);
        assigned.put(own, "profiler", DomainKind::Profiler);
        let names = self.qualified(parents);
        for (instance, found) in self.profiled(parents) {
            let instance = self.without_run(instance, found.monitor, parents);
            let monitor = name(&names, instance, "monitor");
            assigned.put(found.monitor, &monitor, DomainKind::Monitor);
            for (domain, running) in &found.domains {
                let kind = match running.program {
                    Program::Driver => DomainKind::Driver,
                    Program::Guest => DomainKind::Guest,
                    Program::Device => DomainKind::Device,
                };
                let name = name(&names, instance, domain);
                for run in &running.runs {
                    assigned.put(run.pid, &name, kind);
                    assigned.put(run.agent, &name, kind);
                }
            }
        }
        for (name, pids) in &self.named {
            for pid in pids {
                assigned.put(*pid, name, DomainKind::Process);
            }
        }
        let has_machine = self.has_machine(parents);
        let pids: BTreeSet<u32> = self.seen.keys().chain(parents.keys()).copied().collect();
        for pid in pids {
            let (name, kind) = match self.instance_of(pid, parents) {
                Some((instance, false)) => (name(&names, instance, "monitor"), DomainKind::Monitor),
                Some((_, true)) => (OTHER_INSTANCES.to_owned(), DomainKind::Other),
                None => self.other(pid, parents, has_machine),
            };
            assigned.put(pid, &name, kind);
        }
        self.account(parents, &mut assigned);
        assigned
    }

    /// Returns whether an instance belongs to the session.
    fn is_profiled(&self, name: &str, monitor: u32, parents: &Parents) -> bool {
        match &self.scope {
            InstanceScope::All => true,
            InstanceScope::Named(only) => only == name,
            InstanceScope::OfCommand => {
                let command = self.command.as_ref();
                command.is_some_and(|(command, _)| self.descends(monitor, *command, parents))
            }
        }
    }

    /// Returns the instances of the session.
    fn profiled<'a>(
        &'a self,
        parents: &'a Parents,
    ) -> impl Iterator<Item = (&'a String, &'a ObservedInstance)> {
        let is_profiled = |name: &str, monitor| self.is_profiled(name, monitor, parents);
        let found = self.found.iter();
        found.filter(move |(name, found)| is_profiled(name, found.monitor))
    }

    /// Returns whether an instance of the session was found.
    #[must_use]
    pub fn has_machine(&self, parents: &Parents) -> bool {
        self.profiled(parents).next().is_some()
    }

    /// Returns the names of the session's instances.
    #[must_use]
    pub fn machines<'a>(&'a self, parents: &'a Parents) -> Vec<&'a str> {
        let profiled = self.profiled(parents);
        profiled.map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the instance whose monitor started a process, and whether that instance is outside
    /// the session. In a profiled instance this applies only to the monitor's helpers (netd, the
    /// manager), because its domains have names.
    fn instance_of<'a>(&'a self, pid: u32, parents: &Parents) -> Option<(&'a str, bool)> {
        self.found.iter().find_map(|(name, found)| {
            let is_other = !self.is_profiled(name, found.monitor, parents);
            let seen = self.seen.get(&pid);
            let is_helper = seen.is_some_and(|seen| {
                seen.process.parent == found.monitor && seen.process.name.starts_with("grantway-")
            });
            let is_its = match is_other {
                true => self.descends(pid, found.monitor, parents),
                false => is_helper,
            };
            let name = self.without_run(name, found.monitor, parents);
            is_its.then_some((name, is_other))
        })
    }

    /// Returns the domain of a process that belongs to no instance and was not named by the user.
    fn other(&self, pid: u32, parents: &Parents, machine: bool) -> (String, DomainKind) {
        let seen = self.seen.get(&pid);
        if seen.is_some_and(|seen| seen.process.kernel) {
            return ("kernel".to_owned(), DomainKind::Kernel);
        }
        let load = seen.and_then(|seen| load_role(&seen.process.args));
        let is_of_command = |command| self.descends(pid, command, parents);
        let is_another_commands = self.scope == InstanceScope::OfCommand
            && !self
                .command
                .as_ref()
                .is_some_and(|(command, _)| is_of_command(*command));
        match (&self.command, load) {
            _ if is_another_commands => ("other".to_owned(), DomainKind::Other),
            (_, Some(role)) if machine => (role.to_owned(), DomainKind::Process),
            (Some((command, name)), _) if is_of_command(*command) => {
                let name = if machine { "command" } else { name };
                (name.to_owned(), DomainKind::Process)
            }
            _ => ("other".to_owned(), DomainKind::Other),
        }
    }

    /// Returns the name of an instance without the process id and the number that an experiment
    /// appends, so that the domains of two sessions have the same names.
    fn without_run<'a>(&self, instance: &'a str, monitor: u32, parents: &Parents) -> &'a str {
        let mut parts = instance.rsplitn(3, '-');
        let [number, pid] = [parts.next(), parts.next()].map(|part| part?.parse::<u32>().ok());
        match (parts.next(), pid, number) {
            (Some(name), Some(pid), Some(_)) if self.descends(monitor, pid, parents) => name,
            _ => instance,
        }
    }

    fn descends(&self, pid: u32, from: u32, parents: &Parents) -> bool {
        const DEPTH_MAX: usize = 64;
        let parent = |pid: u32| {
            let seen = self.seen.get(&pid).map(|seen| seen.process.parent);
            // The parent recorded at the fork stays valid after the parent exits.
            parents.get(&pid).copied().or(seen)
        };
        std::iter::successors(Some(pid), |pid| parent(*pid))
            .take(DEPTH_MAX)
            .any(|pid| pid == from)
    }

    /// Returns the domain names that occur in more than one instance.
    fn qualified(&self, parents: &Parents) -> BTreeSet<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, found) in self.profiled(parents) {
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

    /// Returns the name of the command's domain, if all of the command is one domain.
    #[must_use]
    pub fn lone_command(&self, parents: &Parents) -> Option<&str> {
        let (_, name) = self
            .command
            .as_ref()
            .filter(|_| !self.has_machine(parents))?;
        Some(name)
    }

    /// Returns the events of the session's domains, in time order. `exits` has the ends of
    /// processes.
    #[must_use]
    pub fn markers(
        &self,
        parents: &Parents,
        assigned: &mut Assigned,
        start_ns: u64,
        exits: &BTreeMap<u32, u64>,
    ) -> Vec<Marker> {
        let mut markers = Vec::new();
        for (_, found) in self.profiled(parents) {
            let monitor = assigned.of(found.monitor);
            let granted = found.granted.iter();
            markers.extend(granted.map(|change| change.marker(monitor, start_ns)));
            for run in found.domains.values().flat_map(|running| &running.runs) {
                let domain = assigned.of(run.pid);
                let restart = run.replaces.iter();
                markers.extend(restart.map(|restart| restart.marker(domain, start_ns, exits)));
                let changes = run.changes.iter();
                markers.extend(changes.map(|change| change.marker(domain, start_ns)));
            }
        }
        markers.sort_by_key(|marker| (marker.from_ns, marker.domain, marker.kind));
        markers
    }

    /// Adds exact CPU times, ledgers and traffic.
    fn account(&self, parents: &Parents, assigned: &mut Assigned) {
        for (pid, seen) in &self.seen {
            if let Some(domain) = assigned.domain_mut(*pid)
                && domain.kind != DomainKind::Idle
            {
                *domain.cpu_ns.get_or_insert(0) += seen.to_ns.saturating_sub(seen.from_ns);
            }
        }
        let profiled = self.profiled(parents);
        for running in profiled.flat_map(|(_, found)| found.domains.values()) {
            for run in &running.runs {
                let agent_ns = self
                    .seen
                    .get(&run.agent)
                    .map(|seen| seen.to_ns.saturating_sub(seen.from_ns));
                let Some(domain) = assigned.domain_mut(run.pid) else {
                    continue;
                };
                *domain.agent_ns.get_or_insert(0) += agent_ns.unwrap_or(0);
                let (Some(first), Some(last)) = (&run.first, &run.last) else {
                    domain.missing = Some("its counters were not readable".to_owned());
                    continue;
                };
                let ledger = domain.ledger.get_or_insert_default();
                ledger.cpu_ns += last.cpu_ns.saturating_sub(first.cpu_ns);
                ledger.stamps += last.stamps.saturating_sub(first.stamps);
                ledger.corrected += last.corrected.saturating_sub(first.corrected);
                ledger.waited_ns += last.waits.ns.saturating_sub(first.waits.ns);
                ledger.preempted += last.waits.preempted.saturating_sub(first.waits.preempted);
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

fn name(qualified: &BTreeSet<String>, instance: &str, name: &str) -> String {
    if qualified.contains(name) {
        format!("{instance}/{name}")
    } else {
        name.to_owned()
    }
}

/// Returns `sender` or `receiver` for the arguments of an experiment's load.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(parent: u32, args: &[&str], ns: [u64; 2]) -> ObservedProcess {
        ObservedProcess {
            process: ProcessInfo {
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
        assert_eq!(
            name(&mut assigned, 30),
            "make",
            "exited between two readings"
        );
        assert_eq!(name(&mut assigned, 10), "other");
        assert_eq!(name(&mut assigned, 99), "other");
        assert_eq!(name(&mut assigned, 0), "idle");
        let make = assigned.domains.iter().find(|d| d.name == "make").unwrap();
        assert_eq!(make.cpu_ns, Some(1100));
    }

    #[test]
    fn loads_of_other_commands_are_no_domains() {
        let load = ["lab", "internal", "load", r#"{"role":"sink"}"#];
        let watch = Watch {
            seen: [
                (20, seen(1, &["demo"], [0, 0])),
                (21, seen(20, &load, [0, 100])),
                (31, seen(1, &load, [0, 1000])),
            ]
            .into(),
            command: Some((20, "demo".to_owned())),
            scope: InstanceScope::OfCommand,
            ..Watch::default()
        };
        let of = |pid| watch.other(pid, &Parents::new(), true);
        assert_eq!(of(21), ("receiver".to_owned(), DomainKind::Process));
        assert_eq!(of(31), ("other".to_owned(), DomainKind::Other));
    }

    #[test]
    fn names_of_domains_have_no_run_numbers() {
        let seen = [(20, seen(1, &["lab"], [0, 0])), (21, seen(20, &[], [0, 0]))];
        let watch = Watch {
            seen: seen.into(),
            ..Watch::default()
        };
        for (instance, stable) in [
            ("lane-20-0", "lane"),
            ("two-to-guest-20-12", "two-to-guest"),
            ("demo", "demo"),
            ("rack-7", "rack-7"),
            // Its user chose this name: no process 7 started it.
            ("rack-7-3", "rack-7-3"),
        ] {
            assert_eq!(watch.without_run(instance, 21, &Parents::new()), stable);
        }
    }

    #[test]
    fn loads_are_recognized_by_role() {
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
}
