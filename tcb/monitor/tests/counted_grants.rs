//! Counted grants against a simple model (N-1 … N-15). Random sequences contain all actions of
//! granters, of honest users and of lying users, and deaths. After each step the statuses, the
//! translation entries, the user's window and its collateral match the model, and the audit finds
//! no leak.

mod counted_model;
mod spy;

use abi::counted::Revocation;
use abi::{ConnId, DomId, GrantRef, GrantStatus};
use counted_model::{Op, Rig};
use monitor::memory::SharedDomainMemory;
use monitor::pins::{Pin, Pins, UNPIN_TIMEOUT_NS};
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn how() -> impl Strategy<Value = Revocation> {
    prop_oneof![
        Just(Revocation::Refuse),
        Just(Revocation::Drain),
        Just(Revocation::Force)
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let guest = || 1..3u16;
    // The ranges include one entry and one frame that do not exist.
    let (index, frame) = (|| 0..5u32, || 0..4u32);
    prop_oneof![
        3 => guest().prop_map(Op::Table),
        4 => guest().prop_map(Op::Bind),
        12 => (guest(), prop::collection::vec((index(), frame(), any::<bool>()), 1..4),
            prop::bool::weighted(0.1))
            .prop_map(|(guest, grants, refused)| Op::Create { guest, grants, refused }),
        8 => (guest(), index(), any::<bool>())
            .prop_map(|(guest, index, write)| Op::Use { guest, index, write }),
        4 => guest().prop_map(Op::Release),
        2 => (guest(), index(), any::<u32>())
            .prop_map(|(guest, index, status)| Op::Lie { guest, index, status }),
        10 => (guest(), prop::collection::vec((index(), how(), prop::bool::weighted(0.1)), 1..4))
            .prop_map(|(guest, grants)| Op::Revoke { guest, grants }),
        1 => guest().prop_map(Op::GranterEnds),
        1 => guest().prop_map(Op::UserEnds),
        1 => (0..3u16).prop_map(Op::Kill),
        1 => Just(Op::Silence),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn counted_grants_match_the_model(ops in prop::collection::vec(op(), 1..24)) {
        let mut rig = Rig::new();
        for op in &ops {
            rig.step(op);
        }
        rig.end();
    }
}

/// Returns a rig in which guest 1 has a bound table and grants frames 0 … 2 through entries 0 … 2.
fn granted() -> Rig {
    granted_in(Rig::new())
}

fn granted_in(mut rig: Rig) -> Rig {
    rig.step(&Op::Table(1));
    rig.step(&Op::Bind(1));
    let grants = vec![(0, 0, false), (1, 1, true), (2, 2, false)];
    rig.step(&Op::Create {
        guest: 1,
        grants,
        refused: false,
    });
    rig
}

fn revoke(index: u32, how: Revocation) -> Op {
    let grants = vec![(index, how, false)];
    Op::Revoke { guest: 1, grants }
}

fn used(index: u32) -> Op {
    Op::Use {
        guest: 1,
        index,
        write: false,
    }
}

/// N-9: a revocation is refused while the grant is in use, and changes nothing. N-8: it succeeds
/// once the use has ended.
#[test]
fn a_use_delays_only_an_ordinary_revocation() {
    let mut rig = granted();
    rig.step(&used(0));
    rig.step(&revoke(0, Revocation::Refuse));
    assert_eq!(rig.statuses, [GrantStatus::Again]);
    rig.step(&used(0));
    assert!(rig.used, "a refused revocation changed the grant");
    rig.step(&Op::Release(1));
    rig.step(&revoke(0, Revocation::Refuse));
    assert_eq!(rig.statuses, [GrantStatus::Okay]);
    rig.step(&used(0));
    assert!(!rig.used);
    rig.end();
}

/// N-10: new uses of a draining grant are rejected.
#[test]
fn a_draining_grant_gets_no_new_use() {
    let mut rig = granted();
    rig.step(&used(0));
    rig.step(&revoke(0, Revocation::Drain));
    rig.step(&used(0));
    assert!(!rig.used && rig.statuses == [GrantStatus::Again]);
    rig.step(&Op::Release(1));
    rig.step(&revoke(0, Revocation::Drain));
    assert_eq!(rig.statuses, [GrantStatus::Okay]);
    rig.end();
}

/// N-10 for two operations of one batch on the same grant: neither undoes the other.
#[test]
fn a_refusal_in_the_same_batch_keeps_the_drain() {
    let [refuse, drain] = [Revocation::Refuse, Revocation::Drain].map(|how| (0, how, false));
    for grants in [vec![refuse, drain], vec![drain, refuse]] {
        let mut rig = granted();
        rig.step(&used(0));
        rig.step(&Op::Revoke { guest: 1, grants });
        assert_eq!(rig.statuses, [GrantStatus::Again; 2]);
        rig.step(&used(0));
        assert!(!rig.used, "a use began although the grant drains");
        rig.end();
    }
}

/// N-11, N-12, N-13: two forced revocations fill the quarantine of two frames. Their entries can be
/// granted again only when their uses have ended. A third forced revocation kills the user.
#[test]
fn a_user_that_exhausts_its_collateral_is_killed() {
    let mut rig = granted();
    for index in 0..3 {
        rig.step(&used(index));
    }
    rig.step(&revoke(0, Revocation::Force));
    rig.step(&revoke(1, Revocation::Force));
    let again = Op::Create {
        guest: 1,
        grants: vec![(0, 0, false)],
        refused: false,
    };
    rig.step(&again);
    assert_eq!(rig.statuses, [GrantStatus::Again], "in quarantine");
    assert_eq!(rig.destroyed(), None);
    rig.step(&revoke(2, Revocation::Force));
    assert_eq!(rig.statuses, [GrantStatus::Okay], "force always succeeds");
    let why = "it keeps revoked grants in use";
    assert_eq!(rig.destroyed().as_deref(), Some(why));
    rig.end();
}

/// N-12: an honest user regains its collateral.
#[test]
fn ending_uses_restores_collateral() {
    let mut rig = granted();
    for round in 0..10 {
        rig.step(&used(0));
        rig.step(&revoke(0, Revocation::Force));
        rig.step(&Op::Release(1));
        rig.step(&Op::Create {
            guest: 1,
            grants: vec![(0, round % 3, false)],
            refused: false,
        });
        assert_eq!(rig.statuses, [GrantStatus::Okay]);
    }
    assert_eq!(rig.destroyed(), None);
    rig.end();
}

/// N-6: generation 1 follows generation 4095, and generation 0 never occurs.
#[test]
fn generations_wrap_past_zero() {
    let mut rig = granted();
    rig.quiet = true;
    let mut observed = Vec::new();
    for _ in 0..4096 {
        rig.step(&revoke(0, Revocation::Refuse));
        rig.step(&Op::Create {
            guest: 1,
            grants: vec![(0, 0, false)],
            refused: false,
        });
        observed.push(rig.generation(1, 0));
    }
    assert!(!observed.contains(&0) && observed.contains(&4095));
    assert_eq!(observed[4095], observed[0]);
    rig.end();
}

/// N-1: limits on the numbers of tables and entries of a granter.
#[test]
fn tables_are_bounded() {
    let rig = Rig::new();
    let make = |entries| {
        let own = (DomId(1), ConnId(0));
        rig.counted.create_table(own, DomId(0), entries)
    };
    for entries in [0, 5, u32::MAX] {
        assert_eq!(make(entries), Err(GrantStatus::NoSpace));
    }
    let (first, second) = (make(4).unwrap(), make(1).unwrap());
    assert_eq!(make(1), Err(GrantStatus::NoSpace));
    let end = |handle| rig.counted.end_table(DomId(1), handle);
    assert_eq!((end(first), end(second)), (Ok(()), Ok(())));
    assert_eq!(end(first), Err(GrantStatus::BadHandle));
    assert!(make(1).unwrap() > second, "a handle was reused");
}

/// N-11: a user that has pinned a page keeps that page, and cannot read later contents of the
/// frame. A pipe that refers to the page pins it.
#[test]
fn an_exchanged_frame_is_a_new_page() {
    let memory = SharedDomainMemory::create(DomId(0), 2, 1, &[], None).unwrap();
    let page = memory.frame(1).unwrap();
    for exchanged in [false, true] {
        page.fill(b'a').unwrap();
        let (out, into) = rustix::pipe::pipe().unwrap();
        let mut offset = abi::PAGE as u64;
        let flags = rustix::pipe::SpliceFlags::empty();
        let spliced = rustix::pipe::splice(
            memory.frames_fds().0,
            Some(&mut offset),
            &into,
            None,
            64,
            flags,
        );
        assert_eq!(spliced, Ok(64));
        if exchanged {
            memory.exchange(1).unwrap();
            let mut bytes = [0; 4096];
            page.read(&mut bytes).unwrap();
            assert_eq!(bytes, [b'a'; 4096], "the frame lost its bytes");
        }
        page.fill(b's').unwrap();
        let mut observed = [0; 64];
        assert_eq!(rustix::io::read(&out, &mut observed), Ok(64));
        assert_eq!(observed, if exchanged { [b'a'; 64] } else { [b's'; 64] });
    }
    assert!(memory.exchange(2).is_err());
}

/// Pins a page, runs `act`, and writes 's' to the frame as its owner. Returns the byte that the
/// pinned page then contains.
fn pinned_byte_after(memory: &SharedDomainMemory, frame: u32, act: impl FnOnce()) -> u8 {
    let page = memory.frame(frame).unwrap();
    page.fill(b'a').unwrap();
    let (out, into) = rustix::pipe::pipe().unwrap();
    let mut offset = (frame as usize * abi::PAGE) as u64;
    let (fd, flags) = (memory.frames_fds().0, rustix::pipe::SpliceFlags::empty());
    let spliced = rustix::pipe::splice(fd, Some(&mut offset), &into, None, 64, flags);
    assert_eq!(spliced, Ok(64));
    act();
    page.fill(b's').unwrap();
    let mut observed = [0; 64];
    assert_eq!(rustix::io::read(&out, &mut observed), Ok(64));
    observed[0]
}

/// XDP-16: a frame that the user's device has pinned is exchanged once, however it is revoked and
/// whether or not it is in use. The exchange does not use up the user's collateral. A frame that no
/// device has pinned is not exchanged.
#[test]
fn a_pinned_frame_is_exchanged_once() {
    use abi::hypercall::{CreateGrantOp, RevokeOp};
    let rig = granted();
    let handle = rig.handle(1);
    let device = Pin {
        owner: DomId(1),
        first: 1,
        frames: 1,
    };
    rig.counted.pins.insert(DomId(0), 7, device);
    rig.counted.pins.insert(
        DomId(0),
        8,
        Pin {
            owner: DomId(2),
            ..device
        },
    );
    let revoke = |index: u32| {
        let gref = GrantRef::new(index, rig.granted_generation(1, index));
        let op = RevokeOp {
            table: handle,
            gref,
            how: Revocation::Refuse,
        };
        let statuses = rig.counted.revoke(DomId(1), &[op]);
        assert_eq!(statuses, [GrantStatus::Okay]);
    };
    assert_eq!(pinned_byte_after(rig.memory(1), 0, || revoke(0)), b's');
    assert_eq!(
        pinned_byte_after(rig.memory(1), 1, || revoke(1)),
        b'a',
        "exchanged"
    );
    assert!(!rig.counted.pins.release(DomId(1), 1));
    let again = CreateGrantOp {
        table: handle,
        index: 1,
        frame: 1,
        readonly: false,
        io: false,
    };
    assert_eq!(
        rig.counted.create(DomId(1), &[again])[0].0,
        GrantStatus::Okay
    );
    assert_eq!(
        pinned_byte_after(rig.memory(1), 1, || revoke(1)),
        b's',
        "the frame was exchanged twice"
    );
    assert_eq!(rig.destroyed(), None);
    let mut audits = std::collections::BTreeMap::new();
    rig.counted.audit(&mut audits);
    assert_eq!(audits[&DomId(0)].collateral_used, 0);
}

/// XDP-16: the end of a table by its granter or user, or the death of its user, also exchanges
/// pinned frames.
#[test]
fn the_end_of_a_table_exchanges_pinned_frames() {
    for (dead, ends) in [(false, 1), (true, 1), (false, 0)] {
        let rig = granted();
        let pin = Pin {
            owner: DomId(1),
            first: 0,
            frames: 3,
        };
        rig.counted.pins.insert(DomId(0), 7, pin);
        if dead {
            rig.kill_silently();
        }
        let end = || {
            let ended = rig.counted.end_table(DomId(ends), rig.handle(1));
            assert_eq!(ended, Ok(()));
        };
        assert_eq!(
            pinned_byte_after(rig.memory(1), 2, end),
            b'a',
            "{dead} {ends}"
        );
        let released = |frame| rig.counted.pins.release(DomId(1), frame);
        assert_eq!([0, 1, 2].map(released), [false; 3]);
    }
}

/// XDP-17: a living domain whose device keeps pages of a dead domain pinned is reported after the
/// deadline.
#[test]
fn a_device_over_a_dead_domains_memory_is_overdue() {
    let pins = Pins::default();
    for (number, of) in [(0, 1), (1, 2)] {
        let pin = Pin {
            owner: DomId(of),
            first: 0,
            frames: 8,
        };
        pins.insert(DomId(0), number, pin);
    }
    let none = |_: DomId| false;
    let first = |id: DomId| id == DomId(1);
    let both = |id: DomId| id != DomId(2);
    assert_eq!(pins.overdue(none, 0), (vec![], None));
    let due = 10 + UNPIN_TIMEOUT_NS;
    assert_eq!(pins.overdue(first, 10), (vec![], Some(due)));
    assert_eq!(pins.overdue(first, due - 1), (vec![], Some(due)));
    assert_eq!(pins.overdue(first, due), (vec![DomId(0)], None));
    assert_eq!(
        pins.overdue(both, due),
        (vec![], None),
        "a dead user is not overdue"
    );
    pins.remove(DomId(0), 0);
    assert_eq!(pins.overdue(first, due), (vec![], None));
    assert_eq!(
        (pins.refers_to(DomId(1)), pins.refers_to(DomId(2))),
        (false, true)
    );
    pins.forget(DomId(0));
    assert!(!pins.refers_to(DomId(2)));
}

/// N-13: the monitor waits for a user that needs time to end its uses.
#[test]
fn a_revocation_waits_for_a_full_quarantine() {
    let mut rig = granted_in(Rig::with_wait_budget(Duration::from_secs(100)));
    for index in 0..3 {
        rig.step(&used(index));
    }
    rig.step(&revoke(0, Revocation::Force));
    rig.step(&revoke(1, Revocation::Force));
    let start = Instant::now();
    let release = rig.release_later(Duration::from_millis(30));
    rig.step(&revoke(2, Revocation::Force));
    assert!(start.elapsed() >= Duration::from_millis(20));
    release.join().unwrap();
    assert_eq!(rig.destroyed(), None);
}
