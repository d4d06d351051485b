//! A granter that scatters its frames makes every page a separate mapping of the user (N-17). The
//! granter's share limits these mappings, so that neither the user nor other granters are affected.

mod spy;
mod tables;

use abi::counted::{Revocation, table_slots};
use abi::{DomId, GrantRef, GrantStatus as S};
use proptest::prelude::*;
use std::time::Duration;
use tables::{Rig, Sizes};

const ENTRIES: u32 = 128;
/// Mappings that the user may have for its window, in addition to those of its memory.
const MAPPINGS: u32 = 200;
/// The share of each of two tables of equal size, without the mappings of its two sub-tables.
const SHARE: u32 = MAPPINGS / 2 - 2;

/// Returns a rig in which guest 1 is hostile and guest 2 grants adjacent frames.
fn rig() -> Rig {
    Rig::new(Sizes {
        granters: 2,
        entries: ENTRIES,
        wait_budget: Duration::from_secs(1),
        mappings: 2048 + MAPPINGS,
    })
}

/// Returns the number of mappings that the kernel would have for the window. Adjacent slots with
/// adjacent frames of one memory and the same access form one mapping, as does each gap.
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

/// Asserts that guest 2 and the user are not affected.
fn assert_others_unaffected(rig: &Rig) {
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
fn scattered_frames_are_limited_to_a_share() {
    let rig = rig();
    let scattered: Vec<_> = (0..ENTRIES).map(|n| (n, ENTRIES - 1 - n)).collect();
    let made = rig.create(1, &scattered);
    // The rest of the table takes one mapping of its share.
    assert_eq!(okays(&made), SHARE as usize - 1);
    assert!(made.iter().all(|(s, _)| matches!(s, S::Okay | S::NoSpace)));
    assert_others_unaffected(&rig);
    // The granter can still revoke a grant, and can then create another one.
    assert_eq!(rig.revoke(1, &[made[0].1], Revocation::Refuse), [S::Okay]);
    assert_eq!(rig.create(1, &[(0, 5)])[0].0, S::Okay);
}

#[test]
fn too_many_holes_end_the_table() {
    for how in [Revocation::Refuse, Revocation::Drain, Revocation::Force] {
        let rig = rig();
        let grefs = rig.create_all(1);
        // The user counts page 1, which is not revoked below, as in use. The end of the table
        // revokes it by force.
        rig.set_uses(&rig.space(), 1, 1, 1);
        let every_second: Vec<_> = grefs.iter().copied().step_by(2).collect();
        let (fits, too_many) = every_second.split_at(SHARE as usize / 2);
        let okay = |statuses: Vec<S>| statuses.iter().all(|status| *status == S::Okay);
        assert!(okay(rig.revoke(1, fits, how)), "{how:?}");
        assert!(mappings(&rig) > SHARE - 2, "{}", mappings(&rig));
        assert_eq!(rig.create(1, &[(0, 0)])[0].0, S::Okay);
        assert!(okay(rig.revoke(1, too_many, how)), "{how:?}");
        assert!(
            !rig.audit().contains_key(&DomId(1)),
            "guest 1 still has an account"
        );
        let first = rig.slot(1, 0);
        let left = rig.space().fake.mapped.range(first..).next().map(|m| m.0.0);
        assert_eq!(left, Some(ENTRIES), "only the sub-tables stay mapped");
        assert_eq!(rig.create(1, &[(0, 0)])[0].0, S::BadHandle);
        assert_eq!(rig.end_table(DomId(1), 1), Err(S::BadHandle));
        assert_others_unaffected(&rig);
        // Guest 1 may create another table.
        let own = (DomId(1), abi::ConnId(0));
        let anew = rig.counted.create_table(own, DomId(0), ENTRIES);
        assert!(anew.is_ok());
    }
}

proptest! {
    #[test]
    fn no_sequence_of_grants_exceeds_its_share(
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
