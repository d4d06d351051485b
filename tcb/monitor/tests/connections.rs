//! Tests of connection records: their transitions, errors and notifications.

use abi::layout::info;
use abi::{ConnId, DomId, RECORD_BYTES, Role, XenbusState};
use monitor::connect::Connections;
use monitor::event::EventPort;
use monitor::memory::SharedDomainMemory;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BACK: DomId = DomId(0);
const FRONT: DomId = DomId(1);
const ALL: [XenbusState; 7] = [
    XenbusState::Unknown,
    XenbusState::Initialising,
    XenbusState::InitWait,
    XenbusState::Initialised,
    XenbusState::Connected,
    XenbusState::Closing,
    XenbusState::Closed,
];

struct End {
    memory: Arc<SharedDomainMemory>,
    port: Arc<EventPort>,
}

impl End {
    fn new(id: DomId) -> Self {
        let memory = Arc::new(SharedDomainMemory::create(id, 1, 0, &[], None).unwrap());
        let port = Arc::new(EventPort::create(Arc::clone(&memory)).unwrap());
        Self { memory, port }
    }

    /// Returns the pending bits that were raised since the last call.
    fn take_pending(&self) -> u32 {
        let word = self.memory.info.span().u32(info::PENDING).unwrap();
        word.swap(0, Ordering::Relaxed)
    }

    /// Returns a bit set of the first 128 connections that were marked as changed since the last
    /// call.
    fn take_changed(&self) -> u128 {
        let span = self.memory.info.span();
        let word = |conn| span.u64(info::changed(conn).0).unwrap();
        let [low, high] = [0, 64].map(|conn| word(conn).swap(0, Ordering::Relaxed));
        u128::from(high) << 64 | u128::from(low)
    }

    fn arm(&self) {
        let word = self.memory.info.span().u32(info::ARMED).unwrap();
        word.store(1, Ordering::Relaxed);
    }

    /// Returns whether the doorbell was rung since the last call.
    fn was_rung(&self) -> bool {
        rustix::io::read(self.port.doorbell(), &mut [0; 8]).is_ok()
    }
}

fn pair() -> (Connections, End, End) {
    let (back, front) = (End::new(BACK), End::new(FRONT));
    let connections = Connections::default();
    let ends = (
        (BACK, Arc::clone(&back.port)),
        (FRONT, Arc::clone(&front.port)),
    );
    connections.add(ends.0, ends.1, 7).unwrap();
    assert_eq!(
        (back.take_pending(), front.take_pending()),
        (info::PENDING_CONNECT, info::PENDING_CONNECT)
    );
    (connections, back, front)
}

const BODY: [u8; RECORD_BYTES] = [5; RECORD_BYTES];

/// Moves the backend's end from its initial state to `state`. Returns false if a domain cannot
/// enter that state.
fn enter_state(connections: &Connections, state: XenbusState) -> bool {
    state != XenbusState::Unknown
        && (state == XenbusState::Initialising
            || connections.set(BACK, ConnId(0), state, &BODY, 0).is_ok())
}

#[test]
fn only_permitted_state_transitions_succeed() {
    use XenbusState as S;
    // For each state, whether each next state is allowed: Unknown, Initialising, InitWait,
    // Initialised, Connected, Closing, Closed.
    let table = [
        (S::Initialising, [0, 1, 1, 1, 1, 1, 1]),
        (S::InitWait, [0, 0, 1, 1, 1, 1, 1]),
        (S::Initialised, [0, 0, 0, 1, 1, 1, 1]),
        (S::Connected, [0, 0, 0, 0, 0, 1, 1]),
        (S::Closing, [0, 0, 0, 0, 0, 0, 1]),
        (S::Closed, [0, 1, 1, 0, 0, 0, 0]),
    ];
    for (from, row) in table {
        for (to, allowed) in ALL.into_iter().zip(row) {
            let (connections, _back, front) = pair();
            assert!(enter_state(&connections, from), "{from:?}");
            front.take_pending();
            let outcome = connections.set(BACK, ConnId(0), to, &BODY, 0);
            let expected = if allowed == 1 {
                Ok(())
            } else {
                Err(Errno::INVAL)
            };
            assert_eq!(outcome, expected, "{from:?} to {to:?}");
            let now = connections.get(BACK, ConnId(0)).unwrap().own;
            assert_eq!(now, if allowed == 1 { to } else { from });
            let pending = if allowed == 1 {
                info::PENDING_CONNECT
            } else {
                0
            };
            assert_eq!(front.take_pending(), pending, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn each_end_sees_the_other() {
    let (connections, ..) = pair();
    connections
        .set(BACK, ConnId(0), XenbusState::InitWait, &BODY, 0)
        .unwrap();
    let front = connections.get(FRONT, ConnId(0)).unwrap();
    assert_eq!(
        (front.peer, front.role, front.state, front.body),
        (BACK, Role::Frontend, XenbusState::InitWait, BODY)
    );
    let back = connections.get(BACK, ConnId(0)).unwrap();
    assert_eq!(
        (back.peer, back.role, back.own, back.state),
        (
            FRONT,
            Role::Backend,
            XenbusState::InitWait,
            XenbusState::Initialising
        )
    );
    assert_eq!(back.body, [0; RECORD_BYTES]);
}

#[test]
fn others_connections_do_not_exist() {
    let (connections, ..) = pair();
    let state = XenbusState::Closed;
    for (domain, conn) in [(BACK, 1), (FRONT, u32::MAX), (DomId(2), 0)] {
        let conn = ConnId(conn);
        assert_eq!(connections.get(domain, conn).unwrap_err(), Errno::NOENT);
        assert_eq!(
            connections.set(domain, conn, state, &BODY, 0),
            Err(Errno::NOENT)
        );
        assert!(matches!(
            connections.other_end(domain, conn),
            Err(Errno::NOENT)
        ));
    }
}

#[test]
fn writes_above_the_rate_are_deferred() {
    let (connections, ..) = pair();
    let set = |now| connections.set(BACK, ConnId(0), XenbusState::Initialising, &BODY, now);
    let writes = (0..10_000).take_while(|_| set(0).is_ok()).count();
    assert_eq!(writes, 64);
    assert_eq!(set(0), Err(Errno::AGAIN));
    assert_eq!(set(1_000_000_000), Ok(()));
}

#[test]
fn the_end_of_a_domain_closes_its_ends() {
    let (connections, back, front) = pair();
    connections
        .set(FRONT, ConnId(0), XenbusState::Connected, &BODY, 0)
        .unwrap();
    back.take_pending();
    front.take_pending();
    connections.end_all(FRONT, XenbusState::Closed);
    let view = connections.get(BACK, ConnId(0)).unwrap();
    assert_eq!(
        (view.state, view.body),
        (XenbusState::Closed, [0; RECORD_BYTES])
    );
    assert_eq!(
        (back.take_pending(), front.take_pending()),
        (info::PENDING_CONNECT, 0)
    );
    assert!(matches!(
        connections.other_end(BACK, ConnId(0)),
        Err(Errno::NOTCONN)
    ));
    connections.end_all(FRONT, XenbusState::Unknown);
    assert_eq!(
        connections.get(BACK, ConnId(0)).unwrap().state,
        XenbusState::Unknown
    );
    assert_eq!(back.take_pending(), info::PENDING_CONNECT);
    // The surviving end can still close, although its peer is dead.
    connections
        .set(BACK, ConnId(0), XenbusState::Closed, &BODY, 0)
        .unwrap();
    assert_eq!(front.take_pending(), 0);
}

#[test]
fn a_replaced_end_restarts_under_its_number() {
    const NEW: DomId = DomId(9);
    let (connections, back, front) = pair();
    for (domain, state) in [
        (BACK, XenbusState::Connected),
        (FRONT, XenbusState::Connected),
    ] {
        connections.set(domain, ConnId(0), state, &BODY, 0).unwrap();
    }
    assert!(connections.are_up(BACK) && connections.are_up(FRONT));
    let accepted_writes = || {
        (0..100)
            .take_while(|_| close_or_reconnect(&connections))
            .count()
    };
    assert!(accepted_writes() < 64);
    connections.end_all(BACK, XenbusState::Closed);
    connections.end_all(BACK, XenbusState::Unknown);
    back.take_pending();
    front.take_pending();
    let frontend_state = connections.get(FRONT, ConnId(0)).unwrap().own;
    let new = End::new(NEW);
    // The frontend's end still refers to the dead domain's doorbell.
    let rings = || {
        let given = connections.pass_doorbell(FRONT, ConnId(0), ring);
        given.map(|()| (back.was_rung(), new.was_rung()))
    };
    assert_eq!(rings(), Err(Errno::NOTCONN));
    connections.replace(BACK, (NEW, Arc::clone(&new.port)));
    assert_eq!(rings(), Ok((false, true)));
    assert_eq!(rings(), Err(Errno::EXIST));
    assert_eq!(
        (
            back.take_pending(),
            front.take_pending(),
            new.take_pending()
        ),
        (0, info::PENDING_CONNECT, info::PENDING_CONNECT)
    );
    assert_eq!(
        connections.get(BACK, ConnId(0)).unwrap_err(),
        Errno::NOENT,
        "a dead domain has no connections"
    );
    let view = connections.get(FRONT, ConnId(0)).unwrap();
    assert_eq!(
        (view.peer, view.state, view.body),
        (NEW, XenbusState::Initialising, [0; RECORD_BYTES])
    );
    let view = connections.get(NEW, ConnId(0)).unwrap();
    assert_eq!((view.peer, view.role), (FRONT, Role::Backend));
    assert_eq!(view.state, frontend_state);
    assert!(!connections.are_up(NEW));
    // The frontend, which had exhausted its writes, has a full budget again, since it must
    // reconnect.
    assert!(accepted_writes() > 60);
    let (peer, port) = connections.other_end(FRONT, ConnId(0)).unwrap();
    assert!(peer == NEW && Arc::ptr_eq(&port, &new.port));
    // A connection to a dead peer does not count as down.
    connections.end_all(FRONT, XenbusState::Closed);
    assert!(connections.are_up(NEW));
    connections.replace(DomId(7), (DomId(8), Arc::clone(&new.port)));
    assert!(!connections.refers_to(DomId(8)));
}

/// Rings a doorbell. The tests pass this function where a hand-out must succeed.
fn ring(port: &EventPort) -> Result<(), Errno> {
    port.ring();
    Ok(())
}

/// Makes the frontend close, or reconnect. Returns whether its write was accepted.
fn close_or_reconnect(connections: &Connections) -> bool {
    let own = connections.get(FRONT, ConnId(0)).unwrap().own;
    let state = match own {
        XenbusState::Closed => XenbusState::Initialising,
        _ => XenbusState::Closed,
    };
    connections.set(FRONT, ConnId(0), state, &BODY, 0).is_ok()
}

/// Each doorbell is handed out once; failed hand-outs do not count.
#[test]
fn a_doorbell_is_handed_out_once() {
    let (connections, back, front) = pair();
    let give = |domain, conn, given| connections.pass_doorbell(domain, ConnId(conn), |_| given);
    assert_eq!(give(BACK, 1, Ok(())), Err(Errno::NOENT));
    assert_eq!(give(BACK, 0, Err(Errno::BADF)), Err(Errno::BADF));
    assert_eq!(give(BACK, 0, Ok(())), Ok(()));
    assert_eq!(give(BACK, 0, Ok(())), Err(Errno::EXIST));
    // The backend receives the frontend's doorbell, and vice versa.
    assert_eq!(connections.pass_doorbell(FRONT, ConnId(0), ring), Ok(()));
    assert!(back.was_rung() && !front.was_rung());
}

#[test]
fn only_a_sleeping_domain_is_rung() {
    let (connections, _back, front) = pair();
    let set = || connections.set(BACK, ConnId(0), XenbusState::Initialising, &BODY, 0);
    set().unwrap();
    assert!(!front.was_rung());
    front.arm();
    set().unwrap();
    assert!(front.was_rung() && !front.was_rung());
}

/// C-7: when a domain is torn down, its end immediately becomes unknown and cannot be notified. The
/// number of the remaining end is free once its domain no longer uses the connection; another
/// connection may then use it.
#[test]
fn a_removed_connection_frees_its_numbers() {
    let (connections, back, front) = pair();
    let set = |domain, state| connections.set(domain, ConnId(0), state, &BODY, 0);
    for domain in [BACK, FRONT] {
        set(domain, XenbusState::Connected).unwrap();
    }
    connections.end_all(FRONT, XenbusState::Closed);
    back.take_pending();
    front.take_pending();
    connections.remove_all(FRONT);
    assert_eq!(
        (back.take_pending(), front.take_pending()),
        (info::PENDING_CONNECT, 0)
    );
    assert_eq!(connections.list(|id| id.to_string()), []);
    assert_eq!(
        connections.get(FRONT, ConnId(0)).unwrap_err(),
        Errno::NOENT,
        "a domain that was torn down has no ends"
    );
    let view = connections.get(BACK, ConnId(0)).unwrap();
    let unknown = (XenbusState::Unknown, [0; RECORD_BYTES]);
    assert_eq!((view.state, view.body), unknown);
    assert_eq!(view.own, XenbusState::Connected);
    let reached = connections.other_end(BACK, ConnId(0));
    assert!(matches!(reached, Err(Errno::NOTCONN)));
    // The backend's record still has the state `Connected`.
    let exists = || connections.get(BACK, ConnId(0)).is_ok();
    connections.release_unused(|_, _| false);
    assert!(exists());
    set(BACK, XenbusState::Closed).unwrap();
    assert_eq!(set(BACK, XenbusState::Initialising), Err(Errno::INVAL));
    // A connection in use keeps its number, and still refers to the domain that was torn down.
    connections.release_unused(|_, _| true);
    assert!(exists() && connections.refers_to(FRONT));
    connections.release_unused(|domain, conn| (domain, conn) != (BACK, ConnId(0)));
    assert!(!exists() && !connections.refers_to(FRONT));
    let ends = [(BACK, &back), (FRONT, &front)].map(|(id, end)| (id, Arc::clone(&end.port)));
    let [one, other] = ends;
    connections.add(one, other, 9).unwrap();
    let numbers = |domain| [0, 1, 2].map(|n| connections.get(domain, ConnId(n)).is_ok());
    assert_eq!(
        numbers(BACK),
        [false, true, false],
        "a number was reused before older ones"
    );
    assert_eq!(numbers(FRONT), [true, false, false]);
}

#[test]
fn the_connection_limit_is_not_cumulative() {
    let (connections, back, front) = pair();
    let port = |end: &End| Arc::clone(&end.port);
    let max = abi::layout::fd::CONNECTIONS_MAX;
    let mut made = 1;
    for id in 2..3000 {
        let front = (DomId(id), port(&front));
        if connections.add((BACK, port(&back)), front, 0).is_ok() {
            made += 1;
            continue;
        }
        assert_eq!(connections.list(|id| id.to_string()).len() as u32, max);
        let mut all = (0..max).filter_map(|n| connections.get(BACK, ConnId(n)).ok());
        let first = all.next().unwrap();
        connections.remove_all(first.peer);
        connections.release_unused(|_, _| false);
        assert!(!connections.refers_to(first.peer));
    }
    assert!(made > max);
}

#[test]
fn changed_connections_are_marked_for_each_end() {
    let back = End::new(BACK);
    let connections = Connections::default();
    let fronts: Vec<End> = (1..=100).map(|id| End::new(DomId(id))).collect();
    for (id, front) in (1..).zip(&fronts) {
        let ends = (
            (BACK, Arc::clone(&back.port)),
            (DomId(id), Arc::clone(&front.port)),
        );
        connections.add(ends.0, ends.1, 0).unwrap();
    }
    assert_eq!(back.take_changed(), (1 << 100) - 1);
    assert!(fronts.iter().all(|front| front.take_changed() == 1));
    let set = |domain, conn| {
        let state = XenbusState::InitWait;
        connections.set(domain, ConnId(conn), state, &BODY, 0)
    };
    set(DomId(71), 0).unwrap();
    assert_eq!(back.take_changed(), 1 << 70);
    set(BACK, 70).unwrap();
    assert_eq!((back.take_changed(), fronts[70].take_changed()), (0, 1));
    connections.end_all(DomId(3), XenbusState::Closed);
    assert_eq!(back.take_changed(), 1 << 2);
    connections.remove_all(DomId(4));
    assert_eq!(back.take_changed(), 1 << 3);
    // A domain that replaces a dead one must check all its connections, and so must each other end.
    connections.end_all(BACK, XenbusState::Closed);
    fronts
        .iter()
        .for_each(|front| assert!(front.take_changed() <= 1));
    let new = End::new(DomId(200));
    connections.replace(BACK, (DomId(200), Arc::clone(&new.port)));
    assert_eq!(new.take_changed(), (1 << 100) - 1 - (1 << 3));
    assert_eq!(fronts[70].take_changed(), 1);
}
