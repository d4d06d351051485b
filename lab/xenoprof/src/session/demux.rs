//! Demultiplexing of the sampler's stream of records to the rings of domains.
//!
//! A participant that is not root receives only records that its user may see: those of a process
//! that was checked and had only that user's privileges, from the check until the process's next
//! exec. After an exec the process is checked again. Records arrive ring by ring. They wait until
//! every ring has been read up to their time and are then processed in order, so that no sample
//! overtakes an earlier exec.

use super::message::DomainScope;
use super::ring::{Producer, RingCounts};
use super::state::MemberId;
use crate::host::{credentials, process};
use crate::sampler::parse::{PerfRecord, RecordKind};
use figures::measure;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

/// Maximum number of ancestors of a process that are followed.
const DEPTH_MAX: usize = 64;
/// Maximum delay in nanoseconds from the time of a record until it is in its ring.
const WRITTEN_NS: u64 = 10_000_000;

/// A domain that takes part.
#[derive(Debug)]
struct Recipient {
    id: MemberId,
    /// Process of its profiler, which is not part of the domain.
    profiler: u32,
    uid: u32,
    roots: BTreeSet<u32>,
    /// PID namespace, as the kernel names it.
    namespace: Option<PathBuf>,
    ring: Option<Producer>,
    /// Observed processes: id on this host → id in the domain.
    pids: BTreeMap<u32, u32>,
}

/// Data delivered to one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Counts of its samples.
    pub counts: RingCounts,
    /// Whether its profiler has written an invalid index to the ring.
    pub broken: bool,
    /// Observed processes: id on this host → id in the domain.
    pub pids: BTreeMap<u32, u32>,
}

/// Demultiplexer, which delivers each record to the domain of its process.
#[derive(Debug, Default)]
pub struct Demux {
    domains: Vec<Recipient>,
    of_pid: HashMap<u32, Access>,
    /// Records newer than the last complete reading of all rings, and those of the next batch.
    waiting: Vec<PerfRecord>,
}

/// The domain of a process, and the records that the domain may see.
#[derive(Clone, Copy, Debug)]
struct Access {
    /// Index of the domain.
    place: Option<usize>,
    /// Time from which the domain receives records; `None`: it receives none.
    since_ns: Option<u64>,
}

/// Returns the PID namespace of a process.
fn namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Returns a process's id in its PID namespace: the last one in its line `NSpid`.
fn inner_pid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Checks that a participant may declare these processes as its domain.
///
/// # Errors
/// Returns the reason why it may not.
pub fn check_scope(profiler: u32, scope: &DomainScope) -> Result<(), String> {
    let here = namespace(std::process::id());
    let same = here.is_some() && namespace(profiler) == here;
    match scope {
        DomainScope::Namespace if same => Err(
            "its PID namespace is the host's: name the domain's processes with --pid".to_owned(),
        ),
        DomainScope::Processes(_) if !same => {
            Err("its process ids are from another PID namespace: leave out --pid".to_owned())
        }
        DomainScope::Processes(pids) if pids.is_empty() || pids.len() > 1024 => {
            Err("1 to 1024 processes".to_owned())
        }
        _ => Ok(()),
    }
}

impl Demux {
    /// Adds a domain. An active one has a ring.
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
        if uid != 0 {
            // Check running processes now, because earlier samples cannot be delivered.
            for pid in measure::processes() {
                self.of(pid.cast_unsigned());
            }
        }
    }

    /// Removes a domain that left before the session began.
    pub fn leave(&mut self, id: MemberId) {
        self.domains.retain(|domain| domain.id != id);
        self.of_pid.clear();
    }

    /// Delivers records to their domains. `read_ns` is a time after which every ring has been read.
    pub fn offer(&mut self, records: &[PerfRecord], read_ns: u64) {
        if self.domains.is_empty() {
            return;
        }
        self.waiting.extend_from_slice(records);
        self.waiting.sort_by_key(|record| record.time_ns);
        let complete_ns = read_ns.saturating_sub(WRITTEN_NS);
        let ready = self
            .waiting
            .partition_point(|record| record.time_ns <= complete_ns);
        let later = self.waiting.split_off(ready);
        for record in std::mem::replace(&mut self.waiting, later) {
            self.deliver(&record);
        }
    }

    fn deliver(&mut self, record: &PerfRecord) {
        let pid = match &record.kind {
            RecordKind::Sample { pid, .. }
            | RecordKind::Map { pid, .. }
            | RecordKind::Exit { pid, .. } => *pid,
            RecordKind::Comm { pid, exec, .. } => {
                if *exec {
                    self.executed(*pid);
                }
                *pid
            }
            RecordKind::Fork { pid, parent, .. } => {
                if parent != pid {
                    // A child has its parent's state until its first exec.
                    let inherited = self.of(*parent);
                    self.of_pid.insert(*pid, inherited);
                }
                *pid
            }
            RecordKind::Throttle { .. } => return,
            RecordKind::Lost(_) => {
                // A lost record may have been an exec, so access is checked again.
                let place = |whose: &Access| self.domains.get(whose.place?);
                let keep = |whose: &mut Access| place(whose).is_some_and(|domain| domain.uid == 0);
                self.of_pid.retain(|_, whose| keep(whose));
                return;
            }
        };
        let whose = self.of(pid);
        let may_know = whose.since_ns.is_some_and(|since| record.time_ns >= since);
        let domain = whose.place.and_then(|place| self.domains.get_mut(place));
        let Some(domain) = domain.filter(|_| may_know) else {
            return;
        };
        let is_apart = domain.namespace.is_some();
        let inner = *domain.pids.entry(pid).or_insert_with(|| match is_apart {
            true => inner_pid(pid).unwrap_or(pid),
            false => pid,
        });
        if let Some(ring) = &mut domain.ring {
            ring.offer(record, inner);
        }
    }

    /// Checks a process again after an exec.
    fn executed(&mut self, pid: u32) {
        let Some(mut whose) = self.of_pid.remove(&pid) else {
            return;
        };
        // A process keeps its domain, because its ancestors may have exited. A process without
        // access is checked again.
        if let Some(domain) = whose.place.and_then(|place| self.domains.get(place)) {
            whose.since_ns = domain.may_know(pid);
            self.of_pid.insert(pid, whose);
        }
    }

    /// Delivers waiting records after the end of sampling, and wakes every domain's profiler,
    /// because records below the watermark may be pending.
    pub fn flush(&mut self) {
        for record in std::mem::take(&mut self.waiting) {
            self.deliver(&record);
        }
        let rings = self.domains.iter_mut().filter_map(|d| d.ring.as_mut());
        rings.for_each(Producer::ring);
    }

    /// Returns the delivered data by domain.
    #[must_use]
    pub fn delivered(&self) -> BTreeMap<MemberId, Delivered> {
        let delivered = self.domains.iter().map(|domain| {
            let ring = domain.ring.as_ref();
            let delivered = Delivered {
                counts: ring.map(Producer::counts).unwrap_or_default(),
                broken: ring.is_some_and(Producer::is_broken),
                pids: domain.pids.clone(),
            };
            (domain.id, delivered)
        });
        delivered.collect()
    }

    fn of(&mut self, pid: u32) -> Access {
        if let Some(known) = self.of_pid.get(&pid) {
            return *known;
        }
        let found = self.find(pid);
        self.of_pid.insert(pid, found);
        found
    }

    fn find(&self, pid: u32) -> Access {
        let nobodys = Access {
            place: None,
            since_ns: None,
        };
        if pid == 0 {
            return nobodys;
        }
        let namespace = namespace(pid);
        let ancestors: BTreeSet<u32> = std::iter::successors(Some(pid), |pid| {
            process::read(*pid).map(|process| process.parent)
        })
        .take_while(|pid| *pid != 0)
        .take(DEPTH_MAX)
        .collect();
        let is_own = |domain: &Recipient| {
            let is_below = domain.roots.iter().any(|root| ancestors.contains(root));
            let is_inside = domain.namespace.is_some() && domain.namespace == namespace;
            (is_below || is_inside) && pid != domain.profiler
        };
        // A domain without access does not hide a process from one with access.
        let mut own = (0..)
            .zip(&self.domains)
            .filter(|(_, domain)| is_own(domain));
        let found = own.find_map(|(place, domain)| Some((place, domain.may_know(pid)?)));
        found.map_or(nobodys, |(place, since)| Access {
            place: Some(place),
            since_ns: Some(since),
        })
    }
}

impl Recipient {
    /// Returns the time from which the domain's profiler may see a process's records, or `None` if
    /// it may not see them.
    fn may_know(&self, pid: u32) -> Option<u64> {
        match self.uid {
            // Root may see all records.
            0 => Some(0),
            uid => credentials::plain_since(pid, uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cpus::raw_ns;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};
    use testing::require;

    fn sample(pid: u32) -> PerfRecord {
        PerfRecord {
            time_ns: raw_ns(),
            cpu: 1,
            event: 0,
            kind: RecordKind::Sample {
                pid,
                tid: pid,
                chain: [].into(),
            },
        }
    }

    #[test]
    fn a_domain_gets_only_its_processes_and_children() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let own = std::process::id();
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        let mut demux = Demux::default();
        let scope = DomainScope::Processes(vec![child.id()]);
        let ring = Producer::new(false).unwrap();
        demux.join(3, (own, uid), &scope, Some(ring));
        let fork = PerfRecord {
            time_ns: raw_ns(),
            cpu: 0,
            event: 0,
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
        demux.offer(&records, u64::MAX);
        let delivered = demux.delivered().remove(&3).unwrap();
        assert_eq!(delivered.counts.offered, 2, "{delivered:?}");
        assert_eq!(delivered.counts.written, 2);
        assert!(delivered.pids.contains_key(&child.id()) && delivered.pids.contains_key(&u32::MAX));
        demux.leave(3);
        assert!(demux.delivered().is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn records_of_other_users_are_withheld() {
        let own = std::process::id();
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        let mut demux = Demux::default();
        let stranger = if uid == 4321 { 4322 } else { 4321 };
        demux.join(1, (1, stranger), &DomainScope::Processes(vec![own]), None);
        demux.offer(&[sample(own)], u64::MAX);
        assert!(demux.delivered()[&1].pids.is_empty());
    }

    /// A user who is not root.
    const USER: u32 = 54_321;

    fn exec(pid: u32) -> PerfRecord {
        PerfRecord {
            time_ns: raw_ns(),
            cpu: 0,
            event: 0,
            kind: RecordKind::Comm {
                pid,
                tid: pid,
                name: "cat".to_owned(),
                exec: true,
            },
        }
    }

    /// Starts a user's shell that executes in its place the program that it reads from a line of
    /// input, and then `cat` on another line.
    fn shell(folder: &std::path::Path) -> Child {
        let mut child = Command::new("sh")
            .args([
                "-c",
                "read next && exec \"$next\" -c 'read next && exec \"$next\"'",
            ])
            .current_dir(folder)
            .stdin(Stdio::piped())
            .uid(USER)
            .gid(USER)
            .spawn()
            .unwrap();
        while !is_program(child.id(), "sh") {
            assert!(child.try_wait().unwrap().is_none());
        }
        child
    }

    fn is_program(pid: u32, name: &str) -> bool {
        process::read(pid).is_some_and(|process| process.name == name && !process.args.is_empty())
    }

    fn exec_in_child(child: &mut Child, name: &str) {
        use std::io::Write as _;
        let mut stdin = child.stdin.as_ref().unwrap();
        writeln!(stdin, "{name}").unwrap();
        let program = name.rsplit('/').next().unwrap();
        testing::wait_until("it is another program", || is_program(child.id(), program));
    }

    #[test]
    fn only_root_sees_records_of_setuid_children() {
        // Only root can create another user's setuid program.
        require!(root);
        let folder = tempfile::tempdir().unwrap();
        let open = |path: &std::path::Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).unwrap();
        };
        open(folder.path(), 0o755);
        let program = folder.path().join("setuid");
        // `cp` copies the program, because a file that is open for writing cannot be executed, and
        // a child that another test has just forked may hold a file of this process open.
        let mut copy = Command::new("cp");
        let copy = copy.arg("--dereference").arg("/bin/sh").arg(&program);
        assert!(copy.status().unwrap().success());
        open(&program, 0o4755);
        for (uid, expected) in [(USER, [1, 0, 0, 1]), (0, [1, 1, 1, 1])] {
            let mut child = shell(folder.path());
            let pid = child.id();
            let mut demux = Demux::default();
            let ring = Producer::new(false).unwrap();
            demux.join(1, (1, uid), &DomainScope::Processes(vec![pid]), Some(ring));
            let mut offered = 0;
            let mut offer = |records: &[PerfRecord]| {
                demux.offer(records, u64::MAX);
                let all = demux.delivered()[&1].counts.offered;
                all - std::mem::replace(&mut offered, all)
            };
            let as_user = offer(&[sample(pid)]);
            let exec_setuid = exec(pid);
            exec_in_child(&mut child, "./setuid");
            let as_root = offer(&[exec_setuid, sample(pid)]);
            let (before, exec_plain) = (sample(pid), exec(pid));
            exec_in_child(&mut child, "cat");
            // When the process is checked again, it runs a program without privileges.
            let late = offer(&[before, exec_plain]);
            let again = offer(&[sample(pid)]);
            assert_eq!([as_user, as_root, late, again], expected, "{uid}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_sample_does_not_overtake_an_exec_of_another_ring() {
        let mut demux = Demux::default();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        let ring = Producer::new(false).unwrap();
        let scope = DomainScope::Processes(vec![child.id()]);
        demux.join(1, (1, uid), &scope, Some(ring));
        let record = sample(child.id());
        let read_ns = record.time_ns;
        demux.offer(std::slice::from_ref(&record), read_ns);
        let offered = |demux: &Demux| demux.delivered()[&1].counts.offered;
        assert_eq!(
            offered(&demux),
            0,
            "another ring may have an exec before it"
        );
        demux.offer(&[], read_ns + WRITTEN_NS);
        assert_eq!(offered(&demux), 1);
        demux.offer(&[sample(child.id())], read_ns);
        demux.flush();
        assert_eq!(offered(&demux), 2);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn invalid_scopes_are_rejected() {
        let own = std::process::id();
        assert!(check_scope(own, &DomainScope::Namespace).is_err());
        assert!(check_scope(own, &DomainScope::Processes(vec![])).is_err());
        assert!(check_scope(own, &DomainScope::Processes(vec![own])).is_ok());
        assert!(check_scope(own, &DomainScope::Elsewhere).is_ok());
    }
}
