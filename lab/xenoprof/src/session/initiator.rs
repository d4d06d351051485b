//! The initiator: the privileged side of a coordinated session.
//!
//! One thread serves all participants and never blocks on one: every socket is non-blocking, and
//! every turn processes a bounded number of messages from each participant.

use super::SessionError;
use super::budget::{Budget, MemoryInUse};
use super::demux::{Demux, check_scope};
use super::listener::Listener;
use super::message::{
    AddressName, DomainScope, Envelope, SessionLink, SessionMessage, read_document,
};
use super::outcome::{FinalState, ParticipantData, SessionOutcome};
use super::ring::Producer;
use super::saved::SavedSymbols;
use super::state::{Action, Expected, LEAD_NS, MemberId, MemberState, Phase, SessionInput, State};
use crate::model::{DomainKind, Mode, SampledEvent, Session, file};
use figures::clean;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of connections, in total and of one user other than root. Further connections are
/// closed immediately.
const LINKS_MAX: usize = 64;
const LINKS_OF_USER_MAX: usize = 32;
/// Timeout for a connection to register, nanoseconds.
const REGISTRATION_TIMEOUT_NS: u64 = 5_000_000_000;
/// Maximum messages of one participant per turn.
const TURN_MAX: usize = 64;
/// Maximum bytes of messages from one participant in total.
const BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of memory per byte of an agent's profile. The worst case is an empty list in the
/// profile's head: three bytes with its comma.
const PROFILE_GROWTH: usize = 12;
/// Bytes of memory for a name without its texts, and for a function in it.
const NAMED_BYTES: usize = size_of::<AddressName>() + 64;
const FUNCTION_BYTES: usize = size_of::<(String, bool)>() + 32;
/// Maximum length of a function or module name, bytes, and maximum functions inlined at one
/// address.
const NAME_MAX: usize = 4096;
const FRAMES_MAX: usize = 64;
/// Reason for excluding a participant whose connection has closed.
const DISCONNECTED: &str = "disconnected";
/// Interval of checks of the time.
const TURN: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Connection {
    /// Connection. `None`: closed.
    link: Option<SessionLink>,
    peer: (u32, u32),
    scope: DomainScope,
    mode: Mode,
    /// Time at which it was opened, by `CLOCK_MONOTONIC_RAW`.
    since_ns: u64,
    bytes: usize,
    kept: MemoryInUse,
    received: ParticipantData,
}

/// Initiator of a session.
#[derive(Debug)]
pub struct Initiator {
    id: u64,
    listener: Listener,
    state: State,
    connections: BTreeMap<MemberId, Connection>,
    next: MemberId,
    event: Option<SampledEvent>,
    demux: Arc<Mutex<Demux>>,
    budget: Budget,
    now: fn() -> u64,
}

/// Event and participants of a session.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Session id.
    pub id: u64,
    /// Whether the initiator may profile other users' processes.
    pub privileged: bool,
    /// Expected participants.
    pub expected: Expected,
    /// Timeout for them to become ready.
    pub timeout: Duration,
    /// The first event.
    pub event: Option<SampledEvent>,
}

impl Initiator {
    /// Opens a session at a socket.
    ///
    /// # Errors
    /// Returns [`SessionError::NotPrivileged`], [`SessionError::Busy`], or an error of a system
    /// call.
    pub fn open(path: &Path, with: Configuration) -> Result<Self, SessionError> {
        let now = crate::host::cpus::raw_ns;
        let timeout = u64::try_from(with.timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline = now().saturating_add(timeout);
        let state = State::new(with.privileged, with.expected, deadline)?;
        Ok(Self {
            id: with.id,
            listener: Listener::at(path)?,
            state,
            connections: BTreeMap::new(),
            next: 0,
            event: with.event,
            demux: Arc::default(),
            budget: Budget::default(),
            now,
        })
    }

    /// Returns the demultiplexer, to which samples are offered.
    #[must_use]
    pub fn demux(&self) -> Arc<Mutex<Demux>> {
        Arc::clone(&self.demux)
    }

    /// Returns the session's phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// Returns the participants that are absent.
    #[must_use]
    pub fn absent(&self) -> &[String] {
        self.state.absent()
    }

    /// Waits until all participants are ready, the timeout expires, or `stop` returns true.
    pub fn reserve(&mut self, stop: impl Fn() -> bool) {
        while self.phase() == Phase::Configured && !stop() {
            self.turn();
        }
    }

    /// Starts the session. Returns the time at which all participants begin, in nanoseconds of
    /// `CLOCK_MONOTONIC_RAW`.
    pub fn arm(&mut self) -> u64 {
        let now_ns = (self.now)();
        self.take_at(SessionInput::Start, now_ns);
        now_ns.saturating_add(LEAD_NS)
    }

    /// Serves participants in a separate thread while the session runs.
    #[must_use]
    pub fn serve(mut self) -> InitiatorThread {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                self.turn();
            }
            self
        });
        InitiatorThread { stop, thread }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Demux> {
        self.demux.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes pending messages of all participants, and timeouts.
    pub fn turn(&mut self) {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: TURN.subsec_nanos().into(),
        };
        let links = self.connections.values().filter_map(|c| c.link.as_ref());
        let mut fds: Vec<PollFd<'_>> = std::iter::once(self.listener.as_fd())
            .chain(links.map(AsFd::as_fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // After an interrupted wait the next check happens early.
        let _looked = poll(&mut fds, Some(&limit));
        let called = fds
            .first()
            .is_some_and(|listener| listener.revents().contains(PollFlags::IN));
        if called {
            self.accept();
        }
        let ids: Vec<MemberId> = self.connections.keys().copied().collect();
        for id in ids {
            self.receive(id);
        }
        self.close_strangers();
        self.take(SessionInput::Tick);
    }

    fn accept(&mut self) {
        let Ok(link) = SessionLink::accept(&self.listener) else {
            return;
        };
        let Ok(peer) = link.peer() else {
            return;
        };
        let open = || self.connections.values().filter(|c| c.link.is_some());
        let of_user = open().filter(|c| c.peer.1 == peer.1).count();
        if open().count() >= LINKS_MAX || (peer.1 != 0 && of_user >= LINKS_OF_USER_MAX) {
            return;
        }
        let event = self.event.clone();
        let (event, period) = event.map_or_else(Default::default, |of| (of.event, of.period));
        let sent = link.send(self.id, SessionMessage::Configured { event, period }, &[]);
        if sent.is_ok() {
            self.next += 1;
            let connection = Connection {
                link: Some(link),
                peer,
                scope: DomainScope::Elsewhere,
                mode: Mode::Passive,
                since_ns: (self.now)(),
                bytes: 0,
                kept: MemoryInUse::default(),
                received: ParticipantData::default(),
            };
            self.connections.insert(self.next, connection);
        }
    }

    /// Closes connections that do not register in time, so that they do not block others.
    fn close_strangers(&mut self) {
        let now = (self.now)();
        let members = self.state.members();
        let is_late = |c: &Connection| now.saturating_sub(c.since_ns) > REGISTRATION_TIMEOUT_NS;
        let late: Vec<MemberId> = self
            .connections
            .iter()
            .filter(|(id, c)| !members.contains_key(id) && is_late(c))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.close(id);
        }
    }

    fn receive(&mut self, id: MemberId) {
        for _ in 0..TURN_MAX {
            let Some(connection) = self.connections.get_mut(&id) else {
                return;
            };
            let Some(link) = &connection.link else {
                return;
            };
            let (envelope, bytes, descriptors) = match link.receive() {
                Ok(None) => return,
                Ok(Some(message)) => message,
                Err(SessionError::Io(_)) => return self.lose(id, DISCONNECTED.to_owned()),
                Err(error) => return self.lose(id, error.to_string()),
            };
            connection.bytes += bytes;
            if connection.bytes > BYTES_MAX {
                return self.lose(id, "sent too much data".to_owned());
            }
            if let Err(why) = self.understand(id, envelope, descriptors) {
                // Delivery is best-effort, because the participant is removed in any case.
                let _sent = self.send_to(id, SessionMessage::Refused { why: why.clone() });
                return self.lose(id, why);
            }
        }
    }

    /// Processes a message. An error is the reason for removing its sender.
    fn understand(
        &mut self,
        id: MemberId,
        envelope: Envelope,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), String> {
        if envelope.session != self.id {
            return Err("sent the id of another session".to_owned());
        }
        let standing = self.state.members().get(&id).map(|m| m.standing.clone());
        let is_registered = standing == Some(MemberState::Registered);
        let gives = standing == Some(MemberState::Ready) && self.phase() == Phase::Draining;
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let (budget, kept) = (&mut self.budget, &mut connection.kept);
        let received = &mut connection.received;
        let mode = connection.mode;
        match envelope.message {
            SessionMessage::Register { name, mode, scope } if standing.is_none() => {
                let elsewhere = scope == DomainScope::Elsewhere;
                if elsewhere != (mode == Mode::AgentOnly) {
                    return Err("only agents may (and must) have no processes here".to_owned());
                }
                check_scope(connection.peer.0, &scope)?;
                (connection.scope, connection.mode) = (scope, mode);
                self.take(SessionInput::Register(id, name, mode));
            }
            SessionMessage::Ready => self.take(SessionInput::Ready(id)),
            SessionMessage::Symbols if is_registered && mode == Mode::Passive => {
                let fd = descriptors.pop().ok_or("sent symbols without a document")?;
                let text = read_document(fd, |len| {
                    budget.charge(kept, len.saturating_mul(SavedSymbols::GROWTH))
                })?;
                received.symbols = SavedSymbols::parse(&text);
            }
            SessionMessage::Names { names } if gives && mode == Mode::Active => {
                for named in names.into_iter().filter(is_sane) {
                    budget.charge(kept, bytes_of(&named))?;
                    received.names.push(named);
                }
            }
            SessionMessage::Profile
                if gives && mode == Mode::AgentOnly && received.session.is_none() =>
            {
                let fd = descriptors
                    .pop()
                    .ok_or("sent a profile without a document")?;
                let text = read_document(fd, |len| {
                    budget.charge(kept, len.saturating_mul(PROFILE_GROWTH))
                })?;
                received.session = Some(Box::new(file::from_bytes(&text)?));
            }
            SessionMessage::Drained { read } => {
                received.read = Some(read);
                self.take(SessionInput::Drained(id));
            }
            _ => return Err("sent a message out of order".to_owned()),
        }
        Ok(())
    }

    fn take(&mut self, input: SessionInput) {
        self.take_at(input, (self.now)());
    }

    fn take_at(&mut self, input: SessionInput, now_ns: u64) {
        let actions = self.state.take(input, now_ns);
        for action in actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        let (id, done) = match action {
            Action::Reserve(id) => (id, self.admit(id)),
            Action::Refuse(id, why) => {
                // Delivery is best-effort, because the participant is removed in any case.
                let _sent = self.send_to(id, SessionMessage::Refused { why });
                self.close(id);
                return;
            }
            Action::Arm(id, at_raw_ns) => {
                (id, self.send_to(id, SessionMessage::Armed { at_raw_ns }))
            }
            Action::Drain(id) => (id, self.send_to(id, SessionMessage::Drain)),
        };
        match done {
            Ok(()) => {}
            Err(SessionError::Io(why))
                if matches!(
                    why.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                self.lose(id, DISCONNECTED.to_owned());
            }
            Err(_) => self.lose(id, "did not read its messages".to_owned()),
        }
    }

    fn admit(&mut self, id: MemberId) -> Result<(), SessionError> {
        let Some(connection) = self.connections.get(&id) else {
            return Ok(());
        };
        let (peer, scope, mode) = (connection.peer, connection.scope.clone(), connection.mode);
        let link = connection.link.as_ref();
        let ring = match mode {
            Mode::Active => Some(Producer::new(peer.1 == 0)?),
            Mode::Passive | Mode::AgentOnly => None,
        };
        if let (Some(ring), Some(link)) = (&ring, link) {
            link.send(self.id, SessionMessage::Reserved, &ring.descriptors())?;
        } else {
            self.send_to(id, SessionMessage::Reserved)?;
        }
        if mode != Mode::AgentOnly {
            self.lock().join(id, peer, &scope, ring);
        }
        Ok(())
    }

    fn send_to(&self, id: MemberId, message: SessionMessage) -> Result<(), SessionError> {
        match self.connections.get(&id).and_then(|c| c.link.as_ref()) {
            Some(link) => Ok(link.send(self.id, message, &[])?),
            None => Err(SessionError::Nonsense("nothing")),
        }
    }

    fn lose(&mut self, id: MemberId, why: String) {
        self.close(id);
        self.take(SessionInput::Gone(id, why));
    }

    fn close(&mut self, id: MemberId) {
        let configured = self.phase() == Phase::Configured;
        let stranger = !self.state.members().contains_key(&id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.link = None;
        }
        if configured || stranger {
            self.lock().leave(id);
            if let Some(connection) = self.connections.remove(&id) {
                self.budget.forget(connection.kept);
            }
        }
    }

    /// Collects the results of all participants until they are complete or late.
    fn drain(mut self, stop: impl Fn() -> bool) -> (SessionOutcome, ClosingConnections) {
        self.lock().flush();
        self.take(SessionInput::Stop);
        while self.phase() != Phase::Merged && !stop() {
            self.turn();
        }
        let mut delivered = self.lock().delivered();
        let mut ending = ClosingConnections {
            id: self.id,
            links: BTreeMap::new(),
        };
        let mut outcome = SessionOutcome {
            members: Vec::new(),
            absent: self.state.absent().to_vec(),
        };
        for (id, member) in self.state.members() {
            let connection = self.connections.remove(id);
            let mut lost = match &member.standing {
                MemberState::Lost(why) => Some(why.clone()),
                MemberState::Drained => None,
                _ => Some("was interrupted".to_owned()),
            };
            let (link, received) =
                connection.map_or_else(Default::default, |c| (c.link, c.received));
            let delivered = delivered.remove(id).unwrap_or_default();
            // This reason is more specific than the participant's other results.
            if delivered.broken {
                lost = Some("wrote invalid indices to its ring".to_owned());
            }
            if let Some(link) = link {
                ending.links.insert(member.name.clone(), link);
            }
            outcome.members.push(FinalState {
                name: member.name.clone(),
                mode: member.mode,
                lost,
                delivered,
                received,
            });
        }
        (outcome, ending)
    }
}

/// Names become lines of reports, so they must be short and without control characters.
fn is_sane(named: &AddressName) -> bool {
    let good = |text: &str| text.len() <= NAME_MAX && matches!(clean::line(text), Cow::Borrowed(_));
    named.frames.len() <= FRAMES_MAX
        && !named.frames.is_empty()
        && good(&named.module)
        && named.frames.iter().all(|(symbol, _)| good(symbol))
}

/// Returns the memory needed for a name, bytes.
fn bytes_of(named: &AddressName) -> usize {
    let functions = named.frames.iter();
    let functions = functions.map(|(symbol, _)| symbol.len() + FUNCTION_BYTES);
    NAMED_BYTES + named.module.len() + functions.sum::<usize>()
}

/// An initiator that serves its participants in a thread.
#[derive(Debug)]
pub struct InitiatorThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Initiator>,
}

impl InitiatorThread {
    /// Ends the session. Returns the results, and the open connections for the final message.
    #[must_use]
    pub fn drain(self, stop: impl Fn() -> bool) -> (SessionOutcome, ClosingConnections) {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(initiator) => initiator.drain(stop),
            // The panic has been printed. The initiator then attributes all samples.
            Err(_) => (SessionOutcome::default(), ClosingConnections::default()),
        }
    }
}

/// Connections that wait for the final message.
#[derive(Debug, Default)]
pub struct ClosingConnections {
    id: u64,
    links: BTreeMap<String, SessionLink>,
}

impl ClosingConnections {
    /// Reports to every participant how many samples of its domain the session contains.
    pub fn report_sample_counts(&self, session: &Session) {
        for (name, link) in &self.links {
            let is_own = |domain: &str| {
                domain == name
                    || domain
                        .strip_prefix(name.as_str())
                        .is_some_and(|rest| rest.starts_with('/'))
            };
            let own = |place: usize| {
                let domain = session.domains.get(place);
                domain.is_some_and(|d| {
                    let can_be = d.kind == DomainKind::Process || d.mode == Mode::AgentOnly;
                    can_be && is_own(&d.name)
                })
            };
            let samples = session
                .samples
                .iter()
                .filter(|sample| own(session.domain_of(sample)))
                .count() as u64;
            // A participant that has disconnected needs no report.
            let _sent = link.send(self.id, SessionMessage::Merged { samples }, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    static NOW: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn silent_connections_do_not_block_participants() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let with = Configuration {
            id: 1,
            privileged: true,
            expected: Expected::Count(1),
            timeout: Duration::from_secs(3600),
            event: None,
        };
        let mut initiator = Initiator::open(&path, with).unwrap();
        initiator.now = || NOW.load(Ordering::Relaxed);
        let connect = |initiator: &mut Initiator| {
            let link = SessionLink::connect(&path).unwrap();
            initiator.turn();
            link
        };
        let is_heard = |link: &SessionLink| matches!(link.receive(), Ok(Some(_)));
        let silent: Vec<SessionLink> = (0..LINKS_MAX).map(|_| connect(&mut initiator)).collect();
        let user = silent.first().and_then(|link| link.peer().ok()).unwrap().1;
        let most = if user == 0 {
            LINKS_MAX
        } else {
            LINKS_OF_USER_MAX
        };
        assert_eq!(silent.iter().filter(|link| is_heard(link)).count(), most);
        assert!(!is_heard(&connect(&mut initiator)));
        NOW.store(REGISTRATION_TIMEOUT_NS + 1, Ordering::Relaxed);
        initiator.turn();
        assert!(initiator.connections.is_empty());
        assert!(is_heard(&connect(&mut initiator)));
    }
}
