//! Tests of classic grants through the call page. A well-behaved domain receives correct results,
//! and no input of a hostile domain makes the monitor panic, hang or miscount.

#[path = "../../../tcb/monitor/tests/rig/mod.rs"]
mod rig;

use abi::classic::{CopyOp, CopyOperand, GrantEntry, MapOp};
use abi::hypercall::{HypercallKind, OPS_MAX};
use abi::layout::info;
use abi::{DomId, GrantRef, GrantStatus, Slot};
use baselines::mechanisms;
use monitor::DeviceMap;
use monitor::device::slots;
use monitor::grant::WindowSlot;
use proptest::prelude::*;
use rig::{ENTRIES, Rig, SLOTS};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Makes the other domain grant a frame to the caller.
fn grant(rig: &Rig, index: u32, frame: u32, readonly: bool) {
    let at = info::GRANT_TABLE + index as usize * 8;
    let entry = rig.memories[1].info.span().u64(at).unwrap();
    let granted = GrantEntry::access(DomId(0), frame, readonly);
    entry.store(granted.0, Ordering::Relaxed);
}

#[test]
fn invalid_call_is_rejected_as_a_whole() {
    let mut rig = Rig::new(Some(mechanisms));
    for (kind, count) in [
        (HypercallKind::GrantCopy as u32, OPS_MAX as u32 + 1),
        (HypercallKind::GrantMap as u32, u32::MAX),
        (HypercallKind::ExchangeCreate as u32, 0),
        (HypercallKind::ExchangeCreate as u32, 2),
        (14, 1),
    ] {
        assert_eq!(rig.call(kind, count), Err(Errno::INVAL), "{kind} {count}");
    }
}

/// A call is valid if its words are an existing connection, a number of pages, and a slot.
#[test]
fn exchanges_need_a_connection_of_the_caller() {
    use GrantStatus as S;
    const WIDE: u64 = 1 << 32;
    let mut rig = Rig::new(Some(mechanisms));
    let space = std::sync::Mutex::new(monitor::fake::FakeSpace::default());
    let space = std::sync::Arc::new(space);
    rig.shared.grants.lock().set_space(DomId(0), Some(space));
    for (words, status) in [
        ([1, 2, 0], S::BadDomain),
        ([WIDE, 2, 0], S::BadDomain),
        ([0, WIDE | 2, 0], S::BadSlot),
        ([0, 2, WIDE], S::BadSlot),
        ([0, 0, 0], S::BadSlot),
        ([0, 2, 1], S::Okay),
    ] {
        rig.put_words(0, words);
        assert_eq!(rig.call(HypercallKind::ExchangeCreate as u32, 1), Ok(()));
        assert_eq!(rig.status(0), status, "{words:x?}");
    }
    assert_ne!(rig.get(0, 1), 0, "the call returns the handle");
    rig.put(0, 0, rig.get(0, 1));
    assert_eq!(rig.call(HypercallKind::TableEnd as u32, 1), Ok(()));
    assert_eq!(rig.status(0), S::Okay);
}

/// XDP-4: until a device is removed, neither grants nor other devices can use its slots. A device
/// cannot use slots outside of its domain's window.
#[test]
fn device_slots_reject_grants() {
    const NUMBER: u64 = 5;
    let mut rig = Rig::new(Some(mechanisms));
    grant(&rig, 3, 1, true);
    let part = |slot, pages| DeviceMap {
        slot: Slot(slot),
        page: 0,
        pages,
    };
    let reserve = |rig: &Rig, number, pages: &[DeviceMap]| {
        let mut grants = rig.shared.grants.lock();
        let (holds, slots) = (WindowSlot::Device(number), slots(pages));
        slots.is_some_and(|slots| grants.reserve(DomId(0), holds, &slots))
    };
    let pages = [part(1, 2), part(6, 1)];
    assert!(reserve(&rig, NUMBER, &pages));
    assert!(!reserve(&rig, NUMBER + 1, &[part(0, 2)]));
    let fill = |rig: &mut Rig| {
        for slot in 0..SLOTS {
            let map = MapOp {
                domain: DomId(1),
                gref: GrantRef(3),
                slot: Slot(slot),
                readonly: true,
            };
            rig.put_words(slot as usize, map.encode());
        }
        assert_eq!(rig.call(HypercallKind::GrantMap as u32, SLOTS), Ok(()));
        let mapped = (0..SLOTS).filter(|&slot| match rig.status(slot as usize) {
            GrantStatus::Okay => true,
            GrantStatus::BadSlot => false,
            other => panic!("{other:?}"),
        });
        mapped.collect::<Vec<_>>()
    };
    assert_eq!(fill(&mut rig), [0, 3, 4, 5, 7]);
    let mut grants = rig.shared.grants.lock();
    grants.unreserve(DomId(0), &slots(&pages).unwrap());
    drop(grants);
    assert_eq!(fill(&mut rig), [1, 2, 6]);
    assert!(!reserve(&rig, NUMBER + 1, &pages), "the window is full");
}

#[test]
fn full_batch_is_copied() {
    let mut rig = Rig::new(Some(mechanisms));
    grant(&rig, 3, 1, true);
    let text = b"granted bytes";
    let page = rig.memories[1].frame(1).unwrap();
    page.skip(100).write(text).unwrap();
    let src = CopyOperand::Granted {
        domain: DomId(1),
        gref: GrantRef(3),
    };
    for op in 0..OPS_MAX {
        let copy = CopyOp {
            src,
            dst: CopyOperand::Own { frame: 2 },
            src_offset: 100,
            dst_offset: op as u16 * 16,
            len: text.len() as u16,
        };
        rig.put_words(op, copy.encode());
    }
    assert_eq!(
        rig.call(HypercallKind::GrantCopy as u32, OPS_MAX as u32),
        Ok(())
    );
    for op in 0..OPS_MAX {
        assert_eq!(rig.status(op), GrantStatus::Okay);
        let mut got = [0; 13];
        let page = rig.memories[0].frame(2).unwrap();
        page.skip(op * 16).read(&mut got).unwrap();
        assert_eq!(&got, text);
    }
}

#[test]
fn pages_are_mapped_and_unmapped() {
    let mut rig = Rig::new(Some(mechanisms));
    grant(&rig, 3, 1, true);
    let map = |slot, readonly| {
        let map = MapOp {
            domain: DomId(1),
            gref: GrantRef(3),
            slot: Slot(slot),
            readonly,
        };
        map.encode()
    };
    rig.put_words(0, map(0, false));
    rig.put_words(1, map(1, true));
    rig.put_words(2, map(SLOTS, true));
    rig.put_words(3, map(u32::MAX, true));
    assert_eq!(rig.call(HypercallKind::GrantMap as u32, 4), Ok(()));
    let statuses = [0, 1, 2, 3].map(|op| rig.status(op));
    use GrantStatus as S;
    assert_eq!(
        statuses,
        [S::PermissionDenied, S::Okay, S::BadSlot, S::BadSlot]
    );
    for (op, slot) in [1, 1, 0, u64::from(u32::MAX)].into_iter().enumerate() {
        rig.put(op, 0, slot);
    }
    assert_eq!(rig.call(HypercallKind::GrantUnmap as u32, 4), Ok(()));
    let statuses = [0, 1, 2, 3].map(|op| rig.status(op));
    assert_eq!(
        statuses,
        [S::Okay, S::BadHandle, S::BadHandle, S::BadHandle]
    );
}

/// Returns the words that a hostile domain may choose.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..20u64,
        // An operand that denotes a grant of the other domain.
        (0..20u64).prop_map(|gref| 1 << 63 | 1 << 32 | gref),
        (0..20u64).prop_map(|gref| 1 << 32 | gref),
        // Two offsets and a length.
        (0..5000u64, 0..5000u64, 0..5000u64).prop_map(|(a, b, c)| a | b << 16 | c << 32),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_words_in_the_page_cause_a_panic_or_leak(
        entries in prop::collection::vec(prop_oneof![
            any::<u64>(),
            (0..6u32, any::<bool>()).prop_map(|(f, ro)| GrantEntry::access(DomId(0), f, ro).0),
        ], ENTRIES as usize),
        calls in prop::collection::vec((
            prop_oneof![0..15u32, any::<u32>()],
            prop_oneof![0..9u32, 0..OPS_MAX as u32 + 2, any::<u32>()],
            prop::collection::vec(word(), 0..60),
        ), 1..20),
    ) {
        let rig = Rig::new(Some(mechanisms));
        let table = rig.memories[1].info.span();
        for (index, &entry) in entries.iter().enumerate() {
            table.u64(info::GRANT_TABLE + index * 8).unwrap().store(entry, Ordering::Relaxed);
        }
        let accounts = rig.survives(calls);
        prop_assert!(accounts[&DomId(1)].in_use.is_empty());
    }
}
