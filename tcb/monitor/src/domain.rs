//! One domain as the main thread uses it: its parts, and its start.

use crate::event::EventPort;
use crate::hypercall::{CallCounters, CallPage, MonitorState};
use crate::liveness::Liveness;
use crate::memory::{RetainedFrames, SharedDomainMemory};
use crate::notices::NoticeChannel;
use crate::process::Process;
use crate::spec::{DomainError, StartSpec, check};
use crate::worker::{self, Worker, WorkerHandle};
use abi::DomId;
use abi::core::{CPU_WORDS, NewDomain, Stage};
use abi::layout::{fd, info};
use rustix::event::epoll;
use rustix::io::Errno;
use shmem::rate::TokenBucket;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Attach calls in a burst before [`ATTACHES_PER_SECOND`] applies. The largest driver domain needs
/// this many at its start.
const ATTACHES_BURST: u32 = fd::DEVICES_MAX + fd::CONNECTIONS_MAX;
/// Attach calls per second in the long run.
const ATTACHES_PER_SECOND: u64 = 100;

/// The resources of a domain, freed once it is torn down.
#[derive(Debug)]
pub(crate) struct DomainResources {
    pub(crate) memory: Arc<SharedDomainMemory>,
    pub(crate) port: Arc<EventPort>,
    /// The monitor's descriptor of the domain's epoll set.
    pub(crate) epoll: Arc<OwnedFd>,
    /// The number of device numbers assigned so far.
    pub(crate) devices: u64,
    pub(crate) process: Option<DomainWorker>,
}

/// A started domain's worker.
#[derive(Debug)]
pub(crate) struct DomainWorker {
    pub(crate) worker: Arc<WorkerHandle>,
    pub(crate) thread: JoinHandle<()>,
}

/// One domain.
#[derive(Debug)]
pub struct Domain {
    /// Its id.
    pub id: DomId,
    /// Its specification.
    pub spec: Arc<NewDomain>,
    /// Its stage and deadlines.
    pub liveness: Liveness,
    pub(crate) counters: Arc<CallCounters>,
    pub(crate) resources: Option<DomainResources>,
    pub(crate) attach_limit: TokenBucket,
    /// Whether attach calls are answered: the domain is within its budget for them.
    pub(crate) attach_open: bool,
    /// Process ids of domain and agent, kept for reports after their exit.
    pub(crate) pids: (i32, i32),
    /// CPU time of domain, agent and worker in nanoseconds, as last read.
    pub(crate) cpu_ns: [u64; 3],
}

impl Domain {
    /// Builds a domain's memory, event channel and epoll set, and writes its start info.
    pub(crate) fn build(
        id: DomId,
        spec: NewDomain,
        config: &[u8],
        retained: RetainedFrames,
    ) -> Result<Self, DomainError> {
        check(&spec, config)?;
        let name = spec.name.as_str();
        let error = |what: &str, e: io::Error| DomainError::new(name, format!("{what}: {e}"));
        let memory =
            SharedDomainMemory::create(id, spec.frames, spec.grant_entries, config, retained)
                .map_err(|e| error("creating its memory", e))?;
        let memory = Arc::new(memory);
        write_start_info(&memory, id, &spec, config.len())
            .ok_or_else(|| DomainError::new(name, "its start info does not fit"))?;
        let port = EventPort::create(Arc::clone(&memory));
        let port = port.map_err(|e| error("creating its event channel", e))?;
        let epoll = epoll_of(&port).map_err(|e| error("creating its epoll set", e.into()))?;
        Ok(Self {
            id,
            spec: Arc::new(spec),
            liveness: Liveness::default(),
            counters: Arc::default(),
            resources: Some(DomainResources {
                memory,
                port: Arc::new(port),
                epoll: Arc::new(epoll),
                devices: 0,
                process: None,
            }),
            attach_limit: TokenBucket::new(ATTACHES_PER_SECOND, ATTACHES_BURST),
            attach_open: true,
            pids: (0, 0),
            cpu_ns: [0; 3],
        })
    }

    /// Starts the worker, which creates the process and its agent.
    pub(crate) fn start(
        &mut self,
        start: StartSpec,
        shared: Arc<MonitorState>,
        notices: NoticeChannel,
    ) -> Result<(), DomainError> {
        let error = |what: String| DomainError::new(self.spec.name.as_str(), what);
        let parts = self
            .resources
            .as_mut()
            .filter(|parts| parts.process.is_none());
        let parts = parts.ok_or_else(|| error("it has already been started".into()))?;
        sandbox::check(&start.program).map_err(|e| error(e.to_string()))?;
        let page = CallPage::of(&parts.memory);
        let page = page.ok_or_else(|| error("it has no call page".into()))?;
        let worker = Worker {
            id: self.id,
            spec: Arc::clone(&self.spec),
            memory: Arc::clone(&parts.memory),
            port: Arc::clone(&parts.port),
            epoll: Arc::clone(&parts.epoll),
            page,
            shared,
            counters: Arc::clone(&self.counters),
            notices,
        };
        let started = worker::start(worker, start);
        let (worker, thread) = started.map_err(|e| error(format!("starting its worker: {e}")))?;
        parts.process = Some(DomainWorker { worker, thread });
        self.liveness.stage = Stage::Starting;
        Ok(())
    }

    /// Returns whether the domain was killed but its process has not exited yet.
    pub(crate) fn lingers(&self) -> bool {
        let process = self.process();
        process.is_some_and(|process| process.lingers.load(Ordering::Relaxed))
    }

    /// Returns the domain's process, if it exists.
    pub(crate) fn process(&self) -> Option<&Arc<Process>> {
        self.running()?.worker.process.get()
    }

    /// Returns the domain's worker, from its start until the domain is torn down.
    pub(crate) fn running(&self) -> Option<&DomainWorker> {
        self.resources.as_ref()?.process.as_ref()
    }

    /// Returns the CPU times of domain, agent and worker in nanoseconds. After their exit, it
    /// returns the last times that it read.
    pub(crate) fn read_cpu(&mut self) -> [u64; 3] {
        let now = self.running().map(|running| {
            let process = running.worker.process.get();
            let [domain, agent] = process.map_or([0; 2], |process| process.cpu());
            [domain, agent, running.worker.cpu_ns()]
        });
        for (last, now) in self.cpu_ns.iter_mut().zip(now.unwrap_or_default()) {
            *last = now.max(*last);
        }
        self.cpu_ns
    }

    /// Returns the domain's activity, a number that changes while the domain works: its heartbeat
    /// plus its calls. Returns `None` while the domain waits for a call.
    pub(crate) fn activity(&self) -> Option<u64> {
        if self.counters.serving.load(Ordering::Relaxed) {
            return None;
        }
        let calls = self.counters.calls.load(Ordering::Relaxed);
        let parts = self.resources.as_ref();
        let word = parts.and_then(|parts| parts.memory.info.span().u64(info::HEARTBEAT));
        let heartbeat = word.map_or(0, |word| word.load(Ordering::Relaxed));
        Some(heartbeat.wrapping_add(calls))
    }
}

/// Creates an epoll set that contains a domain's own event channel.
fn epoll_of(port: &EventPort) -> Result<OwnedFd, Errno> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(fd::EPOLL_EVENT);
    // Edge-triggered: a woken domain need not drain its eventfd to be woken again.
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, port.doorbell(), data, edges)?;
    Ok(epoll)
}

/// Writes the start info that the domain reads at its start.
fn write_start_info(
    memory: &SharedDomainMemory,
    id: DomId,
    spec: &NewDomain,
    config: usize,
) -> Option<()> {
    let span = memory.info.span();
    let all = spec.cpus == [0; CPU_WORDS];
    let cpus = if all { u64::MAX } else { spec.cpus[0] };
    for (offset, value) in [
        (info::START_MAGIC, info::MAGIC),
        (info::START_VERSION, u64::from(abi::version::VERSION)),
        (info::START_DOMAIN, u64::from(id.0)),
        (info::START_FRAMES, u64::from(spec.frames)),
        (info::START_WINDOW_SLOTS, u64::from(spec.window_slots)),
        (info::START_GRANT_ENTRIES, u64::from(spec.grant_entries)),
        (info::START_CONFIG_BYTES, config as u64),
        (info::START_DEVICES, u64::from(spec.devices)),
        (info::START_CPUS, cpus),
        (info::START_TSC_HZ, spec.tsc_hz),
        (info::START_FOREIGN_PAGES, u64::from(spec.foreign_pages)),
    ] {
        span.u64(offset)?.store(value, Ordering::Relaxed);
    }
    Some(())
}
