//! Corrupts one usage record at a time. The audit must report each corruption with the expected
//! number of differences.

use super::*;
use crate::entry::{PinPurpose, PinnedGrant};
use crate::pages::SlotState;
use crate::usage::DomainUsage;
use abi::layout::info;
use abi::{GrantRef, GrantStatus, Slot};
use monitor::grant::CountedTables;

const USER: DomId = DomId(0);
const GRANTER: DomId = DomId(1);
const IDLE: DomId = DomId(2);
const FRAMES: u32 = 4;
const ENTRIES: u32 = 8;
const SLOTS: u32 = 8;

/// Three domains. The user maps the granter's entry 0 twice, for writing (slot 0) and for reading
/// (slot 1), and entry 1 for reading (slot 2). A copy from entry 1 is in progress. The third domain
/// is idle.
#[derive(Default)]
struct Domains {
    grants: Arc<GrantAccounts>,
    usage: GrantUsage,
}

impl Domains {
    fn lock(&self) -> Locked<'_> {
        let Self { grants, usage } = self;
        UsageTables { grants, usage }.lock()
    }

    fn leaked(&self) -> u64 {
        leaked(&self.lock())
    }
}

fn domains() -> Domains {
    let domains = Domains::default();
    for id in [USER, GRANTER, IDLE] {
        let memory = Arc::new(SharedDomainMemory::create(id, FRAMES, ENTRIES, &[], None).unwrap());
        domains.grants.lock().insert(id, memory, SLOTS);
    }
    let mut usage = domains.lock();
    let memory = &usage.accounts.account(GRANTER).unwrap().memory;
    let table = memory.info.span();
    for (index, frame) in [(0, 2), (1, 3)] {
        let entry = table.u64(info::GRANT_TABLE + index * 8).unwrap();
        entry.store(GrantEntry::access(USER, frame, false).0, Ordering::Relaxed);
    }
    for (slot, (index, write)) in (0..).zip([(0, true), (0, false), (1, false)]) {
        let pin = usage.pin(USER, GRANTER, GrantRef(index), write, PinPurpose::Map);
        map_page(&mut usage, slot, pin.unwrap());
    }
    let copied = usage.pin(USER, GRANTER, GrantRef(1), false, PinPurpose::Copy);
    copied.unwrap();
    part(&mut usage, USER).copying += 1;
    drop(usage);
    domains
}

fn part<'a>(usage: &'a mut Locked<'_>, id: DomId) -> &'a mut DomainUsage {
    usage.part(id).unwrap()
}

fn active<'a>(usage: &'a mut Locked<'_>, index: usize) -> &'a mut Active {
    &mut part(usage, GRANTER).active[index]
}

/// Maps a page at a slot of the user's window, and counts the slot.
fn map_page(usage: &mut Locked<'_>, slot: u32, pin: PinnedGrant) {
    usage.take(USER, Slot(slot), pin).unwrap();
    part(usage, USER).pages.map(Slot(slot), pin);
}

fn pin_in(usage: &mut Locked<'_>, slot: u32) -> PinnedGrant {
    let shown = part(usage, USER).pages.get(Slot(slot));
    *shown.pin().unwrap()
}

#[test]
fn consistent_usage_has_no_difference() {
    assert_eq!(domains().leaked(), 0);
    assert_eq!(Domains::default().leaked(), 0);
}

type Corruption = fn(&mut Locked<'_>);

/// Corruptions of usage records. Each has a description and the expected number of differences.
const CORRUPTIONS: &[(&str, Corruption, u64)] = &[
    (
        "two free slots are counted: both differ from the usage and from the account",
        |t| part(t, USER).pages.taken += 2,
        4,
    ),
    (
        "a slot is not counted: it differs from the usage and from the account",
        |t| part(t, USER).pages.taken -= 1,
        2,
    ),
    (
        "a slot is empty without an unmap: the slot and its use differ",
        |t| part(t, USER).pages.set(Slot(0), SlotState::Empty),
        2,
    ),
    (
        "a slot is missing in the account",
        |t| {
            let window = t.accounts.window(USER).unwrap();
            window.unreserve(&[crate::usage::single_slot(Slot(0))]);
        },
        1,
    ),
    (
        "a page is mapped without a use",
        |t| {
            let pin = pin_in(t, 2);
            map_page(t, 5, pin);
        },
        1,
    ),
    (
        "a page of an unknown domain is mapped: the page and its use differ",
        |t| {
            let pin = PinnedGrant {
                granter: DomId(9),
                ..pin_in(t, 2)
            };
            map_page(t, 5, pin);
        },
        2,
    ),
    (
        "a page of an unknown entry is mapped: the page and its use differ",
        |t| {
            let pin = PinnedGrant {
                index: ENTRIES,
                ..pin_in(t, 2)
            };
            map_page(t, 5, pin);
        },
        2,
    ),
    (
        "two mappings have another frame than the entry",
        |t| active(t, 0).frame += 1,
        2,
    ),
    (
        "another domain uses an entry: two pages and two uses of each domain differ",
        |t| active(t, 0).user = IDLE.0,
        6,
    ),
    (
        "three readers do not exist",
        |t| active(t, 0).maps_read += 3,
        3,
    ),
    (
        "a writer does not exist",
        |t| active(t, 0).maps_write += 1,
        1,
    ),
    (
        "a reader is not counted",
        |t| active(t, 1).maps_read -= 1,
        1,
    ),
    (
        "the entry has two copies, the user one",
        |t| active(t, 1).copies_read += 1,
        3,
    ),
    (
        "the entry has two copies, one for writing; the user has one",
        |t| active(t, 1).copies_write += 1,
        3,
    ),
    (
        "a copy has ended only in the entry",
        |t| active(t, 1).copies_read -= 1,
        1,
    ),
    ("a copy has no grant", |t| part(t, USER).copying += 1, 1),
    (
        "a domain without uses has copies",
        |t| part(t, IDLE).copying += 4,
        4,
    ),
    (
        "two unused entries are counted as in use",
        |t| part(t, GRANTER).pinned += 2,
        2,
    ),
    (
        "an entry in use is not counted",
        |t| part(t, GRANTER).pinned -= 1,
        1,
    ),
];

#[test]
fn corrupted_usage_is_counted() {
    for (what, corrupt, wrong) in CORRUPTIONS {
        let domains = domains();
        let mut usage = domains.lock();
        corrupt(&mut usage);
        assert_eq!(leaked(&usage), *wrong, "{what}");
    }
}

/// A granter's account remains open while other domains use its grants.
#[test]
fn account_in_use_remains_open() {
    let domains = domains();
    domains.grants.lock().clear(GRANTER);
    let mechanism = crate::mechanisms(&Arc::default());
    let audit = || {
        let counted = CountedTables::new(Arc::default());
        domains.grants.audit(&counted, Some(&*mechanism))
    };
    assert!(audit().0.contains_key(&GRANTER));
    for slot in 0..3 {
        let pin = pin_in(&mut domains.lock(), slot);
        domains.lock().free(USER, Slot(slot));
        domains.lock().unpin(pin, PinPurpose::Map);
    }
    assert!(audit().0.contains_key(&GRANTER), "a copy is in progress");
    let frame = 3;
    let pin = PinnedGrant {
        granter: GRANTER,
        index: 1,
        frame,
        write: false,
    };
    domains.lock().unpin(pin, PinPurpose::Copy);
    assert!(!audit().0.contains_key(&GRANTER));
}

/// An occupied slot keeps its page, and the rejected grant is not in use afterwards.
#[test]
fn occupied_slot_rejects_a_page() {
    let domains = domains();
    let mut usage = domains.lock();
    let pin = usage.pin(USER, GRANTER, GrantRef(1), false, PinPurpose::Map);
    let taken = usage.take(USER, Slot(0), pin.unwrap());
    assert_eq!(taken, Err(GrantStatus::BadSlot));
    assert_eq!(pin_in(&mut usage, 0).index, 0);
    assert_eq!(leaked(&usage), 0);
}

/// The audit keeps the numbers that other mechanisms have reported for a domain.
#[test]
fn audit_adds_to_results_of_other_mechanisms() {
    let domains = domains();
    let other = GrantAudit {
        granted: [0].into(),
        mapped: [(IDLE, 1)].into(),
        collateral_used: 5,
        ..GrantAudit::default()
    };
    let mut parts = BTreeMap::from([USER, GRANTER].map(|id| (id, other.clone())));
    audit(&domains.usage, &domains.grants, &mut parts);
    let reported = [USER, GRANTER].map(|id| (parts[&id].granted.len(), parts[&id].mapped.len()));
    assert_eq!(reported, [(1, 3), (3, 1)]);
    assert!(parts.values().take(2).all(|part| part.collateral_used == 5));
}

/// The audit reports each domain's mapped and granted frames.
#[test]
fn mapped_and_granted_frames_are_reported() {
    let domains = domains();
    let mut parts = BTreeMap::new();
    let leaks = audit(&domains.usage, &domains.grants, &mut parts);
    assert_eq!(leaks, 0);
    let reported = |id| {
        parts
            .get(&id)
            .map(|part| (part.granted.len(), part.mapped.len()))
    };
    assert_eq!(
        (reported(USER), reported(GRANTER)),
        (Some((0, 2)), Some((2, 0)))
    );
}
