//! State machine of a session. Pure: time is an argument.
//!
//! ```text
//! CONFIGURED ──all ready, or too late──▶ RESERVED ──start──▶ ARMED ──the instant──▶ RUNNING
//!                                                                                     │ stop
//!                        MERGED ◀──all have answered, or too late── DRAINING ◀────────┘
//! ```
//! The initiator configures, starts and stops the session (section 4.2 of the Xenoprof paper). It
//! records a participant that is absent, disconnects or violates the protocol; the others continue
//! unaffected.

use crate::model::Mode;
use std::collections::BTreeMap;

/// Id of a participant's connection.
pub type MemberId = u32;

/// Nanoseconds that participants have to answer after a stop.
pub const DRAIN_NS: u64 = 10_000_000_000;
/// Nanoseconds from the start until all participants begin: enough to notify all of them.
pub const LEAD_NS: u64 = 50_000_000;

/// Expected participants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any N participants.
    Count(usize),
    /// Participants with these names.
    Named(Vec<String>),
}

impl Expected {
    /// Parses a number, or names separated by commas.
    ///
    /// # Errors
    /// Returns a description of the error.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(count) = text.parse() {
            return Ok(Self::Count(count));
        }
        let names: Vec<String> = text.split(',').map(str::to_owned).collect();
        if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
            return Err(format!(
                "`{wrong}` is not a valid domain name: letters, digits, - and _, at most 32"
            ));
        }
        Ok(Self::Named(names))
    }

    /// Returns the number of participants.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::Named(names) => names.len(),
        }
    }

    /// Returns whether no participant is expected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns whether a domain may have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let good = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    (1..=32).contains(&name.len()) && name.bytes().all(good)
}

/// Phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The event is chosen; participants register.
    Configured,
    /// All participants are ready.
    Reserved,
    /// The start time is set.
    Armed,
    /// Sampling.
    Running,
    /// Participants send their results.
    Draining,
    /// Complete.
    Merged,
}

/// State of a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Registered.
    Registered,
    /// Ready for the start, or taking part.
    Ready,
    /// Has sent all results.
    Drained,
    /// Removed, for this reason.
    Lost(String),
}

/// A participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Domain name.
    pub name: String,
    /// The side that attributes its samples.
    pub mode: Mode,
    /// State.
    pub standing: MemberState,
}

/// Input of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionInput {
    /// A participant registers.
    Register(MemberId, String, Mode),
    /// A participant is ready for samples.
    Ready(MemberId),
    /// A participant has sent all results.
    Drained(MemberId),
    /// A participant disconnected, or must be removed, for this reason.
    Gone(MemberId, String),
    /// The initiator starts.
    Start,
    /// The initiator stops.
    Stop,
    /// Time passes.
    Tick,
}

/// Output of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the participant its ring.
    Reserve(MemberId),
    /// Send the participant the reason, and remove it.
    Refuse(MemberId, String),
    /// Send the participant the start time in nanoseconds.
    Arm(MemberId, u64),
    /// Request the participant's results.
    Drain(MemberId),
}

/// Error for an unprivileged user who requests several domains.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "profiling several domains needs privileges (CAP_PERFMON, or perf_event_paranoid of at most \
     0): run as root, or profile a command of your own, without --participants"
)]
pub struct NotPrivileged;

/// State of a session.
#[derive(Clone, Debug)]
pub struct State {
    phase: Phase,
    expected: Expected,
    deadline_ns: u64,
    members: BTreeMap<MemberId, Member>,
    absent: Vec<String>,
}

impl State {
    /// Creates a configured session that waits for participants until `deadline_ns`.
    ///
    /// # Errors
    /// Returns [`NotPrivileged`] if domains of other users would be profiled.
    pub fn new(
        privileged: bool,
        expected: Expected,
        deadline_ns: u64,
    ) -> Result<Self, NotPrivileged> {
        if !privileged && !expected.is_empty() {
            return Err(NotPrivileged);
        }
        let phase = if expected.is_empty() {
            Phase::Reserved
        } else {
            Phase::Configured
        };
        Ok(Self {
            phase,
            expected,
            deadline_ns,
            members: BTreeMap::new(),
            absent: Vec::new(),
        })
    }

    /// Returns the phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns all participants that were ready, and those that have registered since.
    #[must_use]
    pub const fn members(&self) -> &BTreeMap<MemberId, Member> {
        &self.members
    }

    /// Returns the expected participants that were not ready in time. If only a number was
    /// expected, states how many were missing.
    #[must_use]
    pub fn absent(&self) -> &[String] {
        &self.absent
    }

    /// Processes an input at `now_ns` and returns the actions to take.
    pub fn take(&mut self, input: SessionInput, now_ns: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            SessionInput::Register(id, name, mode) => self.register(id, name, mode, &mut actions),
            SessionInput::Ready(id) => {
                let standing = self.members.get_mut(&id).map(|member| &mut member.standing);
                match standing {
                    Some(standing @ MemberState::Registered) if self.phase == Phase::Configured => {
                        *standing = MemberState::Ready;
                    }
                    _ => self.breach(id, &mut actions),
                }
            }
            SessionInput::Drained(id) => {
                let standing = self.members.get_mut(&id).map(|member| &mut member.standing);
                match standing {
                    Some(standing @ MemberState::Ready) if self.phase == Phase::Draining => {
                        *standing = MemberState::Drained;
                    }
                    _ => self.breach(id, &mut actions),
                }
            }
            SessionInput::Gone(id, why) => self.lose(id, why),
            SessionInput::Start if self.phase == Phase::Reserved => {
                self.phase = Phase::Armed;
                self.deadline_ns = now_ns.saturating_add(LEAD_NS);
                let at = self.deadline_ns;
                actions.extend(self.ready().map(|id| Action::Arm(id, at)));
            }
            SessionInput::Stop if matches!(self.phase, Phase::Armed | Phase::Running) => {
                self.phase = Phase::Draining;
                self.deadline_ns = now_ns.saturating_add(DRAIN_NS);
                actions.extend(self.ready().map(Action::Drain));
            }
            SessionInput::Start | SessionInput::Stop | SessionInput::Tick => {}
        }
        self.advance(now_ns, &mut actions);
        actions
    }

    fn register(&mut self, id: MemberId, name: String, mode: Mode, actions: &mut Vec<Action>) {
        let known = self.members.values().any(|member| member.name == name);
        let why = if self.phase != Phase::Configured {
            Some("the session has already started".to_owned())
        } else if self.members.contains_key(&id) {
            return self.breach(id, actions);
        } else if !is_name(&name) {
            Some("the domain name is not valid".to_owned())
        } else if known {
            Some(format!("`{name}` already takes part"))
        } else {
            match &self.expected {
                Expected::Named(names) if !names.contains(&name) => {
                    Some(format!("`{name}` is not expected: {}", names.join(", ")))
                }
                Expected::Count(count) if self.members.len() >= *count => {
                    Some(format!("the session already has {count} participants"))
                }
                _ => None,
            }
        };
        if let Some(why) = why {
            actions.push(Action::Refuse(id, why));
            return;
        }
        let standing = MemberState::Registered;
        let member = Member {
            name,
            mode,
            standing,
        };
        self.members.insert(id, member);
        actions.push(Action::Reserve(id));
    }

    /// Handles a message out of order.
    fn breach(&mut self, id: MemberId, actions: &mut Vec<Action>) {
        let why = "sent a message out of order".to_owned();
        actions.push(Action::Refuse(id, why.clone()));
        self.lose(id, why);
    }

    fn lose(&mut self, id: MemberId, why: String) {
        if self.phase == Phase::Configured {
            // This participant, or another with its name, may register again.
            self.members.remove(&id);
        } else if let Some(member) = self.members.get_mut(&id)
            && member.standing == MemberState::Ready
        {
            member.standing = MemberState::Lost(why);
        }
    }

    fn ready(&self) -> impl Iterator<Item = MemberId> {
        self.members
            .iter()
            .filter(|(_, member)| member.standing == MemberState::Ready)
            .map(|(id, _)| *id)
    }

    fn advance(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let late = now_ns >= self.deadline_ns;
        match self.phase {
            Phase::Configured => {
                let ready = self.ready().count();
                if ready == self.expected.len() {
                    self.phase = Phase::Reserved;
                } else if late {
                    self.phase = Phase::Reserved;
                    self.give_up(ready, actions);
                }
            }
            Phase::Armed if late => self.phase = Phase::Running,
            Phase::Draining => {
                if late {
                    for member in self.members.values_mut() {
                        if member.standing == MemberState::Ready {
                            let why = "did not send its results in time".to_owned();
                            member.standing = MemberState::Lost(why);
                        }
                    }
                }
                if self.ready().next().is_none() {
                    self.phase = Phase::Merged;
                }
            }
            _ => {}
        }
    }

    /// Continues without participants that are not ready.
    fn give_up(&mut self, ready: usize, actions: &mut Vec<Action>) {
        let here: Vec<&String> = self.members.values().map(|member| &member.name).collect();
        match &self.expected {
            Expected::Count(count) => {
                let nameless = count.saturating_sub(self.members.len());
                if nameless > 0 {
                    self.absent.push(format!("{nameless} of {count}"));
                }
            }
            Expected::Named(names) => {
                let absent = names.iter().filter(|name| !here.contains(name));
                self.absent.extend(absent.cloned());
            }
        }
        debug_assert!(ready <= self.expected.len());
        for (id, member) in &mut self.members {
            if member.standing == MemberState::Registered {
                let why = "was not ready in time".to_owned();
                member.standing = MemberState::Lost(why.clone());
                self.absent.push(member.name.clone());
                actions.push(Action::Refuse(*id, why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const NAMES: [&str; 3] = ["web", "db", "log"];
    const DEADLINE: u64 = 1000;

    fn input() -> impl Strategy<Value = SessionInput> {
        let id = 0u32..4;
        prop_oneof![
            3 => (id.clone(), 0usize..4).prop_map(|(id, name)| {
                let name = NAMES.get(name).copied().unwrap_or("stranger");
                SessionInput::Register(id, name.to_owned(), Mode::Active)
            }),
            3 => id.clone().prop_map(SessionInput::Ready),
            2 => id.clone().prop_map(SessionInput::Drained),
            1 => id.prop_map(|id| SessionInput::Gone(id, "gone".to_owned())),
            1 => Just(SessionInput::Start),
            1 => Just(SessionInput::Stop),
            1 => Just(SessionInput::Tick),
        ]
    }

    /// Oracle: computes the expected state from the whole history.
    #[derive(Debug, PartialEq)]
    struct Oracle {
        phase: Phase,
        ready: BTreeSet<MemberId>,
        drained: BTreeSet<MemberId>,
    }

    fn oracle(history: &[(u64, SessionInput)]) -> Oracle {
        let (mut names, mut ready) = (BTreeMap::new(), BTreeSet::new());
        let mut drained = BTreeSet::new();
        let (mut phase, mut until) = (Phase::Configured, DEADLINE);
        for (now, input) in history {
            match (phase, input) {
                (Phase::Configured, SessionInput::Register(id, name, _)) => {
                    if names.contains_key(id) {
                        names.remove(id);
                        ready.remove(id);
                    } else if NAMES.contains(&name.as_str()) && !names.values().any(|n| n == name) {
                        names.insert(*id, name.clone());
                    }
                }
                (Phase::Configured, SessionInput::Ready(id)) => {
                    if names.contains_key(id) && !ready.contains(id) {
                        ready.insert(*id);
                    } else {
                        names.remove(id);
                        ready.remove(id);
                    }
                }
                (Phase::Configured, SessionInput::Drained(id) | SessionInput::Gone(id, _)) => {
                    names.remove(id);
                    ready.remove(id);
                }
                (Phase::Draining, SessionInput::Drained(id)) if ready.contains(id) => {
                    ready.remove(id);
                    drained.insert(*id);
                }
                (
                    _,
                    SessionInput::Ready(id) | SessionInput::Drained(id) | SessionInput::Gone(id, _),
                ) => {
                    ready.remove(id);
                }
                (Phase::Reserved, SessionInput::Start) => {
                    (phase, until) = (Phase::Armed, now + LEAD_NS)
                }
                (Phase::Armed | Phase::Running, SessionInput::Stop) => {
                    (phase, until) = (Phase::Draining, now + DRAIN_NS);
                }
                _ => {}
            }
            let late = *now >= until;
            phase = match phase {
                Phase::Configured if late || ready.len() == NAMES.len() => Phase::Reserved,
                Phase::Armed if late => Phase::Running,
                Phase::Draining if late || ready.is_empty() => {
                    ready.clear();
                    Phase::Merged
                }
                phase => phase,
            };
        }
        Oracle {
            phase,
            ready,
            drained,
        }
    }

    fn standing(state: &State, wanted: &MemberState) -> BTreeSet<MemberId> {
        let members = state.members().iter();
        members
            .filter(|(_, member)| member.standing == *wanted)
            .map(|(id, _)| *id)
            .collect()
    }

    proptest! {
        #[test]
        fn sessions_match_the_oracle(
            steps in proptest::collection::vec((input(), prop_oneof![
                8 => 0u64..200,
                1 => Just(LEAD_NS),
                1 => Just(DRAIN_NS),
            ]), 1..80),
        ) {
            let expected = Expected::Named(NAMES.map(str::to_owned).to_vec());
            let mut state = State::new(true, expected, DEADLINE).unwrap();
            let (mut now, mut history) = (0, Vec::new());
            for (input, wait) in steps {
                now += wait;
                let before = state.phase();
                let ready = standing(&state, &MemberState::Ready);
                history.push((now, input.clone()));
                let actions = state.take(input, now);
                let expected = oracle(&history);
                prop_assert_eq!(state.phase(), expected.phase);
                prop_assert_eq!(standing(&state, &MemberState::Ready), expected.ready);
                prop_assert_eq!(standing(&state, &MemberState::Drained), expected.drained);
                prop_assert!(state.phase() >= before, "phases never go backwards");
                for action in &actions {
                    match action {
                        Action::Arm(id, at) => {
                            prop_assert!(*at > now && ready.contains(id));
                        }
                        Action::Drain(id) => prop_assert!(ready.contains(id)),
                        Action::Reserve(_) => prop_assert_eq!(before, Phase::Configured),
                        Action::Refuse(..) => {}
                    }
                }
                if state.phase() > Phase::Configured {
                    let known: BTreeSet<&str> =
                        state.members().values().map(|m| m.name.as_str()).collect();
                    for name in NAMES {
                        let is_absent = state.absent().iter().any(|absent| absent == name);
                        prop_assert!(is_absent || known.contains(name), "{} is missing", name);
                    }
                }
            }
        }
    }

    #[test]
    fn several_domains_need_privilege() {
        let one = Expected::Count(1);
        assert_eq!(
            State::new(false, one.clone(), 0).unwrap_err(),
            NotPrivileged
        );
        assert!(State::new(true, one, 0).is_ok());
        let alone = State::new(false, Expected::Count(0), 0).unwrap();
        assert_eq!(alone.phase(), Phase::Reserved);
    }

    #[test]
    fn a_timeout_names_the_absent() {
        let expected = Expected::parse("web,db,log").unwrap();
        let mut state = State::new(true, expected, 100).unwrap();
        let register = |name: &str| SessionInput::Register(1, name.to_owned(), Mode::Active);
        assert_eq!(state.take(register("web"), 1), [Action::Reserve(1)]);
        let late = SessionInput::Register(2, "db".to_owned(), Mode::Passive);
        state.take(late, 2);
        state.take(SessionInput::Ready(1), 3);
        let actions = state.take(SessionInput::Tick, 100);
        assert_eq!(state.phase(), Phase::Reserved);
        assert_eq!(state.absent(), ["log", "db"]);
        assert_eq!(
            actions,
            [Action::Refuse(2, "was not ready in time".to_owned())]
        );
        assert_eq!(
            state.take(SessionInput::Start, 101),
            [Action::Arm(1, 101 + LEAD_NS)]
        );

        let mut state = State::new(true, Expected::Count(3), 100).unwrap();
        state.take(register("web"), 1);
        state.take(SessionInput::Ready(1), 2);
        state.take(SessionInput::Tick, 100);
        assert_eq!(state.absent(), ["2 of 3"]);
    }

    #[test]
    fn expected_participants_are_parsed() {
        assert_eq!(Expected::parse("3"), Ok(Expected::Count(3)));
        assert!(Expected::parse("web,,db").is_err());
        assert!(Expected::parse("../x").is_err());
    }
}
