//! Drives domains' lifecycles against a model of core, netd and driver domain. The model delays,
//! loses, repeats and refuses answers, and its domains and manager die at any point.

use super::super::*;
use abi::mailbox::MailboxRequest;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MS: u64 = 1_000_000;
/// The driver domain has one worker.
const WORKER: usize = 0;
/// Maximum number of requests for one domain in one turn, far more than a start needs.
const REQUESTS_MAX: usize = 64;

#[derive(Clone, Debug)]
enum Op {
    /// Advances the time; pending work makes progress.
    Pass(u64),
    Attach(usize),
    Detach(usize),
    Restart(usize),
    Hold(usize),
    /// Restarts the worker with further devices, once netd has opened them.
    Refit,
    /// Kills a process.
    Die(usize),
    /// Refuses the next request, temporarily or permanently.
    Refuse {
        is_busy: bool,
    },
    /// Makes netd refuse devices as busy for this number of milliseconds.
    Occupy(u64),
    /// Loses the next reply of a worker.
    Lose,
    /// Makes the core repeat all its reports.
    Repeat,
    /// Kills the manager after this number of further requests; another takes over.
    TakeOver(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let guest = 1..4_usize;
    prop_oneof![
        6 => (0..40_u64).prop_map(Op::Pass),
        3 => guest.clone().prop_map(Op::Attach),
        2 => guest.prop_map(Op::Detach),
        1 => (0..4_usize).prop_map(Op::Restart),
        1 => Just(Op::Hold(WORKER)),
        1 => Just(Op::Refit),
        2 => (0..4_usize).prop_map(Op::Die),
        2 => any::<bool>().prop_map(|is_busy| Op::Refuse { is_busy }),
        1 => (0..900_u64).prop_map(Op::Occupy),
        1 => Just(Op::Lose),
        1 => Just(Op::Repeat),
        2 => (0..8_usize).prop_map(Op::TakeOver),
    ]
}

/// A guest in the specification, which outlives managers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Joining,
    Member,
    Leaving,
}

/// A domain in the core.
#[derive(Clone, Copy, Debug)]
struct Domain {
    id: u16,
    stage: Stage,
    given: usize,
    is_connected: bool,
    /// Whether another domain still has a page of this domain after its exit.
    is_in_use: bool,
}

#[derive(Default)]
struct Model {
    now: u64,
    spec: BTreeMap<usize, Entry>,
    /// Connection numbers of the ports in the worker's description, by guest.
    served: BTreeMap<usize, u32>,
    lives: BTreeMap<usize, Lifecycle>,
    /// The core's reports that the manager has received, by place.
    reported: BTreeMap<usize, (u16, Stage, bool)>,
    domains: BTreeMap<usize, Domain>,
    /// Devices that netd has opened, and tokens of the devices that it is opening.
    open: BTreeSet<usize>,
    opening: BTreeSet<u32>,
    /// Devices that netd is opening for a process: place and domain, by token.
    giving: BTreeMap<u32, (usize, u16)>,
    given: BTreeMap<u32, Result<(), CoreError>>,
    connections: BTreeMap<usize, u32>,
    /// Ports in the worker's process.
    ports: BTreeSet<u32>,
    /// Calls in the worker's mailbox, and replies.
    mail: BTreeMap<u32, (bool, u32)>,
    replies: BTreeMap<u32, Result<Vec<u8>, CoreError>>,
    tokens: u32,
    ids: u16,
    refuse: Option<bool>,
    /// Time from which the devices are free again.
    free_ns: u64,
    lose: bool,
    requests: usize,
    /// Number of further requests until the manager dies.
    dies_after: Option<usize>,
}

/// Returns the limit of a domain's restart pause. The worker always restarts, guest 3 never.
fn pause_ms(place: usize) -> Option<u32> {
    (place != 3).then_some(100)
}

fn busy() -> CoreError {
    CoreError {
        why: "busy".to_owned(),
        is_busy: true,
    }
}

impl Model {
    fn boot() -> Self {
        let mut model = Self::default();
        model
            .lives
            .insert(WORKER, Lifecycle::new(WORKER, pause_ms(WORKER), 0));
        model.pass_quiet_time();
        assert!(model.lives[&WORKER].is_up());
        model
    }

    fn token(&mut self) -> u32 {
        self.tokens += 1;
        self.tokens
    }

    fn release_calls(&self, place: usize) -> Vec<WorkerCall> {
        let conns = self.served.get(&place).into_iter();
        let call =
            |conn: &u32| WorkerCall::new(WORKER, *conn, &MailboxRequest::Detach { conn: *conn });
        conns.map(|conn| call(conn).unwrap()).collect()
    }

    fn remove(&mut self, place: usize) {
        let calls = self.release_calls(place);
        if let Some(life) = self.lives.get_mut(&place)
            && life.goal != Goal::Removed
        {
            self.spec.insert(place, Entry::Leaving);
            life.remove("detached", calls);
        }
    }

    fn carry_out(&mut self, op: &Op) {
        match *op {
            Op::Pass(ms) => self.now += ms * MS,
            Op::Attach(place) if !self.spec.contains_key(&place) => {
                self.spec.insert(place, Entry::Joining);
                let life = Lifecycle::new(place, pause_ms(place), self.now);
                self.lives.insert(place, life);
            }
            Op::Attach(_) => {}
            Op::Detach(place) => self.remove(place),
            Op::Restart(place) | Op::Hold(place) => {
                if let Some(life) = self.lives.get_mut(&place).filter(|life| life.restarts()) {
                    match op {
                        Op::Hold(_) => {
                            life.restart("held");
                            life.goal = Goal::Held;
                        }
                        _ => life.restart("restarted"),
                    }
                }
            }
            Op::Refit => {
                let life = self.lives.get_mut(&WORKER);
                life.unwrap().begin_refit(vec![(WORKER, 0)]);
            }
            Op::Die(place) => self.die(place),
            Op::Refuse { is_busy } => self.refuse = Some(is_busy),
            Op::Occupy(ms) => self.free_ns = self.now + ms * MS,
            Op::Lose => self.lose = true,
            Op::Repeat => self.report(),
            Op::TakeOver(requests) => self.dies_after = Some(requests),
        }
    }

    fn die(&mut self, place: usize) {
        if let Some(domain) = self.domains.get_mut(&place)
            && matches!(domain.stage, Stage::Starting | Stage::Running)
        {
            domain.stage = Stage::Ending;
            domain.is_connected = false;
            if place == WORKER {
                self.ports.clear();
                // Requests in the worker's mailbox get no reply.
                let lost = std::mem::take(&mut self.mail);
                let none = || Err("the domain is not running".to_owned().into());
                self.replies
                    .extend(lost.into_keys().map(|token| (token, none())));
            }
        }
    }

    /// Makes the core report the state of all domains.
    fn report(&mut self) {
        for (place, domain) in &self.domains {
            let reported = (domain.id, domain.stage, domain.is_connected);
            self.reported.insert(*place, reported);
        }
    }

    /// Starts another manager, which knows the specification and the core's reports.
    fn take_over(&mut self) {
        self.reported.clear();
        self.report();
        self.lives.clear();
        self.replies.clear();
        self.opening.clear();
        self.given.clear();
        let places: Vec<usize> = [WORKER]
            .into_iter()
            .chain(self.spec.keys().copied())
            .collect();
        for place in places {
            let stage = self.reported.get(&place).map(|(_, stage, _)| *stage);
            let (pause, known) = (pause_ms(place), Restarts::default());
            let life = Lifecycle::resume(place, pause, known, stage, self.now);
            self.lives.insert(place, life);
            if matches!(self.spec.get(&place), Some(Entry::Joining | Entry::Leaving)) {
                self.remove(place);
            }
        }
    }

    /// Lets the core, netd and the worker complete their pending requests.
    fn progress(&mut self) {
        let worker_runs = self
            .domains
            .get(&WORKER)
            .is_some_and(|it| it.stage == Stage::Running);
        for (place, domain) in &mut self.domains {
            domain.stage = match domain.stage {
                Stage::Starting => Stage::Running,
                Stage::Ending => Stage::TornDown,
                stage => stage,
            };
            if *place == WORKER && domain.stage == Stage::Running && !worker_runs {
                self.ports.extend(self.served.values());
            }
            let conn = self.connections.get(place);
            let is_served = worker_runs && conn.is_some_and(|conn| self.ports.contains(conn));
            domain.is_connected = domain.stage == Stage::Running && (*place == WORKER || is_served);
            domain.is_in_use &= worker_runs && is_served;
        }
        for (token, (attaches, conn)) in std::mem::take(&mut self.mail) {
            match attaches {
                true => self.ports.insert(conn),
                false => self.ports.remove(&conn),
            };
            let reply = match std::mem::take(&mut self.lose) {
                true => Err("the domain did not reply within three seconds"
                    .to_owned()
                    .into()),
                false => Ok(b"{}".to_vec()),
            };
            self.replies.insert(token, reply);
        }
        self.opening.clear();
        for (token, (place, id)) in std::mem::take(&mut self.giving) {
            let domain = self.domains.get_mut(&place);
            let domain = domain.filter(|it| it.id == id && it.stage == Stage::Built);
            let given = match domain {
                Some(_) if self.now < self.free_ns => Err(busy()),
                Some(domain) => {
                    domain.given += 1;
                    Ok(())
                }
                None => Err("the domain no longer exists".to_owned().into()),
            };
            self.given.insert(token, given);
        }
        self.report();
    }

    fn drive(&mut self) {
        self.drive_all();
        if self.dies_after == Some(0) {
            self.dies_after = None;
            self.take_over();
            self.drive_all();
        }
    }

    fn drive_all(&mut self) {
        let places: Vec<usize> = self.lives.keys().copied().collect();
        for place in places {
            self.drive_one(place);
        }
        let worker = self.lives.get_mut(&WORKER).unwrap();
        if worker.goal == Goal::Refit && worker.has_opened() {
            worker.end_refit();
            worker.restart("killed: restarts with other NICs");
            self.drive_one(WORKER);
        }
    }

    fn drive_one(&mut self, place: usize) {
        for _ in 0..REQUESTS_MAX {
            let workers = self.workers();
            let mut events = self.take_answers(place);
            let Some(life) = self.lives.get_mut(&place) else {
                return;
            };
            let reported = self.reported.get(&place);
            let reported = DomainView {
                id: reported.map(|(id, ..)| DomId(*id)),
                stage: reported.map(|(_, stage, _)| *stage),
                is_connected: reported.is_some_and(|(.., is_connected)| *is_connected),
                devices: 1,
                ready: StartStage::Given,
                workers: &workers,
            };
            if events.is_empty() {
                events = life.observe(&reported, self.now);
            }
            if events.is_empty() {
                match step(life, &reported, self.now) {
                    LifeStep::Wait(at) => {
                        assert!(
                            at.is_none_or(|at| at > self.now),
                            "the deadline has passed already"
                        );
                        return;
                    }
                    LifeStep::Do(_) if self.dies_after == Some(0) => return,
                    LifeStep::Do(action) => {
                        self.dies_after = self.dies_after.map(|left| left - 1);
                        self.requests += 1;
                        let refused = self.refuse.take().map(|is_busy| CoreError {
                            why: "refused".to_owned(),
                            is_busy,
                        });
                        events = self.act(place, action, refused);
                    }
                }
            }
            for event in events {
                match event {
                    DomainEvent::Up if place != WORKER => {
                        self.spec.insert(place, Entry::Member);
                    }
                    DomainEvent::Failed(_) if self.lives[&place].goal == Goal::Refit => {
                        self.lives.get_mut(&place).unwrap().end_refit();
                    }
                    DomainEvent::Failed(_) => self.remove(place),
                    DomainEvent::Up | DomainEvent::Line(_) | DomainEvent::Called(_) => {}
                }
            }
        }
        panic!("domain {place} needs requests without end");
    }

    fn workers(&self) -> BTreeMap<usize, WorkerView> {
        let stage = self.reported.get(&WORKER).map(|(_, stage, _)| *stage);
        let worker = match stage {
            Some(Stage::Running) => WorkerView::Running,
            _ => WorkerView::Restarting,
        };
        [(WORKER, worker)].into()
    }

    fn take_answers(&mut self, place: usize) -> Vec<DomainEvent> {
        let mut events = Vec::new();
        let Some(life) = self.lives.get_mut(&place) else {
            return events;
        };
        let is_open = |opening: &PendingOpen| !self.opening.contains(&opening.token);
        let is_opened = match &life.devices {
            NeededDevices::Opening(all, _) => all.iter().all(is_open),
            _ => false,
        };
        if is_opened {
            let refused = match self.now < self.free_ns {
                true => vec![((place, 0), busy())],
                false => Vec::new(),
            };
            if refused.is_empty() {
                self.open.insert(place);
            }
            events.extend(life.opened(refused, self.now));
        }
        let giving = life.giving.as_ref();
        if let Some(given) = giving.and_then(|it| self.given.remove(&it.token)) {
            events.extend(life.record_given(given, self.now));
        }
        for number in 0..life.calls.len() {
            let Some(token) = life.calls[number].token() else {
                continue;
            };
            if let Some(reply) = self.replies.remove(&token) {
                events.extend(life.replied(number, reply, self.now));
                if life.calls[number].is_done() && life.goal == Goal::Removed {
                    self.served.remove(&place);
                }
            }
        }
        events
    }

    fn act(
        &mut self,
        place: usize,
        action: LifeAction,
        refused: Option<CoreError>,
    ) -> Vec<DomainEvent> {
        let (token, now) = (self.token(), self.now);
        let Some(life) = self.lives.get_mut(&place) else {
            panic!("{place} has no lifecycle");
        };
        let starts = matches!(
            action,
            LifeAction::Open
                | LifeAction::Create
                | LifeAction::Connect
                | LifeAction::Give
                | LifeAction::Start
        );
        if let Some(refusal) = refused.filter(|_| starts) {
            return life.failed(refusal, now);
        }
        let domain = self.domains.get_mut(&place);
        match action {
            LifeAction::Open if life.is_first || life.goal == Goal::Refit => {
                let opening = PendingOpen::of_token((place, 0), token);
                life.devices = NeededDevices::Opening(vec![opening], Vec::new());
                self.opening.insert(token);
            }
            LifeAction::Open => drop(life.opened(Vec::new(), now)),
            LifeAction::Create => {
                let is_free = domain.is_none_or(|domain| domain.stage == Stage::TornDown);
                assert!(is_free, "{place} has a domain");
                self.ids += 1;
                let domain = Domain {
                    id: self.ids,
                    stage: Stage::Built,
                    given: 0,
                    is_connected: false,
                    is_in_use: true,
                };
                self.domains.insert(place, domain);
                self.reported.insert(place, (self.ids, Stage::Built, false));
                life.created(DomId(self.ids));
            }
            LifeAction::Connect => {
                life.is_connected = true;
                if place != WORKER {
                    let conn = token;
                    assert!(self.connections.insert(place, conn).is_none());
                    self.served.insert(place, conn);
                    let vif = String::new();
                    life.calls = vec![
                        WorkerCall::new(WORKER, conn, &MailboxRequest::Attach { vif }).unwrap(),
                    ];
                }
            }
            LifeAction::Give => {
                assert!(self.open.contains(&place), "{place} has no device to give");
                let domain = domain.unwrap();
                assert_eq!((domain.given, domain.stage), (0, Stage::Built));
                assert!(life.giving.is_none(), "{place} requests a device twice");
                life.giving = Some(PendingGive::of_token(token));
                self.giving.insert(token, (place, domain.id));
            }
            LifeAction::Start => {
                let domain = domain.unwrap();
                assert_eq!((domain.given, domain.stage), (1, Stage::Built));
                assert!(place == WORKER || self.connections.contains_key(&place));
                domain.stage = Stage::Starting;
                self.reported
                    .insert(place, (domain.id, Stage::Starting, false));
                life.started(now);
            }
            LifeAction::Call(number) => {
                let attaches = life.goal != Goal::Removed;
                let call = &mut life.calls[number];
                call.state = CallState::Sent(token);
                let runs = self.domains[&WORKER].stage == Stage::Running;
                match runs {
                    true => drop(self.mail.insert(token, (attaches, call.conn))),
                    false => {
                        let why = "the domain is not running".to_owned();
                        self.replies.insert(token, Err(why.into()));
                    }
                }
            }
            LifeAction::Drop(_) => panic!("the worker always restarts"),
            LifeAction::End => {
                life.end = None;
                life.postpone(now);
                match domain {
                    Some(domain) if domain.stage == Stage::Built => domain.stage = Stage::TornDown,
                    _ => self.die(place),
                }
            }
            LifeAction::Forget => {
                let domain = domain.unwrap();
                assert_eq!(domain.stage, Stage::TornDown);
                let is_busy = domain.is_in_use;
                life.record_forgotten(is_busy, now);
                if !is_busy {
                    self.domains.remove(&place);
                    self.connections.remove(&place);
                }
            }
            LifeAction::Close => {
                self.open.remove(&place);
                self.reported.remove(&place);
                self.spec.remove(&place);
                self.served.remove(&place);
                self.lives.remove(&place);
            }
        }
        Vec::new()
    }

    /// Lets time pass without faults until no work is pending.
    fn pass_quiet_time(&mut self) {
        (self.refuse, self.lose, self.dies_after) = (None, false, None);
        if let Some(life) = self
            .lives
            .get_mut(&WORKER)
            .filter(|life| life.goal == Goal::Held)
        {
            life.restart("restarted");
        }
        // Longer than the longest pause after failed starts.
        for _ in 0..3000 {
            self.now += 3 * MS;
            self.progress();
            self.drive();
        }
    }

    fn check(&mut self) {
        let members: BTreeSet<usize> = self.spec.keys().copied().collect();
        assert!(self.spec.values().all(|entry| *entry == Entry::Member));
        let all: BTreeSet<usize> = members.iter().copied().chain([WORKER]).collect();
        let places = |of: &mut dyn Iterator<Item = usize>| of.collect::<BTreeSet<usize>>();
        assert_eq!(places(&mut self.lives.keys().copied()), all);
        assert_eq!(places(&mut self.domains.keys().copied()), all, "domains");
        assert_eq!(self.open, all, "devices");
        assert_eq!(places(&mut self.connections.keys().copied()), members);
        let conns: BTreeSet<u32> = self.connections.values().copied().collect();
        assert_eq!(self.ports, conns, "ports");
        for (place, domain) in &self.domains {
            let is_dead = pause_ms(*place).is_none() && domain.stage == Stage::TornDown;
            let is_up = domain.stage == Stage::Running && domain.is_connected;
            assert!(is_up || is_dead, "{place}: {domain:?}");
            assert!(self.lives[place].is_settled(), "{place}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// After any sequence of faults and edits, the machine matches its specification, no other
    /// resource remains, and an unchanged specification causes no request.
    #[test]
    fn step_converges_leaks_nothing_and_rests(ops in prop::collection::vec(op(), 0..60)) {
        let mut model = Model::boot();
        for op in &ops {
            model.carry_out(op);
            model.drive();
            if matches!(op, Op::Pass(_)) {
                model.progress();
                model.drive();
            }
        }
        model.pass_quiet_time();
        model.check();
        let requests = model.requests;
        model.pass_quiet_time();
        prop_assert_eq!(model.requests, requests, "an unchanged specification causes no request");
    }
}
