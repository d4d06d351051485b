//! Tests a driver and a device that run independently, as in two domains.

mod common;

use abi::PAGE;
use common::{CountingBell, TestWire, bytes, counter, received};
use nic::dma::soft::{InterruptModeration, SoftDevice};
use nic::dma::{IoAddr, IoTable, RemoteNic, RemoteSetup};
use nic::{Frame, Nic, Pool, TxReport};
use shmem::Area;
use std::rc::Rc;

const ENTRIES: u32 = 8;
const BUFFER: usize = 2048;
const BUFFERS: usize = 32;
const SETUP: RemoteSetup = RemoteSetup {
    entries: ENTRIES,
    mtu: 1500,
    queues: 0,
    merges: false,
    splits: false,
};

/// The driver's side, and the device with its granted pages.
struct Rig {
    nic: RemoteNic,
    pool: Pool,
    bell: Rc<CountingBell>,
    test_wire: TestWire,
    device: SoftDevice<TestWire>,
    granted: IoTable,
    memory: Area,
    buffers: IoAddr,
}

fn rig(interrupts: InterruptModeration) -> Rig {
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let (memory, pool) = (area(SETUP.bytes()), area(BUFFERS * BUFFER));
    let mut granted = IoTable::default();
    let (own, buffers) = (granted.add(memory), granted.add(pool));
    granted.map(own, memory.len()).unwrap();
    granted.map(buffers, pool.len()).unwrap();
    let test_wire = TestWire::default();
    let device = SoftDevice::new(test_wire.clone(), ENTRIES, &[], own, 1518, interrupts);
    let mut rig = Rig {
        nic: RemoteNic::new(SETUP, memory, pool).unwrap(),
        pool: Pool::new(pool, BUFFER),
        bell: Rc::default(),
        test_wire,
        device,
        granted,
        memory,
        buffers,
    };
    rig.connect();
    rig
}

impl Rig {
    fn connect(&mut self) {
        let queues = self.nic.lay_out().unwrap();
        self.device.connect(&[queues.receive], queues.transmit, 0);
        self.nic.connect(self.bell.clone());
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        received(&mut self.nic, &mut self.pool)
    }

    fn send(&mut self, bytes: &[u8]) -> TxReport {
        let mut own = Pool::new(Area::anonymous(PAGE).unwrap(), BUFFER);
        let frame = Frame::from_bytes(bytes, &mut own).unwrap();
        self.nic.tx(0, &[frame], &[0])
    }

    /// Runs the device at time `now_ns`. Returns whether it raises its interrupt.
    fn work(&mut self, now_ns: u64) -> bool {
        self.device.poll(now_ns, &self.granted);
        self.device.raise(now_ns, &self.granted)
    }

    fn arrive(&self, mark: u8) -> Vec<u8> {
        let frame = bytes(mark, 100);
        self.test_wire
            .arriving
            .borrow_mut()
            .push_back(frame.clone());
        frame
    }

    fn rung(&self) -> u32 {
        self.bell.0.take()
    }
}

/// D-24: the device raises one interrupt for each index that the driver acknowledges.
#[test]
fn interrupt_is_raised_once_per_acknowledgement() {
    let mut rig = rig(InterruptModeration::default());
    assert_eq!(rig.receive(), Vec::<Vec<u8>>::new());
    assert!(!rig.work(0), "nothing has arrived");
    let mut sent = vec![rig.arrive(1)];
    assert!(rig.work(1));
    sent.push(rig.arrive(2));
    assert!(!rig.work(2), "the interrupt is already raised");
    assert_eq!(rig.receive(), sent);
    assert!(!rig.work(3), "the driver has taken everything");
    let third = rig.arrive(3);
    assert!(rig.work(4));
    assert_eq!(rig.receive(), [third]);
    assert_eq!(rig.device.counters().interrupts, 2);
}

/// D-21, D-24.
#[test]
fn interrupts_of_a_remote_device_are_moderated() {
    let mut rig = rig(InterruptModeration {
        delay_ns: 50,
        frames: 3,
    });
    rig.receive();
    rig.arrive(1);
    assert!(!rig.work(10));
    assert_eq!(rig.device.due_ns(10), Some(60));
    assert!(rig.work(60));
    rig.receive();
    assert!(!rig.work(70));
    for mark in 2..5 {
        rig.arrive(mark);
    }
    assert!(rig.work(71), "three frames raise the interrupt early");
}

/// D-25: the driver rings the doorbell once, and only if the device sleeps.
#[test]
fn sleeping_device_is_woken_once() {
    let mut rig = rig(InterruptModeration::default());
    rig.receive();
    assert_eq!(rig.rung(), 1, "a new device waits for its first buffers");
    rig.work(0);
    assert!(!rig.device.arm(&rig.granted));
    rig.send(&bytes(1, 60));
    assert_eq!(rig.rung(), 1);
    rig.send(&bytes(2, 60));
    assert_eq!(rig.rung(), 0, "the doorbell was already rung");
    assert!(rig.device.arm(&rig.granted), "both frames wait");
    rig.work(1);
    assert_eq!(rig.test_wire.sent.borrow().len(), 2);
    // Posted buffers wake the device only if frames wait for them.
    let frame = rig.arrive(3);
    rig.work(2);
    assert!(!rig.device.arm(&rig.granted));
    assert_eq!(rig.receive(), [frame]);
    rig.receive();
    assert_eq!(rig.rung(), 0);
    for mark in 0..2 * ENTRIES as u8 {
        rig.arrive(mark);
    }
    rig.work(3);
    assert!(!rig.device.arm(&rig.granted));
    rig.receive();
    rig.receive();
    assert_eq!(rig.rung(), 1, "frames waited for buffers");
}

/// D-4, D-23: the device can no longer access a revoked page.
#[test]
fn revoked_buffer_completes_with_an_error() {
    let mut rig = rig(InterruptModeration::default());
    rig.receive();
    rig.granted.unmap(rig.buffers, BUFFERS * BUFFER).unwrap();
    rig.arrive(1);
    rig.work(0);
    assert_eq!(rig.receive(), Vec::<Vec<u8>>::new());
    assert_eq!(counter(&rig.nic, "rx_io_error"), 1);
    assert_eq!(rig.device.counters().faults, 1);
    assert_eq!(rig.nic.close_reason(), None);
}

/// D-26: after a device has died, every buffer returns, and the next device starts with empty
/// queues.
#[test]
fn next_device_starts_with_empty_queues() {
    let mut rig = rig(InterruptModeration::default());
    rig.receive();
    rig.send(&bytes(1, 60));
    for mark in 0..2 * ENTRIES as u8 {
        rig.arrive(mark);
    }
    rig.work(0);
    rig.nic.disconnect(&mut rig.pool);
    assert_eq!(rig.pool.available(), BUFFERS);
    assert_eq!(rig.receive(), Vec::<Vec<u8>>::new(), "the link is down");
    assert_eq!(rig.send(&bytes(2, 60)).refused, 1);
    assert_eq!(counter(&rig.nic, "link"), 0);
    rig.connect();
    assert_eq!(counter(&rig.nic, "link"), 1);
    rig.receive();
    let frame = rig.arrive(90);
    assert!(rig.work(1));
    assert_eq!(
        rig.receive(),
        [frame],
        "frames of the last connection are lost"
    );
    for _ in 0..ENTRIES {
        assert_eq!(rig.send(&bytes(3, 60)).sent, 1);
    }
}

/// D-26: frames that arrive while the link is down are lost and counted.
#[test]
fn frames_for_a_link_that_is_down_are_discarded() {
    let mut rig = rig(InterruptModeration {
        delay_ns: 50,
        frames: 0,
    });
    rig.receive();
    rig.arrive(1);
    rig.test_wire.is_full.set(true);
    rig.send(&bytes(2, 60));
    rig.work(0);
    assert!(rig.device.due_ns(0).is_some());
    rig.arrive(3);
    rig.device.discard(0);
    assert_eq!(rig.device.counters().missed, 1);
    assert_eq!(rig.device.due_ns(0), None, "the device has no work");
}

/// D-37: a wire that always has another frame does not prevent the device from doing its other
/// work.
#[test]
fn device_takes_a_bounded_number_of_frames_per_turn() {
    let mut rig = rig(InterruptModeration::default());
    let fill = |rig: &Rig| {
        let mut arriving = rig.test_wire.arriving.borrow_mut();
        arriving.resize_with(300, || bytes(1, 60));
    };
    let left = |rig: &Rig| rig.test_wire.arriving.borrow().len();
    fill(&rig);
    rig.work(0);
    assert_eq!(left(&rig), 300 - 256);
    fill(&rig);
    rig.device.discard(0);
    assert_eq!(left(&rig), 300 - 256);
}

/// D-10, D-16.
#[test]
fn invalid_completion_closes_the_remote_nic() {
    let mut rig = rig(InterruptModeration::default());
    rig.receive();
    // `completed` exceeds the number of posted descriptors.
    rig.memory.span().store_u32(64, 1000).unwrap();
    rig.memory.span().store_u32(384, 1).unwrap();
    assert_eq!(rig.receive(), Vec::<Vec<u8>>::new());
    assert!(rig.nic.close_reason().is_some());
    assert_eq!(rig.send(&bytes(1, 60)).refused, 1);
    rig.nic.disconnect(&mut rig.pool);
    assert_eq!(rig.pool.available(), BUFFERS);
}
