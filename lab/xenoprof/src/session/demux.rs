//! Whose a sample is: from the sampler's one stream of records to the rings of domains.

use super::message::DomainScope;
use super::ring::{Fate, Producer};
use super::state::MemberId;
use crate::host::process;
use crate::sampler::parse::{Record, RecordKind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Longest line of ancestors that is followed.
const DEPTH_MAX: usize = 64;

/// A domain that takes part.
#[derive(Debug)]
struct Recipient {
    id: MemberId,
    /// Its profiler, which is no part of it.
    profiler: u32,
    uid: u32,
    roots: BTreeSet<u32>,
    /// The PID namespace, as the kernel names it.
    namespace: Option<PathBuf>,
    ring: Option<Producer>,
    /// Processes seen: as this host knows them, as the domain knows them.
    pids: BTreeMap<u32, u32>,
}

/// What one domain was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Its samples.
    pub fate: Fate,
    /// Whether its profiler lied about the ring's indices.
    pub broken: bool,
    /// Processes that were seen: as this host knows them, as the domain knows them.
    pub pids: BTreeMap<u32, u32>,
}

/// Gives each record to the domain of its process.
#[derive(Debug, Default)]
pub struct Demux {
    domains: Vec<Recipient>,
    /// The domain of each process, by its place.
    of_pid: HashMap<u32, Option<usize>>,
}

/// The PID namespace of a process.
fn namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// A process's id in its own namespace: the last of its line `NSpid`.
fn inner_pid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Whether a participant may speak of the processes that it means.
///
/// # Errors
/// What is wrong, in words.
pub fn check_scope(profiler: u32, scope: &DomainScope) -> Result<(), String> {
    let here = namespace(std::process::id());
    let same = here.is_some() && namespace(profiler) == here;
    match scope {
        DomainScope::Namespace if same => Err(
            "its PID namespace is this host's: say which processes are its domain (--pid)"
                .to_owned(),
        ),
        DomainScope::Processes(_) if !same => Err(
            "it knows processes by the ids of another PID namespace: leave out --pid".to_owned(),
        ),
        DomainScope::Processes(pids) if pids.is_empty() || pids.len() > 1024 => {
            Err("1 to 1024 processes".to_owned())
        }
        _ => Ok(()),
    }
}

impl Demux {
    /// Adds a domain; an active one has a ring.
    pub fn join(
        &mut self,
        id: MemberId,
        (profiler, uid): (u32, u32),
        scope: &DomainScope,
        ring: Option<Producer>,
    ) {
        let (roots, namespace) = match scope {
            DomainScope::Processes(pids) => (pids.iter().copied().collect(), None),
            DomainScope::Namespace => (BTreeSet::new(), namespace(profiler)),
            DomainScope::Elsewhere => (BTreeSet::new(), None),
        };
        self.domains.push(Recipient {
            id,
            profiler,
            uid,
            roots,
            namespace,
            ring,
            pids: BTreeMap::new(),
        });
        self.of_pid.clear();
    }

    /// Takes out a domain that went before the session began.
    pub fn leave(&mut self, id: MemberId) {
        self.domains.retain(|domain| domain.id != id);
        self.of_pid.clear();
    }

    /// Gives records to their domains.
    pub fn offer(&mut self, records: &[Record]) {
        for record in records {
            let (pid, parent) = match &record.kind {
                RecordKind::Sample { pid, .. }
                | RecordKind::Comm { pid, .. }
                | RecordKind::Map { pid, .. }
                | RecordKind::Exit { pid, .. } => (*pid, None),
                RecordKind::Fork { pid, parent, .. } => (*pid, Some(*parent)),
                RecordKind::Lost(_) => continue,
            };
            if let Some(parent) = parent.filter(|parent| *parent != pid) {
                let inherited = self.of(parent);
                self.of_pid.insert(pid, inherited);
                self.seen(pid, inherited);
            }
            let Some(place) = self.of(pid) else {
                continue;
            };
            let Some(domain) = self.domains.get_mut(place) else {
                continue;
            };
            let inner = domain.pids.get(&pid).copied().unwrap_or(pid);
            if let Some(ring) = &mut domain.ring {
                ring.offer(record, inner);
            }
        }
    }

    /// Wakes every domain's profiler for what lies below the watermark.
    pub fn flush(&mut self) {
        let rings = self.domains.iter_mut().filter_map(|d| d.ring.as_mut());
        rings.for_each(Producer::ring);
    }

    /// What became of everything, by domain.
    #[must_use]
    pub fn given(&self) -> BTreeMap<MemberId, Given> {
        let given = self.domains.iter().map(|domain| {
            let ring = domain.ring.as_ref();
            let given = Given {
                fate: ring.map(Producer::fate).unwrap_or_default(),
                broken: ring.is_some_and(Producer::is_broken),
                pids: domain.pids.clone(),
            };
            (domain.id, given)
        });
        given.collect()
    }

    fn of(&mut self, pid: u32) -> Option<usize> {
        if let Some(known) = self.of_pid.get(&pid) {
            return *known;
        }
        let found = self.find(pid);
        self.of_pid.insert(pid, found);
        self.seen(pid, found);
        found
    }

    fn seen(&mut self, pid: u32, place: Option<usize>) {
        if let Some(domain) = place.and_then(|place| self.domains.get_mut(place)) {
            let inner = match domain.namespace {
                Some(_) => inner_pid(pid).unwrap_or(pid),
                None => pid,
            };
            domain.pids.insert(pid, inner);
        }
    }

    fn find(&self, pid: u32) -> Option<usize> {
        if pid == 0 {
            return None;
        }
        let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let namespace = namespace(pid);
        let ancestors: BTreeSet<u32> = std::iter::successors(Some(pid), |pid| {
            process::read(*pid).map(|process| process.parent)
        })
        .take_while(|pid| *pid != 0)
        .take(DEPTH_MAX)
        .collect();
        self.domains.iter().position(|domain| {
            // Nobody but root is told about processes of other users.
            let allowed = domain.uid == 0 || domain.uid == owner;
            let is_own = domain.roots.iter().any(|root| ancestors.contains(root))
                || (domain.namespace.is_some() && domain.namespace == namespace);
            allowed && is_own && pid != domain.profiler
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn sample(pid: u32) -> Record {
        Record {
            time_ns: 1,
            cpu: 1,
            kind: RecordKind::Sample {
                pid,
                tid: pid,
                chain: [].into(),
            },
        }
    }

    #[test]
    fn a_domain_gets_its_processes_and_their_children_and_nobody_elses() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let own = std::process::id();
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        let mut demux = Demux::default();
        let scope = DomainScope::Processes(vec![child.id()]);
        let ring = Producer::new(false).unwrap();
        demux.join(3, (own, uid), &scope, Some(ring));
        let fork = Record {
            time_ns: 1,
            cpu: 0,
            kind: RecordKind::Fork {
                pid: u32::MAX,
                parent: child.id(),
                tid: u32::MAX,
            },
        };
        let records = [
            sample(child.id()),
            sample(own),
            fork,
            sample(u32::MAX),
            sample(0),
        ];
        demux.offer(&records);
        let given = demux.given().remove(&3).unwrap();
        assert_eq!(given.fate.offered, 2, "{given:?}");
        assert_eq!(given.fate.written, 2);
        assert!(given.pids.contains_key(&child.id()) && given.pids.contains_key(&u32::MAX));
        demux.leave(3);
        assert!(demux.given().is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn processes_of_others_are_not_told_about() {
        let own = std::process::id();
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        let mut demux = Demux::default();
        let stranger = if uid == 4321 { 4322 } else { 4321 };
        demux.join(1, (1, stranger), &DomainScope::Processes(vec![own]), None);
        demux.offer(&[sample(own)]);
        assert!(demux.given()[&1].pids.is_empty());
    }

    #[test]
    fn what_may_not_be_meant_is_refused() {
        let own = std::process::id();
        assert!(check_scope(own, &DomainScope::Namespace).is_err());
        assert!(check_scope(own, &DomainScope::Processes(vec![])).is_err());
        assert!(check_scope(own, &DomainScope::Processes(vec![own])).is_ok());
        assert!(check_scope(own, &DomainScope::Elsewhere).is_ok());
    }
}
