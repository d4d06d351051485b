//! Concurrent grants, revocations, ends of tables and deaths, on both sides of a table (row 16).
//! The fake address space panics if a slot is mapped or unmapped twice.

mod spy;
mod tables;

use abi::counted::Revocation;
use abi::{DomId, GrantStatus as S};
use std::thread;
use std::time::Duration;
use tables::{COLLATERAL, Rig, Sizes, USER};

const ROUNDS: u32 = 200;
const ENTRIES: u32 = 8;

fn rig() -> Rig {
    Rig::new(Sizes {
        granters: 2,
        entries: ENTRIES,
        wait_budget: Duration::from_secs(100),
        mappings: 1 << 20,
    })
}

/// Grants all pages of a granter and revokes them, `times` times. The table may end meanwhile.
fn grant_and_revoke(rig: &Rig, granter: u16, times: u32) {
    let pages: Vec<_> = (0..ENTRIES).map(|n| (n, n)).collect();
    for round in 0..times {
        let made = rig.create(granter, &pages);
        assert!(made.iter().all(|(status, _)| matches!(
            status,
            S::Okay | S::BadHandle | S::BadRef | S::Again | S::NoSpace
        )));
        let grefs: Vec<_> = made
            .iter()
            .filter(|(status, _)| *status == S::Okay)
            .map(|(_, gref)| *gref)
            .collect();
        let how = [Revocation::Refuse, Revocation::Drain, Revocation::Force][round as usize % 3];
        // Revoke twice: only one of the revocations may succeed.
        let done = [(); 2].map(|()| rig.revoke(granter, &grefs, how));
        for (first, second) in done[0].iter().zip(&done[1]) {
            let fine = [S::Okay, S::BadHandle, S::BadRef, S::Again];
            assert!(fine.contains(first) && fine.contains(second), "{done:?}");
            assert_ne!([first, second], [&S::Okay; 2], "{done:?}");
        }
    }
}

#[test]
fn attack_16_concurrent_maps_unmaps_and_ends() {
    for round in 0..ROUNDS {
        let rig = rig();
        thread::scope(|scope| {
            scope.spawn(|| grant_and_revoke(&rig, 1, 8));
            scope.spawn(|| grant_and_revoke(&rig, 2, 8));
            // The user ends the first granter's table; a second attempt fails.
            scope.spawn(|| {
                for _ in 0..round % 50 {
                    thread::yield_now();
                }
                let ended = rig.end_table(USER, 1);
                assert_eq!(ended, Ok(()));
                assert_eq!(rig.end_table(USER, 1), Err(S::BadHandle));
            });
            // The other granter dies meanwhile.
            scope.spawn(|| {
                for _ in 0..round % 30 {
                    thread::yield_now();
                }
                rig.grants.lock().fence(DomId(2));
                rig.counted.tear_down(DomId(2));
            });
            // The user counts pages as in use, and then as unused.
            scope.spawn(|| {
                for n in 0..100 {
                    rig.set_uses(&rig.space(), 1, n % ENTRIES, 1);
                    let part = rig.audit().remove(&USER).unwrap_or_default();
                    assert!(part.collateral_used <= COLLATERAL);
                    rig.set_uses(&rig.space(), 1, n % ENTRIES, 0);
                }
            });
        });
        assert_eq!(rig.destroyed(), None);
        assert_eq!(rig.leaked(), 0);
        assert!(
            rig.audit()
                .values()
                .all(|part| { part.mapped.is_empty() && part.granted.is_empty() })
        );
        let of_granters = |map: &monitor::space::PageMap| map.memory != rig.handle(2).memory();
        let space = rig.space();
        assert_eq!(
            space
                .fake
                .mapped
                .values()
                .filter(|m| of_granters(m))
                .count(),
            0
        );
    }
}

#[test]
fn attack_16_concurrent_binds_bind_a_table_once() {
    for _ in 0..ROUNDS {
        let rig = rig();
        assert_eq!(rig.end_table(USER, 1), Ok(()));
        let own = (DomId(1), abi::ConnId(1));
        let table = rig.counted.create_table(own, USER, ENTRIES).unwrap();
        let bind = abi::hypercall::BindOp {
            granter: DomId(1),
            table,
            first: rig.slot(1, 0),
            tables: rig.slot(1, ENTRIES),
            entries: ENTRIES,
        };
        let bound: u32 = thread::scope(|scope| {
            let tries =
                [(); 3].map(|()| scope.spawn(|| u32::from(rig.counted.bind(USER, &bind).is_ok())));
            tries.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(bound, 1);
        assert_eq!(rig.leaked(), 0);
    }
}

/// Row 27: a table's size is fixed, and its user cannot bind it with another size.
#[test]
fn attack_27_a_table_is_bound_in_its_own_size() {
    let rig = rig();
    let own = (DomId(1), abi::ConnId(1));
    let table = rig.counted.create_table(own, USER, ENTRIES / 2).unwrap();
    assert_eq!(rig.end_table(USER, 1), Ok(()));
    let bind = |entries| abi::hypercall::BindOp {
        granter: DomId(1),
        table,
        first: rig.slot(1, 0),
        tables: rig.slot(1, ENTRIES),
        entries,
    };
    for entries in [0, 1, ENTRIES / 2 - 1, ENTRIES / 2 + 1, ENTRIES, u32::MAX] {
        let bound = rig.counted.bind(USER, &bind(entries));
        assert_eq!(bound, Err(S::BadHandle), "{entries}");
    }
    assert_eq!(rig.counted.bind(USER, &bind(ENTRIES / 2)), Ok(()));
    let create = |index| abi::hypercall::CreateGrantOp {
        table,
        index,
        frame: 0,
        readonly: false,
        io: false,
    };
    let past: Vec<_> = [ENTRIES / 2, u32::MAX].map(create).into();
    let made = rig.counted.create(DomId(1), &past);
    assert!(
        made.iter().all(|(status, _)| *status == S::BadRef),
        "{made:?}"
    );
    assert_eq!(rig.leaked(), 0);
}
