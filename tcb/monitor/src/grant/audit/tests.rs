//! Books that are spoilt by hand, one entry at a time: the audit must say of each that it is
//! wrong, and by how much.

use super::super::accounts::Account;
use super::super::entry::{PinnedGrant, Purpose};
use super::*;
use abi::layout::info;
use abi::{GrantRef, Slot};

const USER: DomId = DomId(0);
const GRANTER: DomId = DomId(1);
const IDLE: DomId = DomId(2);
const FRAMES: u32 = 4;
const ENTRIES: u32 = 8;
const SLOTS: u32 = 8;

/// The user maps the granter's entry 0 twice, for writing (slot 0) and for reading (slot 1), and
/// entry 1 for reading (slot 2); a copy out of entry 1 is under way. A third domain does nothing.
fn books() -> Accounts {
    let mut tables = Accounts::default();
    for id in [USER, GRANTER, IDLE] {
        let memory = Arc::new(Memory::create(id, FRAMES, ENTRIES).unwrap());
        tables.insert(id, memory, SLOTS);
    }
    let table = account(&mut tables, GRANTER).memory.info().span();
    for (index, frame) in [(0, 2), (1, 3)] {
        let entry = table.u64(info::GRANT_TABLE + index * 8).unwrap();
        entry.store(GrantEntry::access(USER, frame, false).0, Ordering::Relaxed);
    }
    for (slot, (index, write)) in (0..).zip([(0, true), (0, false), (1, false)]) {
        let pin = tables.pin(USER, GRANTER, GrantRef(index), write, Purpose::Map);
        put(&mut tables, slot, WindowSlot::Mapped(pin.unwrap()));
    }
    let copied = tables.pin(USER, GRANTER, GrantRef(1), false, Purpose::Copy);
    copied.unwrap();
    account(&mut tables, USER).copying += 1;
    tables
}

fn account(tables: &mut Accounts, id: DomId) -> &mut Account {
    tables.account_mut(id).unwrap()
}

fn active(tables: &mut Accounts, index: usize) -> &mut Active {
    &mut account(tables, GRANTER).active[index]
}

/// Puts something into a slot of the user's window, and counts it.
fn put(tables: &mut Accounts, slot: u32, what: WindowSlot) {
    let user = account(tables, USER);
    user.window.set(Slot(slot), what);
    user.window.taken += 1;
}

fn pin_in(tables: &mut Accounts, slot: u32) -> PinnedGrant {
    let window = &account(tables, USER).window;
    *window.get(Slot(slot)).unwrap().pin().unwrap()
}

#[test]
fn books_in_order_have_no_leak() {
    assert_eq!(leaked(&books()), 0);
    assert_eq!(leaked(&Accounts::default()), 0);
}

type Spoil = fn(&mut Accounts);

/// What is done to the books, and what is then without a counterpart.
const SPOILT: &[(&str, Spoil, u64)] = &[
    (
        "slots counted that are free",
        |t| account(t, USER).window.taken += 2,
        2,
    ),
    (
        "a slot not counted",
        |t| account(t, USER).window.taken -= 1,
        1,
    ),
    (
        "a page that left the window without a word: the slot, and its use",
        |t| account(t, USER).window.set(Slot(0), WindowSlot::Free),
        2,
    ),
    (
        "a page that was mapped without a use",
        |t| {
            let pin = pin_in(t, 2);
            put(t, 5, WindowSlot::Mapped(pin));
        },
        1,
    ),
    (
        "a page of a domain that there is not: the page, and its use",
        |t| {
            let pin = PinnedGrant {
                granter: DomId(9),
                ..pin_in(t, 2)
            };
            put(t, 5, WindowSlot::Busy(pin));
        },
        2,
    ),
    (
        "a page of an entry that there is not: the page, and its use",
        |t| {
            let pin = PinnedGrant {
                index: ENTRIES,
                ..pin_in(t, 2)
            };
            put(t, 5, WindowSlot::Mapped(pin));
        },
        2,
    ),
    (
        "another frame in use than is mapped, twice",
        |t| active(t, 0).frame += 1,
        2,
    ),
    (
        "an entry used by another: two pages, their two uses there and the two here",
        |t| active(t, 0).user = IDLE.0,
        6,
    ),
    (
        "readers that there are not",
        |t| active(t, 0).maps_read += 3,
        3,
    ),
    (
        "a writer that there is not",
        |t| active(t, 0).maps_write += 1,
        1,
    ),
    ("a reader too few", |t| active(t, 1).maps_read -= 1, 1),
    (
        "a copy that no domain makes: two known here, one there",
        |t| active(t, 1).copies_read += 1,
        3,
    ),
    (
        "a copy for writing that no domain makes",
        |t| active(t, 1).copies_write += 1,
        3,
    ),
    (
        "a copy that ended here alone",
        |t| active(t, 1).copies_read -= 1,
        1,
    ),
    (
        "a copy that no grant knows",
        |t| account(t, USER).copying += 1,
        1,
    ),
    (
        "copies of a domain without uses",
        |t| account(t, IDLE).copying += 4,
        4,
    ),
    (
        "entries counted as in use",
        |t| account(t, GRANTER).pinned += 2,
        2,
    ),
    (
        "an entry in use that is not counted",
        |t| account(t, GRANTER).pinned -= 1,
        1,
    ),
    (
        "an account that should have been closed",
        |t| account(t, IDLE).cleared = true,
        1,
    ),
];

#[test]
fn whatever_has_no_counterpart_is_counted() {
    for (what, spoil, wrong) in SPOILT {
        let mut tables = books();
        spoil(&mut tables);
        assert_eq!(leaked(&tables), *wrong, "{what}");
    }
}

/// An account stays open while others use its grants or hold its memory.
#[test]
fn an_account_that_is_needed_is_no_leak() {
    let mut tables = books();
    account(&mut tables, GRANTER).cleared = true;
    let idle = account(&mut tables, IDLE);
    (idle.cleared, idle.holders) = (true, 1);
    assert_eq!(leaked(&tables), 0);
}

#[test]
fn slots_of_a_table_that_there_is_not_are_leaks_too() {
    let grants = Grants::default();
    *grants.lock() = books();
    let counted = CountedGrants::new(Arc::default());
    let exchanges = Exchanges::new(Arc::default());
    let (audit, leaks) = grants.audit(&counted, &exchanges);
    assert_eq!(leaks, 0);
    let mapped = |id| {
        audit
            .get(&id)
            .map(|part: &GrantAudit| (part.granted, part.mapped))
    };
    assert_eq!(mapped(USER), Some((0, 2)));
    assert_eq!(mapped(GRANTER), Some((2, 0)));
    // Two tables side by side, one of them again further on; and slots counted that it has not.
    {
        let mut tables = grants.lock();
        for (slot, handle) in [(3, 1), (4, 1), (5, 2), (7, 1)] {
            put(&mut tables, slot, WindowSlot::Table(Handle(handle)));
        }
        account(&mut tables, USER).window.taken -= 1;
        assert_eq!(leaked(&tables), 3);
        assert_eq!(slots_without_table(&tables, |_| false), 4);
    }
    assert_eq!(grants.audit(&counted, &exchanges).1, 3 + 4);
}
