//! Compares grant tables with a simple model, in random sequences of batches of operations, and of
//! deaths. After each step, the statuses, table words, windows and bytes match the model, and the
//! audit finds no leak.

mod model;

use abi::classic::{CopyOp, CopyOperand, GrantEntry, MapOp, UnmapOp};
use abi::{DomId, GrantRef, Slot};
use model::Rig;
use proptest::prelude::*;

pub(crate) const DOMAINS: u16 = 4;
pub(crate) const ENTRIES: u32 = 6;
pub(crate) const FRAMES: u32 = 4;
pub(crate) const SLOTS: u32 = 5;

/// An operation of a domain.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A domain grants a frame.
    Grant { of: DomId, index: u32, entry: u64 },
    /// A domain revokes a grant if it is not in use, as a well-behaved domain does.
    EndAccess { of: DomId, index: u32 },
    /// A domain fills one of its frames.
    Fill { of: DomId, frame: u32, byte: u8 },
    /// A batch of mappings. The change of the address space may fail.
    Map {
        of: DomId,
        ops: Vec<MapOp>,
        refused: bool,
    },
    /// A batch of unmappings.
    Unmap { of: DomId, ops: Vec<UnmapOp> },
    /// A batch of copies.
    Copy { of: DomId, ops: Vec<CopyOp> },
    /// A domain dies. It optionally dies in a map (true) or unmap (false) call that its agent does
    /// not answer.
    Kill { of: DomId, lost: Option<bool> },
}

fn domain() -> impl Strategy<Value = DomId> {
    (0..DOMAINS).prop_map(DomId)
}

fn any_domain() -> impl Strategy<Value = DomId> {
    prop_oneof![20 => domain(), 1 => any::<u16>().prop_map(DomId)]
}

fn index() -> impl Strategy<Value = u32> {
    0..ENTRIES
}

fn gref() -> impl Strategy<Value = GrantRef> {
    let odd = prop_oneof![Just(ENTRIES), Just(1 << 20), any::<u32>()];
    prop_oneof![20 => index(), 1 => odd].prop_map(GrantRef)
}

fn frame() -> impl Strategy<Value = u32> {
    let odd = prop_oneof![Just(FRAMES), Just(u32::MAX)];
    prop_oneof![20 => 0..FRAMES, 1 => odd]
}

fn entry() -> impl Strategy<Value = u64> {
    let access = (any_domain(), frame(), any::<bool>())
        .prop_map(|(to, frame, readonly)| GrantEntry::access(to, frame, readonly).0);
    // Other flags: transfer, transitive, sub-page, and in-use flags set by the domain.
    let odd = (any_domain(), frame(), any::<u16>()).prop_map(|(to, frame, flags)| {
        GrantEntry::access(to, frame, false)
            .with_flags(flags & 0x3f)
            .0
    });
    prop_oneof![8 => access, 2 => odd, 1 => any::<u64>(), 1 => Just(0)]
}

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![20 => 0..SLOTS, 1 => Just(SLOTS), 1 => any::<u32>()].prop_map(Slot)
}

fn place() -> impl Strategy<Value = CopyOperand> {
    prop_oneof![
        1 => frame().prop_map(|frame| CopyOperand::Own { frame }),
        2 => (any_domain(), gref())
            .prop_map(|(domain, gref)| CopyOperand::Granted { domain, gref }),
    ]
}

fn range() -> impl Strategy<Value = (u16, u16, u16)> {
    let odd = (any::<u16>(), any::<u16>(), any::<u16>());
    let edge = Just((4095, 4095, 1));
    prop_oneof![20 => (0..2048u16, 2048..3000u16, 0..=1096u16), 1 => odd, 1 => edge]
}

fn op() -> impl Strategy<Value = Op> {
    let map =
        (any_domain(), gref(), slot(), any::<bool>()).prop_map(|(domain, gref, slot, readonly)| {
            MapOp {
                domain,
                gref,
                slot,
                readonly,
            }
        });
    let copy =
        (place(), place(), range()).prop_map(|(src, dst, (src_offset, dst_offset, len))| CopyOp {
            src,
            dst,
            src_offset,
            dst_offset,
            len,
        });
    let unmap = slot().prop_map(|slot| UnmapOp { slot });
    let maps = prop::collection::vec(map, 0..5);
    let unmaps = prop::collection::vec(unmap, 0..4);
    let copies = prop::collection::vec(copy, 0..5);
    prop_oneof![
        8 => (domain(), index(), entry())
            .prop_map(|(of, index, entry)| Op::Grant { of, index, entry }),
        3 => (domain(), index()).prop_map(|(of, index)| Op::EndAccess { of, index }),
        2 => (domain(), 0..FRAMES, any::<u8>())
            .prop_map(|(of, frame, byte)| Op::Fill { of, frame, byte }),
        8 => (domain(), maps, prop::bool::weighted(0.1))
            .prop_map(|(of, ops, refused)| Op::Map { of, ops, refused }),
        5 => (domain(), unmaps).prop_map(|(of, ops)| Op::Unmap { of, ops }),
        8 => (domain(), copies).prop_map(|(of, ops)| Op::Copy { of, ops }),
        1 => (domain(), prop::option::of(any::<bool>()))
            .prop_map(|(of, lost)| Op::Kill { of, lost }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn grants_match_the_model(ops in prop::collection::vec(op(), 1..60)) {
        let mut rig = Rig::new();
        for op in &ops {
            rig.step(op);
        }
        rig.end();
    }
}

/// Returns an operation by which entry 0 of domain 1 grants a frame to domain 0.
fn granted(frame: u32, readonly: bool) -> Op {
    Op::Grant {
        of: DomId(1),
        index: 0,
        entry: GrantEntry::access(DomId(0), frame, readonly).0,
    }
}

fn map(slot: u32, readonly: bool) -> Op {
    let op = MapOp {
        domain: DomId(1),
        gref: GrantRef(0),
        slot: Slot(slot),
        readonly,
    };
    Op::Map {
        of: DomId(0),
        ops: vec![op],
        refused: false,
    }
}

fn unmap(slot: u32) -> Op {
    Op::Unmap {
        of: DomId(0),
        ops: vec![UnmapOp { slot: Slot(slot) }],
    }
}

/// Runs these steps, and compares each with the model.
fn run(ops: &[Op]) -> Rig {
    let mut rig = Rig::new();
    for op in ops {
        rig.step(op);
    }
    rig
}

#[test]
fn rewriting_an_entry_in_use_has_no_effect() {
    let mut rig = run(&[
        granted(2, true),
        map(0, true),
        granted(3, false),
        map(1, false),
    ]);
    // The entry in use keeps its contents: frame 2, read-only.
    assert_eq!(rig.mapped(DomId(0)), [(0, 2, false)]);
    rig.step(&map(1, true));
    assert_eq!(rig.mapped(DomId(0)), [(0, 2, false), (1, 2, false)]);
    rig.step(&unmap(0));
    rig.step(&unmap(1));
    // The new contents take effect after the last use.
    rig.step(&map(0, false));
    assert_eq!(rig.mapped(DomId(0)), [(0, 3, true)]);
    rig.end();
}

/// Returns a batch of `count` copies from an entry to itself.
fn copies(count: u16) -> Op {
    let place = CopyOperand::Granted {
        domain: DomId(1),
        gref: GrantRef(0),
    };
    let copy = |n| CopyOp {
        src: place,
        dst: place,
        src_offset: n * 16,
        dst_offset: n * 16 + 8,
        len: 8,
    };
    Op::Copy {
        of: DomId(0),
        ops: (0..count).map(copy).collect(),
    }
}

/// An entry remains marked until the last use of each kind ends, and counts as one entry in use.
#[test]
fn uses_of_all_kinds_are_counted_once() {
    let mut rig = run(&[granted(2, false), copies(2), map(0, true), map(1, false)]);
    assert_eq!(rig.mapped(DomId(0)), [(0, 2, false), (1, 2, true)]);
    for op in [copies(3), unmap(0), copies(3), unmap(1), copies(1)] {
        rig.step(&op);
    }
    rig.end();
}

#[test]
fn dead_granter_remains_mapped_until_unmapped() {
    let mut rig = run(&[granted(2, false), map(0, false)]);
    let kill = Op::Kill {
        of: DomId(1),
        lost: None,
    };
    rig.step(&kill);
    assert!(rig.grants.lock().has_account(DomId(1)));
    rig.step(&map(1, false));
    assert_eq!(rig.mapped(DomId(0)), [(0, 2, true)]);
    rig.step(&unmap(0));
    assert!(!rig.grants.lock().has_account(DomId(1)));
    rig.end();
}

#[test]
fn user_killed_with_mappings_leaks_nothing() {
    let mut rig = run(&[granted(2, false), map(0, false)]);
    for (of, lost) in [(0, Some(true)), (1, None)] {
        let of = DomId(of);
        rig.step(&Op::Kill { of, lost });
        assert!(!rig.grants.lock().has_account(of));
    }
    rig.end();
}

/// XSA-362, XSA-367: an index out of range, an unknown domain, an entry for another domain, an
/// unused entry, and writes to a read-only grant. The model has the status of each, and checks that
/// no page is mapped or copied.
#[test]
fn attack_13_references_without_a_grant() {
    let for_another = Op::Grant {
        of: DomId(1),
        index: 1,
        entry: GrantEntry::access(DomId(3), 1, false).0,
    };
    let mut rig = run(&[granted(2, true), for_another]);
    let maps = |domain, index, readonly| MapOp {
        domain: DomId(domain),
        gref: GrantRef(index),
        slot: Slot(0),
        readonly,
    };
    for op in [
        maps(1, ENTRIES, true),
        maps(1, u32::MAX, true),
        maps(1, 3, true),
        maps(1, 1, true),
        maps(1, 0, false),
        maps(2, 0, true),
        maps(u16::MAX, 0, true),
        maps(0, 0, true),
    ] {
        rig.step(&Op::Map {
            of: DomId(0),
            ops: vec![op],
            refused: false,
        });
        assert_eq!(rig.mapped(DomId(0)), [], "{op:?}");
    }
    rig.step(&map(0, true));
    assert_eq!(rig.mapped(DomId(0)), [(0, 2, false)]);
    rig.end();
}

/// XSA-411: all other types of grants, and all flags that denote them.
#[test]
fn attack_20_other_grant_types_are_rejected() {
    let plain = GrantEntry::access(DomId(0), 2, false);
    let permitted = [
        GrantEntry::PERMIT_ACCESS,
        GrantEntry::PERMIT_ACCESS | GrantEntry::READONLY,
    ];
    for flags in 0..1 << 9 {
        let in_use = flags & (GrantEntry::READING | GrantEntry::WRITING) != 0;
        if permitted.contains(&flags) || in_use {
            continue;
        }
        let entry = plain.with_flags(flags).0;
        let (of, index) = (DomId(1), 0);
        let rig = run(&[Op::Grant { of, index, entry }, map(0, true), map(1, false)]);
        assert_eq!(rig.mapped(DomId(0)), [], "{flags:#x}");
        rig.end();
    }
}
