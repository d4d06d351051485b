//! The states of both ends, as tables: the action for a new interface, and a frontend's state as
//! the driver sees it.
//!
//! Xen's handshake is that of the data path (`driver::vifs`), with three differences. A stock
//! frontend changes directly from Initialising to Connected when it has written its rings. The
//! toolstack takes part: it writes Closing into the *backend's* state and clears `online`. A
//! backend may find an interface in any state, because its predecessor was killed.

use abi::XenbusState;
use abi::XenbusState as S;

/// The action for a new interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstAction {
    /// Serve it from the start of the handshake.
    Serve,
    /// Take over its rings: a previous backend has served it, and the frontend has not noticed the
    /// end of that backend.
    Resume,
    /// Write Closed, because the interface is ending.
    Finish,
    /// Do nothing, because the toolstack has not decided yet.
    Nothing,
}

/// Each row has a backend's state in the xenstore, the action if the interface is `online`, and the
/// action otherwise.
const FIRST: [(XenbusState, FirstAction, FirstAction); 7] = [
    (S::Unknown, FirstAction::Nothing, FirstAction::Nothing),
    (S::Initialising, FirstAction::Serve, FirstAction::Finish),
    (S::InitWait, FirstAction::Serve, FirstAction::Finish),
    (S::Initialised, FirstAction::Serve, FirstAction::Finish),
    (S::Connected, FirstAction::Resume, FirstAction::Finish),
    (S::Closing, FirstAction::Finish, FirstAction::Finish),
    (S::Closed, FirstAction::Serve, FirstAction::Finish),
];

/// Returns the action for a new interface.
#[must_use]
pub fn first_action(backend: XenbusState, online: bool) -> FirstAction {
    let row = FIRST.iter().find(|(state, ..)| *state == backend);
    row.map_or(
        FirstAction::Nothing,
        |(_, is_online, is_not)| match online {
            true => *is_online,
            false => *is_not,
        },
    )
}

/// Each row has a frontend's state in the xenstore, the state that the driver sees while it waits
/// for the frontend, and the state that it sees otherwise.
const VISIBLE_STATES: [(XenbusState, XenbusState, XenbusState); 7] = [
    (S::Unknown, S::Unknown, S::Unknown),
    (S::Initialising, S::Initialising, S::Initialising),
    (S::InitWait, S::InitWait, S::InitWait),
    (S::Initialised, S::Initialised, S::Connected),
    (S::Connected, S::Initialised, S::Connected),
    (S::Closing, S::Closing, S::Closing),
    (S::Closed, S::Closed, S::Closed),
];

/// Returns a frontend's state as the driver sees it. `own` is the driver's state, `ending` whether
/// the toolstack requests the end of the interface.
#[must_use]
pub fn published_state(own: XenbusState, ending: bool, frontend: XenbusState) -> XenbusState {
    if ending {
        return S::Closing;
    }
    let row = VISIBLE_STATES.iter().find(|(state, ..)| *state == frontend);
    row.map_or(S::Unknown, |(_, waiting, otherwise)| match own {
        S::InitWait => *waiting,
        _ => *otherwise,
    })
}

/// Parses the state in a node. An invalid one is Unknown.
#[must_use]
pub fn parse_state(text: Option<&str>) -> XenbusState {
    let number = text.and_then(|text| text.trim().parse().ok());
    number
        .and_then(XenbusState::from_wire)
        .unwrap_or(S::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [XenbusState; 7] = [
        S::Unknown,
        S::Initialising,
        S::InitWait,
        S::Initialised,
        S::Connected,
        S::Closing,
        S::Closed,
    ];

    #[test]
    fn every_state_has_its_row() {
        for (n, state) in ALL.into_iter().enumerate() {
            assert_eq!((FIRST[n].0, VISIBLE_STATES[n].0), (state, state));
        }
    }

    #[test]
    fn only_connected_interfaces_are_taken_over() {
        for state in ALL {
            let resumes = first_action(state, true) == FirstAction::Resume;
            assert_eq!(resumes, state == S::Connected, "{state:?}");
            assert_ne!(first_action(state, false), FirstAction::Resume, "{state:?}");
            assert_ne!(first_action(state, false), FirstAction::Serve, "{state:?}");
        }
    }

    #[test]
    fn a_connected_stock_frontend_has_rings() {
        assert_eq!(
            published_state(S::InitWait, false, S::Connected),
            S::Initialised
        );
        assert_eq!(
            published_state(S::Connected, false, S::Connected),
            S::Connected
        );
        assert_eq!(
            published_state(S::Closed, false, S::Initialising),
            S::Initialising
        );
    }

    #[test]
    fn toolstack_ends_connections_in_every_state() {
        for own in ALL {
            for frontend in ALL {
                assert_eq!(published_state(own, true, frontend), S::Closing);
            }
        }
    }

    #[test]
    fn nodes_may_hold_anything() {
        assert_eq!(parse_state(Some("4")), S::Connected);
        for strange in [None, Some(""), Some("7"), Some("-1"), Some("four")] {
            assert_eq!(parse_state(strange), S::Unknown, "{strange:?}");
        }
    }
}
