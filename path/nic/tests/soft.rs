//! Tests a NIC that combines a software device and its driver.

mod common;

use common::{TestWire, bytes, contents, counter};
use nic::dma::layout::queue_bytes;
use nic::dma::soft::{InterruptModeration, SoftEvent, SoftSetup};
use nic::dma::{DmaError, Misuse, QueueName, SoftNic, Wire};
use nic::frame::SNAPSHOT_MAX;
use nic::sim::{SimCable, SimNic};
use nic::vmq::{QueueId, ReturnReason, VmqBackend};
use nic::{Buffer, BufferId, Buffers, Checksum, Frame, Nic, Pool, TxReport};
use shmem::Area;
use std::sync::atomic::Ordering;

const ENTRIES: u32 = 8;
const BUFFER: usize = 2048;
const BUFFERS: usize = 32;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A NIC, its memory, its pool, and the pages of guests.
struct Rig<W> {
    nic: SoftNic<W>,
    memory: Area,
    pool: Pool,
    of_guests: Area,
    guests: Pool,
}

fn rig<W: Wire>(wire: W, queues: usize, mtu: usize, interrupts: InterruptModeration) -> Rig<W> {
    let setup = SoftSetup {
        entries: ENTRIES,
        queues,
        mtu,
        interrupts,
    };
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let (memory, pool) = (area(setup.bytes()), area(BUFFERS * BUFFER));
    let guests = area(BUFFERS * BUFFER);
    Rig {
        nic: SoftNic::new(setup, wire, memory, pool, guests).unwrap(),
        memory,
        pool: Pool::new(pool, BUFFER),
        of_guests: guests,
        guests: Pool::new(guests, BUFFER),
    }
}

fn default_rig(test_wire: &TestWire) -> Rig<TestWire> {
    rig(test_wire.clone(), 0, 1500, InterruptModeration::default())
}

impl<W: Wire> Rig<W> {
    fn receive(&mut self, now_ns: u64, budget: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let taken = self.nic.rx(now_ns, budget, &mut self.pool, &mut frames);
        assert_eq!(taken, frames.len());
        let found = contents(&frames);
        for frame in &mut frames {
            frame.recycle(&mut self.pool);
        }
        found
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> TxReport {
        let mut own = Pool::new(
            Area::anonymous(frames.len().max(1) * 16_384).unwrap(),
            16_384,
        );
        let frames = frames
            .iter()
            .map(|bytes| Frame::from_bytes(bytes, &mut own));
        let frames: Vec<Frame> = frames.map(Result::unwrap).collect();
        let pick: Vec<u32> = (0..frames.len() as u32).collect();
        self.nic.tx(0, &frames, &pick)
    }
}

/// A guest that posts buffers of a pool and keeps the received frames.
struct Guest {
    pool: Pool,
    frames: Vec<Frame>,
    freed: Vec<ReturnReason>,
}

impl VmqBackend for Guest {
    fn alloc(&mut self) -> Option<Buffer> {
        self.pool.take()
    }

    fn free(&mut self, buffer: BufferId, why: ReturnReason) {
        self.freed.push(why);
        self.pool.put(buffer);
    }

    fn netif_rx(&mut self, frame: Frame) {
        self.frames.push(frame);
    }
}

fn to(mac: [u8; 6], mark: u8, len: usize) -> Vec<u8> {
    let mut frame = bytes(mark, len);
    frame[..6].copy_from_slice(&mac);
    frame
}

#[test]
fn frames_pass_both_ways_as_rings_wrap() {
    let test_wire = TestWire::default();
    let mut rig = default_rig(&test_wire);
    for round in 0..10u8 {
        let frames: Vec<_> = (0..5)
            .map(|n| bytes(round * 5 + n, 60 + 300 * n as usize))
            .collect();
        test_wire.arriving.borrow_mut().extend(frames.clone());
        assert_eq!(rig.receive(0, 64), frames);
        let report = rig.send(&frames);
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        let sent = TxReport {
            sent: 5,
            bytes,
            ..TxReport::default()
        };
        assert_eq!(report, sent);
        assert_eq!(std::mem::take(&mut *test_wire.sent.borrow_mut()), frames);
    }
    // A poll posts buffers before it takes frames.
    assert_eq!(counter(&rig.nic, "rx_posted"), u64::from(ENTRIES) - 5);
    assert_eq!(rig.pool.available(), BUFFERS + 5 - ENTRIES as usize);
    rig.nic.release(&mut rig.pool);
    assert_eq!(rig.pool.available(), BUFFERS);
    // Released buffers are posted again.
    test_wire.arriving.borrow_mut().push_back(bytes(1, 100));
    assert_eq!(rig.receive(0, 64), [bytes(1, 100)]);
}

/// A long frame uses several buffers; a frame that exceeds the maximum length is lost.
#[test]
fn long_frame_takes_several_buffers() {
    let test_wire = TestWire::default();
    let mut rig = rig(test_wire.clone(), 0, 9000, InterruptModeration::default());
    let frames = [bytes(1, 9014), bytes(2, 60), bytes(3, 4096), bytes(4, 9019)];
    test_wire.arriving.borrow_mut().extend(frames.clone());
    let mut found = Vec::new();
    for _ in 0..3 {
        found.extend(rig.receive(0, 64));
    }
    assert_eq!(found, frames[..3]);
    assert_eq!(counter(&rig.nic, "too_long"), 1);
    assert_eq!(rig.send(&frames[..1]).sent, 1);
    assert_eq!(*test_wire.sent.borrow(), frames[..1]);
    assert_eq!(rig.send(&[bytes(4, 9019)]).refused, 1);
}

/// D-20: frames above the wire's rate wait in the ring. If the ring is full, the NIC drops them.
#[test]
fn frames_wait_in_the_ring_while_the_wire_is_full() {
    let test_wire = TestWire::default();
    let mut rig = default_rig(&test_wire);
    test_wire.is_full.set(true);
    let frames: Vec<_> = (0..10).map(|n| bytes(n, 100)).collect();
    let report = rig.send(&frames);
    assert_eq!((report.sent, report.full), (8, 2));
    assert_eq!(rig.send(&frames[..1]).full, 1);
    test_wire.is_full.set(false);
    rig.receive(0, 1);
    assert_eq!(*test_wire.sent.borrow(), frames[..8]);
    assert_eq!(rig.send(&frames[8..]).sent, 2);
    assert_eq!(*test_wire.sent.borrow(), frames);
}

/// D-16: an error closes the NIC, returns every buffer, and is reported once.
#[test]
fn invalid_completion_closes_the_nic() {
    let test_wire = TestWire::default();
    let mut rig = rig(test_wire.clone(), 1, 1500, InterruptModeration::default());
    test_wire.arriving.borrow_mut().push_back(bytes(1, 100));
    assert_eq!(rig.receive(0, 64).len(), 1);
    assert_eq!(rig.nic.close_reason(), None);
    // This is the word `completed` of the shared queue.
    let completed = rig.memory.span().u32(64).unwrap();
    completed.store(77, Ordering::Relaxed);
    assert!(rig.receive(0, 64).is_empty());
    let error = DmaError {
        queue: QueueName::Receive(0),
        index: 77,
        misuse: Misuse::NotPosted,
    };
    assert_eq!(rig.nic.close_reason(), Some(error));
    assert_eq!(rig.pool.available(), BUFFERS);
    assert_eq!(rig.nic.event(), Some(SoftEvent::Closed(error)));
    assert_eq!(rig.nic.event(), None);
    assert_eq!(counter(&rig.nic, "closed"), 1);
    assert_eq!(rig.send(&[bytes(3, 100)]).refused, 1);
    assert_eq!(rig.nic.next_due(0), None);
    test_wire.arriving.borrow_mut().push_back(bytes(4, 100));
    assert!(rig.receive(0, 64).is_empty());
    assert!(test_wire.sent.borrow().is_empty());
}

/// D-18: the device stores frames for a MAC with a queue in that guest's buffers, which are mapped
/// only while they are posted.
#[test]
fn dedicated_queue_fills_the_guests_buffers() {
    let test_wire = TestWire::default();
    let mut rig = rig(test_wire.clone(), 2, 1500, InterruptModeration::default());
    let mut guest = Guest {
        pool: rig.guests,
        frames: Vec::new(),
        freed: Vec::new(),
    };
    let vmq = rig.nic.vmq().unwrap();
    let queue = vmq.alloc_queue().unwrap();
    vmq.set_mac(queue, MAC).unwrap();
    vmq.enable_queue(queue).unwrap();
    let other = bytes(9, 100);
    let frames = [to(MAC, 1, 100), other.clone(), to(MAC, 2, 1500)];
    test_wire.arriving.borrow_mut().extend(frames.clone());
    assert_eq!(vmq.poll(queue, 0, 1, &mut guest), Ok(1));
    assert_eq!(vmq.poll(queue, 0, 64, &mut guest), Ok(1));
    let found = contents(&guest.frames);
    assert_eq!(found, [frames[0].clone(), frames[2].clone()]);
    assert_eq!(guest.pool.available(), BUFFERS - 2);
    assert_eq!(vmq.poll(queue, 0, 64, &mut guest), Ok(0));
    assert_eq!(guest.freed, []);
    // If the guest posts no buffer, the frame waits.
    let rest: Vec<Buffer> = std::iter::from_fn(|| guest.pool.take()).collect();
    test_wire.arriving.borrow_mut().push_back(to(MAC, 3, 60));
    assert_eq!(vmq.poll(queue, 0, 64, &mut guest), Ok(0));
    guest.pool.put(rest[0].id);
    assert_eq!(vmq.poll(queue, 0, 64, &mut guest), Ok(1));
    vmq.disable_queue(queue).unwrap();
    assert!(vmq.is_draining(queue));
    assert_eq!(vmq.poll(queue, 0, 64, &mut guest), Ok(0));
    assert!(!vmq.is_draining(queue));
    assert_eq!(rig.pool.available(), BUFFERS);
    let mut found = Vec::new();
    rig.nic.rx(0, 64, &mut rig.pool, &mut found);
    assert_eq!(contents(&found), [other]);
}

/// D-19 and VMQ-14.
#[test]
fn split_header_stays_out_of_the_guests_buffer() {
    let test_wire = TestWire::default();
    let mut rig = rig(test_wire.clone(), 1, 1500, InterruptModeration::default());
    let mut guest = Guest {
        pool: rig.guests,
        frames: Vec::new(),
        freed: Vec::new(),
    };
    let vmq = rig.nic.vmq().unwrap();
    let queue = vmq.alloc_queue().unwrap();
    vmq.set_mac(queue, MAC).unwrap();
    vmq.split_headers(queue, true).unwrap();
    vmq.enable_queue(queue).unwrap();
    for (mark, len) in [(1, 60), (2, 128), (3, 129), (4, 1500)] {
        let bytes = to(MAC, mark, len);
        test_wire.arriving.borrow_mut().push_back(bytes.clone());
        assert_eq!(vmq.poll(QueueId(0), 0, 64, &mut guest), Ok(1));
        let mut frame = guest.frames.pop().unwrap();
        assert_eq!(
            (frame.to_vec().unwrap(), frame.bare()),
            (bytes.clone(), len.min(128))
        );
        let piece = frame.pieces[0];
        let mut start = [1; SNAPSHOT_MAX];
        let buffer = rig.of_guests.at(piece.buffer.0 as usize * BUFFER, BUFFER);
        buffer.unwrap().read(&mut start).unwrap();
        assert_eq!(start, [0; SNAPSHOT_MAX]);
        frame.recycle(&mut guest.pool);
    }
}

/// D-21: the delay or the number of frames raises the interrupt, and one interrupt serves many
/// frames.
#[test]
fn interrupts_are_moderated_by_time_and_number() {
    let cable = SimCable {
        delay_ns: 1000,
        ..SimCable::default()
    };
    let (near, mut far): (SimNic, SimNic) = cable.ends();
    let interrupts = InterruptModeration {
        delay_ns: 50_000,
        frames: 3,
    };
    let mut rig = rig(near, 0, 1500, interrupts);
    assert_eq!(rig.nic.next_due(0), None);
    let put = |far: &mut SimNic, now_ns, mark| Wire::send(far, now_ns, bytes(mark, 100));
    put(&mut far, 0, 1);
    put(&mut far, 10_000, 2);
    // The delay raises the interrupt.
    assert_eq!(rig.nic.next_due(0), Some(51_000));
    assert!(rig.receive(50_999, 64).is_empty());
    assert_eq!(rig.nic.next_due(50_999), Some(51_000));
    assert_eq!(rig.receive(51_000, 64).len(), 2);
    // The number of frames raises the interrupt.
    for n in 0..3 {
        put(&mut far, 200_000 + n * 1000, 3 + n as u8);
    }
    assert_eq!(rig.nic.next_due(200_000), Some(203_000));
    assert!(rig.receive(202_999, 64).is_empty());
    assert_eq!(rig.receive(203_000, 64).len(), 3);
    assert_eq!(counter(&rig.nic, "interrupts"), 2);
    // After a poll that used its budget, the driver polls without an interrupt.
    for n in 0..3 {
        put(&mut far, 300_000, n);
    }
    assert_eq!(rig.receive(301_000, 2).len(), 2);
    assert_eq!(rig.nic.next_due(301_000), Some(301_000));
    assert_eq!(rig.receive(301_000, 2).len(), 1);
}

/// D-17: the device marks a frame as valid only if its checksum is correct.
#[test]
fn device_verifies_and_completes_checksums() {
    let test_wire = TestWire::default();
    let mut rig = default_rig(&test_wire);
    // UDP over IPv4 from 10.0.0.1 to 10.0.0.2. The checksum field holds the sum of the
    // pseudo-header.
    let mut bytes = vec![2; 12];
    bytes.extend([8, 0, 0x45, 0, 0, 30, 0, 7, 0x40, 0, 64, 17, 0x26, 0xc6]);
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    let pseudo = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 10u16;
    bytes.extend([0, 1, 0, 2, 0, 10, (pseudo >> 8) as u8, pseudo as u8, 7, 9]);
    let mut own = Pool::new(Area::anonymous(BUFFER).unwrap(), BUFFER);
    let mut frame = Frame::from_bytes(&bytes, &mut own).unwrap();
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 6,
    };
    assert_eq!(rig.nic.tx(0, &[frame], &[0]).sent, 1);
    let sent = test_wire.sent.borrow()[0].clone();
    let mut damaged = sent.clone();
    damaged[43] ^= 1;
    test_wire.arriving.borrow_mut().extend([sent, damaged]);
    let mut frames = Vec::new();
    rig.nic.rx(0, 64, &mut rig.pool, &mut frames);
    let states: Vec<_> = frames.iter().map(|frame| frame.offload.checksum).collect();
    assert_eq!(states, [Checksum::Valid, Checksum::Unknown]);
}

#[test]
fn memory_that_is_too_small_is_rejected() {
    let setup = SoftSetup {
        entries: ENTRIES,
        queues: 1,
        mtu: 1500,
        interrupts: InterruptModeration::default(),
    };
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let is_accepted = |setup, bytes| {
        SoftNic::new(
            setup,
            TestWire::default(),
            area(bytes),
            area(4096),
            area(4096),
        )
        .is_some()
    };
    assert!(is_accepted(setup, setup.bytes()));
    assert!(!is_accepted(setup, setup.bytes() - 4096));
    assert!(!is_accepted(
        SoftSetup {
            entries: 12,
            ..setup
        },
        1 << 20
    ));
    assert_eq!(queue_bytes(ENTRIES), 3 * 4096);
}
