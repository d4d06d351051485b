//! The states of both ends, as tables: what is done with an interface that is seen for the first
//! time, and what the driver is shown of a frontend.
//!
//! Xen's hand-shake is the path's own (`driver::vifs`), with three differences. A stock frontend
//! goes from Initialising straight to Connected, when it has written its rings. The toolstack has a
//! say: it writes Closing into the *backend's* state, and takes `online` away. And a backend may
//! find an interface in any state, because the one before it was killed.

use abi::XenbusState;
use abi::XenbusState as S;

/// What is done with an interface that is seen for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// It is served from the beginning of the hand-shake.
    Serve,
    /// A backend before this one has served it, and its frontend knows nothing of its end: the
    /// rings are taken over.
    Resume,
    /// It is on its way out: all that is left to do is to say Closed.
    Finish,
    /// The toolstack has not said yet what is to become of it.
    Nothing,
}

/// By the backend's state in the xenstore: what is done while the interface is `online`, and what
/// when it is not.
const FIRST: [(XenbusState, First, First); 7] = [
    (S::Unknown, First::Nothing, First::Nothing),
    (S::Initialising, First::Serve, First::Finish),
    (S::InitWait, First::Serve, First::Finish),
    (S::Initialised, First::Serve, First::Finish),
    (S::Connected, First::Resume, First::Finish),
    (S::Closing, First::Finish, First::Finish),
    (S::Closed, First::Serve, First::Finish),
];

/// What is done with an interface that is seen for the first time.
#[must_use]
pub fn first(backend: XenbusState, online: bool) -> First {
    let row = FIRST.iter().find(|(state, ..)| *state == backend);
    row.map_or(First::Nothing, |(_, is_online, is_not)| match online {
        true => *is_online,
        false => *is_not,
    })
}

/// A frontend's state in the xenstore: what the driver is shown while it waits for the frontend,
/// and what otherwise.
const SHOWN: [(XenbusState, XenbusState, XenbusState); 7] = [
    (S::Unknown, S::Unknown, S::Unknown),
    (S::Initialising, S::Initialising, S::Initialising),
    (S::InitWait, S::InitWait, S::InitWait),
    (S::Initialised, S::Initialised, S::Connected),
    (S::Connected, S::Initialised, S::Connected),
    (S::Closing, S::Closing, S::Closing),
    (S::Closed, S::Closed, S::Closed),
];

/// What the driver is shown of a frontend: `own` is how far the driver has come, `ending` whether
/// the toolstack wants the interface to end.
#[must_use]
pub fn shown(own: XenbusState, ending: bool, frontend: XenbusState) -> XenbusState {
    if ending {
        return S::Closing;
    }
    let row = SHOWN.iter().find(|(state, ..)| *state == frontend);
    row.map_or(S::Unknown, |(_, waiting, otherwise)| match own {
        S::InitWait => *waiting,
        _ => *otherwise,
    })
}

/// A state as a node has it; what is no state is Unknown.
#[must_use]
pub fn of_node(text: Option<&str>) -> XenbusState {
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
            assert_eq!((FIRST[n].0, SHOWN[n].0), (state, state));
        }
    }

    #[test]
    fn only_what_was_connected_is_taken_over() {
        for state in ALL {
            let resumes = first(state, true) == First::Resume;
            assert_eq!(resumes, state == S::Connected, "{state:?}");
            assert_ne!(first(state, false), First::Resume, "{state:?}");
            assert_ne!(first(state, false), First::Serve, "{state:?}");
        }
    }

    #[test]
    fn a_stock_frontend_that_says_connected_has_written_its_rings() {
        assert_eq!(shown(S::InitWait, false, S::Connected), S::Initialised);
        assert_eq!(shown(S::Connected, false, S::Connected), S::Connected);
        assert_eq!(shown(S::Closed, false, S::Initialising), S::Initialising);
    }

    #[test]
    fn the_toolstack_has_the_last_word() {
        for own in ALL {
            for frontend in ALL {
                assert_eq!(shown(own, true, frontend), S::Closing);
            }
        }
    }

    #[test]
    fn nodes_may_hold_anything() {
        assert_eq!(of_node(Some("4")), S::Connected);
        for strange in [None, Some(""), Some("7"), Some("-1"), Some("four")] {
            assert_eq!(of_node(strange), S::Unknown, "{strange:?}");
        }
    }
}
