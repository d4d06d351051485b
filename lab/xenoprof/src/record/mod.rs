//! The command `prof record`: a session from its start to its file.

mod calibrate;
mod collect;
mod losses;
pub mod sampler_alone;
mod timers;

use crate::event::EventConfig;
use crate::host::cpus::{online_cpus, raw_ns, steal_ns, steal_since, unix_ns};
use crate::host::process::{self, CodeMapping};
use crate::host::watch::{InstanceScope, Parents, Watch};
use crate::model::{Head, SampledEvent, Session, Tier, file};
use crate::resolve::{Resolver, Symbolizer};
use crate::sampler::elf::Foreign;
use crate::sampler::{Sampler, SamplerError, Scope};
use crate::session::SessionError;
use crate::session::initiator::{Configuration, Initiator};
use crate::session::merge;
use crate::session::state::Expected;
use anyhow::Context as _;
use collect::{Collected, Collector};
use figures::provenance::Provenance;
use figures::{Failure, interrupt, measure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Default samples per second and CPU: about a thousand, but not in step with the kernel's timers.
pub const DEFAULT_HZ: u32 = 997;
/// Share of a busy core that sampling may take without a warning.
const SHARE: f64 = 0.02;
/// Interval of reading processes and domains.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of checking the clock and Ctrl-C. Each wake-up takes time from the measured machine.
const STEP: Duration = Duration::from_millis(100);

/// Options of a recording.
#[derive(Clone, Debug, Default)]
pub struct RecordOptions {
    /// Events, each `NAME` or `NAME/period=N/`. Empty: the best available one.
    pub events: Vec<String>,
    /// Samples per second and CPU. Unset: [`DEFAULT_HZ`].
    pub hz: Option<u32>,
    /// Maximum duration.
    pub limit: Option<Duration>,
    /// Process domains: `NAME=PID[,PID…]`.
    pub named: Vec<String>,
    /// The only instance to profile. Unset: the instances that the command starts, or without a
    /// command every instance of this host.
    pub machine: Option<String>,
    /// Symbols of another kernel.
    pub kallsyms: Option<PathBuf>,
    /// Command to run. Empty: record until the limit or Ctrl-C.
    pub command: Vec<String>,
    /// Domains with separate profilers that take part.
    pub participants: Option<Participants>,
    /// Whether to sample only the command, even if this user may sample more.
    pub own: bool,
    /// Ends the session when set.
    pub stop: Option<Arc<AtomicBool>>,
}

impl RecordOptions {
    /// Returns the instances to profile.
    pub(crate) fn scope(&self) -> InstanceScope {
        match &self.machine {
            Some(name) => InstanceScope::Named(name.clone()),
            None if self.command.is_empty() => InstanceScope::All,
            None => InstanceScope::OfCommand,
        }
    }

    /// Parses the process domains.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if a text is not `NAME=PID[,PID…]`.
    pub(crate) fn domains(&self) -> Result<Vec<(String, Vec<u32>)>, Failure> {
        let named = self.named.iter().map(|text| named(text));
        named.collect::<Result<_, _>>().map_err(Failure::Usage)
    }
}

/// Expected participants, and how they connect.
#[derive(Clone, Debug)]
pub struct Participants {
    /// Expected participants.
    pub expected: Expected,
    /// Timeout for them to become ready.
    pub timeout: Duration,
    /// Socket to which participants connect.
    pub socket: PathBuf,
}

/// Records a session into a file; returns the command's exit status.
///
/// # Errors
/// Each [`Failure`] determines the exit status.
pub fn to_file(
    options: &RecordOptions,
    path: &std::path::Path,
    force: bool,
) -> anyhow::Result<Option<ExitStatus>> {
    let reserved = file::reserve(path, force).map_err(|error| match error {
        file::FileError::Exists(_) => Failure::Usage(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    })?;
    let (session, status) = run(options)?;
    reserved.write(path, &session)?;
    eprintln!(
        "{} samples{} of {} domains in {:.1} s: {}",
        session.samples.len(),
        by_event(&session),
        session.domains.len(),
        session.head.ran_ns as f64 / 1e9,
        path.display()
    );
    for note in &session.head.notes {
        eprintln!("{note}");
    }
    Ok(status)
}

/// Returns the number of samples of each event, if a session has several.
fn by_event(session: &Session) -> String {
    let of = |(number, sampled): (u32, SampledEvent)| {
        let samples = session.samples.iter().filter(|sample| sample.4 == number);
        format!("{} {}", sampled.event, samples.count())
    };
    match session.head.more_events.as_slice() {
        [] => String::new(),
        _ => {
            let counts: Vec<String> = (0..).zip(session.head.events()).map(of).collect();
            format!(" ({})", counts.join(", "))
        }
    }
}

/// Returns a session's sampler (opened but not started) and its CPUs.
pub(crate) fn open(options: &RecordOptions) -> anyhow::Result<(Sampler, Vec<u32>)> {
    find_machine(options)?;
    let hz = options.hz.unwrap_or(DEFAULT_HZ);
    let events = EventConfig::of(&options.events, hz.into(), shmem::time::tsc_hz())?;
    let cpus = online_cpus();
    let open = |scope| Sampler::open(events.clone(), scope, &cpus);
    let sampler = match open(if options.own {
        Scope::Own
    } else {
        Scope::Machine
    }) {
        // A user who may not sample other processes may sample the command that this process
        // starts.
        Err(SamplerError::Denied) if !options.command.is_empty() => open(Scope::Own),
        other => other,
    };
    let sampler = sampler.map_err(|error| Failure::CannotRun(error.to_string()))?;
    Ok((sampler, cpus))
}

/// Returns a warning if the default rate of all clocks costs more than [`SHARE`] of a busy core. In
/// a virtual machine a timer interrupt exits to the hypervisor several times, which can take tens
/// of microseconds. The interrupt of a counter costs less, the number of other events is known only
/// afterwards, and sampling of the user's own processes cannot be timed beforehand.
fn price(events: &[EventConfig], cpus: &[u32]) -> Option<String> {
    let is_clock = |config: &&EventConfig| config.tier == Tier::CpuClock;
    let clocks = events.iter().filter(is_clock).count();
    let &cpu = cpus.last().filter(|_| clocks > 0)?;
    let sample_ns = calibrate::estimate(cpu as usize).ok()? * clocks as f64;
    let hz = affordable_hz(sample_ns);
    (hz < DEFAULT_HZ).then(|| {
        format!(
            "a sample costs {:.0} us here, so sampling took {:.1} % of a busy core: \
             `--hz {hz}` takes {:.0} %",
            sample_ns / 1e3,
            f64::from(DEFAULT_HZ) * sample_ns / 1e7,
            SHARE * 100.0
        )
    })
}

/// Returns the samples per second that cost at most [`SHARE`] of a busy core, up to the default.
/// The number is odd, so that sampling is not in step with the kernel's timers.
fn affordable_hz(sample_ns: f64) -> u32 {
    match (SHARE * 1e9 / sample_ns.max(1.0)) as u32 {
        hz if hz >= DEFAULT_HZ => DEFAULT_HZ,
        hz => hz.saturating_sub(1) | 1,
    }
}

/// Records a session.
///
/// # Errors
/// Returns an error if this machine or user cannot sample, or the command cannot be started.
pub fn run(options: &RecordOptions) -> anyhow::Result<(Session, Option<ExitStatus>)> {
    let named = options.domains()?;
    interrupt::watch();
    let (sampler, cpus) = open(options)?;
    let events: Vec<SampledEvent> = sampler.events().iter().map(EventConfig::sampled).collect();
    let is_own = sampler.is_own();
    let price = options.hz.is_none().then(|| price(sampler.events(), &cpus));
    let id = session_id();
    let mut initiator = match &options.participants {
        Some(participants) => {
            let configuration = Configuration {
                id,
                privileged: !is_own,
                expected: participants.expected.clone(),
                timeout: participants.timeout,
                event: events.first().cloned(),
            };
            Some(reserve(participants, configuration)?)
        }
        None => None,
    };

    let watch = Watch::new(named, options.scope());
    let demux = initiator.as_ref().map(Initiator::demux);
    if let Some(initiator) = &mut initiator {
        let at = initiator.arm();
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(raw_ns())));
    }
    let served = initiator.map(Initiator::serve);
    let started_unix_ns = unix_ns();
    let steal = steal_ns();
    let own_cpu = measure::own_cpu_ns();
    let watcher = Watcher::start(watch);
    let start_ns = raw_ns();
    let collector = Collector::start(sampler, demux).context("cannot start sampling")?;
    let mapped = mapped(&watcher);
    let children = process::children_cpu_ns();
    let done = wait(options, &watcher);
    let end_ns = raw_ns();
    let mut watch = watcher.stop();
    let children = process::children_cpu_ns().saturating_sub(children);
    let mut collected = collector.stop(start_ns..=end_ns);
    let own_cpu = measure::own_cpu_ns().saturating_sub(own_cpu);
    let steal = steal_since(&steal);
    let (outcome, ending) = served.map_or_else(Default::default, |served| {
        served.drain(|| interrupt::check().is_err())
    });
    for member in &outcome.members {
        watch.domain(&member.name, member.delivered.pids.keys().copied());
    }
    let status = done?;

    let mut head = Head {
        version: file::VERSION,
        id,
        started_unix_ns,
        started_raw_ns: start_ns,
        ran_ns: end_ns.saturating_sub(start_ns),
        cpus,
        tsc_hz: shmem::time::tsc_hz(),
        command: options.command.clone(),
        profiler_cpu_ns: own_cpu,
        provenance: provenance(events.first()),
        notes: notes(price.flatten(), &mut collected, is_own),
        ..Head::default()
    };
    head.set_events(events);
    let foreign = Arc::new(std::mem::take(&mut collected.foreign));
    let mut resolver = resolver(start_ns, &mapped, foreign.clone());
    let mut symbolizer = Symbolizer::new(options.kallsyms.clone()).with_foreign(foreign);
    let lone = options.command.first().map(|_| children);
    merge::names(&outcome, &collected.records, &mut resolver, &mut symbolizer);
    resolver.take_all(std::mem::take(&mut collected.records));
    let parents = resolver.parents();
    head.notes.extend(machines(options, &watch, parents));
    let mut session = assemble(head, collected, resolver, symbolizer, &watch, &steal, lone);
    merge::domains(outcome, &mut session);
    ending.report_sample_counts(&session);
    Ok((session, status))
}

/// Returns the mappings of all processes of the session. They are read after its start, so that no
/// mapping between this reading and the first record is missed.
fn mapped(watcher: &Watcher) -> Vec<(u32, Vec<CodeMapping>)> {
    let pids = watcher.with(|watch| watch.pids().collect::<Vec<_>>());
    let mapped = pids.into_iter().map(|pid| (pid, process::mappings(pid)));
    mapped.collect()
}

fn resolver(start_ns: u64, mapped: &[(u32, Vec<CodeMapping>)], foreign: Arc<Foreign>) -> Resolver {
    let mut resolver = Resolver::new(start_ns).with_foreign(foreign);
    for (pid, mappings) in mapped {
        resolver.process(*pid, mappings);
    }
    resolver
}

/// Waits for participants and reports missing ones.
fn reserve(participants: &Participants, with: Configuration) -> anyhow::Result<Initiator> {
    let several = with.expected.len();
    let opened = Initiator::open(&participants.socket, with).map_err(|error| match error {
        SessionError::NotPrivileged(_) | SessionError::Busy(_) => {
            Failure::CannotRun(error.to_string())
        }
        SessionError::Place(why) => {
            Failure::Usage(format!("{}: {why}", participants.socket.display()))
        }
        _ => Failure::Failed(format!("{}: {error}", participants.socket.display())),
    });
    let mut initiator = opened?;
    eprintln!(
        "waiting for {several} participants at {}",
        participants.socket.display()
    );
    initiator.reserve(|| interrupt::check().is_err());
    interrupt::check()?;
    if !initiator.absent().is_empty() {
        eprintln!(
            "without {}: not ready in time",
            initiator.absent().join(", ")
        );
    }
    Ok(initiator)
}

fn session_id() -> u64 {
    unix_ns() ^ u64::from(std::process::id()) << 32
}

/// Assembles a session from all collected data. `children_ns` is the CPU time of the command and
/// its descendants, if a command ran.
fn assemble(
    head: Head,
    collected: Collected,
    mut resolver: Resolver,
    mut symbolizer: Symbolizer,
    watch: &Watch,
    steal_ns: &BTreeMap<u32, u64>,
    children_ns: Option<u64>,
) -> Session {
    for &(pid, tid) in resolver.threads().to_vec().iter() {
        if let Some(name) = process::thread_name(pid, tid) {
            resolver.thread_name(tid, name);
        }
    }
    let parents = resolver.parents();
    let mut assigned = watch.domains(parents);
    let mut session = resolver.session(&mut symbolizer, |pid| assigned.of(pid));
    let mut dropped = BTreeMap::new();
    for ((event, cpu, pid), count) in collected.dropped {
        *dropped.entry((event, cpu, assigned.of(pid))).or_default() += count;
    }
    let start_ns = head.started_raw_ns;
    session.markers = watch.markers(parents, &mut assigned, start_ns, resolver.exits());
    session.domains = assigned.domains;
    // Short-lived processes may start and exit between two readings. The time of children for which
    // this process has waited covers them all.
    if let (Some(children_ns), Some(domain)) = (children_ns, watch.lone_command(parents))
        && let Some(domain) = session.domains.iter_mut().find(|d| d.name == domain)
    {
        domain.cpu_ns = domain.cpu_ns.max(Some(children_ns));
    }
    session.head = head;
    session.losses = losses::ledgers(&session, &resolver, &dropped, steal_ns);
    session.head.notes.extend(symbolizer.notes());
    session
}

fn notes(price: Option<String>, collected: &mut Collected, is_own: bool) -> Vec<String> {
    let mut notes: Vec<String> = price.into_iter().collect();
    notes.append(&mut collected.shared_counters);
    if collected.nonsense > 0 {
        notes.push(format!(
            "{} records of the kernel were malformed",
            collected.nonsense
        ));
    }
    let dropped: u64 = collected.dropped.values().sum();
    if dropped > 0 {
        notes.push(format!("{dropped} samples exceeded the memory limit"));
    }
    if is_own {
        notes.push(Tier::OwnUser.text().to_owned());
    }
    notes
}

/// Checks that the machine to profile is running, unless a command may start it.
///
/// # Errors
/// Returns an error if the machine is not running or does not answer.
fn find_machine(options: &RecordOptions) -> anyhow::Result<()> {
    if let Some(name) = &options.machine
        && options.command.is_empty()
    {
        client::Instance::connect(name)?;
    }
    Ok(())
}

/// Returns a note that names the session's machines, if the figures could be misread without it.
fn machines(options: &RecordOptions, watch: &Watch, parents: &Parents) -> Option<String> {
    match (&options.machine, watch.machines(parents).as_slice()) {
        (Some(name), []) => Some(format!("no machine `{name}` ran during the session")),
        (None, several @ [_, _, ..]) => Some(format!(
            "figures are of {} machines together ({}): `--name` profiles one of them",
            several.len(),
            several.join(", ")
        )),
        _ => None,
    }
}

fn provenance(first: Option<&SampledEvent>) -> serde_json::Value {
    let provenance = Provenance::collect("unchanged".to_owned(), false);
    let mut value = serde_json::to_value(provenance).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        let tier = first.map(|sampled| sampled.tier).unwrap_or_default();
        object.insert("pmu".to_owned(), tier.text().into());
    }
    value
}

/// Runs the command, or waits for the limit or Ctrl-C.
fn wait(options: &RecordOptions, watcher: &Watcher) -> anyhow::Result<Option<ExitStatus>> {
    let end = options.limit.map(|limit| Instant::now() + limit);
    let asked = || {
        let stop = options.stop.as_ref();
        stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    };
    let left = || match end {
        _ if asked() => Duration::ZERO,
        Some(end) => end.saturating_duration_since(Instant::now()),
        None => Duration::MAX,
    };
    let [program, args @ ..] = options.command.as_slice() else {
        while !left().is_zero() && interrupt::check().is_ok() {
            std::thread::sleep(STEP.min(left()));
        }
        return Ok(None);
    };
    let mut child = Command::new(program)
        .args(args)
        .spawn()
        .map_err(|error| Failure::Usage(format!("cannot start `{program}`: {error}")))?;
    let name = program.rsplit('/').next().unwrap_or(program);
    watcher.with(|watch| watch.command(child.id(), name));
    let ended = Pid::from_child(&child);
    let ended = pidfd_open(ended, PidfdFlags::empty()).context("cannot wait for the command")?;
    let mut is_terminated = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if !is_terminated && (left().is_zero() || interrupt::check().is_err()) {
            is_terminated = true;
            terminate(&child);
        }
        let step = if is_terminated {
            STEP
        } else {
            STEP.min(left())
        };
        let step = Timespec {
            tv_sec: 0,
            tv_nsec: step.subsec_nanos().into(),
        };
        // After a signal the next check happens early.
        let _looked = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&step));
    }
}

fn terminate(child: &Child) {
    // Fails if the same Ctrl-C has already terminated the command.
    let _gone_already = kill_process(Pid::from_child(child), Signal::TERM);
}

/// Reads processes and domains in a separate thread, because a monitor that does not answer must
/// not delay the emptying of the rings.
struct Watcher {
    watch: Arc<Mutex<Watch>>,
    /// Dropped to end the thread.
    run: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Watcher {
    fn start(watch: Watch) -> Self {
        let watch = Arc::new(Mutex::new(watch));
        let (run, running) = mpsc::channel::<()>();
        let shared = watch.clone();
        let thread = std::thread::spawn(move || {
            let watch = || shared.lock().unwrap_or_else(PoisonError::into_inner);
            while running.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                watch().scan();
            }
            watch().finish();
        });
        Self { watch, run, thread }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Watch) -> T) -> T {
        look(&mut self.watch.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stop(self) -> Watch {
        drop(self.run);
        // A panic of the thread has been printed; its results until then remain.
        let _ended = self.thread.join();
        std::mem::take(&mut *self.watch.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn named(text: &str) -> Result<(String, Vec<u32>), String> {
    let wrong = || format!("`{text}`: write NAME=PID, or NAME=PID,PID");
    let (name, pids) = text.split_once('=').ok_or_else(wrong)?;
    let pids: Result<Vec<u32>, _> = pids.split(',').map(str::parse).collect();
    match pids {
        Ok(pids) if !name.is_empty() => Ok((name.to_owned(), pids)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_stays_below_its_share() {
        assert_eq!(affordable_hz(12_000.0), DEFAULT_HZ);
        assert_eq!(affordable_hz(0.0), DEFAULT_HZ);
        for sample_ns in [25_000.0, 36_887.0, 1e6, 1e12] {
            let hz = affordable_hz(sample_ns);
            assert_eq!(hz % 2, 1);
            assert!(hz == 1 || f64::from(hz) * sample_ns <= SHARE * 1e9, "{hz}");
        }
    }

    #[test]
    fn process_domains_are_parsed() {
        assert_eq!(named("app=3,4"), Ok(("app".to_owned(), vec![3, 4])));
        for wrong in ["app", "=3", "app=", "app=x", "app=3,"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }
}
