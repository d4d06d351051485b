//! Tests of revocations that are announced during a batch, and of the counting of uses.

use super::*;
use abi::DomId;
use runtime::call::Calls;
use runtime::ledger::Ledger;
use shmem::Area;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use vif::grants::CopySource;

const ENTRIES: u32 = 8;

/// The guest's and the monitor's view of a grant table, in which entries 1, 2 and 3 are granted.
#[derive(Clone, Copy)]
struct Granter {
    area: Area,
    entries: TableWords,
}

impl Granter {
    /// Announces a revocation as the monitor does.
    fn announce(self, gref: u32) {
        let words = self.entries.words(gref).unwrap();
        let entry = Translation(words.translation.load(Ordering::Relaxed));
        grant_use::announce(words.translation, entry);
        grant_use::publish(self.entries.announcements);
    }

    fn uses<const N: usize>(self, grefs: [u32; N]) -> [u32; N] {
        let status = |gref| self.entries.words(gref).unwrap().status;
        grefs.map(|gref| status(gref).load(Ordering::Relaxed))
    }

    fn page(self, gref: u32) -> Span {
        self.area.page(gref).unwrap()
    }
}

/// Returns the mechanism bound to a table, and the view of that table.
fn bound<const COUNTED: bool>() -> (CountedGrants<COUNTED>, Granter) {
    let area = Area::anonymous((ENTRIES as usize + 2) * PAGE).unwrap();
    let (translation, status) = (area.page(ENTRIES).unwrap(), area.page(ENTRIES + 1).unwrap());
    for gref in 1..4 {
        let entry = Translation::valid(gref + 10, 0, false).0;
        translation.store_u64(gref as usize * 8, entry).unwrap();
    }
    let guest = GranterWindow {
        calls: Rc::new(RefCell::new(Calls::unavailable())),
        domain: DomId(5),
        window: area,
        first: Slot(0),
        slots: ENTRIES,
        ledger: Rc::new(Ledger::new(false)),
    };
    let entries = TableWords::of(translation, status, ENTRIES).unwrap();
    let pages = area.span().take(ENTRIES as usize * PAGE);
    let new = CountedGrants {
        _own: OwnTable::new(&guest.calls, Handle(1)),
        table: GrantTable {
            guest,
            entries,
            pages,
        },
        kept: Uses::default(),
        reading: Uses::default(),
        writing: Uses::default(),
        posted: Uses::default(),
    };
    (new, Granter { area, entries })
}

fn access(gref: u32) -> GrantAccess {
    GrantAccess {
        gref: GrantRef(gref),
        offset: 0,
        len: 60,
        result: Err(GrantStatus::GeneralError),
    }
}

fn usable<const N: usize>(accesses: [GrantAccess; N]) -> [bool; N] {
    accesses.map(|access| access.result.is_ok())
}

#[test]
fn revoked_use_invalidates_only_its_accesses() {
    let (new, granter) = bound::<true>();
    let table = &new.table;
    let grefs = [1, 1, 7, 2, 2, 1, 7, 1, 3];
    let permitted = [true, true, false, false, false, true, false, true, true];
    let mut accesses = grefs.map(access);
    let mut uses = Uses::default();
    let fetched = Cell::new(0);
    // The monitor announces the revocation before the last claim.
    let fetch = |_| {
        fetched.set(fetched.get() + 1);
        if fetched.get() == grefs.len() {
            granter.announce(2);
        }
    };
    table.begin(&mut accesses, false, &mut uses, fetch);
    assert_eq!(usable(accesses), permitted);
    assert_eq!(granter.uses([1, 2, 3, 7]), [2, 1, 1, 0]);
    uses.release();
    assert_eq!(granter.uses([1, 2, 3, 7]), [0; 4]);
    // A batch does not claim an entry whose revocation was announced before.
    table.begin(&mut accesses, false, &mut uses, |_| ());
    assert_eq!(usable(accesses), permitted);
    assert_eq!(granter.uses([1, 2, 3, 7]), [1, 0, 1, 0]);
    uses.release();
    // The revocation of another entry does not affect the accesses.
    let mut others = [1, 1].map(access);
    table.begin(&mut others, true, &mut uses, |_| granter.announce(3));
    assert_eq!(usable(others), [true; 2]);
    assert_eq!(granter.uses([1, 3]), [1, 0]);
    uses.release();
    let mut accesses = [1, 3].map(access);
    table.begin(&mut accesses, true, &mut uses, |_| ());
    assert_eq!(usable(accesses), [true, false]);
}

#[test]
fn revoked_copies_are_skipped_and_others_executed() {
    let (mut new, granter) = bound::<true>();
    let source = Area::anonymous(PAGE).unwrap().span().take(4);
    source.write(b"abcd").unwrap();
    let copy = |(gref, offset)| CopyOut {
        source: CopySource::Span(source),
        gref: GrantRef(gref),
        offset,
        len: 4,
        status: GrantStatus::GeneralError,
    };
    let places = [(1, 0), (2, 0), (2, 4), (7, 0), (3, 0), (3, 4), (1, 8)];
    let mut copies = places.map(copy);
    let last = granter.page(1).sub(8, 4).unwrap();
    // The monitor announces the revocation after the last claim.
    let fetch = |span| {
        if span == last {
            assert_eq!(granter.uses([1, 2, 3, 7]), [2, 1, 1, 0]);
            granter.announce(2);
        }
    };
    new.copy_out(&mut copies, &[], fetch);
    let (okay, lost) = (GrantStatus::Okay, GrantStatus::BadRef);
    let expected = [okay, lost, lost, lost, okay, okay, okay];
    assert_eq!(copies.map(|copy| copy.status), expected);
    let bytes = |gref| {
        let mut bytes = [0; 12];
        granter.page(gref).read(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(bytes(1), *b"abcd\0\0\0\0abcd");
    assert_eq!(bytes(3), *b"abcdabcd\0\0\0\0");
    assert_eq!([bytes(2), bytes(7)], [[0; 12]; 2]);
    assert_eq!(granter.uses([1, 2, 3, 7]), [0; 4]);
    let mut copies = places.map(copy);
    new.write(&mut copies, &[]);
    assert_eq!(copies.map(|copy| copy.status), expected);
    assert_eq!(granter.uses([1, 2, 3, 7]), [0; 4]);
}

fn check_keep<const COUNTED: bool>() {
    let (mut new, granter) = bound::<COUNTED>();
    assert_eq!(new.pin(GrantRef(1)), Ok(granter.page(1)));
    let lost = new.keep_page(GrantRef(2), |_| granter.announce(2));
    assert_eq!(lost, Err(GrantStatus::BadRef));
    let kept = new.keep_page(GrantRef(3), |_| granter.announce(1));
    assert_eq!(
        kept,
        Ok(granter.page(3)),
        "the revocation concerns another page"
    );
    for gref in [1, 2, 7, ENTRIES] {
        assert_eq!(new.pin(GrantRef(gref)), Err(GrantStatus::BadRef));
    }
    assert_eq!(granter.uses([1, 2, 3, 7]), [1, 1, 1, 0]);
    drop(new);
    assert_eq!(granter.uses([1, 2, 3, 7]), [0; 4]);
}

#[test]
fn page_is_kept_if_its_use_is_permitted() {
    check_keep::<true>();
    check_keep::<false>();
}

#[test]
fn revoked_page_is_not_held_for_a_device() {
    let (mut new, granter) = bound::<true>();
    assert!(new.can_hold());
    let (mut accesses, mut frames) = ([1, 2, 7, 3].map(access), Vec::new());
    new.claim_each(&mut accesses);
    assert_eq!(granter.uses([1, 2, 3, 7]), [1, 1, 1, 0]);
    let before = new.revocations();
    granter.announce(2);
    assert_ne!(new.revocations(), before);
    new.hold_claimed(&mut accesses, &mut frames);
    assert_eq!(usable(accesses), [true, false, false, true]);
    assert_eq!(granter.uses([1, 2, 3, 7]), [1, 0, 1, 0]);
    assert_eq!((frames.len(), frames[0], frames[3]), (4, 11, 13));
    let mut again = [3, 2].map(access);
    new.hold(&mut again, &mut frames);
    assert_eq!(usable(again), [true, false]);
    assert_eq!((frames.len(), frames[4]), (6, 13));
    assert_eq!(granter.uses([1, 2, 3]), [1, 0, 2]);
    for gref in [1, 3, 3] {
        new.hold_end(GrantRef(gref));
    }
    assert_eq!(granter.uses([1, 2, 3]), [0; 3]);
}

#[test]
fn uses_end_with_their_batch() {
    let (mut new, granter) = bound::<true>();
    let mut accesses = [1, 2].map(access);
    new.post_begin(&mut accesses);
    new.read_begin(&mut accesses);
    new.post_begin(&mut accesses);
    assert_eq!(granter.uses([1, 2]), [3; 2]);
    new.read_end();
    assert_eq!(granter.uses([1, 2]), [2; 2]);
    new.post_end();
    assert_eq!(granter.uses([1, 2]), [0; 2]);
    // Dropping the mechanism also ends the uses.
    new.post_begin(&mut accesses);
    new.read_begin(&mut accesses);
    new.pin(GrantRef(3)).unwrap();
    assert_eq!(granter.uses([1, 2, 3]), [2, 2, 1]);
    drop(new);
    assert_eq!(granter.uses([1, 2, 3]), [0; 3]);
}

#[test]
fn consecutive_accesses_to_a_page_count_once() {
    let (mut new, granter) = bound::<true>();
    let mut accesses = [1, 1, 2, 1, 7, 1, 7, 7, 2].map(access);
    new.read_begin(&mut accesses);
    for (n, access) in accesses.iter().enumerate() {
        let expected = match access.gref.index() {
            7 => Err(GrantStatus::BadRef),
            gref => Ok(granter.page(gref).take(60)),
        };
        assert_eq!(access.result, expected, "{n}");
    }
    // An access to an ungranted entry does not interrupt a sequence of accesses.
    assert_eq!(granter.uses([1, 2, 3]), [2, 2, 0]);
    new.read_end();
    assert_eq!(granter.uses([1, 2, 3]), [0, 0, 0]);
}

#[test]
fn small_frames_are_written_only_to_granted_pages() {
    let source = Area::anonymous(PAGE).unwrap().at(0, 90).unwrap();
    source.fill(7).unwrap();
    let mut small = nic::SmallBatch::default();
    small.push(source).unwrap();
    small.push(source.take(14)).unwrap();
    let (mut new, granter) = bound::<true>();
    let read_only = Translation::valid(13, 0, true).0;
    let words = granter.entries.words(3).unwrap();
    words.translation.store(read_only, Ordering::Relaxed);
    assert!(new.in_reach());
    let at = |(gref, len)| GrantAccess {
        offset: 100,
        len,
        ..access(gref)
    };
    let mut accesses = [(1, 14), (3, 90), (7, 90), (1, 0), (ENTRIES, 90)].map(at);
    new.write_small_frames(&mut accesses, &small, &[1, 0, 0, 0, 0], true);
    let done = accesses.map(|access| access.result.is_ok());
    assert_eq!(done, [true, false, false, false, false]);
    let mut bytes = [0xee; 16];
    granter.page(1).skip(99).read(&mut bytes).unwrap();
    let mut expected = [7; 16];
    (expected[0], expected[15]) = (0, 0);
    assert_eq!(bytes, expected);
    // No part of a frame that does not fit is written.
    let mut short = [at((1, 89))];
    new.write_small_frames(&mut short, &small, &[0], false);
    assert_eq!(short[0].result, Err(GrantStatus::BadPage));
    assert_eq!(granter.uses([1]), [0]);
}
