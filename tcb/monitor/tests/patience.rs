//! A user of counted grants that plays for time: it counts every page as in use, and lets go of one
//! entry just before patience with it would end (N-13).

mod spy;
mod tables;

use abi::counted::Revocation;
use abi::hypercall::OPS_MAX;
use abi::{DomId, GrantRef, GrantStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tables::{Rig, Sizes};

/// One call's worth.
const ENTRIES: u32 = OPS_MAX as u32;
/// What the monitor promises, for one call and for any number of them.
const PATIENCE: Duration = Duration::from_millis(100);
/// What is asserted of it on a machine that may stand still for seconds: half of what it takes to
/// wait for each page.
const ENOUGH: Duration = Duration::from_millis(ENTRIES as u64 * LETS_GO_MS / 2);
/// How often the user lets go of a page.
const LETS_GO_MS: u64 = 90;
const UNKIND: &str = "it does not let go of grants that were revoked";

/// A granter whose pages are all granted and, as the user says, in use.
fn all_in_use(patience: Duration) -> (Rig, Vec<GrantRef>) {
    let rig = Rig::new(Sizes {
        granters: 1,
        entries: ENTRIES,
        patience,
        mappings: 1 << 20,
    });
    let grefs = rig.create_all(1);
    for index in 0..ENTRIES {
        rig.set_uses(&rig.space(), 1, index, 1);
    }
    (rig, grefs)
}

fn force(rig: &Rig, grefs: &[GrantRef]) {
    let statuses = rig.revoke(1, grefs, Revocation::Force);
    assert!(statuses.iter().all(|status| *status == GrantStatus::Okay));
}

/// The user lets go of one entry every 90 ms while `act` happens. It is not waited for longer than
/// the promise, and dies.
fn plays_for_time(act: impl FnOnce(&Rig, &[GrantRef])) -> Rig {
    let (rig, grefs) = all_in_use(PATIENCE);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..ENTRIES {
                thread::sleep(Duration::from_millis(LETS_GO_MS));
                let space = rig.space();
                if over.load(Ordering::Relaxed) || space.fake.destroyed.is_some() {
                    return;
                }
                rig.set_uses(&space, 1, index, 0);
            }
        });
        let start = Instant::now();
        act(&rig, &grefs);
        let took = start.elapsed();
        over.store(true, Ordering::Relaxed);
        assert!(took < ENOUGH, "{took:?}");
    });
    assert_eq!(rig.destroyed().as_deref(), Some(UNKIND));
    assert_eq!(rig.leaked(), 0);
    rig
}

#[test]
fn one_revocation_of_many_pages_has_one_deadline() {
    plays_for_time(force);
}

#[test]
fn revocations_one_after_the_other_have_one_deadline() {
    plays_for_time(|rig, grefs| {
        let calls = grefs.chunks(1);
        // Nothing is granted to the dead any more.
        calls
            .take_while(|_| rig.destroyed().is_none())
            .for_each(|one| force(rig, one));
    });
}

#[test]
fn attack_21_the_end_of_a_table_has_one_deadline() {
    plays_for_time(|rig, _| assert_eq!(rig.end_table(DomId(1), 1), Ok(())));
}

#[test]
fn attack_21_the_teardown_of_a_granter_has_one_deadline() {
    let rig = plays_for_time(|rig, _| {
        rig.grants.lock().fence(DomId(1));
        rig.counted.tear_down(DomId(1));
    });
    let audit = rig.audit();
    assert!(!audit.contains_key(&DomId(1)), "it grants nothing");
}

/// A user whose page is taken away while it copies faults, and counts its use down. The page is
/// taken away before the monitor waits for the count.
#[test]
fn who_lets_go_when_its_page_is_gone_lives() {
    let (rig, grefs) = all_in_use(1000 * PATIENCE);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let space = rig.space();
                let is_gone = |index: &u32| !space.fake.mapped.contains_key(&rig.slot(1, *index));
                for index in (0..ENTRIES).filter(is_gone) {
                    rig.set_uses(&space, 1, index, 0);
                }
                drop(space);
                thread::yield_now();
            }
        });
        force(&rig, &grefs);
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig.destroyed(), None);
}
