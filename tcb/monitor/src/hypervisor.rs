//! The hypervisor as its main thread uses it: domains, connections, deadlines.
//!
//! Everything here returns at once: what may take time is done by the domains' workers. Time is
//! passed in, in nanoseconds of the monotonic clock.

use crate::attach;
use crate::domain::{Domain, Parts};
use crate::grant::mechanism::Make;
use crate::hypercall::Shared;
use crate::life::Demand;
use crate::memory::{Left, Memory};
use crate::numbers::Numbers;
use crate::post::Post;
use crate::spec::{DomainError, Start};
use crate::watch::Watch;
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

type Long = Box<dyn FnOnce() + Send>;

/// A thread that does one thing after another.
fn aside() -> io::Result<Sender<Long>> {
    let (aside, all) = channel::<Long>();
    thread::Builder::new().spawn(move || all.into_iter().for_each(|long| long()))?;
    Ok(aside)
}

/// All domains and what is between them.
#[derive(Debug)]
pub struct Hypervisor {
    pub(crate) shared: Arc<Shared>,
    /// In the order of creation; what replaces a domain takes its place.
    pub(crate) domains: Vec<Domain>,
    /// Ids of domains; see [`crate::naming`].
    pub(crate) ids: Numbers,
    pub(crate) watch: Watch,
    pub(crate) post: Post,
    /// What may take long, by threads that are there from the start: no lack of them makes the main
    /// one wait. Domains that are given up, which may wait for netd …
    ends: Sender<Long>,
    /// … and descriptors that are closed; and whether the last ones were.
    closes: Sender<Long>,
    closed: Receiver<()>,
    /// What this system could not provide, in words.
    pub missing: BTreeSet<&'static str>,
}

impl Hypervisor {
    /// A hypervisor without domains, with these mechanisms beside counted grants, if any.
    ///
    /// # Errors
    /// The kernel has no descriptors or no threads left.
    pub fn new(mechanism: Option<Make>) -> io::Result<Self> {
        let (shared, post) = (Arc::new(Shared::new(mechanism)), Post::create()?);
        Ok(Self {
            shared,
            domains: Vec::new(),
            ids: Numbers::new(1 << 16, usize::MAX),
            watch: Watch::create()?,
            post,
            ends: aside()?,
            closes: aside()?,
            closed: channel().1,
            missing: BTreeSet::new(),
        })
    }

    /// Builds a domain: its memory, event channel and account. One that replaces another, of which
    /// nothing is left, has another id and other memory, but for frames that are left to it, and
    /// the connections of the one before, which begin anew under the same numbers. Devices are to
    /// be given to it again.
    ///
    /// # Errors
    /// Something of the one before is left, or see [`DomainError`]; nothing has changed then.
    pub fn create_domain(
        &mut self,
        spec: NewDomain,
        config: &[u8],
        left: Left,
    ) -> Result<DomId, DomainError> {
        let Some(dead) = spec.replaces else {
            let domain = self.build(spec, config, None)?;
            let id = domain.id;
            self.domains.push(domain);
            return Ok(id);
        };
        // Peers that keep uses of its grants cannot make it pile up memory.
        let place = self.place_of_gone(dead).filter(|_| !self.is_used(dead));
        let place = place.ok_or_else(|| {
            let what = "something of the one before is still there";
            DomainError::new(spec.name.as_str(), what)
        })?;
        let domain = self.build(spec, config, left)?;
        let id = domain.id;
        if let Some(parts) = &domain.parts {
            let new = (id, Arc::clone(&parts.port));
            self.shared.connections.replace(dead, new);
        }
        if let Some(of_old) = self.domains.get_mut(place) {
            *of_old = domain;
        }
        self.retire(dead);
        Ok(id)
    }

    fn build(&mut self, spec: NewDomain, config: &[u8], left: Left) -> Result<Domain, DomainError> {
        let id = self.next_id(spec.name.as_str())?;
        let built = Domain::build(id, spec, config, left);
        let domain = built.inspect_err(|_| self.ids.give_back(id.0.into()))?;
        if let Some(Parts { memory, .. }) = &domain.parts {
            let (mut accounts, memory) = (self.shared.grants.lock(), Arc::clone(memory));
            accounts.insert(id, memory, domain.spec.window_slots);
        }
        self.shared.churn.insert(id, domain.spec.weight);
        Ok(domain)
    }

    /// Every domain, in the order of creation.
    #[must_use]
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// A domain.
    #[must_use]
    pub fn domain(&self, id: DomId) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.id == id)
    }

    pub(crate) fn domain_mut(&mut self, id: DomId) -> Option<&mut Domain> {
        self.domains.iter_mut().find(|domain| domain.id == id)
    }

    /// A domain's memory: what a device of its own may be set up over, and what others know it by.
    #[must_use]
    pub fn memory(&self, id: DomId) -> Option<&Memory> {
        Some(&self.domain(id)?.parts.as_ref()?.memory)
    }

    /// Has a domain look into its mailbox, also one that was on its way to sleep.
    pub fn knock(&self, id: DomId) {
        if let Some(parts) = self.domain(id).and_then(|domain| domain.parts.as_ref()) {
            parts.port.raise(info::PENDING_MAILBOX);
            parts.port.ring();
        }
    }

    /// Connects two domains; the backend's number of the connection, and the frontend's.
    ///
    /// # Errors
    /// One of them is not there or gone, they are the same, or one has as many connections as a
    /// domain may have.
    pub fn connect(
        &mut self,
        backend: DomId,
        frontend: DomId,
        handle: u16,
    ) -> Result<(ConnId, ConnId), DomainError> {
        self.release_unused();
        let port = |id: DomId| {
            let domain = self.domain(id)?;
            Some((id, Arc::clone(&domain.parts.as_ref()?.port)))
        };
        let error = |what: String| DomainError::new(&self.name(frontend), what);
        if backend == frontend {
            return Err(error("a connection has two different ends".into()));
        }
        let (Some(b), Some(f)) = (port(backend), port(frontend)) else {
            return Err(error(format!("connection {handle}: one end is not there")));
        };
        let added = self.shared.connections.add(b, f, handle);
        added.map_err(|errno| error(format!("connection {handle}: {errno}")))
    }

    /// Begins to start a domain's process. Whatever fails later ends the domain.
    ///
    /// # Errors
    /// See [`DomainError`]; no process is left then, and the domain can be given up.
    pub fn start(&mut self, id: DomId, start: Start) -> Result<(), DomainError> {
        let (shared, post) = (Arc::clone(&self.shared), self.post.clone());
        let domain = self.domain_mut(id);
        let domain =
            domain.ok_or_else(|| DomainError::new(&id.to_string(), "there is no such one"))?;
        domain.start(start, shared, post)
    }

    /// Clears away a domain that was built and has no process. Until its devices have ended, which
    /// may take as long as netd is away, it is ending.
    pub fn give_up(&mut self, id: DomId, why: &str) {
        let domain = self.domain_mut(id);
        let Some(domain) = domain.filter(|domain| domain.life.stage == Stage::Built) else {
            return;
        };
        domain.life.end(why);
        if self.shared.devices.names(id) {
            let (shared, post) = (Arc::clone(&self.shared), self.post.clone());
            // The thread is there as long as we are.
            let _ = self.ends.send(Box::new(move || {
                shared.end(id, || {});
                post.tell(id, |notice| notice.gone = true);
            }));
        } else {
            self.shared.end(id, || {});
            self.gone(id);
        }
    }

    /// Closes what may be the last descriptors of something, which takes as long as it does: on
    /// another thread. It is waited for, 5 ms at most, unless what was closed before still takes.
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

    /// A domain's name.
    #[must_use]
    pub fn name(&self, id: DomId) -> String {
        self.domain(id)
            .map_or_else(|| id.to_string(), |d| d.spec.name.as_str().to_owned())
    }

    /// Whether every connection of a domain's is up, but for those whose other end is dead.
    #[must_use]
    pub fn is_connected(&self, id: DomId) -> bool {
        self.shared.connections.are_up(id)
    }

    /// Whether nothing is left of any domain that was started.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut all = self.domains.iter();
        all.all(|d| matches!(d.life.stage, Stage::Gone | Stage::Built))
    }

    /// What is worth waiting for; when one of these is readable, [`Hypervisor::handle`] sees to it.
    #[must_use]
    pub fn sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.post.fd(), self.watch.0.as_fd()]
    }

    /// Sees to what workers have to tell, to domains that have ended, and to what domains ask for.
    pub fn handle(&mut self, now_ns: u64) {
        let seen = self.watch.take();
        // After that: why a domain was struck is told before its end can be seen.
        self.hear(now_ns);
        let shared = Arc::clone(&self.shared);
        for (id, asks) in seen {
            match self.domain_mut(id) {
                Some(domain) if asks => attach::serve(domain, &shared, now_ns),
                Some(domain) => {
                    let how = domain.process().and_then(|process| process.how_it_ended());
                    self.kill(id, &how.unwrap_or_else(|| "ended".into()));
                }
                None => {}
            }
        }
    }

    fn hear(&mut self, now_ns: u64) {
        for (id, notice) in self.post.hear() {
            if let Some(missing) = notice.started {
                self.missing.extend(missing);
                self.started(id, now_ns);
            }
            if let Some(domain) = self.domain_mut(id)
                && domain.counters.ready.load(Ordering::Acquire)
            {
                domain.life.ready(now_ns);
            }
            if let Some(why) = notice.killed {
                self.kill(id, &why);
            }
            if notice.gone {
                self.gone(id);
            }
        }
    }

    /// The process of a domain is there.
    fn started(&mut self, id: DomId, now_ns: u64) {
        let Some(domain) = self.domain_mut(id) else {
            return;
        };
        domain.life.started(now_ns);
        let Some(process) = domain.process().cloned() else {
            return;
        };
        domain.pids = (process.pid, process.agent_pid);
        if domain.life.is_alive() && self.watch.add(id, &process).is_err() {
            self.kill(id, "killed: it cannot be watched");
        }
    }

    /// Sees to deadlines; returns when to call again at the latest.
    pub fn tick(&mut self, now_ns: u64) -> Option<u64> {
        let is_over = |domain: &Domain| domain.life.stage.is_over();
        let over = |id: DomId| self.domain(id).is_none_or(is_over);
        let (late, mut next) = self.shared.counted.pins.overdue(over, now_ns);
        let why = "killed: it kept a device over the memory of a dead domain";
        let mut late: Vec<_> = late.into_iter().map(|user| (user, why)).collect();
        for domain in &mut self.domains {
            let demand = domain.life.look(domain.signs(), now_ns);
            match demand {
                Demand::Nothing => {}
                Demand::Ping => {
                    if let Some(parts) = &domain.parts {
                        parts.port.raise(info::PENDING_PING);
                    }
                }
                Demand::Kill(why) => late.push((domain.id, why)),
            }
            let attach_ns = attach::next_ns(domain, now_ns);
            if domain.attach_open != attach_ns.is_none() {
                domain.attach_open = attach_ns.is_none();
                if let Some(process) = domain.process() {
                    self.watch.hear(domain.id, process, domain.attach_open);
                }
            }
            for deadline in [domain.life.look_ns, attach_ns] {
                next = [next, deadline].into_iter().flatten().min();
            }
        }
        for (id, why) in late {
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

    /// Ends a domain, dead or alive: no new use of its grants begins, its connections are
    /// closed, and its worker clears it away.
    pub fn kill(&mut self, id: DomId, why: &str) {
        let domain = self.domain_mut(id);
        let Some(domain) = domain.filter(|domain| domain.life.is_alive()) else {
            return;
        };
        domain.life.end(why);
        domain.read_cpu();
        if let Some(running) = domain.running() {
            running.worker.stop(running.thread.thread());
            if let Some(process) = running.worker.process.get().cloned() {
                process.strike();
                self.watch.remove(&process);
            }
        }
        self.shared.grants.lock().fence(id);
        self.shared.connections.end_all(id, XenbusState::Closed);
    }

    /// A domain's worker has cleared it away.
    fn gone(&mut self, id: DomId) {
        let Some(domain) = self.domain_mut(id) else {
            return;
        };
        domain.read_cpu();
        if let Some(running) = domain.parts.take().and_then(|parts| parts.process) {
            // Its last act was to tell us.
            let _ = running.thread.join();
        }
        domain.life.stage = Stage::Gone;
        self.shared.connections.end_all(id, XenbusState::Unknown);
        self.shared.devices.forget(id);
        // Of one that was given up before it ran.
        self.shared.counted.pins.forget(id);
    }
}
