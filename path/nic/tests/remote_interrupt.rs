//! Tests the interrupts of a device that runs independently of its driver. The driver reads a queue
//! only after the queue's interrupt, and no interrupt is lost, however the accesses of both
//! interleave.

mod common;

use common::{CountingBell, TestWire, bytes, contents, received};
use nic::dma::soft::{InterruptModeration, SoftDevice};
use nic::dma::{IoAddr, IoFault, IoMemory, IoTable, RemoteNic, RemoteQueue, RemoteSetup};
use nic::{Buffer, BufferId, Frame, Nic, Pool};
use proptest::prelude::*;
use shmem::{Area, Span};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ENTRIES: u32 = 8;
const SETUP: RemoteSetup = RemoteSetup {
    entries: ENTRIES,
    mtu: 1500,
    queues: 1,
    merges: false,
    splits: false,
};
const BUFFER: usize = 2048;
const GUEST_BUFFERS: u32 = 4;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Maximum number of frames that the driver takes from a queue per turn.
const BUDGET: usize = 3;

/// The driver domain. It sleeps after a turn without work.
struct Driver {
    nic: RemoteNic,
    queue: RemoteQueue,
    pool: Pool,
    guest: Area,
    guest_at: IoAddr,
    unused: Vec<u32>,
    is_awake: bool,
    received: Vec<Vec<u8>>,
}

impl Driver {
    /// Runs a turn if the driver is awake.
    fn turn(&mut self) {
        if !self.is_awake {
            return;
        }
        let mut frames = Vec::new();
        self.nic.rx(0, BUDGET, &mut self.pool, &mut frames);
        self.received.extend(contents(&frames));
        let shared = frames.len();
        frames
            .iter_mut()
            .for_each(|one| one.recycle(&mut self.pool));
        frames.clear();
        let mut failed = Vec::new();
        let taken = self.queue.receive(BUDGET, &mut frames, &mut failed);
        assert_eq!((failed, self.nic.close_reason()), (Vec::new(), None));
        self.received.extend(contents(&frames));
        let back = frames.iter().map(|frame| frame.pieces[0].buffer.0);
        self.unused.extend(back);
        self.post();
        self.is_awake = shared + taken > 0 || self.nic.next_due(0).is_some();
    }

    /// Posts the guest's unused buffers.
    fn post(&mut self) {
        for n in self.unused.drain(..) {
            let at = n as usize * BUFFER;
            let buffer = Buffer {
                id: BufferId(n),
                span: self.guest.at(at, BUFFER).unwrap(),
            };
            assert!(self.queue.post(self.guest_at.add(at).unwrap(), buffer));
        }
        self.queue.publish();
    }
}

/// The memory that the device may access. The driver runs a turn before some of the accesses.
struct Racing<'a> {
    table: &'a IoTable,
    driver: &'a RefCell<Driver>,
    turns: &'a RefCell<VecDeque<bool>>,
}

impl IoMemory for Racing<'_> {
    fn access<T>(
        &self,
        address: IoAddr,
        len: usize,
        act: impl FnOnce(Span) -> T,
    ) -> Result<T, IoFault> {
        if self.turns.borrow_mut().pop_front() == Some(true) {
            self.driver.borrow_mut().turn();
        }
        self.table.access(address, len, act)
    }
}

struct Rig {
    driver: RefCell<Driver>,
    bell: Rc<CountingBell>,
    test_wire: TestWire,
    device: SoftDevice<TestWire>,
    granted: IoTable,
    memory: Area,
    now_ns: Cell<u64>,
}

fn rig(interrupts: InterruptModeration) -> Rig {
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let (memory, pool) = (area(SETUP.bytes()), area(32 * BUFFER));
    let guest = area(GUEST_BUFFERS as usize * BUFFER);
    let mut granted = IoTable::default();
    let (own, buffers, guest_at) = (granted.add(memory), granted.add(pool), granted.add(guest));
    for (at, of) in [(own, memory), (buffers, pool), (guest_at, guest)] {
        granted.map(at, of.len()).unwrap();
    }
    let test_wire = TestWire::default();
    let mut device = SoftDevice::new(test_wire.clone(), ENTRIES, &[], own, 1518, interrupts);
    let mut nic = RemoteNic::new(SETUP, memory, pool).unwrap();
    let mut queue = nic.dedicated(1).unwrap();
    let places = nic.lay_out().unwrap();
    device.connect(&[places.receive, places.dedicated], places.transmit, 0);
    let bell = Rc::<CountingBell>::default();
    nic.connect(bell.clone());
    queue.sync_link(|_| ());
    queue.start(MAC, false);
    device.apply_controls(&granted);
    let mut driver = Driver {
        nic,
        queue,
        pool: Pool::new(pool, BUFFER),
        guest,
        guest_at,
        unused: (0..GUEST_BUFFERS).collect(),
        is_awake: true,
        received: Vec::new(),
    };
    driver.turn();
    Rig {
        driver: RefCell::new(driver),
        bell,
        test_wire,
        device,
        granted,
        memory,
        now_ns: Cell::new(0),
    }
}

impl Rig {
    /// Adds a frame for the guest or for the driver's own pool to the wire.
    fn arrive(&self, mark: u8, to_guest: bool) -> Vec<u8> {
        let mut frame = bytes(mark, 100);
        frame[..6].copy_from_slice(&[4; 6]);
        if to_guest {
            frame[..6].copy_from_slice(&MAC);
        }
        self.test_wire
            .arriving
            .borrow_mut()
            .push_back(frame.clone());
        frame
    }

    /// Runs a turn of the device, and wakes the driver if the interrupt is raised. Returns whether
    /// the device must stay awake.
    fn device_turn(&mut self, turns: &RefCell<VecDeque<bool>>) -> bool {
        let now_ns = self.now_ns.get();
        let io = Racing {
            table: &self.granted,
            driver: &self.driver,
            turns,
        };
        self.device.poll(now_ns, &io);
        if self.device.raise(now_ns, &io) {
            self.driver.borrow_mut().is_awake = true;
        }
        self.device.arm(&io)
    }

    /// Runs the driver and the device until both sleep.
    fn run_until_both_sleep(&mut self) {
        let turns = RefCell::default();
        loop {
            while self.driver.borrow().is_awake {
                self.driver.borrow_mut().turn();
            }
            let due_ns = self.device.due_ns(self.now_ns.get());
            if self.bell.0.take() == 0 && due_ns.is_none() {
                break;
            }
            let now_ns = self.now_ns.get().max(due_ns.unwrap_or(0));
            self.now_ns.set(now_ns);
            while self.device_turn(&turns) {}
        }
    }

    fn received(&self) -> Vec<Vec<u8>> {
        let Driver { nic, pool, .. } = &mut *self.driver.borrow_mut();
        received(nic, pool)
    }
}

/// D-38: a driver that is awake for another reason does not read a queue before its interrupt.
#[test]
fn awake_driver_waits_for_the_interrupt() {
    let mut rig = rig(InterruptModeration {
        delay_ns: 50,
        frames: 0,
    });
    let none = RefCell::default();
    let frames = [rig.arrive(1, false), rig.arrive(2, true)];
    for now_ns in [10, 30, 59] {
        rig.now_ns.set(now_ns);
        rig.device_turn(&none);
        let mut driver = rig.driver.borrow_mut();
        driver.is_awake = true;
        driver.turn();
        assert_eq!(driver.received, Vec::<Vec<u8>>::new(), "{now_ns}");
    }
    rig.now_ns.set(60);
    rig.device_turn(&none);
    rig.run_until_both_sleep();
    assert_eq!(rig.driver.borrow().received, frames);
    assert_eq!(rig.device.counters().interrupts, 1);
}

/// D-38: if a device completes frames without raising the interrupt, only these frames are lost.
/// The driver does not wait for them, and gets its buffers back.
#[test]
fn device_without_interrupts_loses_only_its_frames() {
    let mut rig = rig(InterruptModeration::default());
    rig.arrive(1, false);
    rig.device.poll(0, &rig.granted);
    for _ in 0..3 {
        assert_eq!(rig.received(), Vec::<Vec<u8>>::new());
    }
    let mut driver = rig.driver.borrow_mut();
    assert_eq!(driver.nic.next_due(0), None);
    let mut own = Pool::new(Area::anonymous(BUFFER).unwrap(), BUFFER);
    let frame = Frame::from_bytes(&bytes(2, 60), &mut own).unwrap();
    assert_eq!(driver.nic.tx(0, &[frame], &[0]).sent, 1);
    let Driver { nic, pool, .. } = &mut *driver;
    nic.disconnect(pool);
    assert_eq!(pool.available(), 32);
}

/// D-38: each interrupt without completions costs the driver one poll.
#[test]
fn interrupts_without_completions_are_harmless() {
    let rig = rig(InterruptModeration::default());
    for raised in [1, u32::MAX, 0, 7] {
        rig.memory.span().store_u32(384, raised).unwrap();
        assert_eq!(rig.received(), Vec::<Vec<u8>>::new());
        let driver = rig.driver.borrow();
        assert_eq!(
            (driver.nic.close_reason(), driver.nic.next_due(0)),
            (None, None)
        );
    }
}

proptest! {
    /// D-24, D-38: the driver receives every frame, in the order of its queue, although both ends
    /// sleep whenever they can. The driver runs turns between accesses of the device.
    #[test]
    fn no_interrupt_is_lost(
        bursts in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..6), 1..12),
        turns in prop::collection::vec(any::<bool>(), 0..400),
        (delay_ns, frames) in (0_u64..40, 0_usize..4),
        wakes in prop::collection::vec(any::<bool>(), 12),
    ) {
        let mut rig = rig(InterruptModeration { delay_ns, frames });
        let turns = RefCell::new(VecDeque::from(turns));
        let mut sent = Vec::new();
        for (burst, wakes) in bursts.iter().zip(&wakes) {
            for to_guest in burst {
                sent.push(rig.arrive(sent.len() as u8, *to_guest));
            }
            // Work for another port may keep the driver awake.
            rig.driver.borrow_mut().is_awake |= wakes;
            rig.device_turn(&turns);
            rig.now_ns.set(rig.now_ns.get() + 15);
        }
        rig.run_until_both_sleep();
        let received = &rig.driver.borrow().received;
        for to_guest in [false, true] {
            let of_queue = |all: &[Vec<u8>]| -> Vec<Vec<u8>> {
                let of = all.iter().filter(|frame| (frame[..6] == MAC) == to_guest);
                of.cloned().collect()
            };
            prop_assert_eq!(of_queue(received), of_queue(&sent));
        }
    }
}

/// D-24, D-38: if the device stores a frame while the driver acknowledges earlier frames, either
/// the driver finds the frame or the device raises an interrupt, although the device then sleeps.
#[test]
fn concurrent_ends_lose_no_interrupt() {
    const PAIRS: usize = 20_000;
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let (memory, pool) = (area(SETUP.bytes()), area(32 * BUFFER));
    let mut nic = RemoteNic::new(SETUP, memory, pool).unwrap();
    let mut buffers = Pool::new(pool, BUFFER);
    let places = nic.lay_out().unwrap();
    nic.connect(Rc::<CountingBell>::default());
    assert_eq!(received(&mut nic, &mut buffers), Vec::<Vec<u8>>::new());
    let (doorbell, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
    let is_late = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut granted = IoTable::default();
            for area in [memory, pool] {
                let at = granted.add(area);
                granted.map(at, area.len()).unwrap();
            }
            let test_wire = TestWire::default();
            let interrupts = InterruptModeration::default();
            let mut device = SoftDevice::new(
                test_wire.clone(),
                ENTRIES,
                &[],
                places.receive,
                1518,
                interrupts,
            );
            device.connect(&[places.receive], places.transmit, 0);
            let mut store = || {
                test_wire.arriving.borrow_mut().push_back(bytes(1, 60));
                device.poll(0, &granted);
                if device.raise(0, &granted) {
                    doorbell.store(true, Ordering::Release);
                }
            };
            for pair in 0..PAIRS {
                store();
                // The second frame arrives at a different point of the driver's turn for each pair.
                (0..pair * 7 % 2000).for_each(|at| _ = std::hint::black_box(at));
                store();
                let until = Instant::now() + Duration::from_secs(10);
                while taken.load(Ordering::Acquire) < 2 * (pair + 1) {
                    if Instant::now() > until {
                        is_late.store(true, Ordering::Release);
                        return;
                    }
                    std::thread::yield_now();
                }
            }
        });
        let mut idle = 0_u32;
        while taken.load(Ordering::Relaxed) < 2 * PAIRS && !is_late.load(Ordering::Acquire) {
            let polls = nic.next_due(0).is_some();
            if !doorbell.swap(false, Ordering::AcqRel) && !polls {
                // The device may need this CPU.
                idle += 1;
                match idle % 1000 {
                    0 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
                continue;
            }
            let count = received(&mut nic, &mut buffers).len();
            taken.fetch_add(count, Ordering::Release);
        }
    });
    assert!(!is_late.into_inner(), "the driver was not woken");
}
