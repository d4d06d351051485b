//! The machine-wide limit on the rate of revocations (N-15).

mod spy;

use abi::counted::{Revocation, table_slots};
use abi::hypercall::{
    BindOp, COUNT, CreateGrantOp, HypercallKind, KIND, OP_WORDS, OPS, OPS_MAX, RevokeOp,
    STATUS_WORD,
};
use abi::layout::info;
use abi::{ConnId, DomId, GrantRef, GrantStatus, Handle, Slot};
use monitor::event::EventPort;
use monitor::fake::FakeSpace;
use monitor::hypercall::{CallPage, HypercallServer, MonitorState};
use monitor::memory::SharedDomainMemory;
use spy::Spy;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const USER: DomId = DomId(0);
const ENTRIES: u32 = 16;
/// Operations in a burst, of one domain and of all.
const BURST: u32 = 8192;
/// Operations per second in the long run.
const PER_SECOND: u64 = 20_000;

/// A granter, the server of its worker, and its table, which the user has bound.
struct Granter {
    memory: Arc<SharedDomainMemory>,
    server: HypercallServer<FakeSpace>,
    table: Handle,
    calls: u32,
}

/// Returns a monitor in which the domains 1, 2, … grant to domain 0.
fn machine(granters: u16) -> (Arc<MonitorState>, Vec<Granter>) {
    let shared = Arc::new(MonitorState::new(None));
    let slots = ENTRIES + table_slots(ENTRIES);
    let memories: Vec<_> = (0..=granters)
        .map(|id| {
            let memory = Arc::new(
                SharedDomainMemory::create(DomId(id), ENTRIES, ENTRIES, &[], None).unwrap(),
            );
            let window = slots * u32::from(granters);
            let mut grants = shared.grants.lock();
            grants.insert(DomId(id), Arc::clone(&memory), window);
            memory
        })
        .collect();
    let space = Arc::new(Mutex::new(Spy::default()));
    shared.grants.lock().set_space(USER, Some(space));
    shared.counted.insert(USER, 8);
    let port = |id: u16| {
        let memory = Arc::clone(&memories[usize::from(id)]);
        (DomId(id), Arc::new(EventPort::create(memory).unwrap()))
    };
    let granter = |id: u16| {
        shared.connections.add(port(0), port(id), 0).unwrap();
        let own = (DomId(id), ConnId(0));
        let made = shared.counted.create_table(own, USER, ENTRIES);
        let first = slots * u32::from(id - 1);
        let bind = BindOp {
            granter: DomId(id),
            table: made.unwrap(),
            first: Slot(first),
            tables: Slot(first + ENTRIES),
            entries: ENTRIES,
        };
        shared.counted.bind(USER, &bind).unwrap();
        let memory = Arc::clone(&memories[usize::from(id)]);
        Granter {
            server: HypercallServer::new(
                DomId(id),
                CallPage::of(&memory).unwrap(),
                Arc::clone(&shared),
                FakeSpace::default(),
                Arc::default(),
            ),
            memory,
            table: bind.table,
            calls: 0,
        }
    };
    let granters = (1..=granters).map(granter).collect();
    (shared, granters)
}

impl Granter {
    fn call(&mut self, kind: HypercallKind, ops: &[[u64; 3]]) -> Vec<GrantStatus> {
        let span = self.memory.info.span();
        let word = |op: usize, word: usize| {
            let at = info::CALL + OPS + (op * OP_WORDS + word) * 8;
            span.u64(at).unwrap()
        };
        for (op, words) in ops.iter().enumerate() {
            for (n, value) in words.iter().enumerate() {
                word(op, n).store(*value, Ordering::Relaxed);
            }
        }
        for (offset, value) in [(KIND, kind as u32), (COUNT, ops.len() as u32)] {
            let word = span.u32(info::CALL + offset).unwrap();
            word.store(value, Ordering::Relaxed);
        }
        while self.server.debt_ns() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.calls += 1;
        self.server.serve(self.calls).unwrap();
        let status = |op| word(op, STATUS_WORD).load(Ordering::Relaxed) as i64 as i16;
        let statuses = (0..ops.len()).map(status);
        statuses.map(GrantStatus::from_wire).collect()
    }

    fn create(&mut self, index: u32) -> GrantStatus {
        let create = CreateGrantOp {
            table: self.table,
            index,
            frame: index,
            readonly: false,
            io: false,
        };
        self.call(HypercallKind::GrantCreate, &[create.encode()])[0]
    }

    /// Revokes the same entry in every operation of a call of maximum size.
    fn revoke(&mut self, gref: GrantRef) -> Vec<GrantStatus> {
        let revoke = RevokeOp {
            table: self.table,
            gref,
            how: Revocation::Refuse,
        };
        self.call(HypercallKind::GrantRevoke, &[revoke.encode(); OPS_MAX])
    }

    fn end(&mut self) -> GrantStatus {
        let end = [u64::from(self.table.0), 0, 0];
        self.call(HypercallKind::TableEnd, &[end])[0]
    }
}

/// Row 34: granters that revoke as fast as possible share one budget, although each has a separate
/// worker.
#[test]
fn attack_34_workers_share_one_churn_budget() {
    let (_shared, granters) = machine(3);
    let start = Instant::now();
    let until = start + Duration::from_millis(700);
    let done: u64 = std::thread::scope(|scope| {
        let floods: Vec<_> = granters
            .into_iter()
            .map(|mut granter| {
                scope.spawn(move || {
                    let mut done = 0;
                    while Instant::now() < until {
                        granter.revoke(GrantRef::new(0, 1));
                        done += OPS_MAX as u64;
                    }
                    done
                })
            })
            .collect();
        floods.into_iter().map(|flood| flood.join().unwrap()).sum()
    });
    let took = start.elapsed();
    let limit = u64::from(BURST) + (PER_SECOND as f64 * took.as_secs_f64()) as u64;
    // Each granter may have exceeded the budget by one call.
    assert!(
        done <= limit + 3 * OPS_MAX as u64,
        "{done} in {took:?}, not {limit}"
    );
}

/// Returns whether the shared budget is still full.
fn is_budget_full(shared: &MonitorState) -> bool {
    let now_ns = shmem::time::monotonic_ns();
    shared.churn.take(DomId(99), BURST, now_ns).is_ok()
}

#[test]
fn attack_34_revoking_from_a_dead_user_is_free() {
    let (shared, mut granters) = machine(2);
    for granter in &mut granters {
        let made: Vec<_> = (0..ENTRIES).map(|index| granter.create(index)).collect();
        assert_eq!(made, [GrantStatus::Okay; ENTRIES as usize]);
    }
    // The user has died, and the main thread has noticed that. Every granter then revokes its
    // grants.
    shared.grants.lock().fence(USER);
    for granter in &mut granters {
        assert_eq!(granter.revoke(GrantRef::new(0, 1))[0], GrantStatus::Okay);
        assert_eq!(granter.end(), GrantStatus::Okay);
    }
    assert!(
        is_budget_full(&shared),
        "granting, or revoking from a dead user, took from the budget"
    );
}

#[test]
fn churn_counts_mappings_of_living_users() {
    let (shared, mut granters) = machine(2);
    let granter = &mut granters[0];
    let id = DomId(1);
    let end = |table| shared.counted.cost_of_end(id, table);
    assert_eq!(end(granter.table), 0, "an empty table costs nothing");
    for index in (0..ENTRIES).step_by(2) {
        assert_eq!(granter.create(index), GrantStatus::Okay);
    }
    assert_eq!(end(granter.table), ENTRIES, "pages and holes cost one each");
    let revoke = |table| RevokeOp {
        table,
        gref: GrantRef(0),
        how: Revocation::Refuse,
    };
    let tables = [granter.table, granter.table, granters[1].table];
    let ops = tables.map(revoke);
    let revoked = || shared.counted.cost_of_revocations(id, &ops);
    assert_eq!(revoked(), 2, "another domain's table costs nothing");
    shared.grants.lock().fence(USER);
    assert_eq!(
        (end(tables[0]), revoked()),
        (0, 0),
        "a dead user costs nothing"
    );
}
