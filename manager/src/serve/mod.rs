//! The main loop: one poll over all descriptors, with the earliest deadline as its timeout.
//!
//! The loop never blocks on a client, a domain or netd: it takes their answers when they arrive. It
//! blocks on the core only for requests that the core answers immediately, without netd.

mod attach;
mod carry_out;
mod client_limits;
mod detach;
mod drive;
mod edits;
mod lost_devices;
mod nics;
mod outcomes;
mod reattach;
mod reload;
mod requests;
mod rules;

use crate::build;
use crate::client::{Client, ClientWait};
use crate::console::Console;
use crate::consoles::Consoles;
use crate::core::{CoreError, CoreLink};
use crate::deadlines::Deadlines;
use crate::journal::{SavedState, StateJournal};
use crate::life::Lifecycle;
use crate::log::LogSender;
use crate::machine_state::MachineState;
use crate::state_file::{REATTACH, RETRY_NS, StateFile};
use abi::DomId;
use abi::core::{CoreMessage, CoreRequest, Stage};
use abi::journal::Level::{self, Warning};
use abi::machine::DownReply;
use config::live::LiveConfig;
use edits::{PendingEdit, Reload, Restarting};
use rustix::event::PollFlags;
use shmem::time::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// Time limit for the machine's start: every domain runs, and every connection is up.
const START_TIMEOUT_NS: u64 = 20_000_000_000;
/// Minimum interval between two log lines that report that the core cannot store the state.
const STORE_ERROR_INTERVAL_NS: u64 = 60_000_000_000;

/// A source that is ready.
#[derive(Clone, Copy, Debug)]
enum ReadySource {
    Core,
    Listener,
    Client(u64),
    Consoles,
}

/// The key of a deadline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Deadline {
    /// The machine must be complete.
    Complete,
    /// The domain at this place may need a request.
    Domain(usize),
    /// The edit of this guest is late.
    Edit(String),
    /// A requested restart is late.
    Restart(u64),
    /// The reload can begin its next step.
    Reload,
    /// The next attempt to attach this guest of the previous machine.
    Reattach(String),
    /// The next attempt to write the state file.
    StateFile,
    /// The log may report again that the core cannot store the state.
    StoreError,
    /// A client is too slow, or its event is overdue.
    Client(u64),
    /// The pause after a failed `accept` is over.
    Accept,
    /// The console of the domain at this place must be watched again.
    Console(usize),
}

/// The running machine.
pub(crate) struct ManagerServer<'a> {
    core: &'a mut CoreLink,
    state: MachineState,
    consoles: Consoles,
    /// Every domain, by its place.
    lives: BTreeMap<usize, Lifecycle>,
    socket: UnixListener,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    deadlines: Deadlines<Deadline>,
    log: LogSender,
    core_pid: u32,
    /// The machine's user, who has every right, like root.
    user: u32,
    began_ns: u64,
    complete_ns: Option<u64>,
    /// Reason why a domain could not be started before the machine was complete.
    boot_failure: Option<String>,
    /// The file from which the next manager resumes.
    journal: StateJournal,
    /// The current configuration; unset until its first use.
    config: Option<LiveConfig>,
    /// Pending edits of guests, by name.
    edits: BTreeMap<String, PendingEdit>,
    reload: Option<Reload>,
    /// Requests that wait for restarting domains, by number.
    restarting: BTreeMap<u64, Restarting>,
    next_restart: u64,
    /// Number of attempts to attach guests of the previous machine, by name.
    begun: BTreeMap<String, u32>,
    /// The state file, for the manager of the next core.
    state_file: StateFile,
    /// Reason why the state file could not be removed for `down`.
    not_forgotten: Option<String>,
    /// The token of the request to shut down the machine, if it was sent.
    ending: Option<u32>,
}

impl<'a> ManagerServer<'a> {
    /// Creates the server. `origin` contains the core's process id, the machine's user, and the
    /// core's start time.
    pub(crate) fn new(
        core: &'a mut CoreLink,
        state: MachineState,
        socket: UnixListener,
        log: LogSender,
        origin: (u32, u32, u64),
    ) -> Result<Self, String> {
        let (core_pid, user, began_ns) = origin;
        let consoles = Consoles::create().map_err(|error| format!("consoles: {error}"))?;
        Ok(Self {
            core,
            state,
            consoles,
            lives: BTreeMap::new(),
            boot_failure: None,
            socket,
            clients: BTreeMap::new(),
            next_client: 0,
            deadlines: Deadlines::new(),
            log,
            core_pid,
            user,
            began_ns,
            complete_ns: None,
            journal: StateJournal::default(),
            config: None,
            edits: BTreeMap::new(),
            reload: None,
            restarting: BTreeMap::new(),
            next_restart: 0,
            begun: BTreeMap::new(),
            state_file: StateFile::default(),
            not_forgotten: None,
            ending: None,
        })
    }

    /// Adds an internal client: a part of this program.
    pub(crate) fn serve_internal(&mut self, stream: UnixStream) {
        self.insert_client(Client::internal(stream));
    }

    /// Starts the machine and serves until it is complete. Returns the time since the core's start,
    /// in nanoseconds.
    pub(crate) fn begin(&mut self) -> Result<u64, String> {
        let places = self.state.spec().domains().keys().copied();
        for place in places.collect::<Vec<_>>() {
            self.begin_life(place, monotonic_ns());
        }
        let late_ns = self.began_ns.saturating_add(START_TIMEOUT_NS);
        self.deadlines.set(Deadline::Complete, late_ns);
        loop {
            self.take_reports();
            let now = monotonic_ns();
            if self.state.is_complete() {
                self.complete_ns = Some(now);
                self.deadlines.set(Deadline::Complete, None);
                self.read_state_file();
                self.store_state().map_err(|refusal| refusal.why)?;
                return Ok(now.saturating_sub(self.began_ns));
            }
            if let Some(failure) = self.failure() {
                self.refuse_waiting(&failure, now);
                return Err(failure);
            }
            self.process_events();
        }
    }

    /// Resumes from the file of an earlier manager.
    pub(crate) fn resume_state(&mut self, kept: Option<SavedState<'_>>) {
        let now = monotonic_ns();
        let kept = kept.unwrap_or(SavedState {
            complete_ns: now,
            ..SavedState::default()
        });
        self.complete_ns = Some(kept.complete_ns);
        self.journal
            .continue_file(kept.spec.is_some() || !kept.changes.is_empty());
        let spec = kept.spec.map(|spec| spec.into_owned());
        self.state.resume(spec, kept.changes);
        let status = self.core_status();
        for domain in status.iter().flat_map(|status| &status.domains) {
            if let Some(place) = self.state.place(&domain.name) {
                self.state.set_id(place, DomId(domain.id));
            }
        }
        // Resume the domains before the reports are handled, because a restarting domain keeps its
        // devices.
        self.resume(now);
        self.take_reports();
        self.resume(now);
        self.log_line(Warning, "the manager was started again");
        self.remove_incomplete_guests();
        self.resume_nic_change();
        self.try_store_state(now);
    }

    /// Resumes all domains in their current stages.
    fn resume(&mut self, now: u64) {
        for (&place, domain) in self.state.spec().domains() {
            let stage = self.state.stage(place);
            let known = self.state.spec().restarts(place);
            let life = Lifecycle::resume(place, domain.restart_pause_ms, known, stage, now);
            self.lives.insert(place, life);
            self.deadlines.set(Deadline::Domain(place), 0);
        }
    }

    /// Writes a line about the machine to the log.
    fn log_line(&mut self, level: Level, line: impl AsRef<str>) {
        self.log.line(level, "grantwayd", line.as_ref());
    }

    fn watch_console(&mut self, place: usize, console: OwnedFd) {
        if let Some(domain) = self.state.domain(place) {
            let console = Console::new(&domain.name, console);
            self.consoles.insert(place, console);
        }
    }

    /// Writes changes to the journal for the next manager.
    fn store_state(&mut self) -> Result<(), CoreError> {
        let Some(complete_ns) = self.complete_ns else {
            return Ok(());
        };
        if !self.journal.is_current(&self.state) {
            let Self { journal, state, .. } = self;
            journal.write(self.core, complete_ns, state)?;
        }
        self.write_state_file(monotonic_ns());
        Ok(())
    }

    /// Asks the core to write the state file, if it has changed. Logs a failure, and retries
    /// later.
    fn write_state_file(&mut self, now: u64) {
        let Self {
            state_file, state, ..
        } = self;
        // A machine that is shutting down writes no further state.
        if self.ending.is_some() || self.deadlines.has(&Deadline::StateFile) {
            return;
        }
        let is_stale = state.take_file_stale();
        let Some(text) = state_file.due(&state.name, state.spec(), is_stale) else {
            return;
        };
        let written = self
            .core
            .request_with(CoreRequest::SaveState {}, &text)
            .map(drop);
        let again_ns = written.is_err().then(|| now.saturating_add(RETRY_NS));
        self.deadlines.set(Deadline::StateFile, again_ns);
        let log_line = state_file.record_write(text, written);
        let mut missing = state.spec().missing().clone();
        missing.retain(|lack| !lack.starts_with(REATTACH));
        missing.extend(state_file.missing_feature());
        state.set_missing(missing);
        if let Some((level, line)) = log_line {
            self.log_line(level, line);
        }
    }

    /// Asks the core to remove the state file, because the machine is shut down cleanly. The
    /// answer to `down` reports a failure.
    fn remove_state_file(&mut self) {
        if let Err(CoreError { why, .. }) = self.core.request_with(CoreRequest::SaveState {}, &[]) {
            let line = format!(
                "the next start will attach the attached guests again: the state \
                 file cannot be removed: {why}"
            );
            self.log_line(Warning, &line);
            self.not_forgotten = Some(line);
        }
    }

    /// Writes changes to the journal. Logs a failure, and retries in the next turn.
    fn try_store_state(&mut self, now_ns: u64) {
        if let Err(CoreError { why, .. }) = self.store_state()
            && !self.deadlines.has(&Deadline::StoreError)
        {
            let again_ns = now_ns.saturating_add(STORE_ERROR_INTERVAL_NS);
            self.deadlines.set(Deadline::StoreError, again_ns);
            self.log_line(Warning, format!("the core cannot store the state: {why}"));
        }
    }

    /// Returns why the machine cannot start, or `None` if no failure is known.
    fn failure(&self) -> Option<String> {
        if self.ending.is_some() || self.core.is_closed() {
            return Some("the machine was ended before it was ready".into());
        }
        self.boot_failure.clone().or_else(|| self.early_exit())
    }

    /// Returns a description of a domain's exit before the machine was complete, or `None`.
    fn early_exit(&self) -> Option<String> {
        let mut domains = self.state.spec().domains().iter();
        let is_over = |place| self.state.stage(place).is_some_and(Stage::is_over);
        let (&place, domain) = domains.find(|(place, _)| is_over(**place))?;
        let how = self.exit_description(place);
        Some(format!("domain {} did not start: {how}", domain.name))
    }

    /// Serves until the core has exited or has shut down the machine.
    pub(crate) fn run(&mut self) {
        self.serve_requests(monotonic_ns());
        while !self.core.is_closed() {
            let ended = self.ending.and_then(|token| self.core.answer(token));
            if ended.is_some() {
                break;
            }
            self.process_events();
        }
        let now = monotonic_ns();
        for client in self.clients.values_mut() {
            if matches!(client.waits, ClientWait::End) {
                client.answer(
                    &DownReply {
                        warning: self.not_forgotten.clone(),
                    },
                    now,
                );
            }
        }
    }

    /// Takes the core's reports.
    fn take_reports(&mut self) {
        self.core.receive_messages();
        while let Some((tell, fds)) = self.core.take_report() {
            match tell {
                CoreMessage::Console { domain } => {
                    let mut fds = fds.into_iter();
                    if let (Some(place), Some(console)) = (self.state.place_of(domain), fds.next())
                    {
                        self.watch_console(place, console);
                    }
                    if let Some(mailbox) = fds.next() {
                        self.core.add_mailbox(domain, mailbox, monotonic_ns());
                    }
                }
                CoreMessage::StageChanged {
                    domain,
                    stage,
                    text,
                } => self.record_stage(domain, stage, text.as_str()),
                CoreMessage::Connected { domain } => {
                    if let Some(place) = self.state.place_of(domain) {
                        self.state.connect(place);
                    }
                }
                CoreMessage::DeviceLost { dev, is_removed } => {
                    self.record_loss(build::place_of_dev(dev), is_removed)
                }
                CoreMessage::Init { .. }
                | CoreMessage::Done { .. }
                | CoreMessage::Refused { .. } => {}
            }
        }
    }

    fn record_stage(&mut self, id: DomId, stage: Stage, text: &str) {
        if stage.is_over() {
            self.core.remove_mailbox(id);
        }
        let Some(place) = self.state.place_of(id) else {
            return;
        };
        let was_over = self.state.stage(place).is_some_and(Stage::is_over);
        self.state.set_stage(place, stage, text);
        if !stage.is_over() || was_over {
            return;
        }
        // The last output is logged before the exit.
        self.consoles.drain(place, &mut self.log, monotonic_ns());
        let life = self.lives.get(&place);
        let stillborn = life.is_some_and(Lifecycle::has_failed_to_start);
        if !stillborn && let Some(domain) = self.state.domain(place) {
            self.log_line(Warning, format!("{}: {text}", domain.name));
        }
        self.close_devices_of(place);
    }

    /// Closes the devices of a domain that has exited and is not restarted, so that peers notice
    /// the exit.
    fn close_devices_of(&mut self, place: usize) {
        let restarts = self.lives.get(&place).is_some_and(Lifecycle::restarts);
        if restarts || !self.can_restart() {
            return;
        }
        let name = self.state.name_of(place).to_owned();
        if self.state.spec().is_changing(&name) {
            return;
        }
        match self.is_attached(&name) {
            true => self.begin_detach(&name, "it has exited"),
            false => build::close_all(self.core, &self.state, place),
        }
    }

    /// Waits until a source is ready or a deadline has passed, and handles all ready sources and
    /// deadlines.
    fn process_events(&mut self) {
        let now = monotonic_ns();
        let accept_from_ns = self.accept_from_ns().filter(|at| *at > now);
        // No descriptor becomes readable for answers that arrived during a request to the core, or
        // for the further requests of a client that sent several together.
        let has_request = self.clients.values().any(Client::has_request);
        let can_reattach = self.next_to_reattach().is_some();
        let until =
            match self.is_answered() || has_request || self.core.has_report() || can_reattach {
                true => Some(now),
                false => {
                    let due = [
                        self.deadlines.next_ns(),
                        self.core.next_poll_ns(now),
                        accept_from_ns,
                    ];
                    due.into_iter().flatten().min()
                }
            };
        for ready in self.wait(until, now) {
            self.handle(ready);
        }
        self.take_reports();
        let now = monotonic_ns();
        self.core.poll_mailboxes(now);
        self.serve_requests(now);
        self.process(now);
        self.answer_relayed(now);
        let over = self.clients.extract_if(.., |_, it| it.is_over(now));
        for (id, _) in over {
            self.deadlines.set(Deadline::Client(id), None);
        }
    }

    /// Continues all work whose answers have arrived, and then handles expired deadlines, so that
    /// an edit completed in the turn of its deadline is in time. Returns when no deadline has
    /// expired.
    fn process(&mut self, now: u64) {
        loop {
            self.take_reports();
            self.continue_changes(now);
            if !self.expire(now) {
                return;
            }
        }
    }

    /// Handles all expired deadlines. Returns whether one had expired.
    fn expire(&mut self, now: u64) -> bool {
        let mut was_due = false;
        while let Some(deadline) = self.deadlines.expire(now) {
            was_due = true;
            match deadline {
                Deadline::Complete if self.state.is_complete() => {}
                Deadline::Complete => {
                    let why = "the connections were not up within 20 s";
                    self.boot_failure.get_or_insert_with(|| why.into());
                }
                // The state of a machine that is shutting down must remain complete for its next
                // start.
                Deadline::Edit(_) | Deadline::Restart(_) if self.ending.is_some() => {}
                Deadline::Edit(name) => self.time_out_edit(&name, now),
                Deadline::Restart(number) => self.time_out_restart(number, now),
                Deadline::Client(id) => self.handle_client_deadline(id, now),
                Deadline::Console(place) => self.consoles.watch(place),
                // These only wake the loop.
                Deadline::Domain(_)
                | Deadline::Reload
                | Deadline::Reattach(_)
                | Deadline::StateFile
                | Deadline::StoreError
                | Deadline::Accept => {}
            }
        }
        was_due
    }

    /// Returns whether the answer to a pending request has arrived. Drops answers for clients that
    /// have disconnected.
    fn is_answered(&mut self) -> bool {
        // A machine that is shutting down ignores the answers to edits.
        let lives = self.lives.values().filter(|_| self.ending.is_none());
        let lives = lives.flat_map(Lifecycle::tokens);
        let clients = self.clients.values().filter_map(Client::token);
        let waited: BTreeSet<u32> = clients.chain(self.ending).chain(lives).collect();
        self.core.retain_answers(|token| waited.contains(&token));
        waited.iter().any(|token| self.core.has_answer(*token))
    }

    /// Returns whether the machine is complete and not shutting down. Domains restart only in this
    /// state.
    fn can_restart(&self) -> bool {
        self.complete_ns.is_some() && self.ending.is_none()
    }

    fn wait(&self, deadline_ns: Option<u64>, now_ns: u64) -> Vec<ReadySource> {
        let mut sources = vec![(ReadySource::Core, self.core.fd(), PollFlags::IN)];
        for (id, client) in &self.clients {
            let flags = if client.has_output() {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            sources.push((ReadySource::Client(*id), client.fd(), flags));
        }
        sources.push((ReadySource::Consoles, self.consoles.fd(), PollFlags::IN));
        // Polled last, so that a client that has just sent a request is not evicted.
        if self.accepts(now_ns) && self.ending.is_none() {
            sources.push((ReadySource::Listener, self.socket.as_fd(), PollFlags::IN));
        }
        let timeout_ns = deadline_ns.map(|at| at.saturating_sub(now_ns));
        link::wait_for(&sources, timeout_ns)
    }

    fn handle(&mut self, ready: ReadySource) {
        let now = monotonic_ns();
        match ready {
            ReadySource::Core => {}
            ReadySource::Listener => {
                // A client may have sent a request since the poll, and can then no longer be
                // evicted.
                if self.accepts(now) {
                    self.accept(now);
                }
            }
            ReadySource::Client(id) => {
                let Some(client) = self.clients.get_mut(&id) else {
                    return;
                };
                if client.has_output() {
                    client.send(now)
                } else if !client.has_request() {
                    client.receive(now)
                }
            }
            ReadySource::Consoles => {
                for (place, until_ns) in self.consoles.read_ready(&mut self.log, now) {
                    self.deadlines.set(Deadline::Console(place), until_ns);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
