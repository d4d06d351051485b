//! Compares page flipping with a simple model (F-1 … F-11), in random sequences of operations by
//! granters and users, of silent agents, and of deaths. After each step, the statuses, the entries
//! and all visible bytes match the model, no page is mapped twice, and the audit finds no
//! differences.

mod flip_model;
#[path = "../../../tcb/monitor/tests/spy/mod.rs"]
mod spy;

use abi::classic::GrantEntry;
use abi::{DomId, GrantStatus as S, Slot};
use flip_model::{Op, PAGES, Rig};
use proptest::prelude::*;

fn op() -> impl Strategy<Value = Op> {
    let guest = || 1..3u16;
    // The range includes a nonexistent slot and a nonexistent entry.
    let slot = || 0..PAGES + 1;
    let entry = (0..3u16, slot(), prop_oneof![6 => Just(2u16), 1 => 0..32u16]).prop_map(
        |(to, slot, flags)| GrantEntry::transfer(DomId(to), Slot(slot)).with_flags(flags),
    );
    let transfer = || {
        (
            guest(),
            prop_oneof![8 => 0..2 * PAGES, 1 => Just(99)],
            0..5u32,
        )
    };
    prop_oneof![
        3 => guest().prop_map(Op::Create),
        3 => guest().prop_map(Op::Bind),
        10 => (guest(), 0..4u32, entry)
            .prop_map(|(guest, index, entry)| Op::Offer { guest, index, entry }),
        8 => (0..3u16, slot(), 1..=255u8).prop_map(|(of, slot, byte)| Op::Write { of, slot, byte }),
        12 => prop::collection::vec(transfer(), 1..5).prop_map(Op::Transfer),
        1 => (0..3u16, guest()).prop_map(|(of, guest)| Op::End { of, guest }),
        1 => (0..3u16).prop_map(Op::Kill),
        1 => (0..3u16, any::<bool>()).prop_map(|(of, lost)| Op::Fail { of, lost }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn flips_match_the_model(ops in prop::collection::vec(op(), 1..32)) {
        let mut rig = Rig::new();
        for op in &ops {
            rig.step(op);
        }
        rig.end();
    }
}

/// Returns a rig in which the user has bound an exchange with guest 1. Through entry `n`, the guest
/// accepts a page at slot `n`.
fn offered() -> Rig {
    let mut rig = Rig::new();
    for op in [Op::Create(1), Op::Bind(1)] {
        rig.step(&op);
        assert_eq!(rig.statuses, [S::Okay]);
    }
    for n in 0..PAGES {
        rig.step(&offer(n, n));
    }
    rig
}

fn offer(index: u32, slot: u32) -> Op {
    Op::Offer {
        guest: 1,
        index,
        entry: GrantEntry::transfer(DomId(0), Slot(slot)),
    }
}

fn write(of: u16, slot: u32, byte: u8) -> Op {
    Op::Write { of, slot, byte }
}

/// F-6: the granter receives the bytes, and the user receives a zeroed page.
#[test]
fn user_receives_zeroed_pages() {
    let mut rig = offered();
    rig.step(&write(1, 2, 7));
    rig.step(&write(0, 1, 9));
    rig.step(&Op::Transfer(vec![(1, 1, 2)]));
    assert_eq!(rig.statuses, [S::Okay]);
    assert_eq!((rig.read_byte(1, 2), rig.read_byte(0, 1)), (9, 0));
    assert_eq!(rig.entry(1, 2).flags(), 2 | 4 | 8);
    rig.end();
}

/// F-4: an entry is valid for one transfer. A second transfer fails, in the same batch or in
/// another one.
#[test]
fn entry_is_valid_for_one_transfer() {
    let mut rig = offered();
    rig.step(&Op::Transfer(vec![(1, 0, 2), (1, 1, 2)]));
    assert_eq!(rig.statuses, [S::Okay, S::BadRef]);
    rig.step(&Op::Transfer(vec![(1, 1, 2)]));
    assert_eq!(rig.statuses, [S::BadRef]);
    rig.step(&offer(2, 2));
    rig.step(&Op::Transfer(vec![(1, 1, 2)]));
    assert_eq!(rig.statuses, [S::Okay]);
    rig.end();
}

/// F-5: a batch can use a slot of either end only once, regardless of the entries.
#[test]
fn slot_is_used_once_per_batch() {
    let mut rig = offered();
    rig.step(&offer(0, 2));
    rig.step(&Op::Transfer(vec![(1, 0, 0), (1, 1, 2), (1, 0, 1)]));
    assert_eq!(rig.statuses, [S::Okay, S::BadSlot, S::BadSlot]);
    // The user's error has not consumed entry 1.
    rig.step(&Op::Transfer(vec![(1, 2, 1)]));
    assert_eq!(rig.statuses, [S::Okay]);
    rig.end();
}

/// F-3: a domain cannot use slots or entries of other domains.
#[test]
fn other_domains_slots_and_entries_are_rejected() {
    let mut rig = offered();
    rig.step(&Op::Create(2));
    rig.step(&Op::Bind(2));
    // The first transfer offers guest 1 a page of the exchange with guest 2. The second transfer
    // uses a slot that does not belong to the user.
    rig.step(&Op::Transfer(vec![
        (1, PAGES, 0),
        (1, 99, 0),
        (2, PAGES, 0),
    ]));
    assert_eq!(rig.statuses, [S::BadSlot, S::BadSlot, S::BadRef]);
    // The entry accepts a page of another domain.
    rig.step(&Op::Offer {
        guest: 1,
        index: 0,
        entry: GrantEntry::transfer(DomId(2), Slot(0)),
    });
    rig.step(&Op::Transfer(vec![(1, 0, 0)]));
    assert_eq!(rig.statuses, [S::BadRef]);
    // Only the user can transfer pages.
    assert_eq!(rig.transfer_as(2, &[(1, 0, 1)]), [S::BadHandle]);
    assert_eq!(rig.transfer_as(1, &[(1, 0, 1)]), [S::BadHandle]);
    rig.end();
}

/// F-8: a domain whose agent does not answer is killed. The other end keeps its pages and
/// continues.
#[test]
fn domain_with_silent_agent_is_killed() {
    for of in [1, 0] {
        let mut rig = offered();
        rig.step(&write(0, 0, 9));
        rig.step(&write(1, 0, 7));
        rig.step(&Op::Fail { of, lost: true });
        rig.step(&Op::Transfer(vec![(1, 0, 0)]));
        assert!(rig.is_dead(of) && !rig.is_dead(1 - of));
        match of {
            1 => assert_eq!(
                (&rig.statuses, rig.read_byte(0, 0)),
                (&vec![S::BadDomain], 9)
            ),
            _ => assert_eq!(rig.read_byte(1, 0), 9),
        }
        rig.end();
    }
}

/// F-2: a connection has at most two exchanges. Each requires free, existing slots.
#[test]
fn exchanges_are_bounded() {
    let mut rig = Rig::new();
    for (pages, first, status) in [
        (0, 0, S::BadSlot),
        (u32::MAX, 0, S::BadSlot),
        (9, 0, S::BadSlot),
        (2, 7, S::BadSlot),
        (2, u32::MAX, S::BadSlot),
        (2, 0, S::Okay),
        (2, 1, S::BadSlot),
        (2, 2, S::Okay),
        (2, 4, S::NoSpace),
    ] {
        assert_eq!(
            rig.create(1, pages, first).err().unwrap_or(S::Okay),
            status,
            "{pages} {first}"
        );
    }
    assert_eq!(rig.audit_of(1), 4);
    rig.kill(1);
    assert_eq!(rig.audit_of(1), 0);
}
