//! Pages that are mapped and unmapped are visible to a domain exactly in between.

mod common;

use abi::Slot;
use abi::layout::{PAGE, WINDOW};
use common::{GUEST, GUEST_FRAMES, WINDOW_SLOTS, World, alone};
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
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    for n in 0..64 {
        world.guest_word(n).store(0x1000 + u64::from(n), SeqCst);
    }
    assert_eq!(
        world.read(5),
        Err(()),
        "a slot was readable before any mapping"
    );
    world.map(5, 7, true);
    assert_eq!(world.read(5), Ok(0x1007));
    assert_eq!(world.write(5, 0xabc), Ok(0));
    assert_eq!(world.guest_word(7).load(SeqCst), 0xabc);
    assert_eq!(
        (world.read(4), world.read(6)),
        (Err(()), Err(())),
        "neighbouring slots are readable"
    );
    world.map(8, 9, false);
    assert_eq!(world.read(8), Ok(0x1009));
    assert_eq!(world.write(8, 1), Err(()), "a read-only page is writable");
    assert_eq!(world.guest_word(9).load(SeqCst), 0x1009);
    world.unmap(5);
    assert_eq!(world.read(5), Err(()), "an unmapped page is readable");
    assert_eq!(world.write(5, 1), Err(()));
    assert_eq!(world.guest_word(7).load(SeqCst), 0xabc);
    assert_eq!(world.read(8), Ok(0x1009), "another page was unmapped too");
    // If a page is mapped over another one, the new page is visible, and the old one is unchanged.
    world.map(8, 10, true);
    assert_eq!(world.write(8, 2), Ok(0));
    assert_eq!(world.guest_word(9).load(SeqCst), 0x1009);
    assert_eq!(world.guest_word(10).load(SeqCst), 2);
}

#[test]
fn unordered_batches_map_every_page_correctly() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    for n in 0..GUEST_FRAMES {
        world.guest_word(n).store(0x1000 + u64::from(n), SeqCst);
    }
    // More runs than the argument pages hold, none of which merge.
    let maps: Vec<_> = (0..1500)
        .rev()
        .map(|n| page(2 * n, (7 * n) % GUEST_FRAMES, n % 2 == 0))
        .collect();
    world.domain.agent.map(&maps).expect("mapped");
    for n in [0, 1, 2, 511, 512, 513, 1023, 1024, 1499] {
        assert_eq!(
            world.read(2 * n),
            Ok(0x1000 + u64::from((7 * n) % GUEST_FRAMES))
        );
        assert_eq!(
            world
                .write(2 * n, 0x1000 + u64::from((7 * n) % GUEST_FRAMES))
                .is_ok(),
            n % 2 == 0
        );
        assert_eq!(world.read(2 * n + 1), Err(()));
    }
    // A single run of 3000 slots unmaps them all.
    let slots: Vec<_> = (0..3000).map(Slot).collect();
    world.domain.agent.unmap(&slots).expect("unmapped");
    assert!((0..3000).step_by(97).all(|n| world.read(n).is_err()));
}

#[test]
fn invalid_batches_change_nothing() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    let agent = &mut world.domain.agent;
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
    assert_eq!(world.read(1), Err(()), "a refused batch mapped a page");
}

#[test]
fn a_batch_that_the_kernel_refuses_halfway_is_undone() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    // A descriptor that cannot be mapped, registered with a false length.
    let file = tempfile::tempdir().expect("a directory");
    let path = file.path().join("write-only");
    std::fs::write(&path, vec![0; 16 * PAGE]).expect("a file");
    let odd = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("opened");
    use std::os::fd::AsFd;
    world
        .domain
        .agent
        .add_memory(8, odd.as_fd(), odd.as_fd())
        .expect("passed to the agent");
    world.map(3, 3, true);
    let bad = PageMap {
        memory: 8,
        ..page(20, 2, true)
    };
    let result = world.domain.agent.map(&[
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
        assert_eq!(world.read(slot), Err(()), "slot {slot}");
    }
    assert!(world.read(3).is_ok(), "an earlier mapping is lost");
    world.domain.agent.remove_memory(8).expect("forgotten");
    assert!(matches!(
        world.domain.agent.remove_memory(8),
        Err(AgentError::Memory(8))
    ));
    world.map(10, 10, true);
    assert!(world.read(10).is_ok());
}

#[test]
fn descriptor_numbers_of_memories_are_reused() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    let World {
        domain,
        guest,
        guest_readonly,
        ..
    } = &mut world;
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
/// instructions may reach the page: a reader must not see later values, and a writer must not
/// change them.
#[test]
fn no_access_succeeds_after_unmap_returned() {
    const ROUNDS: u64 = 600;
    const FORBIDDEN: u64 = 1 << 60;
    let Some(_alone) = alone() else { return };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for mode in [0, 1] {
        let mut world = World::on(&[cpus - 1]);
        let (slot, frame) = (20, 11);
        let (stop, worked, faults, observed) = (
            world.word(16),
            world.word(17),
            world.word(18),
            world.word(19),
        );
        let value = if mode == 0 { FORBIDDEN } else { 0x77 };
        world.order(4, &[slot.into(), mode, value]);
        let later = |word: &std::sync::atomic::AtomicU64, than: u64| {
            let until = Instant::now() + testing::PATIENCE;
            while word.load(SeqCst) <= than {
                assert!(Instant::now() < until, "the domain does not run");
                std::thread::yield_now();
            }
        };
        let mut spoilt = 0;
        for round in 0..ROUNDS {
            world.guest_word(frame).store(round, SeqCst);
            let before = worked.load(SeqCst);
            world.map(slot, frame, true);
            later(worked, before);
            world.unmap(slot);
            world.guest_word(frame).store(FORBIDDEN + round, SeqCst);
            // It has tried at least twice since.
            later(faults, faults.load(SeqCst) + 1);
            spoilt += u64::from(world.guest_word(frame).load(SeqCst) != FORBIDDEN + round);
        }
        stop.store(1, SeqCst);
        assert_eq!(world.answer(), Some(Ok(0)));
        assert_eq!(
            (observed.load(SeqCst), spoilt),
            (0, 0),
            "accesses after unmap, mode {mode}"
        );
        println!(
            "mode {mode}: {ROUNDS} rounds, {} accesses, {} faults, 0 after unmap",
            worked.load(SeqCst),
            faults.load(SeqCst)
        );
    }
}

/// A system call of the domain sleeps with its buffer in a slot; the page is unmapped; then the
/// data arrive.
#[test]
fn a_read_in_flight_misses_an_unmapped_page() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    world.guest_word(7).store(0x1111, SeqCst);
    world.map(5, 7, true);
    let slot = (WINDOW + 5 * PAGE) as u64;
    world.order(3, &[libc::SYS_read as u64, 3, slot, 8]);
    // The domain sleeps in `read` on its event descriptor.
    testing::wait_until("the domain does not sleep", || {
        common::status(world.domain.pid, "State").starts_with('S')
    });
    std::thread::sleep(Duration::from_millis(20));
    world.unmap(5);
    rustix::io::write(&world.event, &0x666u64.to_ne_bytes()).expect("rung");
    assert_eq!(world.answer(), Some(Ok(i64::from(-libc::EFAULT) as u64)));
    assert_eq!(world.guest_word(7).load(SeqCst), 0x1111);
}
