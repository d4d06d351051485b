//! The hypervisor as its main thread uses it: domains, connections and deadlines.
//!
//! No function here blocks: the domains' workers do all work that may take time. Time is an
//! argument, in nanoseconds of the monotonic clock.

use crate::attach;
use crate::domain::{Domain, DomainResources};
use crate::grant::mechanism::MechanismFactory;
use crate::hypercall::MonitorState;
use crate::id_pool::IdPool;
use crate::liveness::RequiredAction;
use crate::memory::{RetainedFrames, SharedDomainMemory};
use crate::notices::NoticeChannel;
use crate::spec::{DomainError, StartSpec};
use crate::watch::DomainEpoll;
use abi::core::{NewDomain, Stage};
use abi::layout::info;
use abi::{ConnId, DomId, XenbusState};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

type Task = Box<dyn FnOnce() + Send>;

/// Starts a thread that runs tasks one after the other.
fn start_task_thread() -> io::Result<Sender<Task>> {
    let (sender, tasks) = channel::<Task>();
    thread::Builder::new().spawn(move || tasks.into_iter().for_each(|task| task()))?;
    Ok(sender)
}

/// All domains, and the state that they share.
#[derive(Debug)]
pub struct Hypervisor {
    pub(crate) shared: Arc<MonitorState>,
    /// In the order of creation; a domain that replaces another takes its position.
    pub(crate) domains: Vec<Domain>,
    /// Ids of domains; see [`crate::id_reuse`].
    pub(crate) ids: IdPool,
    pub(crate) watch: DomainEpoll,
    pub(crate) notices: NoticeChannel,
    /// Thread that tears down abandoned domains, which may wait for netd. This thread and that of
    /// `closes` exist from the start, so that a lack of threads never blocks the main thread.
    teardowns: Sender<Task>,
    /// Thread that closes descriptors, and sends a message to `closed` after each batch.
    closes: Sender<Task>,
    closed: Receiver<()>,
    /// Features that this system lacks.
    pub missing: BTreeSet<&'static str>,
}

impl Hypervisor {
    /// Creates a hypervisor without domains, with the given mechanisms in addition to counted
    /// grants, if any.
    ///
    /// # Errors
    /// Returns an error if the kernel has no descriptors or no threads left.
    pub fn new(mechanism: Option<MechanismFactory>) -> io::Result<Self> {
        let (shared, notices) = (
            Arc::new(MonitorState::new(mechanism)),
            NoticeChannel::create()?,
        );
        Ok(Self {
            shared,
            domains: Vec::new(),
            ids: IdPool::new(1 << 16, usize::MAX),
            watch: DomainEpoll::create()?,
            notices,
            teardowns: start_task_thread()?,
            closes: start_task_thread()?,
            closed: channel().1,
            missing: BTreeSet::new(),
        })
    }

    /// Builds a domain: its memory, event channel and account. A domain that replaces another one,
    /// which was torn down, has a new id and new memory, except for the frames in `retained`. It
    /// takes over the old domain's connections, which restart under the same numbers; its devices
    /// must be given again.
    ///
    /// # Errors
    /// Returns an error if the replaced domain is not completely torn down, or for a reason in
    /// [`DomainError`]. After an error nothing has changed.
    pub fn create_domain(
        &mut self,
        spec: NewDomain,
        config: &[u8],
        retained: RetainedFrames,
    ) -> Result<DomId, DomainError> {
        let Some(dead) = spec.replaces else {
            let domain = self.build(spec, config, None)?;
            let id = domain.id;
            self.domains.push(domain);
            return Ok(id);
        };
        // Peers may keep using a dead domain's memory. The domain is replaced only after they have
        // stopped, so that memory cannot accumulate.
        let position = self
            .position_of_torn_down(dead)
            .filter(|_| !self.is_used(dead));
        let position = position.ok_or_else(|| {
            let what = "memory of its predecessor is still in use";
            DomainError::new(spec.name.as_str(), what)
        })?;
        let domain = self.build(spec, config, retained)?;
        let id = domain.id;
        if let Some(parts) = &domain.resources {
            let new = (id, Arc::clone(&parts.port));
            self.shared.connections.replace(dead, new);
        }
        if let Some(of_old) = self.domains.get_mut(position) {
            *of_old = domain;
        }
        self.retire(dead);
        Ok(id)
    }

    fn build(
        &mut self,
        spec: NewDomain,
        config: &[u8],
        retained: RetainedFrames,
    ) -> Result<Domain, DomainError> {
        let id = self.next_id(spec.name.as_str())?;
        let built = Domain::build(id, spec, config, retained);
        let domain = built.inspect_err(|_| self.ids.release(id.0.into()))?;
        if let Some(DomainResources { memory, .. }) = &domain.resources {
            let (mut accounts, memory) = (self.shared.grants.lock(), Arc::clone(memory));
            accounts.insert(id, memory, domain.spec.window_slots);
        }
        self.shared.churn.insert(id, domain.spec.weight);
        Ok(domain)
    }

    /// Returns every domain, in the order of creation.
    #[must_use]
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// Returns a domain.
    #[must_use]
    pub fn domain(&self, id: DomId) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.id == id)
    }

    pub(crate) fn domain_mut(&mut self, id: DomId) -> Option<&mut Domain> {
        self.domains.iter_mut().find(|domain| domain.id == id)
    }

    /// Returns a domain's memory.
    #[must_use]
    pub fn memory(&self, id: DomId) -> Option<&SharedDomainMemory> {
        Some(&self.domain(id)?.resources.as_ref()?.memory)
    }

    /// Makes a domain check its mailbox, even if it is about to sleep.
    pub fn notify_mailbox(&self, id: DomId) {
        if let Some(parts) = self.domain(id).and_then(|domain| domain.resources.as_ref()) {
            parts.port.raise(info::PENDING_MAILBOX);
            parts.port.ring();
        }
    }

    /// Connects two domains. Returns the backend's number for the connection, and the frontend's.
    ///
    /// # Errors
    /// Returns an error if a domain does not exist or is dead, both ends are the same domain, or a
    /// domain already has the maximum number of connections.
    pub fn connect(
        &mut self,
        backend: DomId,
        frontend: DomId,
        handle: u16,
    ) -> Result<(ConnId, ConnId), DomainError> {
        self.release_unused();
        let port = |id: DomId| {
            let domain = self.domain(id)?;
            Some((id, Arc::clone(&domain.resources.as_ref()?.port)))
        };
        let error = |what: String| DomainError::new(&self.name(frontend), what);
        if backend == frontend {
            return Err(error("a connection needs two different domains".into()));
        }
        let (Some(b), Some(f)) = (port(backend), port(frontend)) else {
            return Err(error(format!("connection {handle}: an end does not exist")));
        };
        let added = self.shared.connections.add(b, f, handle);
        added.map_err(|errno| error(format!("connection {handle}: {errno}")))
    }

    /// Starts the creation of a domain's process. If the creation fails later, the domain counts as
    /// killed.
    ///
    /// # Errors
    /// See [`DomainError`]. On any error no process exists, and the caller can release the domain.
    pub fn start(&mut self, id: DomId, start: StartSpec) -> Result<(), DomainError> {
        let (shared, notices) = (Arc::clone(&self.shared), self.notices.clone());
        let domain = self.domain_mut(id);
        let domain =
            domain.ok_or_else(|| DomainError::new(&id.to_string(), "it does not exist"))?;
        domain.start(start, shared, notices)
    }

    /// Abandons a domain that was built but has no process. The domain is ending until its devices
    /// have ended, which may take until netd has restarted.
    pub fn abandon(&mut self, id: DomId, why: &str) {
        let domain = self.domain_mut(id);
        let Some(domain) = domain.filter(|domain| domain.liveness.stage == Stage::Built) else {
            return;
        };
        domain.liveness.end(why);
        if self.shared.devices.refers_to(id) {
            let (shared, notices) = (Arc::clone(&self.shared), self.notices.clone());
            // The thread lives as long as the hypervisor.
            let _ = self.teardowns.send(Box::new(move || {
                shared.end(id, || {});
                notices.report(id, |notice| notice.gone = true);
            }));
        } else {
            self.shared.end(id, || {});
            self.torn_down(id);
        }
    }

    /// Closes descriptors on another thread, since closing the last descriptor of an object may
    /// take a long time. Waits for up to 5 ms, unless an earlier batch is still being closed.
    pub fn close(&mut self, fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            return;
        }
        let is_late = self.closed.try_recv() == Err(TryRecvError::Empty);
        let (done, closed) = channel();
        let _ = self.closes.send(Box::new(move || drop((fds, done))));
        self.closed = closed;
        if !is_late {
            let _ = self.closed.recv_timeout(Duration::from_millis(5));
        }
    }

    /// Returns a domain's name.
    #[must_use]
    pub fn name(&self, id: DomId) -> String {
        self.domain(id)
            .map_or_else(|| id.to_string(), |d| d.spec.name.as_str().to_owned())
    }

    /// Returns whether every connection of a domain is up, except those whose other end is dead.
    #[must_use]
    pub fn is_connected(&self, id: DomId) -> bool {
        self.shared.connections.are_up(id)
    }

    /// Returns whether every domain that was started is torn down.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut all = self.domains.iter();
        all.all(|d| matches!(d.liveness.stage, Stage::TornDown | Stage::Built))
    }

    /// Returns the descriptors to poll; when one is readable, call [`Hypervisor::handle_events`].
    #[must_use]
    pub fn sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.notices.fd(), self.watch.0.as_fd()]
    }

    /// Handles notices of workers, exits of domains, and attach calls.
    pub fn handle_events(&mut self, now_ns: u64) {
        let wakeups = self.watch.take();
        // Handle notices first: a worker reports why it kills a domain before the exit is visible.
        self.handle_notices(now_ns);
        let shared = Arc::clone(&self.shared);
        for (id, is_attach) in wakeups {
            match self.domain_mut(id) {
                Some(domain) if is_attach => attach::serve(domain, &shared, now_ns),
                Some(domain) => {
                    let how = domain
                        .process()
                        .and_then(|process| process.exit_description());
                    self.kill(id, &how.unwrap_or_else(|| "ended".into()));
                }
                None => {}
            }
        }
    }

    fn handle_notices(&mut self, now_ns: u64) {
        for (id, notice) in self.notices.take() {
            if let Some(missing) = notice.started {
                self.missing.extend(missing);
                self.started(id, now_ns);
            }
            if let Some(domain) = self.domain_mut(id)
                && domain.counters.ready.load(Ordering::Acquire)
            {
                domain.liveness.ready(now_ns);
            }
            if let Some(why) = notice.killed {
                self.kill(id, &why);
            }
            if notice.gone {
                self.torn_down(id);
            }
        }
    }

    /// Handles a notice that a domain's process exists.
    fn started(&mut self, id: DomId, now_ns: u64) {
        let Some(domain) = self.domain_mut(id) else {
            return;
        };
        domain.liveness.started(now_ns);
        let Some(process) = domain.process().cloned() else {
            return;
        };
        domain.pids = (process.pid, process.agent_pid);
        if domain.liveness.is_alive() && self.watch.add(id, &process).is_err() {
            self.kill(id, "killed: it cannot be watched");
        }
    }

    /// Handles deadlines. Returns the latest time of the next call.
    pub fn tick(&mut self, now_ns: u64) -> Option<u64> {
        let is_over = |domain: &Domain| domain.liveness.stage.is_over();
        let over = |id: DomId| self.domain(id).is_none_or(is_over);
        let (overdue, mut next) = self.shared.counted.pins.overdue(over, now_ns);
        let why = "killed: its device kept memory of a dead domain pinned";
        let mut overdue: Vec<_> = overdue.into_iter().map(|user| (user, why)).collect();
        for domain in &mut self.domains {
            let action = domain.liveness.check(domain.activity(), now_ns);
            match action {
                RequiredAction::Nothing => {}
                RequiredAction::Ping => {
                    if let Some(parts) = &domain.resources {
                        parts.port.raise(info::PENDING_PING);
                    }
                }
                RequiredAction::Kill(why) => overdue.push((domain.id, why)),
            }
            let attach_ns = attach::next_ns(domain, now_ns);
            if domain.attach_open != attach_ns.is_none() {
                domain.attach_open = attach_ns.is_none();
                if let Some(process) = domain.process() {
                    self.watch.modify(domain.id, process, domain.attach_open);
                }
            }
            for deadline in [domain.liveness.check_ns, attach_ns] {
                next = [next, deadline].into_iter().flatten().min();
            }
        }
        for (id, why) in overdue {
            self.kill(id, why);
        }
        next
    }

    /// Kills every domain.
    pub fn kill_all(&mut self, why: &str) {
        let all: Vec<_> = self.domains.iter().map(|domain| domain.id).collect();
        for id in all {
            self.kill(id, why);
        }
    }

    /// Kills a domain, or handles its exit: new uses of its grants are rejected, its connections
    /// are closed, and its worker tears it down.
    pub fn kill(&mut self, id: DomId, why: &str) {
        let domain = self.domain_mut(id);
        let Some(domain) = domain.filter(|domain| domain.liveness.is_alive()) else {
            return;
        };
        domain.liveness.end(why);
        domain.read_cpu();
        if let Some(running) = domain.running() {
            running.worker.stop(running.thread.thread());
            if let Some(process) = running.worker.process.get().cloned() {
                process.send_kill();
                self.watch.remove(&process);
            }
        }
        self.shared.grants.lock().fence(id);
        self.shared.connections.end_all(id, XenbusState::Closed);
    }

    /// Handles a notice that a worker has torn down its domain.
    fn torn_down(&mut self, id: DomId) {
        let Some(domain) = self.domain_mut(id) else {
            return;
        };
        domain.read_cpu();
        if let Some(running) = domain.resources.take().and_then(|parts| parts.process) {
            // The worker exits immediately after this notice.
            let _ = running.thread.join();
        }
        domain.liveness.stage = Stage::TornDown;
        self.shared.connections.end_all(id, XenbusState::Unknown);
        self.shared.devices.forget(id);
        // A domain that was given up before its start has no worker that removes its pins.
        self.shared.counted.pins.forget(id);
    }
}
