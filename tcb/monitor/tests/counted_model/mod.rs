//! The model of counted grants, which shares no code with the monitor.

mod expected;

use crate::spy::Spy;
use abi::counted::{GENERATION_MAX, Revocation, Translation, table_slots};
use abi::hypercall::{BindOp, CreateGrantOp, RevokeOp};
use abi::layout::PAGE;
use abi::{ConnId, DomId, GrantRef, GrantStatus as S, Handle, Slot};
use monitor::grant::{CountedTables, GrantAccounts};
use monitor::memory::SharedDomainMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const USER: DomId = DomId(0);
const ENTRIES: u32 = 4;
const FRAMES: u32 = 3;
const SLOTS: u32 = 16;
const COLLATERAL: u32 = 2;

/// One step. Domains 1 and 2 are guests; domain 0 uses their grants.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A guest without a table creates one.
    Table(u16),
    /// The user binds a guest's table.
    Bind(u16),
    /// A guest grants frames. Each element of `grants` is an entry, a frame, and whether it is
    /// read-only. If `refused`, the user's address space refuses the mapping.
    Create {
        guest: u16,
        grants: Vec<(u32, u32, bool)>,
        refused: bool,
    },
    /// The user begins a use as the protocol requires.
    Use {
        guest: u16,
        index: u32,
        write: bool,
    },
    /// The user ends all uses of a guest's grants.
    Release(u16),
    /// The user writes an arbitrary status.
    Lie {
        guest: u16,
        index: u32,
        status: u32,
    },
    /// A guest revokes grants. Each element of `grants` is an entry, the kind of revocation, and
    /// whether the reference is stale.
    Revoke {
        guest: u16,
        grants: Vec<(u32, Revocation, bool)>,
    },
    GranterEnds(u16),
    UserEnds(u16),
    Kill(u16),
    /// The user's agent executes the next call, but its result is lost.
    Silence,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    frame: u32,
    readonly: bool,
    draining: bool,
}

/// One guest's table, in the model.
#[derive(Clone, Debug)]
struct Table {
    handle: Handle,
    bound: bool,
    /// Whether the user's half has ended or the user is dead.
    user_done: bool,
    granter_done: bool,
    generation: [u32; ENTRIES as usize],
    grants: BTreeMap<u32, Grant>,
    status: [u32; ENTRIES as usize],
    quarantine: BTreeSet<u32>,
}

/// The monitor's code under test, and the model.
pub(crate) struct Rig {
    pub(crate) grants: Arc<GrantAccounts>,
    pub(crate) counted: CountedTables,
    /// The statuses of the last call.
    pub(crate) statuses: Vec<S>,
    /// Whether the table permitted the last use.
    pub(crate) used: bool,
    /// Whether to skip the comparison after each step.
    pub(crate) quiet: bool,
    memories: Vec<Arc<SharedDomainMemory>>,
    spy: Arc<Mutex<Spy>>,
    tables: BTreeMap<u16, Table>,
    alive: [bool; 3],
    /// Whether the user is dead, even if its worker has not noticed that.
    dead: bool,
    silent: bool,
}

/// Returns the first slot of a guest's table. The entries precede the sub-tables.
fn first(guest: u16) -> u32 {
    u32::from(guest - 1) * (ENTRIES + table_slots(ENTRIES))
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_wait_budget(Duration::ZERO)
    }

    pub(crate) fn with_wait_budget(wait_budget: Duration) -> Self {
        let grants = Arc::new(GrantAccounts::default());
        let counted = CountedTables::with_limits(Arc::clone(&grants), wait_budget, 1 << 20);
        let memories: Vec<_> = (0..3)
            .map(|id| {
                let memory = Arc::new(
                    SharedDomainMemory::create(DomId(id), FRAMES, ENTRIES, &[], None).unwrap(),
                );
                grants.lock().insert(DomId(id), Arc::clone(&memory), SLOTS);
                memory
            })
            .collect();
        for memory in &memories {
            for frame in 0..FRAMES {
                let page = memory.frame(frame).unwrap();
                page.fill(frame as u8 + 1).unwrap();
            }
        }
        let spy = Arc::new(Mutex::new(Spy::default()));
        let space: Arc<Mutex<Spy>> = Arc::clone(&spy);
        grants.lock().set_space(USER, Some(space));
        counted.insert(USER, COLLATERAL);
        Self {
            grants,
            counted,
            statuses: Vec::new(),
            used: false,
            quiet: false,
            memories,
            spy,
            tables: BTreeMap::new(),
            alive: [true; 3],
            dead: false,
            silent: false,
        }
    }

    /// Returns a domain's memory.
    pub(crate) fn memory(&self, id: u16) -> &SharedDomainMemory {
        &self.memories[usize::from(id)]
    }

    /// Returns the reason for which the user was killed, if it was.
    pub(crate) fn destroyed(&self) -> Option<String> {
        self.spy.lock().unwrap().fake.destroyed.clone()
    }

    pub(crate) fn handle(&self, guest: u16) -> Handle {
        self.tables[&guest].handle
    }

    /// Returns the generation in an entry's translation word.
    pub(crate) fn granted_generation(&self, guest: u16, index: u32) -> u32 {
        let entry = self.translation(guest, index).unwrap();
        (entry.0 >> GrantRef::INDEX_BITS) as u32 & GENERATION_MAX
    }

    /// Makes the next change of the user's address space kill the user.
    pub(crate) fn kill_silently(&self) {
        self.spy.lock().unwrap().fake.lose_next = true;
    }

    pub(crate) fn generation(&self, guest: u16, index: u32) -> u32 {
        self.tables[&guest].generation[index as usize]
    }

    fn is_alive(&self, id: u16) -> bool {
        self.alive[usize::from(id)] && !(id == USER.0 && self.dead)
    }

    /// Runs one step on the monitor and the model, and compares them.
    pub(crate) fn step(&mut self, op: &Op) {
        match op {
            Op::Table(guest) if self.is_alive(*guest) => self.table(*guest),
            Op::Bind(guest) if self.is_alive(0) => self.bind(*guest),
            Op::Create {
                guest,
                grants,
                refused,
            } if self.is_alive(*guest) => self.create(*guest, grants, *refused),
            Op::Use {
                guest,
                index,
                write,
            } if self.is_alive(0) => self.begin_use(*guest, *index, *write),
            Op::Release(guest) if self.is_alive(0) => self.set_status(*guest, None, 0),
            Op::Lie {
                guest,
                index,
                status,
            } if self.is_alive(0) => self.set_status(*guest, Some(*index), *status),
            Op::Revoke { guest, grants } if self.is_alive(*guest) => self.revoke(*guest, grants),
            Op::GranterEnds(guest) if self.is_alive(*guest) => self.granter_ends(*guest),
            Op::UserEnds(guest) if self.is_alive(0) => self.user_ends(*guest),
            Op::Kill(id) if self.alive[usize::from(*id)] => self.kill(*id),
            Op::Silence if self.is_alive(0) => {
                self.silent = true;
                self.spy.lock().unwrap().fake.lose_next = true;
            }
            // A dead domain does nothing.
            _ => {}
        }
        if !self.quiet {
            self.compare();
        }
    }

    fn table(&mut self, guest: u16) {
        if self.tables.contains_key(&guest) {
            return;
        }
        let own = (DomId(guest), ConnId(0));
        let made = self.counted.create_table(own, USER, ENTRIES);
        if !self.alive[0] {
            assert_eq!(made, Err(S::BadDomain));
            return;
        }
        let table = Table {
            handle: made.unwrap(),
            bound: false,
            user_done: false,
            granter_done: false,
            generation: [0; ENTRIES as usize],
            grants: BTreeMap::new(),
            status: [0; ENTRIES as usize],
            quarantine: BTreeSet::new(),
        };
        self.tables.insert(guest, table);
    }

    /// Returns whether the user survives a change of its address space.
    fn survives(&mut self) -> bool {
        if std::mem::take(&mut self.silent) {
            self.user_dies();
        }
        !self.dead
    }

    /// Marks the user as dead. Its worker may not have noticed that.
    fn user_dies(&mut self) {
        self.dead = true;
    }

    /// Updates a table in the model after its granter has found the user dead.
    fn model_lost_user(&mut self, guest: u16) {
        let table = self.tables.get_mut(&guest).unwrap();
        table.grants.clear();
        table.quarantine.clear();
        table.bound = false;
        table.user_done = true;
    }

    fn bind(&mut self, guest: u16) {
        let (handle, ok) = match self.tables.get(&guest) {
            Some(t) => (t.handle, !t.bound && !t.user_done && !t.granter_done),
            None => (Handle(99), false),
        };
        let bind = |first| BindOp {
            granter: DomId(guest),
            table: handle,
            first: Slot(first),
            tables: Slot(first + ENTRIES),
            entries: ENTRIES,
        };
        if ok {
            // The user cannot bind a table outside of its window. Below, another domain cannot bind
            // the table, and the user cannot bind it as another domain's table.
            let outside = self.counted.bind(USER, &bind(SLOTS - ENTRIES));
            assert_eq!(outside, Err(S::BadSlot));
            // The user cannot bind a table as an exchange, which has no sub-tables (F-12).
            let tables = Slot(first(guest));
            let exchange = BindOp {
                tables,
                ..bind(first(guest))
            };
            let exchange = self.counted.bind(USER, &exchange);
            assert_eq!(exchange, Err(S::BadSlot));
            let other = self.counted.bind(DomId(guest), &bind(0));
            assert_eq!(other, Err(S::BadHandle));
            let granter = DomId(3 - guest);
            let wrong = BindOp { granter, ..bind(0) };
            let wrong = self.counted.bind(USER, &wrong);
            assert_eq!(wrong, Err(S::BadHandle));
        }
        let done = self.counted.bind(USER, &bind(first(guest)));
        if !ok {
            assert_eq!(done, Err(S::BadHandle));
        } else if self.survives() {
            assert_eq!(done, Ok(()));
            self.tables.get_mut(&guest).unwrap().bound = true;
        } else {
            assert_eq!(done, Err(S::NoSpace));
        }
    }

    fn create(&mut self, guest: u16, grants: &[(u32, u32, bool)], refused: bool) {
        let Some(mut table) = self.tables.get(&guest).cloned() else {
            return;
        };
        let ops: Vec<_> = grants
            .iter()
            .map(|&(index, frame, readonly)| CreateGrantOp {
                table: table.handle,
                index,
                frame,
                readonly,
                io: false,
            })
            .collect();
        self.spy.lock().unwrap().fake.refuse_next = refused;
        let answers = self.counted.create(DomId(guest), &ops);
        self.spy.lock().unwrap().fake.refuse_next = false;
        let mut expected = Vec::new();
        let mut made = Vec::new();
        for &(index, frame, readonly) in grants {
            let status = if table.granter_done || table.user_done {
                S::BadHandle
            } else if index >= ENTRIES || table.grants.contains_key(&index) {
                S::BadRef
            } else if frame >= FRAMES {
                S::AddressTooBig
            } else if table.quarantine.contains(&index) && table.status[index as usize] != 0 {
                S::Again
            } else {
                table.quarantine.remove(&index);
                let generation = &mut table.generation[index as usize];
                *generation = *generation % GENERATION_MAX + 1;
                let draining = false;
                table.grants.insert(
                    index,
                    Grant {
                        frame,
                        readonly,
                        draining,
                    },
                );
                made.push(index);
                S::Okay
            };
            expected.push(status);
        }
        let mapped = table.bound && !made.is_empty();
        // A refusal takes precedence over a lost result.
        let fails = mapped && (refused && !self.dead || !self.survives());
        if fails {
            for index in &made {
                table.grants.remove(index);
            }
            for status in expected.iter_mut().filter(|status| **status == S::Okay) {
                *status = S::NoSpace;
            }
        }
        self.statuses = answers.iter().map(|(status, _)| *status).collect();
        assert_eq!(self.statuses, expected, "{guest} grants {grants:?}");
        for ((status, gref), (index, ..)) in answers.iter().zip(grants) {
            if *status == S::Okay {
                let generation = table.generation[*index as usize];
                assert_eq!(*gref, GrantRef::new(*index, generation));
            }
        }
        self.tables.insert(guest, table);
    }

    fn translation(&self, guest: u16, index: u32) -> Option<Translation> {
        let spy = self.spy.lock().unwrap();
        let own = (1 << 16) + self.tables[&guest].handle.0 * 2;
        let mut word = [0; 8];
        let at = u64::from(index) * 8;
        spy.files.get(&own)?.read_exact_at(&mut word, at).unwrap();
        Some(Translation(u64::from_le_bytes(word)))
    }

    /// Returns the number of announcements of a table, if the user has bound it.
    fn announcements(&self, guest: u16) -> Option<u64> {
        let spy = self.spy.lock().unwrap();
        let own = (1 << 16) + self.tables[&guest].handle.0 * 2;
        let mut word = [0; 8];
        let at = abi::counted::announcements_at(ENTRIES) as u64;
        spy.files.get(&own)?.read_exact_at(&mut word, at).unwrap();
        Some(u64::from_le_bytes(word))
    }

    fn begin_use(&mut self, guest: u16, index: u32, write: bool) {
        self.used = false;
        let Some(table) = self.tables.get(&guest).filter(|t| t.bound) else {
            return;
        };
        if index >= ENTRIES {
            return;
        }
        let gref = GrantRef::new(index, table.generation[index as usize]);
        let permits = self.translation(guest, index).unwrap().permits(gref, write);
        let grant = self.tables[&guest].grants.get(&index);
        let expected = grant.is_some_and(|g| !(g.draining || write && g.readonly));
        assert_eq!(permits, expected, "a use of entry {index} of {guest}");
        if permits {
            let status = self.tables[&guest].status[index as usize].wrapping_add(1);
            self.set_status(guest, Some(index), status);
            self.used = true;
        }
    }

    /// Sets the status of one entry, or of all entries, as the user does.
    fn set_status(&mut self, guest: u16, index: Option<u32>, status: u32) {
        let Some(table) = self.tables.get_mut(&guest).filter(|t| t.bound) else {
            return;
        };
        for n in (0..ENTRIES).filter(|n| index.is_none_or(|index| index == *n)) {
            table.status[n as usize] = status;
            let own = (1 << 16) + table.handle.0 * 2;
            let spy = self.spy.lock().unwrap();
            let at = PAGE as u64 + u64::from(n) * 4;
            let file = spy.files.get(&own).unwrap();
            file.write_all_at(&status.to_le_bytes(), at).unwrap();
        }
    }

    /// Makes the user end all uses of guest 1's grants after a delay of `after`.
    pub(crate) fn release_later(&mut self, after: Duration) -> JoinHandle<()> {
        let table = self.tables.get_mut(&1).unwrap();
        table.status = [0; ENTRIES as usize];
        self.quiet = true;
        let spy = Arc::clone(&self.spy);
        let own = (1 << 16) + table.handle.0 * 2;
        thread::spawn(move || {
            thread::sleep(after);
            let spy = spy.lock().unwrap();
            let zeroes = [0; 4 * ENTRIES as usize];
            spy.files[&own].write_all_at(&zeroes, PAGE as u64).unwrap();
        })
    }

    fn revoke(&mut self, guest: u16, grants: &[(u32, Revocation, bool)]) {
        let Some(table) = self.tables.get(&guest).cloned() else {
            return;
        };
        let ops: Vec<_> = grants
            .iter()
            .map(|&(index, how, stale)| {
                let generation = table.generation.get(index as usize).copied().unwrap_or(1);
                RevokeOp {
                    table: table.handle,
                    gref: GrantRef::new(index, generation + u32::from(stale)),
                    how,
                }
            })
            .collect();
        let before = self.announcements(guest);
        self.statuses = self.counted.revoke(DomId(guest), &ops);
        // N-8: a batch with announcements increments the count once.
        let announced = |status: &S| matches!(status, S::Okay | S::Again);
        let announcements = u64::from(self.statuses.iter().any(announced));
        let after = before.map(|before| before + announcements);
        assert_eq!(
            self.announcements(guest),
            after,
            "{guest} revokes {grants:?}"
        );
        if self.quiet && !self.is_modelled() {
            return;
        }
        let expected = self.model_revoke(guest, grants);
        assert_eq!(self.statuses, expected, "{guest} revokes {grants:?}");
    }

    /// Returns whether the model covers guest 1. It does not cover guest 1 while guest 1 has
    /// entries in quarantine, because the user then ends uses in the background.
    fn is_modelled(&self) -> bool {
        self.tables
            .get(&1)
            .is_none_or(|table| table.quarantine.is_empty())
    }

    fn granter_ends(&mut self, guest: u16) {
        let Some(table) = self.tables.get(&guest) else {
            return;
        };
        let (handle, done) = (table.handle, table.granter_done);
        let ended = self.counted.end_table(DomId(guest), handle);
        if done {
            assert_eq!(ended, Err(S::BadHandle));
        } else {
            assert_eq!(ended, Ok(()));
            self.model_granter_ends(guest);
        }
    }

    fn user_ends(&mut self, guest: u16) {
        let Some(table) = self.tables.get(&guest) else {
            return;
        };
        let (handle, done, bound) = (table.handle, table.user_done, table.bound);
        let ended = self.counted.end_table(USER, handle);
        if done {
            assert_eq!(ended, Err(S::BadHandle));
            return;
        }
        assert_eq!(ended, Ok(()));
        if bound {
            self.survives();
        }
        self.model_lost_user(guest);
        if self.tables[&guest].granter_done {
            self.tables.remove(&guest);
        }
    }

    fn kill(&mut self, id: u16) {
        self.grants.lock().fence(DomId(id));
        self.alive[usize::from(id)] = false;
        if id == USER.0 {
            // The process of the user has exited.
            self.spy.lock().unwrap().fake.mapped.clear();
        }
        self.grants.lock().set_space(DomId(id), None);
        self.counted.tear_down(DomId(id));
        if id == USER.0 {
            self.dead = true;
            for guest in 1..3 {
                if self.tables.contains_key(&guest) {
                    self.model_lost_user(guest);
                    if self.tables[&guest].granter_done {
                        self.tables.remove(&guest);
                    }
                }
            }
        } else if self.tables.get(&id).is_some_and(|t| !t.granter_done) {
            self.model_granter_ends(id);
        }
        self.grants.lock().clear(DomId(id));
        if id != USER.0 {
            assert!(
                !self.grants.lock().has_account(DomId(id)),
                "N-14: the account is still open"
            );
        }
    }

    /// Kills every domain, and asserts that nothing remains.
    pub(crate) fn end(mut self) {
        for id in 0..3 {
            self.step(&Op::Kill(id));
        }
        let (accounts, leaked) = self.grants.audit(&self.counted, None);
        assert!(accounts.is_empty() && leaked == 0);
        for memory in self.memories {
            assert_eq!(
                Arc::strong_count(&memory),
                1,
                "the memory still has a holder"
            );
        }
    }
}
