//! Ids and numbers are reused only when nothing refers to them.

use super::*;
use crate::fake::FakeSpace;
use crate::pins::Pin;
use abi::core::{CPU_WORDS, NewDomain, Text};
use abi::hypercall::BindOp;
use abi::status::Program;
use abi::{ConnId, Handle, RECORD_BYTES, Slot, XenbusState};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

fn spec(window_slots: u32) -> NewDomain {
    NewDomain {
        replaces: None,
        name: Text::truncated("d"),
        program: Program::Guest,
        frames: 1,
        grant_entries: 4,
        window_slots,
        collateral: 1,
        cpus: [0; CPU_WORDS],
        tsc_hz: 0,
        foreign_pages: 0,
        weight: 1,
        devices: 0,
    }
}

fn ids(machine: &Hypervisor) -> Vec<DomId> {
    machine.domains.iter().map(|domain| domain.id).collect()
}

/// C-6: the test starts more domains than ids exist, and connects each of them to one living
/// domain.
#[test]
fn ids_and_numbers_never_run_out() {
    let mut machine = Hypervisor::new(None).unwrap();
    let living = machine.create_domain(spec(0), &[], None).unwrap();
    let mut last = BTreeMap::new();
    for round in 0..66_000u32 {
        let id = machine.create_domain(spec(0), &[], None).unwrap();
        assert_ne!(id, living);
        if let Some(before) = last.insert(id, round) {
            assert_eq!(round - before, 65_535, "an older id was free");
        }
        machine.connect(living, id, 0).unwrap();
        machine.abandon(id, "over");
        machine.forget(id).unwrap();
    }
    assert_eq!(ids(&machine), [living]);
    assert_eq!(machine.connection_status(), []);
}

#[test]
fn exhausted_ids_are_an_error() {
    let mut machine = Hypervisor::new(None).unwrap();
    machine.ids = IdPool::new(2, usize::MAX);
    let first = machine.create_domain(spec(0), &[], None).unwrap();
    machine.create_domain(spec(0), &[], None).unwrap();
    let error = machine
        .create_domain(spec(0), &[], None)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "domain d: there are no more domain ids");
    machine.forget(first).unwrap_err();
    machine.abandon(first, "over");
    // The domain stays in the list, with the reason of its exit.
    machine.create_domain(spec(0), &[], None).unwrap_err();
    // A failed creation releases the id.
    let impossible = NewDomain {
        frames: 0,
        ..spec(0)
    };
    machine.forget(first).unwrap();
    machine.create_domain(impossible, &[], None).unwrap_err();
    assert_eq!(machine.create_domain(spec(0), &[], None).unwrap(), first);
}

#[derive(Clone, Debug)]
enum Op {
    Create,
    Kill(usize),
    Forget(usize),
    Replace(usize),
    Connect(usize, usize),
    /// A domain closes its end of each of its connections.
    Close(usize),
    /// A domain creates a table for each of its connections.
    Table(usize),
    /// The user of a table binds it.
    Bind(usize),
    /// One half of a table ends: the granter's half if true, otherwise the user's.
    EndTable(usize, bool),
    /// The memory of a domain gets another holder.
    Hold(usize),
    /// The memory of a domain loses a holder.
    Release(usize),
    Pin(usize, usize),
    Unpin(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let n = || 0..8usize;
    prop_oneof![
        4 => Just(Op::Create),
        3 => n().prop_map(Op::Kill),
        3 => n().prop_map(Op::Forget),
        1 => n().prop_map(Op::Replace),
        3 => (n(), n()).prop_map(|(a, b)| Op::Connect(a, b)),
        2 => n().prop_map(Op::Close),
        2 => n().prop_map(Op::Table),
        1 => n().prop_map(Op::Bind),
        2 => (n(), any::<bool>()).prop_map(|(at, by)| Op::EndTable(at, by)),
        1 => n().prop_map(Op::Hold),
        1 => n().prop_map(Op::Release),
        1 => (n(), n()).prop_map(|(a, b)| Op::Pin(a, b)),
        1 => n().prop_map(Op::Unpin),
    ]
}

/// A table, identified as its granter and user identify it.
#[derive(Clone, Copy)]
struct TableOf {
    handle: Handle,
    granter: DomId,
    conn: ConnId,
    user: DomId,
}

/// The hypervisor with domains that have no processes, and the state that their processes would
/// keep.
struct Rig {
    machine: Hypervisor,
    living: BTreeSet<DomId>,
    held: Vec<DomId>,
    tables: Vec<TableOf>,
    pins: Vec<(DomId, u64, DomId)>,
    devices: u64,
}

impl Rig {
    fn new() -> Self {
        let mut machine = Hypervisor::new(None).unwrap();
        machine.ids = IdPool::new(5, usize::MAX);
        Self {
            machine,
            living: BTreeSet::new(),
            held: Vec::new(),
            tables: Vec::new(),
            pins: Vec::new(),
            devices: 0,
        }
    }

    fn pick(all: &[DomId], n: usize) -> Option<DomId> {
        all.get(n % all.len().max(1)).copied()
    }

    /// Returns the `n`th of all living domains, or of all dead ones if `lives` is false.
    fn domain(&self, n: usize, lives: bool) -> Option<DomId> {
        let mut all = ids(&self.machine);
        all.retain(|id| self.living.contains(id) == lives);
        Self::pick(&all, n)
    }

    fn numbers(&self, of: DomId) -> Vec<ConnId> {
        let connections = &self.machine.shared.connections;
        let all = (0..40).map(ConnId);
        all.filter(|&conn| connections.get(of, conn).is_ok())
            .collect()
    }

    /// Returns every id to which something refers, without calling `Hypervisor::is_referenced`.
    fn referenced(&self) -> BTreeSet<DomId> {
        let shared = &self.machine.shared;
        let mut all: BTreeSet<_> = ids(&self.machine).into_iter().collect();
        all.extend(shared.audit().0.into_keys());
        for table in self
            .tables
            .iter()
            .filter(|t| shared.counted.has_table(t.handle))
        {
            all.extend([table.granter, table.user]);
        }
        all.extend(self.pins.iter().flat_map(|&(user, _, of)| [user, of]));
        for of in ids(&self.machine) {
            for conn in self.numbers(of) {
                all.insert(shared.connections.get(of, conn).unwrap().peer);
            }
        }
        all
    }

    fn start(&mut self, id: DomId) {
        let shared = &self.machine.shared;
        shared.counted.insert(id, 1);
        let space = Arc::new(Mutex::new(FakeSpace::default()));
        shared.grants.lock().set_space(id, Some(space));
        self.living.insert(id);
    }

    /// Executes the steps of a worker whose process has exited.
    fn kill(&mut self, id: DomId) {
        if !self.living.remove(&id) {
            return;
        }
        let shared = Arc::clone(&self.machine.shared);
        shared.grants.lock().fence(id);
        shared.grants.lock().set_space(id, None);
        shared.counted.pins.forget(id);
        self.pins.retain(|&(user, ..)| user != id);
        shared.counted.tear_down(id);
        self.machine.abandon(id, "over");
    }

    fn run(&mut self, op: &Op) {
        let shared = Arc::clone(&self.machine.shared);
        match *op {
            Op::Create => {
                let referenced = self.referenced();
                if let Ok(id) = self.machine.create_domain(spec(16), &[], None) {
                    assert!(!referenced.contains(&id), "something still refers to {id}");
                    self.start(id);
                }
            }
            Op::Kill(n) => {
                if let Some(id) = self.domain(n, true) {
                    self.kill(id);
                }
            }
            Op::Forget(n) => {
                if let Some(id) = self.domain(n, false) {
                    self.machine.forget(id).unwrap();
                }
            }
            Op::Replace(n) => {
                let Some(dead) = self.domain(n, false) else {
                    return;
                };
                let referenced = self.referenced();
                let new = NewDomain {
                    replaces: Some(dead),
                    ..spec(16)
                };
                if let Ok(id) = self.machine.create_domain(new, &[], None) {
                    assert!(!referenced.contains(&id), "something still refers to {id}");
                    self.start(id);
                }
            }
            Op::Connect(a, b) => {
                if let (Some(a), Some(b)) = (self.domain(a, true), self.domain(b, true)) {
                    let _ = self.machine.connect(a, b, 0);
                }
            }
            Op::Close(n) => {
                let id = self.domain(n, true);
                for (id, conn) in id.iter().flat_map(|&id| self.of_each(id)) {
                    let body = [0; RECORD_BYTES];
                    let closed = XenbusState::Closed;
                    let _ = shared.connections.set(id, conn, closed, &body, 0);
                }
            }
            Op::Table(n) => {
                let id = self.domain(n, true);
                let all = id.map_or_else(Vec::new, |id| self.of_each(id));
                for (granter, conn) in all {
                    self.make_table(granter, conn);
                }
            }
            Op::Bind(n) => self.bind(n),
            Op::EndTable(n, by_granter) => {
                if let Some(table) = self.tables.get(n % self.tables.len().max(1)) {
                    let by = if by_granter {
                        table.granter
                    } else {
                        table.user
                    };
                    if self.living.contains(&by) {
                        let _ = shared.counted.end_table(by, table.handle);
                    }
                }
            }
            Op::Hold(n) => {
                if let Some(of) = self.domain(n, true) {
                    shared.grants.lock().hold_memory(of).unwrap();
                    self.held.push(of);
                }
            }
            Op::Release(n) => {
                if !self.held.is_empty() {
                    let of = self.held.remove(n % self.held.len());
                    shared.grants.lock().release_memory(of);
                }
            }
            Op::Pin(user, of) => {
                if let (Some(user), Some(owner)) = (self.domain(user, true), self.domain(of, true))
                {
                    self.devices += 1;
                    let (first, frames) = (0, 1);
                    let pin = Pin {
                        owner,
                        first,
                        frames,
                    };
                    shared.counted.pins.insert(user, self.devices, pin);
                    self.pins.push((user, self.devices, owner));
                }
            }
            Op::Unpin(n) => {
                if !self.pins.is_empty() {
                    let (user, number, _) = self.pins.remove(n % self.pins.len());
                    shared.counted.pins.remove(user, number);
                }
            }
        }
    }

    fn of_each(&self, id: DomId) -> Vec<(DomId, ConnId)> {
        let numbers = self.numbers(id).into_iter();
        numbers.map(|conn| (id, conn)).collect()
    }

    fn make_table(&mut self, granter: DomId, conn: ConnId) {
        let shared = &self.machine.shared;
        if shared.connections.other_end(granter, conn).is_err() {
            return;
        }
        let user = shared.connections.get(granter, conn).unwrap().peer;
        let made = shared.counted.create_table((granter, conn), user, 1);
        self.tables.extend(made.map(|handle| TableOf {
            handle,
            granter,
            conn,
            user,
        }));
    }

    fn bind(&self, n: usize) {
        let Some(table) = self.tables.get(n % self.tables.len().max(1)) else {
            return;
        };
        let bind = BindOp {
            table: table.handle,
            granter: table.granter,
            entries: 1,
            first: Slot(0),
            tables: Slot(1),
        };
        let shared = &self.machine.shared;
        if self.living.contains(&table.user) {
            let _ = shared.counted.bind(table.user, &bind);
        }
    }

    /// Asserts that each table's connection still belongs to its granter.
    fn check(&self) {
        let shared = &self.machine.shared;
        assert_eq!(shared.audit().1, 0, "leaked");
        for table in self
            .tables
            .iter()
            .filter(|t| shared.counted.has_table(t.handle))
        {
            if self.living.contains(&table.granter) {
                let connection = shared.connections.get(table.granter, table.conn);
                let peer = connection.map(|connection| connection.peer);
                let user_lives = self.living.contains(&table.user);
                assert!(peer.is_ok(), "the connection number of a table is free");
                assert!(!user_lives || peer == Ok(table.user));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// C-6.
    #[test]
    fn reused_ids_have_no_other_reference(ops in prop::collection::vec(op(), 1..120)) {
        let mut rig = Rig::new();
        for op in &ops {
            rig.run(op);
            rig.check();
        }
        // After the removal of everything, every id is available again.
        let all = ids(&rig.machine);
        all.iter().for_each(|&id| rig.kill(id));
        all.iter().for_each(|&id| rig.machine.forget(id).unwrap());
        for of in std::mem::take(&mut rig.held) {
            rig.machine.shared.grants.lock().release_memory(of);
        }
        for (user, number, _) in std::mem::take(&mut rig.pins) {
            rig.machine.shared.counted.pins.remove(user, number);
        }
        let ids = [(); 5].map(|()| rig.machine.create_domain(spec(0), &[], None).map(|id| id.0));
        let mut ids: Vec<_> = ids.into_iter().map(Result::unwrap).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, [0, 1, 2, 3, 4]);
    }
}
