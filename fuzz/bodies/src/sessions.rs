//! Messages of participants in a profile, and the session that they drive.

use crate::input::Input;
use xenoprof::model::Mode;
use xenoprof::session::message::Envelope;
use xenoprof::session::saved::SavedSymbols;
use xenoprof::session::state::{Expected, MemberState, Phase, SessionInput, State};

/// Simultaneous connections.
const PEERS: usize = 5;
const NAMES: [&str; 6] = ["a", "b", "driver", "", "a b", "-"];

/// Reads messages, symbols, and the list of expected participants; then drives a session with any
/// order of events. A session only advances, and lists a participant as drained only after its
/// symbols and samples were requested.
pub fn sessions(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        crate::control::round_trips::<Envelope>(line);
    }
    let _parsed = SavedSymbols::parse(bytes);
    let mut input = Input::new(bytes);
    let text = String::from_utf8_lossy(input.bytes(8)).into_owned();
    let expected = Expected::parse(&text).unwrap_or(Expected::Count(input.below(PEERS)));
    let deadline = u64::from(input.u16());
    let Ok(mut session) = State::new(input.bool(), expected, deadline) else {
        return;
    };
    let mut now = 0u64;
    while !input.is_empty() {
        let before = session.phase();
        now = now.saturating_add(match input.u8() {
            255 => input.u64(),
            step => u64::from(step) << 24,
        });
        let _actions = session.take(event(&mut input), now);
        let phase = session.phase();
        assert!(phase >= before, "{before:?} -> {phase:?}");
        let early = phase < Phase::Draining;
        for member in session.members().values() {
            assert!(
                !(early && member.standing == MemberState::Drained),
                "{member:?}"
            );
        }
    }
}

fn event(input: &mut Input<'_>) -> SessionInput {
    let id = input.below(PEERS) as u32;
    match input.below(8) {
        0 | 1 => {
            let modes = [Mode::Active, Mode::Passive, Mode::AgentOnly];
            let mode = modes.get(input.below(3)).copied().unwrap_or(Mode::Passive);
            let name = NAMES.get(input.below(NAMES.len())).copied().unwrap_or("x");
            SessionInput::Register(id, name.to_owned(), mode)
        }
        2 => SessionInput::Ready(id),
        3 => SessionInput::Drained(id),
        4 => SessionInput::Gone(id, "closed".to_owned()),
        5 => SessionInput::Start,
        6 => SessionInput::Stop,
        _ => SessionInput::Tick,
    }
}
