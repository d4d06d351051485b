//! An interface's end of its connection: its state, and which step comes next.

use abi::{ConnId, DomId, XenbusState};
use runtime::platform::{Doorbell, Peer, Platform, Record};
use std::rc::Rc;

/// How often in a row a driver domain that refuses is asked again.
const REFUSALS: u32 = 3;

/// What the hand-shake does next: see the table of [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until the other end moves on.
    Stay,
    /// Memory is laid out and granted.
    LayOut,
    /// The driver domain has connected: so does this end.
    Connect,
    /// The driver domain has not taken the record that was laid out for it.
    CloseRefused,
    /// The connection has ended, for this reason if it is a trouble.
    Close(&'static str),
    /// From the start.
    Restart,
}

/// This end of the connection.
pub(super) struct Connection {
    pub conn: ConnId,
    pub platform: Rc<dyn Platform>,
    pub state: XenbusState,
    /// What ended the connection before, for people; empty: nothing did.
    pub trouble: String,
    /// The driver domain that it last had to do with.
    backend: Option<DomId>,
    /// How often in a row it has refused the connection.
    refusals: u32,
    doorbell: Option<Box<dyn Doorbell>>,
}

impl Connection {
    pub(super) fn new(conn: ConnId, platform: Rc<dyn Platform>) -> Self {
        Self {
            conn,
            platform,
            state: XenbusState::Initialising,
            trouble: String::new(),
            backend: None,
            refusals: 0,
            doorbell: None,
        }
    }

    /// The other end, if the platform knows it.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.platform.peer(self.conn).ok().flatten()
    }

    /// Whether frames may flow.
    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        self.state == XenbusState::Connected
    }

    /// What is to be done now; `free` says that nothing is left of an earlier connection.
    pub(super) fn next_step(&self, peer: &Peer, free: bool) -> Step {
        use XenbusState as S;
        let is_new = self.backend != Some(peer.domain);
        let asks_again = (1..=REFUSALS).contains(&self.refusals);
        match (self.state, peer.state) {
            (S::Initialised | S::Connected, _) if is_new => {
                Step::Close("the driver domain was started again")
            }
            (S::Closed, _) if is_new && free => Step::Restart,
            (S::Initialising, S::InitWait) => Step::LayOut,
            (S::Initialised, S::Connected) => Step::Connect,
            // It may have read what was meant for the one before.
            (S::Initialised, S::Closed) => Step::CloseRefused,
            (S::Closed, S::Closed) if asks_again && free => Step::Restart,
            (S::Initialised | S::Connected, S::Closing | S::Closed) => Step::Close(""),
            (S::Initialised | S::Connected, S::Unknown) => {
                Step::Close("the driver domain has died")
            }
            (S::Closed, S::InitWait) if free => Step::Restart,
            _ => Step::Stay,
        }
    }

    pub(super) fn count_refusal(&mut self) {
        self.refusals += 1;
    }

    pub(super) fn forget_refusals(&mut self) {
        self.refusals = 0;
    }

    /// From now on the other end is `backend`.
    pub(super) fn meet(&mut self, backend: DomId) {
        if self.backend.replace(backend) != Some(backend) {
            // The other end's is another one, under the same number: the old one goes first.
            self.doorbell = None;
        }
    }

    pub(super) fn attach_doorbell(&mut self) -> Result<(), String> {
        if self.doorbell.is_none() {
            let doorbell = self.platform.doorbell(self.conn);
            self.doorbell = Some(doorbell.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Wakes the other end.
    pub(super) fn ring(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
    }

    pub(super) fn set_state(&mut self, state: XenbusState, record: &Record) {
        match self.platform.set_state(self.conn, state, record) {
            Ok(()) => self.state = state,
            Err(error) => self.trouble = format!("the monitor refused {state:?}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::call::Calls;
    use runtime::platform::NO_RECORD;
    use runtime::processes::Processes;
    use shmem::Area;
    use std::cell::RefCell;

    const OLD: DomId = DomId(1);
    const NEW: DomId = DomId(7);

    /// What an end in `own`, which has met domain 1 and was refused so often, does next.
    fn next(own: XenbusState, refusals: u32, (domain, state): (DomId, XenbusState)) -> Step {
        let calls = Rc::new(RefCell::new(Calls::refused()));
        let window = Area::anonymous(abi::PAGE).unwrap();
        let platform = Rc::new(Processes::new(calls, window));
        let connection = Connection {
            state: own,
            backend: Some(OLD),
            refusals,
            ..Connection::new(ConnId(0), platform)
        };
        let record = NO_RECORD;
        connection.next_step(
            &Peer {
                domain,
                state,
                record,
            },
            true,
        )
    }

    #[test]
    fn the_hand_shake_goes_forward_step_by_step() {
        use XenbusState as S;
        assert_eq!(next(S::Initialising, 0, (OLD, S::Initialising)), Step::Stay);
        assert_eq!(next(S::Initialising, 0, (OLD, S::InitWait)), Step::LayOut);
        assert_eq!(next(S::Initialised, 0, (OLD, S::InitWait)), Step::Stay);
        assert_eq!(next(S::Initialised, 0, (OLD, S::Connected)), Step::Connect);
        assert_eq!(next(S::Connected, 0, (OLD, S::Connected)), Step::Stay);
    }

    #[test]
    fn an_end_that_closes_dies_or_is_another_one_ends_the_connection() {
        use XenbusState as S;
        for own in [S::Initialised, S::Connected] {
            assert_eq!(next(own, 0, (OLD, S::Closing)), Step::Close(""));
            let died = Step::Close("the driver domain has died");
            assert_eq!(next(own, 0, (OLD, S::Unknown)), died);
            let again = Step::Close("the driver domain was started again");
            assert_eq!(next(own, 0, (NEW, S::InitWait)), again);
        }
        assert_eq!(next(S::Closed, 0, (OLD, S::Unknown)), Step::Stay);
        assert_eq!(next(S::Closed, 0, (OLD, S::InitWait)), Step::Restart);
        assert_eq!(next(S::Closed, 0, (NEW, S::Initialising)), Step::Restart);
    }

    #[test]
    fn an_end_that_refuses_is_asked_again_three_times() {
        use XenbusState as S;
        let refusal = next(S::Initialised, 0, (OLD, S::Closed));
        assert_eq!(refusal, Step::CloseRefused);
        for refusals in 1..=3 {
            assert_eq!(next(S::Closed, refusals, (OLD, S::Closed)), Step::Restart);
        }
        assert_eq!(next(S::Closed, 0, (OLD, S::Closed)), Step::Stay);
        assert_eq!(next(S::Closed, 4, (OLD, S::Closed)), Step::Stay);
    }
}
