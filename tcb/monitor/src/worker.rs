//! The worker: one thread per domain, which starts the domain, serves its hypercalls, and tears it
//! down.
//!
//! The worker runs on the domain's CPUs, because a wake-up across cores costs more than most calls.
//! It sleeps on the call page's futex and never spins. While its domain is over its budget, it
//! sleeps and ignores the domain's writes to the futex. The workers of granters also change the
//! domain's window, each in the slots of its granter's tables. Only this worker maps and unmaps
//! pages by calls of `grant::mechanism`. It tears down the domain last, so no mapping races with an
//! unmapping or with the teardown.

use crate::event::EventPort;
use crate::foreign::ForeignMappings;
use crate::hypercall::{CallCounters, CallPage, HypercallServer, MonitorState};
use crate::memory::SharedDomainMemory;
use crate::notices::NoticeChannel;
use crate::process::{AgentSpace, Process};
use crate::space::{AddressSpace, SpaceError};
use crate::spec::StartSpec;
use abi::DomId;
use abi::core::{CPU_WORDS, NewDomain};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use shmem::futex;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// The maximum time between two checks whether the domain was killed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The main thread's handle to a worker.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    page: CallPage,
    stop: AtomicBool,
    tid: AtomicI32,
    /// The domain's process, once it exists.
    pub(crate) process: OnceLock<Arc<Process>>,
}

impl WorkerHandle {
    fn new(page: CallPage) -> Self {
        Self {
            page,
            stop: AtomicBool::new(false),
            tid: AtomicI32::new(0),
            process: OnceLock::new(),
        }
    }

    /// Makes the worker tear down its domain, which was killed. Wakes the worker, whether it waits
    /// for a call or defers the domain.
    pub(crate) fn stop(&self, thread: &Thread) {
        self.stop.store(true, Ordering::Release);
        // Change the word first, so that a worker that is about to wait on it does not sleep.
        self.page.request.fetch_add(1, Ordering::AcqRel);
        futex::wake(self.page.request, u32::MAX);
        thread.unpark();
    }

    /// Returns the CPU time of the worker's thread in nanoseconds, or 0 after its exit.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let tid = self.tid.load(Ordering::Relaxed);
        sandbox::thread_cpu_ns(tid).unwrap_or(0)
    }
}

/// Starts a domain's worker, which starts the domain.
pub(crate) fn start(
    worker: Worker,
    start: StartSpec,
) -> io::Result<(Arc<WorkerHandle>, JoinHandle<()>)> {
    let control = Arc::new(WorkerHandle::new(worker.page));
    let for_thread = Arc::clone(&control);
    let thread = thread::Builder::new()
        .name(format!("w:{}", worker.spec.name.as_str()))
        .stack_size(256 * 1024)
        .spawn(move || run(worker, start, &for_thread))?;
    Ok((control, thread))
}

fn run(worker: Worker, start: StartSpec, control: &WorkerHandle) {
    let tid = gettid().as_raw_nonzero().get();
    control.tid.store(tid, Ordering::Relaxed);
    let (id, notices) = (worker.id, worker.notices.clone());
    match worker.spawn(start) {
        Ok((process, missing)) => {
            let process = control.process.get_or_init(|| Arc::new(process));
            notices.report(id, |notice| notice.started = Some(missing));
            pin(&worker.spec.cpus);
            worker.run(process, control);
        }
        Err(why) => {
            notices.report_kill(id, format!("could not be started: {why}"));
            worker.shared.end(id, || {});
        }
    }
    notices.report(id, |notice| notice.gone = true);
}

/// A worker's state.
pub(crate) struct Worker {
    pub(crate) id: DomId,
    pub(crate) spec: Arc<NewDomain>,
    pub(crate) memory: Arc<SharedDomainMemory>,
    pub(crate) port: Arc<EventPort>,
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) page: CallPage,
    pub(crate) shared: Arc<MonitorState>,
    pub(crate) counters: Arc<CallCounters>,
    pub(crate) notices: NoticeChannel,
}

impl Worker {
    /// Serves the domain, and then tears it down.
    fn run(self, process: &Arc<Process>, control: &WorkerHandle) {
        let Self {
            id,
            shared,
            notices,
            ..
        } = self;
        let space = || AgentSpace {
            id,
            process: Arc::clone(process),
            notices: notices.clone(),
            foreign: ForeignMappings::new(self.spec.foreign_pages),
        };
        let shared_space = Arc::new(Mutex::new(space()));
        shared.grants.lock().set_space(id, Some(shared_space));
        shared.counted.insert(id, self.spec.collateral);
        let mut server =
            HypercallServer::new(id, self.page, Arc::clone(&shared), space(), self.counters);
        // The pages are mapped before the first hypercall is answered, so that a domain can use
        // them after its first call. A device ends when its last descriptor is closed, so this loop
        // keeps no descriptor.
        let mut devices = shared.devices.of(id).into_iter();
        let mapped = devices.try_for_each(|device| space().map_device(&device));
        let report = || notices.report(id, |_| {});
        let served = mapped.and_then(|()| serve(&mut server, control, report));
        if let Err(why) = served {
            // Report the reason before the main thread can notice the exit.
            notices.report_kill(id, format!("killed: {why}"));
            process.send_kill();
        }
        shared.end(id, || process.kill_and_wait());
    }
}

/// Serves calls until the domain is killed. Returns an error if the domain must be killed.
fn serve<S: AddressSpace>(
    server: &mut HypercallServer<S>,
    control: &WorkerHandle,
    report: impl Fn(),
) -> Result<(), SpaceError> {
    let request = server.page().request;
    // The page starts as zeroes; the domain may have made its first call already.
    let mut last = 0;
    loop {
        if control.stop.load(Ordering::Acquire) {
            return Ok(());
        }
        let debt_ns = server.debt_ns();
        if debt_ns > 0 {
            thread::park_timeout(CHECK_INTERVAL.min(Duration::from_nanos(debt_ns)));
            continue;
        }
        // Acquire: the operations that the domain wrote before the number are visible.
        let now = request.load(Ordering::Acquire);
        if now != last {
            last = now;
            server.serve(now)?;
            if server.take_notice() {
                report();
            }
        } else if !futex::wait(request, last, Some(CHECK_INTERVAL)) {
            return Err(SpaceError::Lost("the call page is unmapped".into()));
        }
    }
}

/// Pins this thread to these CPUs.
fn pin(cpus: &[u64; CPU_WORDS]) {
    let word = |cpu: &usize| cpus.get(cpu / 64).copied().unwrap_or(0);
    let all = (0..CpuSet::MAX_CPU).filter(|cpu| word(cpu) >> (cpu % 64) & 1 != 0);
    let mut set = CpuSet::new();
    all.for_each(|cpu| set.set(cpu));
    // A rejection only makes the worker slower. The kernel rejects the empty set, which means all
    // CPUs here.
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeSpace;
    use abi::hypercall::{COUNT, DONE, HypercallKind, KIND, REQUEST};
    use abi::layout::info;

    /// Stops the worker while it serves calls, waits for one, or defers a domain that is over its
    /// budget.
    #[test]
    fn a_worker_stops_in_every_state() {
        for calls in [0, 1, 2, 100, 20_000] {
            let memory = Arc::new(SharedDomainMemory::create(DomId(0), 1, 0, &[], None).unwrap());
            let shared = Arc::new(MonitorState::new(None));
            let held = Arc::clone(&memory);
            shared.grants.lock().insert(DomId(0), held, 0);
            let page = CallPage::of(&memory).unwrap();
            let space = FakeSpace::default();
            let mut server = HypercallServer::new(DomId(0), page, shared, space, Arc::default());
            let control = WorkerHandle::new(page);
            let span = memory.info.span();
            let word = |offset| span.u32(info::CALL + offset).unwrap();
            thread::scope(|scope| {
                let worker = scope.spawn(|| {
                    serve(&mut server, &control, || {}).unwrap();
                });
                for call in 0..calls {
                    word(KIND).store(HypercallKind::Ready as u32, Ordering::Relaxed);
                    word(COUNT).store(0, Ordering::Relaxed);
                    word(REQUEST).store(call + 1, Ordering::Release);
                    futex::wake(word(REQUEST), 1);
                    while word(DONE).load(Ordering::Acquire) != call + 1 {
                        thread::yield_now();
                    }
                }
                control.stop(worker.thread());
                worker.join().unwrap();
            });
        }
    }
}
