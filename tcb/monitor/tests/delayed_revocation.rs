//! A user of counted grants that delays revocations (N-13): it counts every page as in use, and
//! ends one use every 90 ms. If each entry had a separate time limit of 100 ms, no limit would
//! expire.

mod spy;
mod tables;

use abi::counted::Revocation;
use abi::hypercall::OPS_MAX;
use abi::{DomId, GrantRef, GrantStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tables::{Rig, Sizes};

/// The operations of one call.
const ENTRIES: u32 = OPS_MAX as u32;
/// The monitor's limit on its waits, for one call and for any number of calls.
const WAIT_BUDGET: Duration = Duration::from_millis(100);
/// The bound that the tests assert: half of the time that a separate wait for every page would
/// take. It exceeds the limit, because the test machine may stall for seconds.
const TIME_LIMIT: Duration = Duration::from_millis(ENTRIES as u64 * RELEASE_INTERVAL_MS / 2);
/// The interval at which the user ends the use of a page.
const RELEASE_INTERVAL_MS: u64 = 90;
const KILL_REASON: &str = "it keeps revoked grants in use";

/// Returns a rig with one granter that has granted all its pages. The user counts each of them as
/// in use.
fn all_in_use(wait_budget: Duration) -> (Rig, Vec<GrantRef>) {
    let rig = Rig::new(Sizes {
        granters: 1,
        entries: ENTRIES,
        wait_budget,
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

/// Runs `act` while the user ends one use every 90 ms. Asserts that the monitor waits no longer
/// than its limit, and kills the user.
fn with_delaying_user(act: impl FnOnce(&Rig, &[GrantRef])) -> Rig {
    let (rig, grefs) = all_in_use(WAIT_BUDGET);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..ENTRIES {
                thread::sleep(Duration::from_millis(RELEASE_INTERVAL_MS));
                let space = rig.space();
                if stop.load(Ordering::Relaxed) || space.fake.destroyed.is_some() {
                    return;
                }
                rig.set_uses(&space, 1, index, 0);
            }
        });
        let start = Instant::now();
        act(&rig, &grefs);
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        assert!(took < TIME_LIMIT, "{took:?}");
    });
    assert_eq!(rig.destroyed().as_deref(), Some(KILL_REASON));
    assert_eq!(rig.leaked(), 0);
    rig
}

#[test]
fn a_revocation_of_many_pages_has_one_deadline() {
    with_delaying_user(force);
}

#[test]
fn consecutive_revocations_share_one_deadline() {
    with_delaying_user(|rig, grefs| {
        let calls = grefs.chunks(1);
        // A dead domain receives no grants.
        calls
            .take_while(|_| rig.destroyed().is_none())
            .for_each(|one| force(rig, one));
    });
}

#[test]
fn attack_21_ending_a_table_has_one_deadline() {
    with_delaying_user(|rig, _| assert_eq!(rig.end_table(DomId(1), 1), Ok(())));
}

#[test]
fn attack_21_tearing_down_a_granter_has_one_deadline() {
    let rig = with_delaying_user(|rig, _| {
        rig.grants.lock().fence(DomId(1));
        rig.counted.tear_down(DomId(1));
    });
    let audit = rig.audit();
    assert!(
        !audit.contains_key(&DomId(1)),
        "the dead granter still has an account"
    );
}

/// A user whose page is unmapped during a copy faults and ends its use. The monitor unmaps the page
/// before it waits for the count.
#[test]
fn a_user_that_faults_and_ends_its_use_survives() {
    let (rig, grefs) = all_in_use(1000 * WAIT_BUDGET);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let space = rig.space();
                let is_unmapped =
                    |index: &u32| !space.fake.mapped.contains_key(&rig.slot(1, *index));
                for index in (0..ENTRIES).filter(is_unmapped) {
                    rig.set_uses(&space, 1, index, 0);
                }
                drop(space);
                thread::yield_now();
            }
        });
        force(&rig, &grefs);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig.destroyed(), None);
}
