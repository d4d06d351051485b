//! Drives every domain towards its goal: records the core's reports, calls [`step()`] for the next
//! request, and carries it out.

use super::edits::EditKind;
use super::{Deadline, ManagerServer};
use crate::build;
use crate::core::CoreError;
use crate::life::{
    CallState, DomainEvent, DomainView, Goal, LifeAction, LifeStep, Lifecycle, NeededDevices,
    StartStage, WorkerCall, WorkerView, step,
};
use crate::spec::Ports;
use abi::core::{CoreRequest, Stage};
use abi::journal::Level::Warning;
use abi::mailbox::MailboxRequest;
use std::collections::BTreeMap;

impl ManagerServer<'_> {
    /// Adds a domain to start: at the start of the machine, or in an attach.
    pub(super) fn begin_life(&mut self, place: usize, now: u64) {
        let domain = self.state.domain(place);
        let pause_ms = domain.and_then(|domain| domain.restart_pause_ms);
        let life = Lifecycle::new(place, pause_ms, now);
        self.lives.insert(place, life);
        self.deadlines.set(Deadline::Domain(place), 0);
    }

    /// Drives all domains until each of them waits for an event or a time.
    pub(super) fn advance_domains(&mut self, now: u64) {
        if self.ending.is_some() || self.complete_ns.is_none() && self.early_exit().is_some() {
            return;
        }
        loop {
            let has_exited = |life: &Lifecycle| {
                life.is_up() && self.state.stage(life.place).is_some_and(Stage::is_over)
            };
            let is_due = |life: &&Lifecycle| !life.is_settled() || has_exited(life);
            let due = self.lives.values().filter(is_due);
            let places: Vec<usize> = due.map(|life| life.place).collect();
            let (workers, ready) = (self.workers(), self.ready());
            let mut has_progressed = false;
            for place in places {
                has_progressed |= self.drive_one(place, &workers, ready, now);
            }
            if !has_progressed {
                break;
            }
        }
    }

    /// Drives one domain until it waits for an event or a time. Returns whether it made a request.
    fn drive_one(
        &mut self,
        place: usize,
        workers: &BTreeMap<usize, WorkerView>,
        ready: StartStage,
        now: u64,
    ) -> bool {
        let mut has_progressed = false;
        // If a domain fails during the machine's start, the whole start fails.
        while self.boot_failure.is_none() {
            let Some(mut life) = self.lives.remove(&place) else {
                return has_progressed;
            };
            let before = (life.has_opened(), life.given);
            let mut events = self.take_answers(&mut life, now);
            // Other domains may wait for this progress.
            has_progressed |= (life.has_opened(), life.given) != before;
            let view = DomainView {
                id: self.state.id(place),
                stage: self.state.stage(place),
                is_connected: self.state.is_connected(place),
                devices: self.state.domain(place).map_or(0, |it| it.devices.len()),
                ready,
                workers,
            };
            // An exit is observed after the answers are handled, which may change the goal.
            if events.is_empty() {
                events = life.observe(&view, now);
            }
            let next = match events.is_empty() {
                true => step(&life, &view, now),
                false => LifeStep::Wait(None),
            };
            if let LifeStep::Do(action) = next
                && let Err(refusal) = self.act(&mut life, action, now)
            {
                events = life.failed(refusal, now);
            }
            self.state.record_restarts(place, &life.known);
            if let (LifeStep::Wait(due_ns), true) = (next, events.is_empty()) {
                self.deadlines.set(Deadline::Domain(place), due_ns);
                self.lives.insert(place, life);
                return has_progressed;
            }
            has_progressed = true;
            self.lives.insert(place, life);
            if next == LifeStep::Do(LifeAction::Close) {
                self.record_removal(place, now);
            }
            for event in events {
                self.handle_event(place, event, now);
            }
        }
        has_progressed
    }

    /// Returns the state of each worker of the driver domain, by place.
    fn workers(&self) -> BTreeMap<usize, WorkerView> {
        let worker = |place: usize| {
            let restarts = self.lives.get(&place).is_some_and(|life| life.restarts());
            match self.state.stage(place) {
                Some(Stage::Running) => WorkerView::Running,
                Some(Stage::Built | Stage::Starting) => WorkerView::Restarting,
                _ if restarts => WorkerView::Restarting,
                _ => WorkerView::Dead,
            }
        };
        let places = self.state.spec().workers().into_iter();
        places.map(|place| (place, worker(place))).collect()
    }

    /// Returns the stage that all domains have reached during the machine's start.
    fn ready(&self) -> StartStage {
        let lives = self.lives.values().filter(|_| self.complete_ns.is_none());
        let ready = lives.map(|life| {
            let domain = self.state.domain(life.place);
            life.ready(domain.map_or(0, |domain| domain.devices.len()))
        });
        ready.min().unwrap_or(StartStage::Given)
    }

    /// Takes the answers of netd and the replies of workers for which a domain waits.
    fn take_answers(&mut self, life: &mut Lifecycle, now: u64) -> Vec<DomainEvent> {
        let mut events = Vec::new();
        if let NeededDevices::Opening(opening, refused) = &mut life.devices {
            refused.extend(build::take_opened(self.core, &mut self.state, opening));
            if opening.is_empty() {
                let refused = std::mem::take(refused);
                events.extend(life.opened(refused, now));
            }
        }
        let (core, state, place) = (&mut *self.core, &self.state, life.place);
        let giving = life.giving.as_ref();
        let is_dispensable = !life.is_first && giving.is_some_and(|it| it.is_dispensable);
        if let Some(mut given) = giving.and_then(|it| build::take_given(core, state, place, it)) {
            if let Err(refusal) = &given
                && is_dispensable
                && !refusal.is_busy
            {
                let line = format!("starts without a NIC: {}", refusal.why);
                events.push(DomainEvent::Line(line));
                given = build::give_nothing(core, state, place);
            }
            events.extend(life.record_given(given, now));
        }
        for number in 0..life.calls.len() {
            let token = life.calls.get(number).and_then(WorkerCall::token);
            if let Some(reply) = token.and_then(|token| self.core.reply(token)) {
                events.extend(life.replied(number, reply, now));
                self.forget_released(life, number);
            }
        }
        events
    }

    /// Removes the port of a call from its worker's description if the worker has released it.
    fn forget_released(&mut self, life: &Lifecycle, number: usize) {
        let call = life.calls.get(number).filter(|call| call.is_done());
        if let (Some(call), Goal::Removed) = (call, life.goal) {
            let name = self.state.name_of(life.place).to_owned();
            self.state.edit_guest(&name, |guest| {
                let ports = guest.ports.get_mut(&call.worker).into_iter();
                ports.for_each(|ports| ports.retain(|vif| vif.conn != call.conn));
            });
        }
    }

    fn act(&mut self, life: &mut Lifecycle, action: LifeAction, now: u64) -> Result<(), CoreError> {
        let (core, state) = (&mut *self.core, &mut self.state);
        match action {
            LifeAction::Open => {
                let devices = match std::mem::take(&mut life.devices) {
                    NeededDevices::Busy(devices) => devices,
                    _ if life.is_first => build::lasting_devices(state, life.place),
                    _ => state.spec().lost_devices(life.place),
                };
                for device in &devices {
                    if state.spec().is_lost(*device) {
                        build::close(core, *device);
                    }
                }
                let opening = build::open(core, state, devices)?;
                life.devices = NeededDevices::Opening(opening, Vec::new());
            }
            LifeAction::Create => {
                let id = build::create(core, state, life.place, state.id(life.place))?;
                state.set_stage(life.place, Stage::Built, "starting");
                life.created(id);
            }
            LifeAction::Connect => {
                life.calls = self.connect(life.place)?;
                life.is_connected = true;
                // From here on, the next manager knows the ports that the workers have to release.
                self.store_state()?;
            }
            LifeAction::Give => {
                let before = life.previous_processes();
                life.giving = build::give(core, state, life.place, before, &mut life.given)?;
            }
            LifeAction::Start => {
                let console = build::start(core, state, life.place)?;
                life.started(now);
                self.consoles.drain(life.place, &mut self.log, now);
                self.watch_console(life.place, console);
            }
            LifeAction::Call(number) => {
                if let Some(call) = life.calls.get_mut(number)
                    && let Some(worker) = state.id(call.worker)
                {
                    let token = core.relay(worker, &call.request, None, now);
                    call.state = CallState::Sent(token);
                }
            }
            LifeAction::Drop(number) => {
                if let Some(call) = life.calls.get_mut(number) {
                    call.state = CallState::Done;
                }
                self.forget_released(life, number);
            }
            LifeAction::End => {
                let why = life.end.take();
                life.postpone(now);
                build::end(core, state, life.place, &why.unwrap_or_default());
            }
            LifeAction::Forget => {
                let forgotten = state.id(life.place).map(|domain| {
                    let forget = core.request(CoreRequest::Forget { domain }, &[]);
                    forget.is_err_and(|refusal| refusal.is_busy)
                });
                // Any other refusal means that the core has already forgotten the domain.
                life.record_forgotten(forgotten.unwrap_or_default(), now);
            }
            // The caller releases the place.
            LifeAction::Close => {}
        }
        Ok(())
    }

    /// Connects a domain to its backends. Returns the calls by which the workers add the ports of a
    /// new guest; other ports are in the workers' descriptions.
    pub(super) fn connect(&mut self, place: usize) -> Result<Vec<WorkerCall>, CoreError> {
        let spec = self.state.spec();
        let name = self.state.name_of(place).to_owned();
        let (connections, mut ports) = match self.edits.get(&name).map(|edit| &edit.kind) {
            Some(EditKind::Attach(admitted)) => {
                (admitted.connections.clone(), spec.ports(&admitted.vifs)?)
            }
            _ => (self.state.connections_of(&name), Ports::new()),
        };
        // Other stations may have sent queries for the guest's addresses during its absence.
        let announces = spec.saved_guest(&name).is_some();
        for connection in connections {
            let conn = build::connect(self.core, &self.state, &connection)?;
            let worker = self.state.place(&connection.backend);
            let vifs = worker.and_then(|worker| ports.get_mut(&worker));
            let port = vifs.and_then(|vifs| vifs.get_mut(usize::from(connection.handle)));
            if let Some(port) = port {
                port.conn = conn;
                port.announces |= announces;
            }
        }
        let calls = WorkerCall::of_ports(&ports, |vif| MailboxRequest::Attach { vif })?;
        if !ports.is_empty() {
            self.state.edit_guest(&name, |guest| guest.ports = ports);
        }
        Ok(calls)
    }

    fn handle_event(&mut self, place: usize, event: DomainEvent, now: u64) {
        let name = self.state.name_of(place).to_owned();
        match event {
            DomainEvent::Line(line) => {
                self.log_line(Warning, format!("{name}: {line}"));
            }
            DomainEvent::Up => self.record_up(place, &name, now),
            // Fails the attach of the domain, the change of its NICs, or the start of the machine.
            DomainEvent::Failed(refusal) => {
                let is_refitting = self.is_refitting(place);
                let how = || match (self.exit_description(place), is_refitting) {
                    (exit, false) => format!("it did not start: {exit}"),
                    (exit, true) => {
                        format!("{name} exited while netd opened devices of new NICs: {exit}")
                    }
                };
                let why = refusal.map_or_else(how, |refusal| refusal.why);
                match self.complete_ns {
                    None => self.boot_failure = Some(why),
                    Some(_) if is_refitting => self.refuse_nics(&why, now),
                    Some(_) => self.fail_attach(&name, why),
                }
            }
            DomainEvent::Called(outcome) => self.finish_change(&name, outcome, now),
        }
    }

    /// Returns how the domain at a place exited, with the last line of its console.
    pub(super) fn exit_description(&self, place: usize) -> String {
        let console = self.consoles.get(place);
        let output = match console.map_or("", |console| console.last_line()) {
            "" => String::new(),
            line => format!("; last output: {line}"),
        };
        format!("{}{output}", self.state.text(place))
    }

    /// Returns whether the domain at a place has no process.
    pub(super) fn has_no_process(&self, place: usize) -> bool {
        let stage = self.state.stage(place);
        matches!(stage, Some(Stage::TornDown | Stage::Built))
    }

    /// Returns whether the process at a place has reported that it is ready.
    pub(super) fn is_running(&self, place: usize) -> bool {
        self.state.stage(place) == Some(Stage::Running)
    }

    /// Returns the calls by which all workers release a guest's ports.
    pub(super) fn release_calls(&self, name: &str) -> Vec<WorkerCall> {
        let spec = self.state.spec();
        let calls = spec.workers().into_iter().flat_map(|worker| {
            let conns = spec.served(worker, name).into_iter();
            conns.filter_map(move |conn| {
                WorkerCall::new(worker, conn, &MailboxRequest::Detach { conn }).ok()
            })
        });
        calls.collect()
    }
}
