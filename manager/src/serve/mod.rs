//! The main loop: one poll over everything; nothing that waits but for the core, which answers at
//! once.

mod attach;
mod changes;
mod come_back;
mod detach;
mod lost;
mod nics;
mod places;
mod reload;
mod requests;
mod tell;

use crate::build;
use crate::client::{Client, Waits};
use crate::console::Console;
use crate::consoles::Consoles;
use crate::core::{Core, Refusal};
use crate::keep::{Keep, Keeper};
use crate::log::Log;
use crate::restart::{Restart, RestartEvent};
use crate::state::{LACK, LeftState};
use crate::world::World;
use abi::DomId;
use abi::core::{Ask, Stage, Tell};
use abi::journal::Level::Warning;
use abi::machine::{Domain, Ended, Restarts};
use changes::{Attach, Detach, Reload, Tried};
use config::live::LiveConfig;
use rustix::event::PollFlags;
use shmem::time::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// How long it may take until every domain runs and every connection is up.
const COMPLETE_NS: u64 = 20_000_000_000;
/// Between two lines in the log that say that the core keeps nothing.
const TROUBLE_NS: u64 = 60_000_000_000;

/// What became ready.
#[derive(Clone, Copy, Debug)]
enum Ready {
    Core,
    Listener,
    Client(u64),
    Consoles,
}

/// The running machine.
pub(crate) struct Server<'a> {
    core: &'a mut Core,
    world: World,
    consoles: Consoles,
    restarts: Vec<Restart>,
    socket: UnixListener,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    /// No client is accepted before this time.
    not_before_ns: u64,
    log: Log,
    core_pid: u32,
    /// Who may speak to us, beside root.
    user: u32,
    began_ns: u64,
    complete_ns: Option<u64>,
    /// What the core keeps of us.
    kept: Keeper,
    /// The configuration as it has become, once somebody has asked for it.
    config: Option<LiveConfig>,
    attaches: Vec<Attach>,
    detaches: Vec<Detach>,
    reload: Option<Reload>,
    /// Places of domains that have ended since the last look at those that are started again.
    ended: BTreeSet<usize>,
    /// Guests of the machine before whose attach was begun.
    begun: BTreeMap<String, Tried>,
    /// What the next core's manager is to know.
    state: LeftState,
    /// Why the state file could not be removed when the end was asked for.
    not_forgotten: Option<String>,
    /// Domains whose end was written to the log.
    reported: BTreeSet<DomId>,
    /// Set once the end was asked for: the token of our ask to the core.
    ending: Option<u32>,
    /// Until when the log is not told again that the core keeps nothing.
    trouble_ns: Option<u64>,
}

impl<'a> Server<'a> {
    /// `who`: the core's process, who may speak to us, and when the core began.
    pub(crate) fn new(
        core: &'a mut Core,
        world: World,
        socket: UnixListener,
        log: Log,
        who: (u32, u32, u64),
    ) -> Result<Self, String> {
        let (core_pid, user, began_ns) = who;
        let consoles = Consoles::create().map_err(|error| format!("consoles: {error}"))?;
        Ok(Self {
            core,
            world,
            consoles,
            restarts: Vec::new(),
            socket,
            clients: BTreeMap::new(),
            next_client: 0,
            not_before_ns: 0,
            log,
            core_pid,
            user,
            began_ns,
            complete_ns: None,
            kept: Keeper::default(),
            config: None,
            attaches: Vec::new(),
            detaches: Vec::new(),
            reload: None,
            ended: BTreeSet::new(),
            begun: BTreeMap::new(),
            state: LeftState::default(),
            not_forgotten: None,
            reported: BTreeSet::new(),
            ending: None,
            trouble_ns: None,
        })
    }

    /// Serves a part of this program as a client, for good.
    pub(crate) fn serve_always(&mut self, stream: UnixStream) {
        self.clients
            .insert(self.next_client, Client::staying(stream));
        self.next_client += 1;
    }

    /// Builds and starts the machine, and serves until it is complete; how long that took since the
    /// core began, in nanoseconds.
    pub(crate) fn begin(&mut self) -> Result<u64, String> {
        let consoles = build::build(self.core, &mut self.world).map_err(|refusal| refusal.why)?;
        for (place, console) in consoles.into_iter().enumerate() {
            self.watch_console(place, console);
        }
        self.restarts = self.restartable(&BTreeMap::new());
        loop {
            self.hear();
            let now = monotonic_ns();
            if self.world.is_complete() {
                self.complete_ns = Some(now);
                self.inherit();
                self.keep().map_err(|refusal| refusal.why)?;
                return Ok(now.saturating_sub(self.began_ns));
            }
            if let Some(failure) = self.failure(now) {
                self.refuse_held(&failure, now);
                return Err(failure);
            }
            self.turn();
        }
    }

    /// Goes on where the manager before has ended.
    pub(crate) fn go_on(&mut self, kept: Option<Keep<'_>>) {
        let now = monotonic_ns();
        let kept = kept.unwrap_or(Keep {
            complete_ns: now,
            ..Keep::default()
        });
        self.complete_ns = Some(kept.complete_ns);
        self.world.missing.extend(kept.missing.into_owned());
        self.kept
            .took_up(kept.shape.is_some() || !kept.changes.is_empty());
        if let Some(shape) = kept.shape {
            self.world.take_up(shape.into_owned());
        }
        for change in kept.changes {
            self.world.take_up_change(change);
        }
        let status = self.core_status();
        for domain in status.iter().flat_map(|status| &status.domains) {
            if let Some(place) = self.world.place(&domain.name) {
                self.world.set(place, DomId(domain.id));
            }
        }
        // First: who is started again keeps its devices, however it stands.
        self.restarts = self.restartable(&kept.restarts);
        self.hear();
        for restart in &mut self.restarts {
            let id = self.world.id(restart.place());
            let stage = id.and_then(|id| self.world.stage(id));
            restart.go_on(stage, now);
        }
        for id in self.world.all() {
            if self.world.stage(id).is_some_and(Stage::is_over) {
                self.reported.insert(id);
            }
        }
        let text = "the manager was started again";
        self.log.line(Warning, "grantwayd", text);
        self.take_back();
        self.finish_nics();
        self.note(now);
    }

    /// Every domain that is started again, with what is known of it by its place.
    fn restartable(&self, known: &BTreeMap<usize, Restarts>) -> Vec<Restart> {
        let shape = self.world.shape();
        // Who comes or goes is nobody that comes back.
        let domains = shape.domains().iter();
        let domains = domains.filter(|(_, domain)| !shape.is_changing(&domain.name));
        let restart = |(&place, domain): (&usize, &Domain)| {
            let known = known.get(&place).cloned().unwrap_or_default();
            Some(Restart::new(place, domain.restart_pause_ms?, known))
        };
        domains.filter_map(restart).collect()
    }

    fn watch_console(&mut self, place: usize, console: OwnedFd) {
        if let Some(domain) = self.world.domain(place) {
            let console = Console::new(&domain.name, console);
            self.consoles.insert(place, console, monotonic_ns());
        }
    }

    /// Has the core keep what the next manager has to know, if that has changed.
    fn keep(&mut self) -> Result<(), Refusal> {
        let Some(complete_ns) = self.complete_ns else {
            return Ok(());
        };
        self.state.look_at(self.world.changes());
        if !self.kept.has(&self.world) {
            let Self { kept, world, .. } = self;
            kept.keep(self.core, complete_ns, world, &self.restarts)?;
        }
        self.leave(monotonic_ns());
        Ok(())
    }

    /// Has the core write what is to outlive it, if that has changed. Nothing hangs on it: what
    /// cannot be written is said, and tried again.
    fn leave(&mut self, now: u64) {
        let Self { state, world, .. } = self;
        let due = state.due(&world.name, world.shape(), now);
        // What is to end leaves what it was told to leave.
        let Some(text) = due.filter(|_| self.ending.is_none()) else {
            return;
        };
        let written = self.core.ask_with(Ask::Leave {}, &text).map(drop);
        let news = state.wrote(text, written, now);
        world.missing.retain(|lack| !lack.starts_with(LACK));
        world.missing.extend(state.lack());
        if let Some((level, line)) = news {
            self.log.line(level, "grantwayd", &line);
        }
    }

    /// Has the core remove the state file, because the machine ends in order. If that fails, the
    /// answer to `down` says so.
    fn leave_nothing(&mut self) {
        if let Err(Refusal { why, .. }) = self.core.ask_with(Ask::Leave {}, &[]) {
            let line = format!(
                "guests that were attached will be attached again by the next start: the state \
                 file cannot be removed: {why}"
            );
            self.log.line(Warning, "grantwayd", &line);
            self.not_forgotten = Some(line);
        }
    }

    /// As [`Server::keep`], where nothing hangs on it: it is tried again in the next turn.
    fn note(&mut self, now_ns: u64) {
        if let Err(Refusal { why, .. }) = self.keep()
            && self.trouble_ns.is_none_or(|at| now_ns >= at)
        {
            self.trouble_ns = Some(now_ns.saturating_add(TROUBLE_NS));
            let line = format!("the core keeps nothing: {why}");
            self.log.line(Warning, "grantwayd", &line);
        }
    }

    /// Why the machine will not become complete any more, if so.
    fn failure(&self, now_ns: u64) -> Option<String> {
        if self.ending.is_some() || self.core.is_gone() {
            return Some("told to end before it was ready".into());
        }
        let over = |id: &DomId| self.world.stage(*id).is_some_and(Stage::is_over);
        if let Some(id) = self.world.all().find(over) {
            let name = self.world.name(id).unwrap_or_default();
            let place = self.world.place(name);
            let console = place.and_then(|place| self.consoles.get(place));
            let said = match console.map_or("", Console::last_line) {
                "" => String::new(),
                line => format!("; it said: {line}"),
            };
            let how = self.world.text(id);
            return Some(format!("domain {name} did not start: {how}{said}"));
        }
        let late = now_ns.saturating_sub(self.began_ns) >= COMPLETE_NS;
        late.then(|| "the connections were not up within 20 s".into())
    }

    /// Serves until the core is gone, or everything has ended that was to end.
    pub(crate) fn run(&mut self) {
        self.requests(monotonic_ns());
        while !self.core.is_gone() {
            let ended = self.ending.and_then(|token| self.core.answer(token));
            if ended.is_some() {
                break;
            }
            self.turn();
        }
        let now = monotonic_ns();
        for client in self.clients.values_mut() {
            if matches!(client.waits, Waits::End) {
                client.answer(
                    &Ended {
                        warning: self.not_forgotten.clone(),
                    },
                    now,
                );
            }
        }
    }

    /// Takes what the core has told.
    fn hear(&mut self) {
        self.core.take();
        while let Some((tell, fds)) = self.core.news() {
            match tell {
                Tell::Console { domain } => {
                    let name = self.world.name(domain);
                    let place = name.and_then(|name| self.world.place(name));
                    let mut fds = fds.into_iter();
                    if let (Some(place), Some(console)) = (place, fds.next()) {
                        self.watch_console(place, console);
                    }
                    if let Some(mailbox) = fds.next() {
                        self.core.meet(domain, mailbox, monotonic_ns());
                    }
                }
                Tell::Life {
                    domain,
                    stage,
                    text,
                } => self.live(domain, stage, text.as_str()),
                Tell::Connected { domain } => self.world.connect(domain),
                Tell::Lost { unit, is_removed } => self.lose(build::place_of(unit), is_removed),
                Tell::Welcome { .. } | Tell::Done { .. } | Tell::Refused { .. } => {}
            }
        }
    }

    fn live(&mut self, id: DomId, stage: Stage, text: &str) {
        self.world.live(id, stage, text);
        if stage.is_over() {
            let name = self.world.name(id).unwrap_or_default();
            self.ended.extend(self.world.place(name));
            self.core.part(id);
        } else {
            // An id that is given out again is another domain's.
            self.reported.remove(&id);
        }
        // What it printed last is worth having before its end is reported.
        if stage.is_over() && !self.reported.contains(&id) {
            let now = monotonic_ns();
            let name = self.world.name(id).unwrap_or_default().to_owned();
            let place = self.world.place(&name);
            if let Some(place) = place {
                self.consoles.drain(place, &mut self.log, now);
            }
            let stillborn = self
                .restarts
                .iter()
                .any(|r| r.stillborn(&self.world) == Some(id));
            self.reported.insert(id);
            if !stillborn && !name.is_empty() {
                let text = format!("{name}: {text}");
                self.log.line(Warning, "grantwayd", &text);
            }
            if let Some(place) = place {
                self.close_devices_of(place);
            }
        }
    }

    /// Closes the devices of a domain that has ended and is not started again: a wire goes with it,
    /// so that no sender goes on without knowing.
    fn close_devices_of(&mut self, place: usize) {
        let restarts = self.restarts.iter().any(|r| r.place() == place);
        if restarts || !self.restarts_now() {
            return;
        }
        let name = self.world.domain(place).map(|domain| domain.name.clone());
        let Some(name) = name.filter(|name| !self.world.shape().is_changing(name)) else {
            return;
        };
        if self.is_attached(&name) {
            return self.begin_detach(&name, "it has ended");
        }
        for unit in build::lasting_units(&self.world, place) {
            self.core.post(Ask::Close { unit }, &[]);
        }
    }

    /// Waits for something to happen, at most until the next deadline, and sees to it.
    fn turn(&mut self) {
        let now = monotonic_ns();
        let clients = self.clients.values().filter_map(Client::deadline_ns);
        self.consoles.resume(now);
        let consoles = self.consoles.deadline_ns(now);
        let mut deadline = clients.chain(consoles).min();
        if self.restarts_now() {
            let due = self.restarts.iter().filter_map(|r| r.due_ns(&self.world));
            let due = due.chain(self.attaches.iter().map(Attach::due_ns));
            let due = due.chain(self.detaches.iter().map(Detach::due_ns));
            let due = due.chain(self.reload.iter().filter_map(Reload::due_ns));
            deadline = deadline.into_iter().chain(due).min();
        } else if self.complete_ns.is_none() {
            let late = self.began_ns.saturating_add(COMPLETE_NS);
            deadline = deadline.into_iter().chain([late]).min();
        }
        let again = self.clients.values().filter_map(Client::again_ns);
        // One that is due and cannot be begun waits for others, which tell when they are done.
        let tried = self.begun.values().filter_map(|tried| tried.again_ns);
        let tried = tried.filter(|at| *at > now);
        let look = self.core.look_ns(now).into_iter();
        // What ends writes nothing any more.
        let left = self.state.again_ns().filter(|_| self.restarts_now());
        let look = look.chain(left).chain(tried);
        deadline = deadline.into_iter().chain(again).chain(look).min();
        let accepts = self.accepts_ns().filter(|at| *at > now);
        deadline = deadline.into_iter().chain(accepts).min();
        // What arrived during an ask of the core, and requests behind the first of a client, make
        // no descriptor readable.
        let has_request = self.clients.values().any(Client::has_request);
        if has_request
            || self.is_answered()
            || self.core.has_news()
            || self.next_to_come_back(now).is_some()
        {
            deadline = Some(now);
        }
        for ready in self.wait(deadline, now) {
            self.handle(ready);
        }
        self.hear();
        let now = monotonic_ns();
        self.core.look(now);
        self.requests(now);
        self.hear();
        self.restart(now);
        self.change(now);
        // After `restart`: clients that wait for a start that it has just seen are told now, for
        // nothing wakes us again for them.
        self.relay(now);
        self.clients.retain(|_, client| !client.is_over(now));
    }

    /// Whether an answer is there that is waited for. Others, of clients that are gone, are
    /// forgotten.
    fn is_answered(&mut self) -> bool {
        let clients = self.clients.values();
        let waited: BTreeSet<u32> = clients
            .filter_map(Client::token)
            .chain(self.ending)
            .chain(self.attaches.iter().flat_map(Attach::tokens))
            .chain(self.detaches.iter().flat_map(Detach::tokens))
            .chain(self.reload.iter().flat_map(Reload::tokens))
            .collect();
        self.core.forget_but(|token| waited.contains(&token));
        waited.iter().any(|token| self.core.has_answer(*token))
    }

    /// Whether a domain that has ended may be started again: not before the machine was complete,
    /// for then its start has failed.
    fn restarts_now(&self) -> bool {
        self.complete_ns.is_some() && self.ending.is_none()
    }

    /// Starts domains again that have ended.
    fn restart(&mut self, now: u64) {
        if !self.restarts_now() {
            return;
        }
        let mut replaced = Vec::new();
        let ended = std::mem::take(&mut self.ended);
        // To one that is up nothing happens but its end.
        let concerns = |restart: &&mut Restart| {
            let is_up = restart.is_up();
            !is_up || ended.contains(&restart.place())
        };
        for restart in self.restarts.iter_mut().filter(concerns) {
            self.kept.look_again();
            for event in restart.turn(self.core, &mut self.world, now) {
                match event {
                    RestartEvent::Line(line) => self.log.line(Warning, "grantwayd", &line),
                    RestartEvent::Replaced(place, console) => replaced.push((place, console)),
                }
            }
        }
        for (place, console) in replaced {
            self.consoles.drain(place, &mut self.log, now);
            self.watch_console(place, console);
        }
        if !self.reported.is_empty() {
            let all: BTreeSet<DomId> = self.world.all().collect();
            self.reported.retain(|id| all.contains(id));
        }
    }

    fn wait(&self, deadline_ns: Option<u64>, now_ns: u64) -> Vec<Ready> {
        let mut sources = vec![(Ready::Core, self.core.fd(), PollFlags::IN)];
        for (id, client) in &self.clients {
            let flags = if client.has_output() {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            sources.push((Ready::Client(*id), client.fd(), flags));
        }
        sources.push((Ready::Consoles, self.consoles.fd(), PollFlags::IN));
        // Last: a client that has sent a request by now does not yield its place.
        let accepts = self.accepts_ns().is_some_and(|at| at <= now_ns);
        if accepts && self.ending.is_none() {
            sources.push((Ready::Listener, self.socket.as_fd(), PollFlags::IN));
        }
        let timeout_ns = deadline_ns.map(|at| at.saturating_sub(now_ns));
        link::wait_for(&sources, timeout_ns)
    }

    fn handle(&mut self, ready: Ready) {
        let now = monotonic_ns();
        match ready {
            Ready::Core => {}
            Ready::Listener => {
                // A client that has sent its request since keeps its place.
                if self.accepts_ns().is_some_and(|at| at <= now) {
                    self.accept(now);
                }
            }
            Ready::Client(id) => {
                let Some(client) = self.clients.get_mut(&id) else {
                    return;
                };
                if client.has_output() {
                    client.send(now)
                } else if !client.has_request() {
                    client.receive(now)
                }
            }
            Ready::Consoles => self.consoles.take(&mut self.log, now),
        }
    }
}
