//! Counted grants against a simple model: random sequences of everything that granters, honest and
//! lying users and deaths can do (N-1 … N-15). After each step statuses, translation entries, the
//! user's window and its collateral are as the model says, and the audit finds nothing leaked.

mod counted_model;
mod spy;

use abi::counted::Revocation;
use abi::{ConnId, DomId, GrantRef, GrantStatus};
use counted_model::{Op, Rig};
use monitor::memory::Memory;
use monitor::pins::{PATIENCE_NS, Pin, Pins};
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
    // One entry and one frame too many.
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
    fn counted_grants_are_as_the_model_says(ops in prop::collection::vec(op(), 1..24)) {
        let mut rig = Rig::new();
        for op in &ops {
            rig.step(op);
        }
        rig.end();
    }
}

/// Guest 1 has a table that is bound, and grants frames 0 … 2 by entries 0 … 2.
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

/// N-9: refused while in use, and as good as before; N-8: revoked once it is not.
#[test]
fn a_use_holds_off_an_ordinary_revocation_alone() {
    let mut rig = granted();
    rig.step(&used(0));
    rig.step(&revoke(0, Revocation::Refuse));
    assert_eq!(rig.statuses, [GrantStatus::Again]);
    rig.step(&used(0));
    assert!(rig.used, "it is as good as before");
    rig.step(&Op::Release(1));
    rig.step(&revoke(0, Revocation::Refuse));
    assert_eq!(rig.statuses, [GrantStatus::Okay]);
    rig.step(&used(0));
    assert!(!rig.used);
    rig.end();
}

/// N-10: no new use while it drains.
#[test]
fn a_grant_that_drains_gets_no_new_use() {
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

/// N-10 of a grant that is named twice in one batch: what one asks for is not undone by the other.
#[test]
fn a_grant_drains_though_the_same_batch_was_refused_it() {
    let [refuse, drain] = [Revocation::Refuse, Revocation::Drain].map(|how| (0, how, false));
    for grants in [vec![refuse, drain], vec![drain, refuse]] {
        let mut rig = granted();
        rig.step(&used(0));
        rig.step(&Op::Revoke { guest: 1, grants });
        assert_eq!(rig.statuses, [GrantStatus::Again; 2]);
        rig.step(&used(0));
        assert!(!rig.used, "it drains");
        rig.end();
    }
}

/// N-11, N-12, N-13: two forced revocations fill the quarantine of two frames; the entries are
/// granted again only when they are out of use; the third costs the user its life.
#[test]
fn a_user_whose_collateral_is_used_up_dies() {
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
    let why = "it does not let go of grants that were revoked";
    assert_eq!(rig.destroyed().as_deref(), Some(why));
    rig.end();
}

/// N-12: an honest user gets its collateral back.
#[test]
fn a_user_that_lets_go_gets_its_collateral_back() {
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

/// N-6: after 4095 generations the first comes again, and 0 never.
#[test]
fn generations_wrap_past_zero() {
    let mut rig = granted();
    rig.quiet = true;
    let mut seen = Vec::new();
    for _ in 0..4096 {
        rig.step(&revoke(0, Revocation::Refuse));
        rig.step(&Op::Create {
            guest: 1,
            grants: vec![(0, 0, false)],
            refused: false,
        });
        seen.push(rig.generation(1, 0));
    }
    assert!(!seen.contains(&0) && seen.contains(&4095));
    assert_eq!(seen[4095], seen[0]);
    rig.end();
}

/// N-1: as many tables and entries as the granter may have.
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
    assert!(make(1).unwrap() > second, "handles are never reused");
}

/// N-11: a user that has pinned a page keeps what it has pinned, and sees nothing of the frame
/// afterwards. The pin: a pipe that holds the page by reference.
#[test]
fn an_exchanged_frame_is_not_the_one_that_was_pinned() {
    let memory = Memory::create(DomId(0), 2, 1, &[], None).unwrap();
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
            assert_eq!(bytes, [b'a'; 4096], "its bytes stay");
        }
        page.fill(b's').unwrap();
        let mut seen = [0; 64];
        assert_eq!(rustix::io::read(&out, &mut seen), Ok(64));
        assert_eq!(seen, if exchanged { [b'a'; 64] } else { [b's'; 64] });
    }
    assert!(memory.exchange(2).is_err());
}

/// What a page shows to the user that pinned it when `act` began, after its owner wrote 's' over
/// it.
fn pinned(memory: &Memory, frame: u32, act: impl FnOnce()) -> u8 {
    let page = memory.frame(frame).unwrap();
    page.fill(b'a').unwrap();
    let (out, into) = rustix::pipe::pipe().unwrap();
    let mut offset = (frame as usize * abi::PAGE) as u64;
    let (fd, flags) = (memory.frames_fds().0, rustix::pipe::SpliceFlags::empty());
    let spliced = rustix::pipe::splice(fd, Some(&mut offset), &into, None, 64, flags);
    assert_eq!(spliced, Ok(64));
    act();
    page.fill(b's').unwrap();
    let mut seen = [0; 64];
    assert_eq!(rustix::io::read(&out, &mut seen), Ok(64));
    seen[0]
}

/// XDP-16: what a device of the user's has pinned is exchanged however it is revoked, in use or
/// not, once, and at no cost to collateral; what no device has is not.
#[test]
fn what_a_device_has_pinned_is_exchanged_once() {
    use abi::hypercall::{Create, Revoke};
    let rig = granted();
    let handle = rig.handle(1);
    let device = Pin {
        of: DomId(1),
        first: 1,
        frames: 1,
    };
    rig.counted.pins.insert(DomId(0), 7, device);
    rig.counted.pins.insert(
        DomId(0),
        8,
        Pin {
            of: DomId(2),
            ..device
        },
    );
    let revoke = |index: u32| {
        let gref = GrantRef::new(index, rig.granted_generation(1, index));
        let op = Revoke {
            table: handle,
            gref,
            how: Revocation::Refuse,
        };
        let statuses = rig.counted.revoke(DomId(1), &[op]);
        assert_eq!(statuses, [GrantStatus::Okay]);
    };
    assert_eq!(pinned(rig.memory(1), 0, || revoke(0)), b's');
    assert_eq!(pinned(rig.memory(1), 1, || revoke(1)), b'a', "exchanged");
    assert!(!rig.counted.pins.release(DomId(1), 1));
    let again = Create {
        table: handle,
        index: 1,
        frame: 1,
        readonly: false,
    };
    assert_eq!(
        rig.counted.create(DomId(1), &[again])[0].0,
        GrantStatus::Okay
    );
    assert_eq!(
        pinned(rig.memory(1), 1, || revoke(1)),
        b's',
        "its own by now"
    );
    assert_eq!(rig.destroyed(), None);
    let mut audits = std::collections::BTreeMap::new();
    rig.counted.audit(&mut audits);
    assert_eq!(audits[&DomId(0)].collateral_used, 0);
}

/// XDP-16: the end of a table, by either end, is no way round that, nor is the death of its user.
#[test]
fn what_a_device_has_pinned_is_exchanged_at_the_end_of_a_table() {
    for (dead, ends) in [(false, 1), (true, 1), (false, 0)] {
        let rig = granted();
        let pin = Pin {
            of: DomId(1),
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
        assert_eq!(pinned(rig.memory(1), 2, end), b'a', "{dead} {ends}");
        let released = |frame| rig.counted.pins.release(DomId(1), frame);
        assert_eq!([0, 1, 2].map(released), [false; 3]);
    }
}

/// XDP-17: who keeps a device over the memory of a dead domain is found, after a while and as long
/// as it lives.
#[test]
fn a_device_over_the_memory_of_a_dead_domain_is_due() {
    let pins = Pins::default();
    for (number, of) in [(0, 1), (1, 2)] {
        let pin = Pin {
            of: DomId(of),
            first: 0,
            frames: 8,
        };
        pins.insert(DomId(0), number, pin);
    }
    let none = |_: DomId| false;
    let first = |id: DomId| id == DomId(1);
    let both = |id: DomId| id != DomId(2);
    assert_eq!(pins.overdue(none, 0), (vec![], None));
    let due = 10 + PATIENCE_NS;
    assert_eq!(pins.overdue(first, 10), (vec![], Some(due)));
    assert_eq!(pins.overdue(first, due - 1), (vec![], Some(due)));
    assert_eq!(pins.overdue(first, due), (vec![DomId(0)], None));
    assert_eq!(pins.overdue(both, due), (vec![], None), "it is dead itself");
    pins.remove(DomId(0), 0);
    assert_eq!(pins.overdue(first, due), (vec![], None));
    assert_eq!((pins.names(DomId(1)), pins.names(DomId(2))), (false, true));
    pins.forget(DomId(0));
    assert!(!pins.names(DomId(2)));
}

/// N-13: who needs time to let go gets some.
#[test]
fn a_full_quarantine_is_given_time() {
    let mut rig = granted_in(Rig::with_patience(Duration::from_secs(100)));
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
