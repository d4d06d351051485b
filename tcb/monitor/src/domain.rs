//! One domain as the main thread holds it: what it is made of, and its start.

use crate::event::Port;
use crate::hypercall::{CallCounters, CallPage, Shared};
use crate::life::Life;
use crate::mailbox::Mailbox;
use crate::memory::Memory;
use crate::post::Post;
use crate::process::Process;
use crate::starter::Plan;
use crate::worker::{self, Control, Show};
use abi::DomId;
use abi::layout::{self, fd, info};
use abi::status::Program;
use rustix::event::epoll;
use shmem::rate::TokenBucket;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Attach calls in a row, before [`ATTACHES_PER_SECOND`] counts: what the largest driver domain
/// needs at its start.
const ATTACHES_BURST: u32 = fd::DEVICES_MAX + fd::CONNECTIONS_MAX;
/// Attach calls a second, in the long run.
const ATTACHES_PER_SECOND: u64 = 100;

/// Why a domain could not be built or started.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// The specification asks for something impossible.
    #[error("domain {name}: {what}")]
    Spec {
        /// The domain.
        name: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The system does not give what it takes.
    #[error("domain {name}: {what}: {error}")]
    System {
        /// The domain.
        name: String,
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// Its program cannot run as a domain.
    #[error("domain {name}: {error}")]
    Program {
        /// The domain.
        name: String,
        /// Why not.
        error: sandbox::SpawnError,
    },
}

/// What a domain is made of.
#[derive(Clone, Debug)]
pub struct DomainSpec {
    /// Its name, unique in the machine.
    pub name: String,
    /// Its program.
    pub program: Program,
    /// Page frames of its own.
    pub frames: u32,
    /// Entries of its classic grant table, and of its largest other one.
    pub grant_entries: u32,
    /// Slots of its grant window.
    pub window_slots: u32,
    /// Frames that others' forced revocations may cost it at a time: see
    /// [`abi::counted::Revocation::Force`].
    pub collateral: u32,
    /// Its share of what all granters may cost the users of their grants, beside others' shares.
    pub weight: u32,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Devices that it is given before its start.
    pub devices: u32,
    /// Its configuration.
    pub config: Vec<u8>,
}

/// How to start a domain's process.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The program: a static ELF.
    pub program: &'a Path,
    /// Becomes its standard output and standard error.
    pub console: BorrowedFd<'a>,
    /// Its user id, if it gets one of its own.
    pub uid: Option<u32>,
}

/// What a domain needs while it lives; given back when it has gone.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) memory: Arc<Memory>,
    pub(crate) port: Arc<Port>,
    /// The domain's epoll set: a descriptor of ours of the same set.
    pub(crate) epoll: OwnedFd,
    /// By number; none: there is no such device any more.
    pub(crate) devices: Vec<Option<OwnedFd>>,
    /// What is to be shown of devices before the first hypercall.
    pub(crate) shows: Vec<Show>,
    pub(crate) mailbox: Mailbox,
    pub(crate) attaches: TokenBucket,
    /// Numbers in the domain's table that it has got a descriptor at.
    pub(crate) attached: BTreeSet<i32>,
    pub(crate) process: Option<Running>,
}

/// A started domain's worker.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) worker: Arc<Control>,
    pub(crate) thread: JoinHandle<()>,
}

impl Running {
    /// The process, if it is there already.
    pub(crate) fn process(&self) -> Option<&Arc<Process>> {
        self.worker.process()
    }
}

/// One domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) id: DomId,
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) window_slots: u32,
    pub(crate) collateral: u32,
    pub(crate) cpus: Vec<usize>,
    pub(crate) life: Life,
    pub(crate) counters: Arc<CallCounters>,
    pub(crate) parts: Option<Parts>,
    /// Whether its attach calls are heard: it is within its budget.
    pub(crate) attach_open: bool,
    /// Process ids of domain and agent, for reports also afterwards.
    pub(crate) pids: (i32, i32),
    /// CPU time of domain, agent and worker, nanoseconds, as last read.
    pub(crate) cpu_ns: [u64; 3],
}

impl Domain {
    /// Builds a domain's memory, event channel and epoll set, and writes its start info.
    pub(crate) fn build(id: DomId, spec: &DomainSpec) -> Result<Self, DomainError> {
        check(spec)?;
        let system = |what| system(&spec.name, what);
        let memory = Memory::with_config(id, spec.frames, spec.grant_entries, &spec.config)
            .map_err(system("making its memory"))?;
        let memory = Arc::new(memory);
        write_start_info(&memory, id, spec).ok_or_else(|| DomainError::Spec {
            name: spec.name.clone(),
            what: "its start info does not fit".into(),
        })?;
        let port = Port::create(Arc::clone(&memory)).map_err(system("making its event channel"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| system("making its epoll set")(e.into()))?;
        let data = epoll::EventData::new_u64(fd::EPOLL_EVENT);
        // By edges: a domain that is woken need not empty its eventfd to be woken again.
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, port.doorbell(), data, edges)
            .map_err(|e| system("filling its epoll set")(e.into()))?;
        Ok(Self {
            id,
            name: spec.name.clone(),
            program: spec.program,
            window_slots: spec.window_slots,
            collateral: spec.collateral,
            cpus: spec.cpus.clone(),
            life: Life::Built,
            counters: Arc::default(),
            parts: Some(Parts {
                memory,
                port: Arc::new(port),
                epoll,
                devices: Vec::new(),
                shows: Vec::new(),
                mailbox: Mailbox::default(),
                attaches: TokenBucket::new(ATTACHES_PER_SECOND, ATTACHES_BURST),
                attached: BTreeSet::new(),
                process: None,
            }),
            attach_open: true,
            pids: (0, 0),
            cpu_ns: [0; 3],
        })
    }

    /// Starts the worker, which starts process and agent.
    pub(crate) fn start(
        &mut self,
        start: &Start<'_>,
        shared: Arc<Shared>,
        post: Post,
    ) -> Result<(), DomainError> {
        let system = |what| system(&self.name, what);
        let spec_error = |what: &str| DomainError::Spec {
            name: self.name.clone(),
            what: what.into(),
        };
        let parts = self.parts.as_ref().filter(|parts| parts.process.is_none());
        let parts = parts.ok_or_else(|| spec_error("it was started already"))?;
        sandbox::check(start.program).map_err(|error| DomainError::Program {
            name: self.name.clone(),
            error,
        })?;
        let page = CallPage::of(&parts.memory).ok_or_else(|| spec_error("it has no call page"))?;
        let epoll = parts.epoll.try_clone();
        let console = start.console.try_clone_to_owned();
        let plan = Plan {
            program: start.program.to_owned(),
            name: self.name.clone(),
            profile: self.program.into(),
            memory: Arc::clone(&parts.memory),
            window_slots: self.window_slots,
            port: Arc::clone(&parts.port),
            epoll: epoll.map_err(system("keeping its epoll set"))?,
            console: console.map_err(system("keeping its console"))?,
            cpus: self.cpus.clone(),
            uid: start.uid,
        };
        let shows = match self.parts.as_mut() {
            Some(parts) => std::mem::take(&mut parts.shows),
            None => Vec::new(),
        };
        let (worker, thread) = worker::start(worker::Job {
            id: self.id,
            plan,
            page,
            shared,
            counters: Arc::clone(&self.counters),
            collateral: self.collateral,
            shows,
            post,
        })
        .map_err(system("starting its worker"))?;
        if let Some(parts) = self.parts.as_mut() {
            parts.process = Some(Running { worker, thread });
        }
        self.life = Life::Starting { since_ns: None };
        Ok(())
    }

    /// Its process is there.
    pub(crate) fn started(&mut self, now_ns: u64) {
        if let Some(process) = self.running().and_then(Running::process) {
            self.pids = (process.pid, process.agent_pid);
        }
        self.life.started(now_ns);
    }

    /// Whether it was killed, and the kernel does not let go of its process.
    pub(crate) fn lingers(&self) -> bool {
        let process = self.running().and_then(Running::process);
        process.is_some_and(|process| process.lingers())
    }

    /// The domain's worker, if it was started and has not gone.
    pub(crate) fn running(&self) -> Option<&Running> {
        self.parts.as_ref()?.process.as_ref()
    }

    /// Reads the CPU clocks once more; the last reading stays when they are gone.
    pub(crate) fn read_cpu(&mut self) -> [u64; 3] {
        let now = self.running().map(|running| {
            let process = running.process();
            let (domain, agent) = process.map_or((0, 0), |process| process.cpu());
            [domain, agent, running.worker.cpu_ns()]
        });
        for (last, now) in self.cpu_ns.iter_mut().zip(now.unwrap_or_default()) {
            *last = now.max(*last);
        }
        self.cpu_ns
    }

    /// The domain's signs of life: its heartbeat and its calls; none while it waits for one.
    pub(crate) fn signs(&self) -> Option<u64> {
        if self.counters.serving.load(Ordering::Relaxed) {
            return None;
        }
        let calls = self.counters.calls.load(Ordering::Relaxed);
        let word = |parts: &Parts| {
            Some(
                parts
                    .memory
                    .info()
                    .span()
                    .u64(info::HEARTBEAT)?
                    .load(Ordering::Relaxed),
            )
        };
        let heartbeat = self.parts.as_ref().and_then(word).unwrap_or(0);
        Some(heartbeat.wrapping_add(calls))
    }
}

/// Makes an error of what the kernel said.
fn system(name: &str, what: &'static str) -> impl FnOnce(io::Error) -> DomainError {
    let name = name.to_owned();
    move |error| DomainError::System { name, what, error }
}

fn check(spec: &DomainSpec) -> Result<(), DomainError> {
    let limit = |what: &str, value: usize, max: usize| {
        (value <= max)
            .then_some(())
            .ok_or_else(|| DomainError::Spec {
                name: spec.name.clone(),
                what: format!("{what}: at most {max}, not {value}"),
            })
    };
    limit(
        "page frames",
        spec.frames as usize,
        layout::FRAMES_MAX as usize,
    )?;
    limit(
        "window slots",
        spec.window_slots as usize,
        layout::WINDOW_SLOTS_MAX as usize,
    )?;
    limit(
        "grant entries",
        spec.grant_entries as usize,
        1 << abi::GrantRef::INDEX_BITS,
    )?;
    limit(
        "bytes of configuration",
        spec.config.len(),
        info::CONFIG_MAX,
    )?;
    limit("devices", spec.devices as usize, fd::DEVICES_MAX as usize)
}

/// Writes what the domain finds at its start.
fn write_start_info(memory: &Memory, id: DomId, spec: &DomainSpec) -> Option<()> {
    let span = memory.info().span();
    let every = (0..64usize).filter(|cpu| spec.cpus.is_empty() || spec.cpus.contains(cpu));
    let cpus = every.fold(0u64, |set, cpu| set | 1 << cpu);
    for (offset, value) in [
        (info::START_MAGIC, info::MAGIC),
        (info::START_VERSION, u64::from(abi::version::VERSION)),
        (info::START_DOMAIN, u64::from(id.0)),
        (info::START_FRAMES, u64::from(spec.frames)),
        (info::START_WINDOW_SLOTS, u64::from(spec.window_slots)),
        (info::START_GRANT_ENTRIES, u64::from(spec.grant_entries)),
        (info::START_CONFIG_BYTES, spec.config.len() as u64),
        (info::START_DEVICES, u64::from(spec.devices)),
        (info::START_CPUS, cpus),
        (info::START_TSC_HZ, shmem::time::tsc_hz()),
    ] {
        span.u64(offset)?.store(value, Ordering::Relaxed);
    }
    Some(())
}
