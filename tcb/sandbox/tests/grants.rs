//! A domain can access a page exactly while the page is mapped.

mod common;

use abi::Slot;
use abi::layout::{PAGE, WINDOW};
use common::{GUEST, GUEST_FRAMES, TestDomain, WINDOW_SLOTS, serialize};
use sandbox::{AgentError, PageMap};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn page(slot: u32, frame: u32, writable: bool) -> PageMap {
    PageMap {
        slot: Slot(slot),
        memory: GUEST,
        frame,
        writable,
    }
}

#[test]
fn a_page_is_visible_exactly_while_mapped() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    for n in 0..64 {
        target.guest_word(n).store(0x1000 + u64::from(n), SeqCst);
    }
    assert_eq!(
        target.read(5),
        Err(()),
        "a slot was readable before any mapping"
    );
    target.map(5, 7, true);
    assert_eq!(target.read(5), Ok(0x1007));
    assert_eq!(target.write(5, 0xabc), Ok(0));
    assert_eq!(target.guest_word(7).load(SeqCst), 0xabc);
    assert_eq!(
        (target.read(4), target.read(6)),
        (Err(()), Err(())),
        "neighbouring slots are readable"
    );
    target.map(8, 9, false);
    assert_eq!(target.read(8), Ok(0x1009));
    assert_eq!(target.write(8, 1), Err(()), "a read-only page is writable");
    assert_eq!(target.guest_word(9).load(SeqCst), 0x1009);
    target.unmap(5);
    assert_eq!(target.read(5), Err(()), "an unmapped page is readable");
    assert_eq!(target.write(5, 1), Err(()));
    assert_eq!(target.guest_word(7).load(SeqCst), 0xabc);
    assert_eq!(target.read(8), Ok(0x1009), "another page was unmapped too");
    // If a page is mapped over another one, the domain accesses the new page, and the old one is
    // unchanged.
    target.map(8, 10, true);
    assert_eq!(target.write(8, 2), Ok(0));
    assert_eq!(target.guest_word(9).load(SeqCst), 0x1009);
    assert_eq!(target.guest_word(10).load(SeqCst), 2);
}

#[test]
fn unordered_batches_map_every_page_correctly() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    for n in 0..GUEST_FRAMES {
        target.guest_word(n).store(0x1000 + u64::from(n), SeqCst);
    }
    // The batch has more runs than the argument pages can contain, and no two runs merge.
    let maps: Vec<_> = (0..1500)
        .rev()
        .map(|n| page(2 * n, (7 * n) % GUEST_FRAMES, n % 2 == 0))
        .collect();
    target.domain.agent.map(&maps).expect("mapped");
    for n in [0, 1, 2, 511, 512, 513, 1023, 1024, 1499] {
        assert_eq!(
            target.read(2 * n),
            Ok(0x1000 + u64::from((7 * n) % GUEST_FRAMES))
        );
        assert_eq!(
            target
                .write(2 * n, 0x1000 + u64::from((7 * n) % GUEST_FRAMES))
                .is_ok(),
            n % 2 == 0
        );
        assert_eq!(target.read(2 * n + 1), Err(()));
    }
    // A single run of 3000 slots unmaps them all.
    let slots: Vec<_> = (0..3000).map(Slot).collect();
    target.domain.agent.unmap(&slots).expect("unmapped");
    assert!((0..3000).step_by(97).all(|n| target.read(n).is_err()));
}

#[test]
fn invalid_batches_change_nothing() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    let agent = &mut target.domain.agent;
    let result = agent.map(&[page(1, 1, true), page(WINDOW_SLOTS, 2, true)]);
    assert!(
        matches!(result, Err(AgentError::Slot(Slot(WINDOW_SLOTS)))),
        "{result:?}"
    );
    let result = agent.map(&[page(1, 1, true), page(u32::MAX, 2, true)]);
    assert!(matches!(result, Err(AgentError::Slot(_))), "{result:?}");
    let result = agent.map(&[page(1, 1, true), page(2, GUEST_FRAMES, true)]);
    assert!(
        matches!(result, Err(AgentError::Frame(GUEST_FRAMES))),
        "{result:?}"
    );
    let result = agent.map(&[page(1, 1, true), page(1, 2, true)]);
    assert!(
        matches!(result, Err(AgentError::Slot(Slot(1)))),
        "{result:?}"
    );
    let unknown = PageMap {
        memory: 8,
        ..page(2, 2, true)
    };
    let result = agent.map(&[page(1, 1, true), unknown]);
    assert!(matches!(result, Err(AgentError::Memory(8))), "{result:?}");
    assert!(matches!(
        agent.unmap(&[Slot(WINDOW_SLOTS)]),
        Err(AgentError::Slot(_))
    ));
    assert!(matches!(
        agent.unmap(&[Slot(3), Slot(3)]),
        Err(AgentError::Slot(Slot(3)))
    ));
    assert!(agent.map(&[]).is_ok() && agent.unmap(&[]).is_ok());
    assert!(
        agent.unmap(&[Slot(9)]).is_ok(),
        "unmapping empty slots failed"
    );
    assert_eq!(target.read(1), Err(()), "a refused batch mapped a page");
}

#[test]
fn a_batch_that_the_kernel_refuses_halfway_is_undone() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    // Register a descriptor that cannot be mapped.
    let file = tempfile::tempdir().expect("a directory");
    let path = file.path().join("write-only");
    std::fs::write(&path, vec![0; 16 * PAGE]).expect("a file");
    let odd = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("opened");
    use std::os::fd::AsFd;
    target
        .domain
        .agent
        .add_memory(8, odd.as_fd(), odd.as_fd())
        .expect("passed to the agent");
    target.map(3, 3, true);
    let bad = PageMap {
        memory: 8,
        ..page(20, 2, true)
    };
    let result = target.domain.agent.map(&[
        page(10, 10, true),
        page(12, 12, true),
        bad,
        page(22, 22, true),
    ]);
    let Err(AgentError::Refused(error)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    for slot in [10, 12, 20, 22] {
        assert_eq!(target.read(slot), Err(()), "slot {slot}");
    }
    assert!(target.read(3).is_ok(), "an earlier mapping is lost");
    target.domain.agent.remove_memory(8).expect("removed");
    assert!(matches!(
        target.domain.agent.remove_memory(8),
        Err(AgentError::Memory(8))
    ));
    target.map(10, 10, true);
    assert!(target.read(10).is_ok());
}

#[test]
fn descriptor_numbers_of_memories_are_reused() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    let TestDomain {
        domain,
        guest,
        guest_readonly,
        ..
    } = &mut target;
    use std::os::fd::AsFd;
    for round in 0..3 {
        for n in 100..400 {
            domain
                .agent
                .add_memory(n, guest.fd(), guest_readonly.as_fd())
                .expect("added");
        }
        let twice = domain
            .agent
            .add_memory(100, guest.fd(), guest_readonly.as_fd());
        assert!(
            matches!(twice, Err(AgentError::Memory(100))),
            "round {round}"
        );
        assert!(common::descriptors(domain.agent_pid).is_none_or(|open| open.len() == 602));
        for n in 100..400 {
            domain.agent.remove_memory(n).expect("removed");
        }
    }
    assert!(common::descriptors(domain.agent_pid).is_none_or(|open| open == [8, 9]));
    let open = common::descriptors(domain.pid);
    assert!(
        open.is_none_or(|open| open == [0, 1, 2, 3, 4]),
        "the domain has a descriptor"
    );
}

/// A domain accesses a page continuously from another CPU. After `unmap` has returned, none of its
/// instructions may access the page: a reader must not read later values, and a writer must not
/// change them.
#[test]
fn no_access_succeeds_after_unmap_returned() {
    const ROUNDS: u64 = 600;
    const FORBIDDEN: u64 = 1 << 60;
    let Some(_guard) = serialize() else { return };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for mode in [0, 1] {
        let mut target = TestDomain::on(&[cpus - 1]);
        let (slot, frame) = (20, 11);
        let (stop, accesses, faults, observed) = (
            target.word(16),
            target.word(17),
            target.word(18),
            target.word(19),
        );
        let value = if mode == 0 { FORBIDDEN } else { 0x77 };
        target.order(4, &[slot.into(), mode, value]);
        let wait_above = |word: &std::sync::atomic::AtomicU64, bound: u64| {
            let until = Instant::now() + testing::TIMEOUT;
            while word.load(SeqCst) <= bound {
                assert!(Instant::now() < until, "the domain does not run");
                std::thread::yield_now();
            }
        };
        let mut overwritten = 0;
        for round in 0..ROUNDS {
            target.guest_word(frame).store(round, SeqCst);
            let before = accesses.load(SeqCst);
            target.map(slot, frame, true);
            wait_above(accesses, before);
            target.unmap(slot);
            target.guest_word(frame).store(FORBIDDEN + round, SeqCst);
            // Wait until the domain has tried at least twice since then.
            wait_above(faults, faults.load(SeqCst) + 1);
            overwritten += u64::from(target.guest_word(frame).load(SeqCst) != FORBIDDEN + round);
        }
        stop.store(1, SeqCst);
        assert_eq!(target.answer(), Some(Ok(0)));
        assert_eq!(
            (observed.load(SeqCst), overwritten),
            (0, 0),
            "accesses after unmap, mode {mode}"
        );
        println!(
            "mode {mode}: {ROUNDS} rounds, {} accesses, {} faults, 0 after unmap",
            accesses.load(SeqCst),
            faults.load(SeqCst)
        );
    }
}

/// A system call of the domain sleeps, with its buffer in a slot. The page is unmapped before the
/// data arrive.
#[test]
fn a_read_in_flight_misses_an_unmapped_page() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    target.guest_word(7).store(0x1111, SeqCst);
    target.map(5, 7, true);
    let slot = (WINDOW + 5 * PAGE) as u64;
    target.order(3, &[libc::SYS_read as u64, 3, slot, 8]);
    // The domain sleeps in `read` on its event descriptor.
    testing::wait_until("the domain does not sleep", || {
        common::status(target.domain.pid, "State").starts_with('S')
    });
    std::thread::sleep(Duration::from_millis(20));
    target.unmap(5);
    rustix::io::write(&target.event, &0x666u64.to_ne_bytes()).expect("rung");
    assert_eq!(target.answer(), Some(Ok(i64::from(-libc::EFAULT) as u64)));
    assert_eq!(target.guest_word(7).load(SeqCst), 0x1111);
}
