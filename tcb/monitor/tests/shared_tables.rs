//! Tables with pages that are granted for I/O, and the device of their user (IO-1 … IO-6).

mod spy;
mod tables;

use abi::counted::Revocation;
use abi::hypercall::{CreateGrantOp, RevokeOp, ShareOp};
use abi::{ConnId, DomId, GrantRef, GrantStatus, Handle, Slot};
use monitor::fake::SharedFake;
use monitor::grant::{CountedTables, GrantAccounts};
use monitor::memory::SharedDomainMemory;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tables::{Sizes, USER};

const GRANTER: DomId = DomId(1);
const DEVICE: DomId = DomId(2);
const ENTRIES: u32 = 8;
/// The slot of entry 0 in the device's window.
const FIRST: u32 = 3;
/// Slots of the device's window.
const WINDOW: u32 = 32;

/// One granter's table, and the device that its user names.
struct Rig {
    tables: tables::Rig,
    device: SharedFake,
}

impl Rig {
    /// Creates a bound table without grants.
    fn new() -> Self {
        Self::with_mappings(u32::MAX)
    }

    /// Creates the same rig with a limit of `mappings` mappings per process.
    fn with_mappings(mappings: u32) -> Self {
        let tables = tables::Rig::new(Sizes {
            granters: 1,
            entries: ENTRIES,
            wait_budget: Duration::from_secs(1),
            mappings,
        });
        let device = SharedFake::default();
        let rig = Self {
            tables,
            device: Arc::clone(&device),
        };
        rig.add_device(device);
        rig
    }

    fn add_device(&self, space: SharedFake) {
        let memory = SharedDomainMemory::create(DEVICE, 1, 1, &[], None).unwrap();
        let grants = self.grants();
        grants.lock().insert(DEVICE, Arc::new(memory), WINDOW);
        grants.lock().set_space(DEVICE, Some(space));
        self.counted().insert(DEVICE, ENTRIES);
    }

    fn grants(&self) -> &GrantAccounts {
        &self.tables.grants
    }

    fn counted(&self) -> &CountedTables {
        &self.tables.counted
    }

    fn table(&self) -> Handle {
        self.tables.handle(GRANTER.0)
    }

    fn share(&self, user: DomId, device: DomId, first: u32) -> Result<(), GrantStatus> {
        let share = ShareOp {
            table: self.table(),
            conn: ConnId(0),
            first: Slot(first),
        };
        let shared = self.counted().share(user, device, &share);
        self.check();
        shared
    }

    /// Grants a frame through the entry with the same number.
    fn grant(&self, index: u32, io: bool, readonly: bool) -> (GrantStatus, GrantRef) {
        let create = CreateGrantOp {
            table: self.table(),
            index,
            frame: index,
            readonly,
            io,
        };
        let made = self.counted().create(GRANTER, &[create])[0];
        self.check();
        made
    }

    fn revoke(&self, gref: GrantRef) -> GrantStatus {
        let revoke = RevokeOp {
            table: self.table(),
            gref,
            how: Revocation::Force,
        };
        let status = self.counted().revoke(GRANTER, &[revoke])[0];
        self.check();
        status
    }

    fn die(&self, id: DomId) {
        self.grants().lock().fence(id);
        self.grants().lock().set_space(id, None);
        self.counted().tear_down(id);
        self.grants().lock().clear(id);
        self.check();
    }

    /// Returns the frames that are mapped for the device, and whether each is writable.
    fn device_pages(&self) -> Vec<(u32, bool)> {
        let space = self.device.lock().unwrap();
        let pages = space.mapped.values();
        pages.map(|page| (page.frame, page.writable)).collect()
    }

    /// Asserts that nothing leaks and that the audit contains the device's mappings.
    fn check(&self) {
        let (audit, leaked) = self.grants().audit(self.counted(), None);
        assert_eq!(leaked, 0);
        if let Some(device) = audit.get(&DEVICE) {
            let frames = device.mapped.iter().map(|(granter, frame)| {
                assert_eq!(*granter, GRANTER);
                *frame
            });
            let device_pages = self.device_pages().into_iter().map(|(frame, _)| frame);
            assert!(frames.eq(device_pages));
        }
    }
}

/// IO-1, IO-2: exactly the pages that are granted for I/O are mapped for the device, whether they
/// were granted before or after the table was shared.
#[test]
fn device_reaches_pages_granted_for_io() {
    let rig = Rig::new();
    let before = rig.grant(0, true, false).1;
    rig.grant(1, false, false);
    assert_eq!(rig.device_pages(), []);
    assert_eq!(rig.share(USER, DEVICE, FIRST), Ok(()));
    assert_eq!(rig.device_pages(), [(0, true)]);
    let after = rig.grant(2, true, false).1;
    rig.grant(3, false, false);
    rig.grant(4, true, true);
    assert_eq!(rig.device_pages(), [(0, true), (2, true), (4, false)]);
    for gref in [before, after] {
        assert_eq!(rig.revoke(gref), GrantStatus::Okay);
    }
    assert_eq!(rig.device_pages(), [(4, false)]);
    // The entry can have another grant, which need not be for I/O.
    rig.grant(2, false, false);
    assert_eq!(rig.device_pages(), [(4, false)]);
}

/// IO-1: only the user of a bound table names its device, once, and at free slots.
#[test]
fn table_is_shared_once_by_its_user() {
    let rig = Rig::new();
    rig.grant(0, true, false);
    for caller in [GRANTER, DEVICE] {
        let refused = rig.share(caller, DEVICE, FIRST);
        assert_eq!(refused, Err(GrantStatus::BadHandle));
    }
    for first in [WINDOW - ENTRIES + 1, u32::MAX] {
        let refused = rig.share(USER, DEVICE, first);
        assert_eq!(refused, Err(GrantStatus::BadSlot));
    }
    assert_eq!(
        rig.share(USER, DomId(9), FIRST),
        Err(GrantStatus::BadDomain)
    );
    let space: Arc<_> = SharedFake::default();
    rig.grants().lock().set_space(GRANTER, Some(space));
    rig.counted().insert(GRANTER, ENTRIES);
    let refused = rig.share(USER, GRANTER, FIRST);
    assert_eq!(refused, Err(GrantStatus::BadDomain));
    rig.device.lock().unwrap().refuse_next = true;
    assert_eq!(rig.share(USER, DEVICE, FIRST), Err(GrantStatus::NoSpace));
    assert_eq!(rig.device_pages(), []);
    for _ in 0..2 {
        assert_eq!(rig.share(USER, DEVICE, FIRST), Ok(()));
        assert_eq!(rig.device_pages(), [(0, true)]);
    }
    assert_eq!(
        rig.share(USER, DEVICE, FIRST + ENTRIES),
        Err(GrantStatus::BadHandle)
    );
    let unbound = rig
        .counted()
        .create_table((GRANTER, ConnId(1)), USER, ENTRIES);
    let share = ShareOp {
        table: unbound.unwrap(),
        conn: ConnId(0),
        first: Slot(FIRST + ENTRIES),
    };
    let refused = rig.counted().share(USER, DEVICE, &share);
    assert_eq!(refused, Err(GrantStatus::BadHandle));
}

/// IO-4: the device loses all pages if either half of the table ends or either domain dies.
#[test]
fn end_of_a_table_takes_all_pages_from_the_device() {
    let ends: [fn(&Rig); 4] = [
        |rig| rig.counted().end_table(GRANTER, rig.table()).unwrap(),
        |rig| rig.counted().end_table(USER, rig.table()).unwrap(),
        |rig| rig.die(GRANTER),
        |rig| rig.die(USER),
    ];
    for end in ends {
        let rig = Rig::new();
        rig.grant(0, true, false);
        rig.share(USER, DEVICE, FIRST).unwrap();
        rig.grant(1, true, false);
        end(&rig);
        rig.check();
        assert_eq!(rig.device_pages(), []);
        assert_eq!(rig.device.lock().unwrap().memories.len(), 0);
        assert_eq!(rig.device.lock().unwrap().destroyed, None);
        for id in [USER, GRANTER, DEVICE] {
            rig.die(id);
        }
        assert!(!rig.counted().refers_to(GRANTER) && !rig.grants().lock().has_account(GRANTER));
    }
}

/// IO-5: after the death of a device the table has no device, and its user can name another one.
#[test]
fn next_device_gets_the_pages_of_a_dead_one() {
    let rig = Rig::new();
    rig.grant(0, true, false);
    rig.share(USER, DEVICE, FIRST).unwrap();
    assert!(rig.counted().refers_to(DEVICE));
    rig.die(DEVICE);
    assert!(!rig.counted().refers_to(DEVICE) && !rig.grants().lock().has_account(DEVICE));
    // The user's mappings are unchanged.
    assert!(rig.tables.space().fake.mapped.contains_key(&Slot(0)));
    rig.grant(1, true, false);
    let next = SharedFake::default();
    rig.add_device(Arc::clone(&next));
    let share = ShareOp {
        table: rig.table(),
        conn: ConnId(0),
        first: Slot(FIRST),
    };
    assert_eq!(rig.counted().share(USER, DEVICE, &share), Ok(()));
    assert_eq!(next.lock().unwrap().mapped.len(), 2);
}

/// IO-3: if a page cannot be unmapped from a device, the device is killed before the revocation
/// succeeds.
#[test]
fn device_that_keeps_a_revoked_page_is_killed() {
    let rig = Rig::new();
    let gref = rig.grant(0, true, false).1;
    rig.share(USER, DEVICE, FIRST).unwrap();
    rig.device.lock().unwrap().lose_next = true;
    assert_eq!(rig.revoke(gref), GrantStatus::Okay);
    assert!(rig.device.lock().unwrap().destroyed.is_some());
    assert_eq!(rig.device_pages(), []);
    assert_eq!(rig.tables.destroyed(), None);
}

/// IO-2, IO-3: the forced revocation of a page in use unmaps it from the device. The frame that
/// replaces it is not mapped for the device.
#[test]
fn device_loses_a_page_that_the_user_has_in_use() {
    let rig = Rig::new();
    let gref = rig.grant(0, true, false).1;
    rig.grant(1, true, false);
    rig.share(USER, DEVICE, FIRST).unwrap();
    let set_uses = |uses| {
        let space = rig.tables.space();
        rig.tables.set_uses(&space, GRANTER.0, 0, uses);
    };
    set_uses(1);
    assert_eq!(rig.revoke(gref), GrantStatus::Okay);
    assert_eq!(rig.device_pages(), [(1, true)]);
    // The entry is in quarantine until the use ends.
    assert_ne!(rig.grant(0, true, false).0, GrantStatus::Okay);
    assert_eq!(rig.device_pages(), [(1, true)]);
    set_uses(0);
    assert_eq!(rig.grant(0, true, false).0, GrantStatus::Okay);
    assert_eq!(rig.device_pages(), [(0, true), (1, true)]);
    assert_eq!(rig.device.lock().unwrap().destroyed, None);
}

/// IO-6: the cost of a revocation, and of the end of a table, includes the device's mappings.
#[test]
fn revocations_count_for_the_device() {
    let rig = Rig::new();
    let gref = rig.grant(0, true, false).1;
    rig.grant(1, false, false);
    let table = rig.table();
    let revoke = RevokeOp {
        table,
        gref,
        how: Revocation::Force,
    };
    let costs = || {
        let counted = rig.counted();
        let of_revocation = counted.cost_of_revocations(GRANTER, &[revoke]);
        (of_revocation, counted.cost_of_end(GRANTER, table))
    };
    let (one, end) = costs();
    assert_eq!(one, 1);
    rig.share(USER, DEVICE, FIRST).unwrap();
    assert_eq!(costs(), (2, end + 1), "one page is granted for I/O");
    rig.die(DEVICE);
    assert_eq!(costs(), (one, end));
}

/// IO-6: every page of a table may take a separate mapping of the device.
#[test]
fn device_has_room_for_a_mapping_of_each_page() {
    // The device's own memory takes 2048 mappings. The table gets a part of the other mappings, in
    // proportion to its slots. In addition to a mapping of each page, that part includes the gaps
    // before and after the table.
    let each = 2048 + (ENTRIES + 2) * (WINDOW / ENTRIES);
    let rig = Rig::with_mappings(each - 1);
    rig.grant(0, true, false);
    assert_eq!(rig.share(USER, DEVICE, FIRST), Err(GrantStatus::NoSpace));
    assert_eq!(rig.device_pages(), []);
    let rig = Rig::with_mappings(each);
    assert_eq!(rig.share(USER, DEVICE, FIRST), Ok(()));
}

/// A step of a random sequence.
#[derive(Clone, Debug)]
enum Op {
    Share(u32),
    Grant(u32, bool),
    Revoke(u32),
    End(DomId),
    Die(DomId),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0..WINDOW).prop_map(Op::Share),
        8 => (0..ENTRIES, any::<bool>()).prop_map(|(index, io)| Op::Grant(index, io)),
        6 => (0..ENTRIES).prop_map(Op::Revoke),
        1 => (0..2u16).prop_map(|id| Op::End(DomId(id))),
        1 => (0..3u16).prop_map(|id| Op::Die(DomId(id))),
    ]
}

proptest! {
    /// IO-2: after any sequence of actions, exactly the pages that are granted for I/O are mapped
    /// for the device, while the table is shared.
    #[test]
    fn device_reaches_what_the_model_grants(ops in prop::collection::vec(op(), 1..40)) {
        let rig = Rig::new();
        let (mut grefs, mut for_io) = ([None; ENTRIES as usize], [false; ENTRIES as usize]);
        let (mut shared, mut dead) = (None, [false; 3]);
        for op in ops {
            match op {
                Op::Share(first) if !dead[2] => {
                    if rig.share(USER, DEVICE, first).is_ok() {
                        shared = Some(first);
                    }
                }
                Op::Grant(index, io) => {
                    let (status, gref) = rig.grant(index, io, false);
                    if status == GrantStatus::Okay {
                        grefs[index as usize] = Some(gref);
                        for_io[index as usize] = io;
                    }
                }
                Op::Revoke(index) => {
                    if let Some(gref) = grefs[index as usize].take() {
                        rig.revoke(gref);
                    }
                }
                Op::End(id) => {
                    if rig.counted().end_table(id, rig.table()).is_ok() {
                        (grefs, shared) = ([None; ENTRIES as usize], None);
                    }
                }
                Op::Die(id) if !dead[usize::from(id.0)] => {
                    dead[usize::from(id.0)] = true;
                    rig.die(id);
                    shared = None;
                    if id != DEVICE {
                        grefs = [None; ENTRIES as usize];
                    }
                }
                Op::Share(_) | Op::Die(_) => {}
            }
            let expected: Vec<_> = match shared {
                Some(first) => (0..ENTRIES)
                    .filter(|&n| grefs[n as usize].is_some() && for_io[n as usize])
                    .map(|n| Slot(first + n))
                    .collect(),
                None => Vec::new(),
            };
            if !dead[2] {
                let space = rig.device.lock().unwrap();
                prop_assert!(space.mapped.keys().eq(&expected), "{:?}", space.mapped);
            }
        }
    }
}
