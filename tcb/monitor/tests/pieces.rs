//! A granter that scatters its frames makes a mapping of the user's of every page (N-17). It has
//! its share of these; who stays within its own is not affected, nor is the user.

mod spy;
mod tables;

use abi::counted::{Revocation, table_slots};
use abi::{DomId, GrantRef, GrantStatus as S};
use proptest::prelude::*;
use std::time::Duration;
use tables::{Rig, Sizes};

const ENTRIES: u32 = 128;
/// What the user has for its window, beside its own.
const MAPPINGS: u32 = 200;
/// Two tables of equal size share them, each beside its two sub-tables.
const SHARE: u32 = MAPPINGS / 2 - 2;

/// Guest 1 is hostile; guest 2 grants frames side by side.
fn rig() -> Rig {
    Rig::new(Sizes {
        granters: 2,
        entries: ENTRIES,
        patience: Duration::from_secs(1),
        mappings: 2048 + MAPPINGS,
    })
}

/// Mappings that the kernel would have for the window: what lies side by side, in slots and
/// frames, of one memory and with one access, is one, and so is what lies between.
fn mappings(rig: &Rig) -> u32 {
    let space = rig.space();
    let page = |slot: u32| space.fake.mapped.get(&abi::Slot(slot)).copied();
    let slots = 2 * (ENTRIES + table_slots(ENTRIES));
    let seams = (1..slots).filter(|&slot| match (page(slot - 1), page(slot)) {
        (None, None) => false,
        (Some(left), Some(right)) => {
            (left.memory, left.writable) != (right.memory, right.writable)
                || left.frame + 1 != right.frame
        }
        _ => true,
    });
    seams.count() as u32 + 1
}

fn okays(made: &[(S, GrantRef)]) -> usize {
    made.iter().filter(|(status, _)| *status == S::Okay).count()
}

/// Nobody but guest 1 has noticed anything.
fn others_are_well(rig: &Rig) {
    let grefs = rig.create_all(2);
    assert!(mappings(rig) <= MAPPINGS, "{}", mappings(rig));
    let every_second: Vec<_> = grefs.iter().copied().step_by(4).collect();
    let statuses = rig.revoke(2, &every_second, Revocation::Refuse);
    assert!(statuses.iter().all(|status| *status == S::Okay));
    let again: Vec<_> = (0..ENTRIES).step_by(4).map(|n| (n, n)).collect();
    assert_eq!(okays(&rig.create(2, &again)), again.len());
    assert!(mappings(rig) <= MAPPINGS, "{}", mappings(rig));
    assert_eq!(rig.destroyed(), None);
    assert_eq!(rig.leaked(), 0);
}

#[test]
fn who_scatters_frames_is_refused_more_mappings_than_its_share() {
    let rig = rig();
    let scattered: Vec<_> = (0..ENTRIES).map(|n| (n, ENTRIES - 1 - n)).collect();
    let made = rig.create(1, &scattered);
    // One of its mappings is what lies behind.
    assert_eq!(okays(&made), SHARE as usize - 1);
    assert!(made.iter().all(|(s, _)| matches!(s, S::Okay | S::NoSpace)));
    others_are_well(&rig);
    // What it has is as good as any, and what it gives back it may have in another place.
    assert_eq!(rig.revoke(1, &[made[0].1], Revocation::Refuse), [S::Okay]);
    assert_eq!(rig.create(1, &[(0, 5)])[0].0, S::Okay);
}

#[test]
fn who_makes_more_holes_than_its_share_loses_its_table() {
    for how in [Revocation::Refuse, Revocation::Drain, Revocation::Force] {
        let rig = rig();
        let grefs = rig.create_all(1);
        // In use, as the user says: no revocation of holes alone would take it.
        rig.set_uses(&rig.space(), 1, 1, 1);
        let every_second: Vec<_> = grefs.iter().copied().step_by(2).collect();
        let (fits, too_many) = every_second.split_at(SHARE as usize / 2);
        let okay = |statuses: Vec<S>| statuses.iter().all(|status| *status == S::Okay);
        assert!(okay(rig.revoke(1, fits, how)), "{how:?}");
        assert!(mappings(&rig) > SHARE - 2, "{}", mappings(&rig));
        assert_eq!(rig.create(1, &[(0, 0)])[0].0, S::Okay);
        assert!(okay(rig.revoke(1, too_many, how)), "{how:?}");
        assert!(!rig.audit().contains_key(&DomId(1)), "all of it");
        let first = rig.slot(1, 0);
        let left = rig.space().fake.mapped.range(first..).next().map(|m| m.0.0);
        assert_eq!(left, Some(ENTRIES), "but for the sub-tables");
        assert_eq!(rig.create(1, &[(0, 0)])[0].0, S::BadHandle);
        assert_eq!(rig.end_table(DomId(1), 1), Err(S::BadHandle));
        others_are_well(&rig);
        // It may begin anew.
        let own = (DomId(1), abi::ConnId(0));
        let anew = rig.counted.create_table(own, DomId(0), ENTRIES);
        assert!(anew.is_ok());
    }
}

proptest! {
    #[test]
    fn no_sequence_of_grants_takes_more_than_its_share(
        ops in prop::collection::vec((any::<bool>(), 0..ENTRIES, 0..ENTRIES), 1..600),
    ) {
        let rig = rig();
        let mut grefs = std::collections::BTreeMap::new();
        for (create, index, frame) in ops {
            if create {
                let (status, gref) = rig.create(1, &[(index, frame)])[0];
                if status == S::Okay {
                    grefs.insert(index, gref);
                }
            } else if let Some(gref) = grefs.remove(&index) {
                rig.revoke(1, &[gref], Revocation::Refuse);
            }
            prop_assert!(mappings(&rig) <= SHARE + 6, "{}", mappings(&rig));
        }
        prop_assert_eq!(rig.destroyed(), None);
    }
}
