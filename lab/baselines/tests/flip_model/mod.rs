//! The model of exchanges: for each slot of both ends, the byte that fills the page.

use crate::spy::Spy;
use abi::classic::{GrantEntry, TransferOp};
use abi::hypercall::{BindOp, HypercallKind};
use abi::layout::info;
use abi::{ConnId, DomId, GrantRef, GrantStatus as S, Handle, PAGE, Slot};
use monitor::grant::mechanism::{GrantResult, OtherCall};
use monitor::grant::{CountedTables, GrantAccounts, Mechanism};
use monitor::memory::SharedDomainMemory;
use monitor::space::AddressSpace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Number of pages of each end of an exchange.
pub(crate) const PAGES: u32 = 3;
const ENTRIES: u32 = 4;
const FRAMES: u32 = 2;
const SLOTS: u32 = 8;

/// An operation. The guests are domains 1 and 2; domain 0 exchanges pages with both.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A guest without an exchange creates one, at its slots from 0.
    Create(u16),
    /// The user binds a guest's exchange: guest 1's at the slots from 0, guest 2's at the slots
    /// behind them.
    Bind(u16),
    /// A guest writes an entry of its table.
    Offer {
        guest: u16,
        index: u32,
        entry: GrantEntry,
    },
    /// A domain fills the page at a slot.
    Write { of: u16, slot: u32, byte: u8 },
    /// The user transfers a batch. Each operation has the guest, the user's slot, and the guest's
    /// entry.
    Transfer(Vec<(u16, u32, u32)>),
    /// A domain releases a guest's exchange.
    End { of: u16, guest: u16 },
    /// A domain dies.
    Kill(u16),
    /// The next change of a domain's address space fails. The agent rejects it, or executes it
    /// without an answer (`lost`).
    Fail { of: u16, lost: bool },
}

/// One guest's exchange in the model. Each end has the bytes that fill its pages, or `None` without
/// pages.
#[derive(Clone, Debug)]
struct Model {
    handle: Handle,
    guest: Option<[u8; PAGES as usize]>,
    user: Option<[u8; PAGES as usize]>,
    /// Whether the guest has released its end.
    guest_done: bool,
    user_done: bool,
}

/// The monitor's code and the model, which execute the same operations.
pub(crate) struct Rig {
    grants: Arc<GrantAccounts>,
    flips: Box<dyn Mechanism>,
    /// Statuses of the last call.
    pub(crate) statuses: Vec<S>,
    memories: Vec<Arc<SharedDomainMemory>>,
    spies: Vec<Arc<Mutex<Spy>>>,
    exchanges: BTreeMap<u16, Model>,
    alive: [bool; 3],
}

/// Returns the file and the offset of the page that is mapped at a slot.
fn page_at(spy: &Spy, slot: u32) -> Option<(&File, u64)> {
    let page = spy.fake.mapped.get(&Slot(slot))?;
    let file = spy.files.get(&page.memory)?;
    Some((file, u64::from(page.frame) * PAGE as u64))
}

fn first_of_user(guest: u16) -> u32 {
    u32::from(guest - 1) * PAGES
}

impl Rig {
    pub(crate) fn new() -> Self {
        let grants = Arc::new(GrantAccounts::default());
        let mut rig = Self {
            flips: baselines::mechanisms(&grants),
            grants,
            statuses: Vec::new(),
            memories: Vec::new(),
            spies: Vec::new(),
            exchanges: BTreeMap::new(),
            alive: [true; 3],
        };
        for id in (0..3).map(DomId) {
            let memory =
                Arc::new(SharedDomainMemory::create(id, FRAMES, ENTRIES, &[], None).unwrap());
            rig.grants.lock().insert(id, Arc::clone(&memory), SLOTS);
            let spy = Arc::new(Mutex::new(Spy::default()));
            let reached = Arc::clone(&spy) as _;
            rig.grants.lock().set_space(id, Some(reached));
            rig.memories.push(memory);
            rig.spies.push(spy);
        }
        rig
    }

    fn word(&self, guest: u16, index: u32) -> &'static AtomicU64 {
        let table = self.memories[usize::from(guest)].info.span();
        table.u64(info::GRANT_TABLE + index as usize * 8).unwrap()
    }

    pub(crate) fn entry(&self, guest: u16, index: u32) -> GrantEntry {
        GrantEntry(self.word(guest, index).load(Ordering::Relaxed))
    }

    pub(crate) fn is_dead(&self, of: u16) -> bool {
        self.spies[usize::from(of)]
            .lock()
            .unwrap()
            .fake
            .destroyed
            .is_some()
    }

    /// Returns the byte that fills the page at a slot, as the domain reads it.
    pub(crate) fn read_byte(&self, of: u16, slot: u32) -> u8 {
        let spy = self.spies[usize::from(of)].lock().unwrap();
        let (file, at) = page_at(&spy, slot).expect("a page");
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, at).unwrap();
        assert!(
            page.iter().all(|byte| *byte == page[0]),
            "the page is not uniform"
        );
        page[0]
    }

    pub(crate) fn create(&self, guest: u16, pages: u32, first: u32) -> Result<Handle, S> {
        let words = [0, u64::from(pages), u64::from(first)];
        match self.call(guest, HypercallKind::ExchangeCreate, &[words]) {
            GrantResult::Created(made) => made,
            GrantResult::Batch(statuses) => panic!("{statuses:?}"),
        }
    }

    /// Makes a call in the form of the call page. Each guest has one connection, with domain 0.
    fn call(&self, of: u16, kind: HypercallKind, ops: &[[u64; 3]]) -> GrantResult {
        let ends = &|conn: ConnId| Ok(((DomId(of), conn), DomId(0)));
        let call = OtherCall {
            caller: DomId(of),
            kind,
            ops,
            ends,
        };
        let mut space = Spy::default();
        let done = self.flips.call(&mut space, &call);
        done.unwrap().unwrap()
    }

    pub(crate) fn audit_of(&self, of: u16) -> u32 {
        let (accounts, leaked) = self
            .grants
            .audit(&CountedTables::new(Arc::default()), Some(&*self.flips));
        assert_eq!(leaked, 0);
        accounts
            .get(&DomId(of))
            .map_or(0, |account| account.owned - FRAMES)
    }

    pub(crate) fn transfer_as(&self, caller: u16, ops: &[(u16, u32, u32)]) -> Vec<S> {
        let ops: Vec<_> = ops
            .iter()
            .map(|&(guest, slot, index)| TransferOp {
                exchange: self.exchanges.get(&guest).map_or(Handle(0), |e| e.handle),
                slot: Slot(slot),
                gref: GrantRef(index),
            })
            .map(|op| op.encode())
            .collect();
        match self.call(caller, HypercallKind::GrantTransfer, &ops) {
            GrantResult::Batch(statuses) => statuses,
            GrantResult::Created(made) => panic!("{made:?}"),
        }
    }

    pub(crate) fn step(&mut self, op: &Op) {
        match op {
            Op::Create(guest) => self.make(*guest),
            Op::Bind(guest) => self.bind(*guest),
            Op::Offer {
                guest,
                index,
                entry,
            } => self.word(*guest, *index).store(entry.0, Ordering::Relaxed),
            Op::Write { of, slot, byte } => self.write(*of, *slot, *byte),
            Op::Transfer(ops) => self.transfer(ops),
            Op::End { of, guest } => self.finish(*of, *guest),
            Op::Kill(of) => self.kill(*of),
            Op::Fail { of, lost } => {
                let fake = &mut self.spies[usize::from(*of)].lock().unwrap().fake;
                *(if *lost {
                    &mut fake.lose_next
                } else {
                    &mut fake.refuse_next
                }) = true;
            }
        }
        // Kill the domains whose agents have not answered.
        for of in 0..3 {
            if self.is_dead(of) {
                self.kill(of);
            }
        }
        self.compare();
    }

    /// Returns whether the next change of a domain's address space is set to fail.
    fn fails(&self, of: u16) -> bool {
        let fake = &self.spies[usize::from(of)].lock().unwrap().fake;
        fake.lose_next || fake.refuse_next
    }

    fn make(&mut self, guest: u16) {
        if !self.alive[usize::from(guest)] {
            return;
        }
        if let Some(model) = self.exchanges.get(&guest) {
            assert!(model.guest.is_some() || model.guest_done);
            return;
        }
        let fails = self.fails(guest);
        let made = self.create(guest, PAGES, 0);
        self.statuses = vec![made.err().unwrap_or(S::Okay)];
        if !self.alive[0] {
            assert_eq!(made, Err(S::BadDomain));
        } else if fails {
            assert_eq!(made, Err(S::NoSpace));
        } else {
            let model = Model {
                handle: made.unwrap(),
                guest: Some([0; PAGES as usize]),
                user: None,
                guest_done: false,
                user_done: false,
            };
            self.exchanges.insert(guest, model);
        }
    }

    fn bind(&mut self, guest: u16) {
        let Some(mut model) = self.exchanges.get(&guest).cloned() else {
            return;
        };
        if !self.alive[0] {
            return;
        }
        let op = BindOp {
            granter: DomId(guest),
            table: model.handle,
            first: Slot(first_of_user(guest)),
            tables: Slot(0),
            entries: PAGES,
        };
        let other_size = BindOp {
            entries: PAGES + 1,
            ..op
        };
        let bind = |id, op: &BindOp| {
            let bound = self.flips.bind(DomId(id), op);
            bound.unwrap_or(Err(S::BadHandle))
        };
        assert_eq!(
            bind(guest, &op),
            Err(S::BadHandle),
            "the guest is not the user"
        );
        assert_eq!(
            bind(0, &other_size),
            Err(S::BadHandle),
            "the number of pages differs"
        );
        let fails = self.fails(0);
        let bound = bind(0, &op);
        self.statuses = vec![bound.err().unwrap_or(S::Okay)];
        if model.guest_done || model.user_done || model.user.is_some() {
            assert_eq!(bound, Err(S::BadHandle));
        } else if fails {
            assert_eq!(bound, Err(S::NoSpace));
        } else {
            assert_eq!(bound, Ok(()));
            model.user = Some([0; PAGES as usize]);
            self.exchanges.insert(guest, model);
        }
    }

    fn write(&mut self, of: u16, slot: u32, byte: u8) {
        {
            let spy = self.spies[usize::from(of)].lock().unwrap();
            let Some((file, at)) = page_at(&spy, slot) else {
                return;
            };
            file.write_all_at(&[byte; PAGE], at).unwrap();
        }
        let (guest, at, user) = match of {
            0 => (1 + (slot / PAGES) as u16, slot % PAGES, true),
            _ => (of, slot, false),
        };
        let model = self.exchanges.get_mut(&guest).unwrap();
        let pages = if user {
            &mut model.user
        } else {
            &mut model.guest
        };
        pages.as_mut().unwrap()[at as usize] = byte;
    }

    fn transfer(&mut self, ops: &[(u16, u32, u32)]) {
        if !self.alive[0] {
            return;
        }
        let mut expected = Vec::new();
        let mut words: BTreeMap<(u16, u32), u64> = BTreeMap::new();
        let mut user_died = false;
        for run in ops.chunk_by(|a, b| a.0 == b.0) {
            let guest = run[0].0;
            let statuses = match self.exchanges.get(&guest) {
                _ if user_died => vec![S::BadHandle; run.len()],
                None => vec![S::BadHandle; run.len()],
                Some(model) if model.guest_done || model.user_done => vec![S::BadHandle; run.len()],
                Some(_) => {
                    let before = self.exchanges[&guest].clone();
                    let statuses = self.run(guest, run, &mut words);
                    let moves = statuses.contains(&S::Okay);
                    let (guest_fails, user_fails) = (self.fails(guest), self.fails(0));
                    if moves && guest_fails {
                        self.exchanges.insert(guest, before);
                        let dead = |status| {
                            if status == S::Okay {
                                S::BadDomain
                            } else {
                                status
                            }
                        };
                        for (op, _) in run.iter().zip(&statuses).filter(|(_, s)| **s == S::Okay) {
                            let word = words.get_mut(&(guest, op.2)).unwrap();
                            *word &= !u64::from(GrantEntry::COMPLETED);
                        }
                        statuses.into_iter().map(dead).collect()
                    } else {
                        user_died |= moves && user_fails;
                        statuses
                    }
                }
            };
            expected.extend(statuses);
        }
        if user_died {
            // The caller is dead and receives no statuses, so they are not compared.
            self.statuses = self.transfer_as(0, ops);
            return;
        }
        self.statuses = self.transfer_as(0, ops);
        assert_eq!(self.statuses, expected);
        for ((guest, index), word) in words {
            assert_eq!(self.entry(guest, index).0, word);
        }
    }

    /// Runs a batch of one exchange in the model. Returns the statuses for the case that both
    /// agents answer. Stores the entries after the batch in `words`.
    fn run(
        &mut self,
        guest: u16,
        ops: &[(u16, u32, u32)],
        words: &mut BTreeMap<(u16, u32), u64>,
    ) -> Vec<S> {
        let (mut sent, mut filled) = (BTreeSet::new(), BTreeSet::new());
        let mut statuses = Vec::new();
        for &(_, slot, index) in ops {
            let bound = self.exchanges[&guest].user.is_some();
            let own = slot
                .checked_sub(first_of_user(guest))
                .filter(|own| bound && *own < PAGES);
            statuses.push(if index >= ENTRIES {
                S::BadRef
            } else if own.is_none_or(|own| sent.contains(&own)) {
                S::BadSlot
            } else {
                let word = *words
                    .entry((guest, index))
                    .or_insert(self.entry(guest, index).0);
                let entry = GrantEntry(word);
                let own = own.unwrap();
                if entry.flags() != 2 || entry.domain() != DomId(0) {
                    S::BadRef
                } else if entry.frame() >= PAGES || filled.contains(&entry.frame()) {
                    words.insert((guest, index), entry.with_flags(2 | 4).0);
                    S::BadSlot
                } else {
                    words.insert((guest, index), entry.with_flags(2 | 4 | 8).0);
                    sent.insert(own);
                    filled.insert(entry.frame());
                    let model = self.exchanges.get_mut(&guest).unwrap();
                    let given = std::mem::take(&mut model.user.as_mut().unwrap()[own as usize]);
                    model.guest.as_mut().unwrap()[entry.frame() as usize] = given;
                    S::Okay
                }
            });
        }
        statuses
    }

    fn finish(&mut self, of: u16, guest: u16) {
        let Some(mut model) = self.exchanges.remove(&guest) else {
            return;
        };
        let part = if of == 0 {
            !model.user_done
        } else {
            of == guest && !model.guest_done
        };
        if self.alive[usize::from(of)] {
            let ended = self.flips.end(DomId(of), model.handle);
            assert_eq!(ended.is_some_and(|ended| ended.is_ok()), part);
            if part && of == 0 {
                (model.user, model.user_done) = (None, true);
            } else if part {
                (model.guest, model.guest_done) = (None, true);
            }
        }
        self.insert_unless_released(guest, model);
    }

    /// Inserts an exchange into the model, unless both ends have released it.
    fn insert_unless_released(&mut self, guest: u16, model: Model) {
        if model.guest_done && model.user.is_none() {
            assert!(!self.flips.has_object(model.handle));
        } else {
            assert!(self.flips.has_object(model.handle));
            self.exchanges.insert(guest, model);
        }
    }

    pub(crate) fn kill(&mut self, of: u16) {
        if !std::mem::take(&mut self.alive[usize::from(of)]) {
            return;
        }
        self.grants.lock().fence(DomId(of));
        self.spies[usize::from(of)]
            .lock()
            .unwrap()
            .destroy("killed");
        self.flips.tear_down(DomId(of));
        self.grants.lock().set_space(DomId(of), None);
        self.grants.lock().fence(DomId(of));
        for guest in [1, 2] {
            if let Some(mut model) = self.exchanges.remove(&guest) {
                if of == 0 {
                    (model.user, model.user_done) = (None, true);
                } else if of == guest {
                    (model.guest, model.guest_done) = (None, true);
                }
                self.insert_unless_released(guest, model);
            }
        }
    }

    /// Compares all visible bytes with the model. Checks that no page is mapped twice.
    fn compare(&self) {
        let mut mapped_pages = BTreeSet::new();
        for (of, spy) in (0u16..).zip(&self.spies) {
            let spy = spy.lock().unwrap();
            for page in spy.fake.mapped.values() {
                assert!(
                    mapped_pages.insert((page.memory, page.frame)),
                    "{page:?} is mapped twice"
                );
                assert!(page.writable);
            }
            drop(spy);
            let mut owned = 0;
            for (&guest, model) in &self.exchanges {
                let (pages, first) = match of {
                    0 => (model.user, first_of_user(guest)),
                    _ if of == guest => (model.guest, 0),
                    _ => continue,
                };
                for (slot, byte) in (first..).zip(pages.into_iter().flatten()) {
                    assert_eq!(self.read_byte(of, slot), byte, "domain {of}, slot {slot}");
                    owned += 1;
                }
            }
            let mapped = self.spies[usize::from(of)]
                .lock()
                .unwrap()
                .fake
                .mapped
                .len();
            assert_eq!(mapped as u32, owned, "domain {of}");
            assert_eq!(self.audit_of(of), owned);
        }
    }

    /// Kills all domains, and checks that no exchange remains.
    pub(crate) fn end(mut self) {
        for of in [1, 0, 2] {
            self.kill(of);
        }
        self.compare();
        assert!(self.exchanges.is_empty());
    }
}
