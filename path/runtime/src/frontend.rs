//! A frontend's end of a connection: its state, and the next step of the handshake. The backend of
//! a guest's interface is a driver domain. The backend of a driver domain's NIC is a device domain.
//!
//! | own state | the backend is | step |
//! |---|---|---|
//! | Initialising | InitWait | [`HandshakeStep::Initialize`] |
//! | Initialised | Connected | [`HandshakeStep::Connect`] |
//! | Initialised, Connected | Closing, Closed, Unknown, another domain | [`HandshakeStep::Close`] |
//! | Closed | InitWait, another domain, or Closed after a refusal | [`HandshakeStep::Restart`] |
//!
//! *Another domain* means that the backend has died and was restarted. This end may not have
//! noticed the backend's death.

use crate::platform::{ConnectRecord, Doorbell, PeerEnd, Platform};
use abi::{ConnId, DomId, XenbusState};
use std::rc::Rc;

/// Number of consecutive rejections after which the frontend no longer retries with a backend.
const REFUSALS_MAX: u32 = 3;

/// Next step of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Wait until the other end's state changes.
    Wait,
    /// Initialize the shared memory and grant it.
    Initialize,
    /// Connect, because the backend has connected.
    Connect,
    /// Close, because the backend has rejected the record.
    CloseRefused,
    /// Close the connection. The text is the reason if it is an error.
    Close(&'static str),
    /// Start over.
    Restart,
}

/// This end of the connection.
#[derive(Debug)]
pub struct FrontendConnection {
    /// Number of the connection.
    pub conn: ConnId,
    platform: Rc<dyn Platform>,
    /// This end's state.
    pub state: XenbusState,
    /// Reason why the last connection was closed, as text; empty if no connection was closed.
    pub last_error: String,
    /// The last backend.
    backend: Option<DomId>,
    /// Number of the backend's consecutive rejections.
    refusals: u32,
    doorbell: Option<Rc<dyn Doorbell>>,
}

impl FrontendConnection {
    /// Creates an end that has not connected yet.
    #[must_use]
    pub fn new(conn: ConnId, platform: Rc<dyn Platform>) -> Self {
        Self {
            conn,
            platform,
            state: XenbusState::Initialising,
            last_error: String::new(),
            backend: None,
            refusals: 0,
            doorbell: None,
        }
    }

    /// Returns the other end, if the platform knows it.
    #[must_use]
    pub fn peer(&self) -> Option<PeerEnd> {
        self.platform.peer(self.conn).ok().flatten()
    }

    /// Returns whether frames may flow.
    #[must_use]
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.state == XenbusState::Connected
    }

    /// Returns the next step. `free` states that all resources of an earlier connection are
    /// released.
    #[must_use]
    pub fn next_step(&self, peer: &PeerEnd, free: bool) -> HandshakeStep {
        use XenbusState as S;
        let is_new = self.backend != Some(peer.domain);
        let asks_again = (1..=REFUSALS_MAX).contains(&self.refusals);
        match (self.state, peer.state) {
            (S::Initialised | S::Connected, _) if is_new => {
                HandshakeStep::Close("the backend was restarted")
            }
            (S::Closed, _) if is_new && free => HandshakeStep::Restart,
            (S::Initialising, S::InitWait) => HandshakeStep::Initialize,
            (S::Initialised, S::Connected) => HandshakeStep::Connect,
            // The backend may have read a record that was written for the previous backend.
            (S::Initialised, S::Closed) => HandshakeStep::CloseRefused,
            (S::Closed, S::Closed) if asks_again && free => HandshakeStep::Restart,
            (S::Initialised | S::Connected, S::Closing | S::Closed) => HandshakeStep::Close(""),
            (S::Initialised | S::Connected, S::Unknown) => {
                HandshakeStep::Close("the backend has died")
            }
            (S::Closed, S::InitWait) if free => HandshakeStep::Restart,
            _ => HandshakeStep::Wait,
        }
    }

    /// Counts a rejection by the backend.
    pub fn count_refusal(&mut self) {
        self.refusals += 1;
    }

    /// Resets the count of rejections, after the backend has connected.
    pub fn reset_refusals(&mut self) {
        self.refusals = 0;
    }

    /// Records `backend` as the other end.
    pub fn set_backend(&mut self, backend: DomId) {
        if self.backend.replace(backend) != Some(backend) {
            // The old doorbell must be dropped before the new doorbell is created, because both
            // have the same number.
            self.doorbell = None;
        }
    }

    /// Returns the doorbell of the other end. The first call attaches it.
    ///
    /// # Errors
    /// Returns the reason as text if the system rejects the call.
    pub fn attach_doorbell(&mut self) -> Result<Rc<dyn Doorbell>, String> {
        if let Some(doorbell) = &self.doorbell {
            return Ok(Rc::clone(doorbell));
        }
        let doorbell = self.platform.doorbell(self.conn);
        let doorbell: Rc<dyn Doorbell> = doorbell.map_err(|error| error.to_string())?.into();
        self.doorbell = Some(Rc::clone(&doorbell));
        Ok(doorbell)
    }

    /// Wakes the other end.
    pub fn ring(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
    }

    /// Sets this end's state and record. A rejection is kept in [`FrontendConnection::last_error`].
    pub fn set_state(&mut self, state: XenbusState, record: &ConnectRecord) {
        match self.platform.set_state(self.conn, state, record) {
            Ok(()) => self.state = state,
            Err(error) => {
                self.last_error = format!("the monitor rejected the state {state:?}: {error}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Calls;
    use crate::platform::NO_RECORD;
    use crate::processes::Processes;
    use shmem::Area;
    use std::cell::RefCell;

    const OLD: DomId = DomId(1);
    const NEW: DomId = DomId(7);

    /// Returns the next step of an end in state `own`, whose last backend is domain 1 and has
    /// rejected it `refusals` times.
    fn next(
        own: XenbusState,
        refusals: u32,
        (domain, state): (DomId, XenbusState),
    ) -> HandshakeStep {
        let calls = Rc::new(RefCell::new(Calls::unavailable()));
        let window = Area::anonymous(abi::PAGE).unwrap();
        let platform = Rc::new(Processes::new(calls, window));
        let connection = FrontendConnection {
            state: own,
            backend: Some(OLD),
            refusals,
            ..FrontendConnection::new(ConnId(0), platform)
        };
        let record = NO_RECORD;
        connection.next_step(
            &PeerEnd {
                domain,
                state,
                record,
            },
            true,
        )
    }

    #[test]
    fn handshake_advances_step_by_step() {
        use XenbusState as S;
        assert_eq!(
            next(S::Initialising, 0, (OLD, S::Initialising)),
            HandshakeStep::Wait
        );
        assert_eq!(
            next(S::Initialising, 0, (OLD, S::InitWait)),
            HandshakeStep::Initialize
        );
        assert_eq!(
            next(S::Initialised, 0, (OLD, S::InitWait)),
            HandshakeStep::Wait
        );
        assert_eq!(
            next(S::Initialised, 0, (OLD, S::Connected)),
            HandshakeStep::Connect
        );
        assert_eq!(
            next(S::Connected, 0, (OLD, S::Connected)),
            HandshakeStep::Wait
        );
    }

    #[test]
    fn closed_dead_or_new_peer_ends_the_connection() {
        use XenbusState as S;
        for own in [S::Initialised, S::Connected] {
            assert_eq!(next(own, 0, (OLD, S::Closing)), HandshakeStep::Close(""));
            let died = HandshakeStep::Close("the backend has died");
            assert_eq!(next(own, 0, (OLD, S::Unknown)), died);
            let again = HandshakeStep::Close("the backend was restarted");
            assert_eq!(next(own, 0, (NEW, S::InitWait)), again);
        }
        assert_eq!(next(S::Closed, 0, (OLD, S::Unknown)), HandshakeStep::Wait);
        assert_eq!(
            next(S::Closed, 0, (OLD, S::InitWait)),
            HandshakeStep::Restart
        );
        assert_eq!(
            next(S::Closed, 0, (NEW, S::Initialising)),
            HandshakeStep::Restart
        );
    }

    #[test]
    fn a_closed_end_is_restarted_at_most_three_times() {
        use XenbusState as S;
        let refusal = next(S::Initialised, 0, (OLD, S::Closed));
        assert_eq!(refusal, HandshakeStep::CloseRefused);
        for refusals in 1..=3 {
            assert_eq!(
                next(S::Closed, refusals, (OLD, S::Closed)),
                HandshakeStep::Restart
            );
        }
        assert_eq!(next(S::Closed, 0, (OLD, S::Closed)), HandshakeStep::Wait);
        assert_eq!(next(S::Closed, 4, (OLD, S::Closed)), HandshakeStep::Wait);
    }
}
