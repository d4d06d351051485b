//! Tests dedicated queues by the contract of Table 3.1, with the simulated NIC and with a NIC that
//! delays frames.

mod common;

use abi::machine::ALL_MACS;
use common::{bytes, pool};
use nic::frame::SNAPSHOT_MAX;
use nic::sim::{SimCable, SimNic};
use nic::vmq::{
    MultiQueue, QueueId, ReceiveSide, ReturnReason, Steering, Vmq, VmqBackend, VmqError,
    VmqReceived,
};
use nic::{Buffer, BufferId, Buffers, Frame, Nic, Pool};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A backend that posts buffers of a pool, and records returned buffers and received frames.
struct Posted {
    pool: Pool,
    frames: Vec<Vec<u8>>,
    freed: Vec<ReturnReason>,
}

impl Posted {
    fn new(buffers: usize) -> Self {
        Self {
            pool: pool(buffers, 2048),
            frames: Vec::new(),
            freed: Vec::new(),
        }
    }

    fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }
}

impl VmqBackend for Posted {
    fn alloc(&mut self) -> Option<Buffer> {
        self.pool.take()
    }

    fn free(&mut self, buffer: BufferId, why: ReturnReason) {
        self.freed.push(why);
        self.pool.put(buffer);
    }

    fn netif_rx(&mut self, mut frame: Frame) {
        assert_eq!(frame.pieces.len(), 1);
        self.frames.push(frame.to_vec().unwrap());
        frame.recycle(&mut self.pool);
    }
}

fn frame_to(mac: [u8; 6], mark: u8) -> Vec<u8> {
    let mut frame = bytes(mark, 100);
    frame[..6].copy_from_slice(&mac);
    frame
}

/// A NIC with two queues, and the far end of its cable.
struct Wire {
    nic: SimNic,
    far: SimNic,
    buffers: Pool,
}

impl Wire {
    fn new(depth: usize) -> Self {
        let (near, far) = SimCable::default().ends();
        Self {
            nic: near.with_queues(2, depth),
            far,
            buffers: pool(64, 2048),
        }
    }

    fn vmq(&mut self) -> &mut dyn Vmq {
        self.nic.vmq().unwrap()
    }

    fn send(&mut self, mac: [u8; 6], mark: u8) {
        let mut frame = Frame::from_bytes(&frame_to(mac, mark), &mut self.buffers).unwrap();
        self.far.tx(0, std::slice::from_ref(&frame), &[0]);
        frame.recycle(&mut self.buffers);
    }

    fn shared(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.nic.rx(0, 64, &mut self.buffers, &mut frames);
        let all = frames.iter().map(|frame| frame.to_vec().unwrap()).collect();
        frames
            .iter_mut()
            .for_each(|frame| frame.recycle(&mut self.buffers));
        all
    }

    fn add_queue(&mut self, mac: [u8; 6]) -> QueueId {
        let vmq = self.vmq();
        let queue = vmq.alloc_queue().unwrap();
        vmq.set_mac(queue, mac).unwrap();
        vmq.enable_queue(queue).unwrap();
        queue
    }
}

#[test]
fn queue_gets_its_mac_and_shared_queue_the_rest() {
    let mut wire = Wire::new(16);
    let mut posted = Posted::new(16);
    let (a, b) = (wire.add_queue(A), wire.add_queue(B));
    for mark in 0..4 {
        wire.send(A, mark);
        wire.send([0xff; 6], mark);
        wire.send(B, mark);
    }
    wire.vmq().poll(a, 0, 64, &mut posted).unwrap();
    assert_eq!(posted.take(), [0, 1, 2, 3].map(|mark| frame_to(A, mark)));
    wire.vmq().poll(b, 0, 2, &mut posted).unwrap();
    assert_eq!(posted.take(), [0, 1].map(|mark| frame_to(B, mark)));
    let shared = [0, 1, 2, 3].map(|mark| frame_to([0xff; 6], mark));
    assert_eq!(wire.shared(), shared);
    assert_eq!(posted.pool.available(), 16, "no buffer is kept");
}

/// A backend for a queue with split headers, which keeps the frames and their buffers.
#[derive(Default)]
struct SplitBackend {
    pool: Option<Pool>,
    frames: Vec<(Frame, Buffer)>,
    out: Vec<Buffer>,
}

impl VmqBackend for SplitBackend {
    fn alloc(&mut self) -> Option<Buffer> {
        let buffer = self.pool.as_mut()?.take()?;
        buffer.span.write(&[0x55; 2048]).unwrap();
        self.out.push(buffer);
        Some(buffer)
    }

    fn free(&mut self, buffer: BufferId, _why: ReturnReason) {
        self.pool.as_mut().unwrap().put(buffer);
    }

    fn netif_rx(&mut self, frame: Frame) {
        let buffer = self
            .out
            .iter()
            .find(|buffer| buffer.id == frame.pieces[0].buffer);
        self.frames.push((frame, *buffer.unwrap()));
    }
}

/// With split headers, a buffer holds no header until the backend writes it there.
#[test]
fn split_headers_stay_out_until_put_back() {
    let mut wire = Wire::new(16);
    let mut backend = SplitBackend {
        pool: Some(pool(16, 2048)),
        ..SplitBackend::default()
    };
    let vmq = wire.vmq();
    assert_eq!(vmq.split_headers(QueueId(0), true), Err(VmqError::NoQueue));
    let queue = vmq.alloc_queue().unwrap();
    vmq.split_headers(queue, true).unwrap();
    vmq.set_mac(queue, A).unwrap();
    vmq.enable_queue(queue).unwrap();
    assert_eq!(vmq.split_headers(queue, false), Err(VmqError::Enabled));
    let lengths = [60, 100, SNAPSHOT_MAX, SNAPSHOT_MAX + 1, 1514];
    for len in lengths {
        let mut bytes = bytes(len as u8, len);
        bytes[..6].copy_from_slice(&A);
        let mut frame = Frame::from_bytes(&bytes, &mut wire.buffers).unwrap();
        wire.far.tx(0, std::slice::from_ref(&frame), &[0]);
        frame.recycle(&mut wire.buffers);
    }
    assert_eq!(
        wire.vmq().poll(queue, 0, 64, &mut backend),
        Ok(lengths.len())
    );
    for ((mut frame, buffer), len) in backend.frames.into_iter().zip(lengths) {
        let sent = frame.to_vec().unwrap();
        assert_eq!((frame.len(), sent.len()), (len, len));
        let head = len.min(SNAPSHOT_MAX);
        let read = || {
            let mut held = vec![0; 2048];
            buffer.span.read(&mut held).unwrap();
            held
        };
        assert_eq!(
            read()[..head],
            vec![0x55; head],
            "the buffer holds header bytes"
        );
        assert_eq!(read()[head..len], sent[head..]);
        assert_eq!(
            read()[len..],
            vec![0x55; 2048 - len],
            "the device wrote after the end of the frame"
        );
        let elsewhere = Buffer {
            span: buffer.span.skip(1),
            ..buffer
        };
        assert!(frame.undo_split(elsewhere.span).is_err());
        assert_eq!(read()[..head], vec![0x55; head]);
        frame.undo_split(buffer.span).unwrap();
        assert_eq!(read()[..len], sent);
        assert_eq!((frame.bare(), frame.to_vec().unwrap()), (0, sent));
    }
}

#[test]
fn calls_in_the_wrong_order_are_rejected() {
    let mut wire = Wire::new(16);
    let mut posted = Posted::new(4);
    let vmq = wire.vmq();
    let unallocated = QueueId(1);
    assert_eq!(vmq.avail_queues(), 2);
    assert_eq!(vmq.size(unallocated), Err(VmqError::NoQueue));
    assert_eq!(vmq.enable_queue(unallocated), Err(VmqError::NoQueue));
    let a = vmq.alloc_queue().unwrap();
    assert_eq!(vmq.enable_queue(a), Err(VmqError::NoMac));
    assert_eq!(vmq.disable_queue(a), Err(VmqError::NotEnabled));
    assert_eq!(vmq.poll(a, 0, 1, &mut posted), Err(VmqError::NotEnabled));
    assert_eq!(vmq.set_size(a, 0), Err(VmqError::NoBuffers));
    vmq.set_size(a, 3).unwrap();
    assert_eq!(vmq.size(a), Ok(3));
    vmq.set_mac(a, A).unwrap();
    vmq.enable_queue(a).unwrap();
    let b = vmq.alloc_queue().unwrap();
    assert_eq!((vmq.avail_queues(), vmq.alloc_queue()), (0, None));
    assert_eq!(vmq.set_mac(b, A), Err(VmqError::MacTaken));
    for refused in [
        vmq.enable_queue(a),
        vmq.set_mac(a, B),
        vmq.set_size(a, 1),
        vmq.free_queue(a),
    ] {
        assert_eq!(refused, Err(VmqError::Enabled));
    }
    vmq.free_queue(b).unwrap();
    assert_eq!(vmq.free_queue(b), Err(VmqError::NoQueue));
    assert_eq!(vmq.avail_queues(), 1);
}

#[test]
fn requested_buffers_fit_the_queue() {
    let mut wire = Wire::new(16);
    let mut posted = Posted::new(16);
    let vmq = wire.vmq();
    let a = vmq.alloc_queue().unwrap();
    vmq.set_size(a, 3).unwrap();
    vmq.set_mac(a, A).unwrap();
    vmq.enable_queue(a).unwrap();
    for mark in 0..5 {
        wire.send(A, mark);
    }
    assert_eq!(wire.vmq().poll(a, 0, 64, &mut posted), Ok(3));
    assert_eq!(wire.vmq().poll(a, 0, 64, &mut posted), Ok(2));
}

#[test]
fn frames_for_a_full_queue_are_counted() {
    let mut wire = Wire::new(4);
    let mut posted = Posted::new(2);
    let a = wire.add_queue(A);
    for mark in 0..7 {
        wire.send(A, mark);
    }
    // The backend has no buffer left, so the queued frames are lost, as in a NIC.
    posted.pool.take().unwrap();
    posted.pool.take().unwrap();
    assert_eq!(wire.vmq().poll(a, 0, 64, &mut posted), Ok(0));
    let count = |name| common::counter(&wire.nic, name);
    assert_eq!((count("queue_full"), count("queue_no_buffer")), (3, 4));
}

/// A NIC with which the test determines when a frame selects its queue and when the frame arrives
/// there.
#[derive(Debug, Default)]
struct DelayingNic {
    in_transit: RefCell<VecDeque<Vec<u8>>>,
    in_queue: RefCell<VecDeque<Vec<u8>>>,
    last_change: Cell<u64>,
    effective: Cell<u64>,
    requests: Cell<u32>,
    /// Whether the steering agent sends no answer, although it may make the change.
    is_silent: Cell<bool>,
    /// Whether the steering agent rejects every change.
    is_closed: Cell<bool>,
    /// All steering requests.
    steered: RefCell<Vec<([u8; 6], Option<QueueId>)>>,
}

#[derive(Debug)]
struct Handle(Rc<DelayingNic>);

impl Steering for Handle {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        self.0.steered.borrow_mut().push((mac, queue));
        if self.0.is_silent.get() {
            return Err(VmqError::Unanswered);
        }
        if mac == B || self.0.is_closed.get() {
            return Err(VmqError::Refused(1));
        }
        self.0.last_change.set(self.0.last_change.get() + 1);
        Ok(self.0.last_change.get())
    }

    fn effective(&mut self) -> u64 {
        self.0.requests.set(self.0.requests.get() + 1);
        self.0.effective.get()
    }
}

impl ReceiveSide for Handle {
    fn queues(&self) -> usize {
        1
    }

    fn receive(
        &mut self,
        _queue: QueueId,
        _now_ns: u64,
        budget: usize,
        _split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> VmqReceived {
        let mut received = VmqReceived::default();
        while received.frames < budget {
            let Some(bytes) = self.0.in_queue.borrow_mut().pop_front() else {
                received.empty = true;
                break;
            };
            out.push(Frame::from_bytes(&bytes, buffers).unwrap());
            received.frames += 1;
        }
        received
    }

    fn release(&mut self, _queue: QueueId, _buffers: &mut dyn Buffers) {}
}

impl DelayingNic {
    /// Moves the frames in transit to the queue.
    fn arrive(&self) {
        self.in_queue.borrow_mut().extend(self.in_transit.take());
    }
}

#[test]
fn queue_drains_until_it_is_empty() {
    let nic_state = Rc::new(DelayingNic::default());
    let mut nic = MultiQueue::new(Handle(Rc::clone(&nic_state)), Handle(Rc::clone(&nic_state)));
    let mut posted = Posted::new(8);
    let queue = nic.alloc_queue().unwrap();
    nic.set_mac(queue, A).unwrap();
    nic.enable_queue(queue).unwrap();
    for mark in 0..3 {
        nic_state
            .in_transit
            .borrow_mut()
            .push_back(frame_to(A, mark));
    }
    nic.disable_queue(queue).unwrap();
    // The queue is empty now, but frames may still arrive.
    assert_eq!(nic.poll(queue, 0, 8, &mut posted), Ok(0));
    assert!(nic.is_draining(queue));
    for refused in [
        nic.enable_queue(queue),
        nic.set_mac(queue, A),
        nic.free_queue(queue),
    ] {
        assert_eq!(refused, Err(VmqError::Draining));
    }
    nic_state.arrive();
    nic_state.effective.set(nic_state.last_change.get());
    assert_eq!(nic.poll(queue, 1, 2, &mut posted), Ok(2));
    assert!(
        nic.is_draining(queue),
        "the agent was not queried again so soon"
    );
    assert_eq!(nic.poll(queue, 1_000_000, 1, &mut posted), Ok(1));
    assert!(
        nic.is_draining(queue),
        "the poll did not find the queue empty"
    );
    assert_eq!(nic.poll(queue, 1_000_001, 1, &mut posted), Ok(0));
    assert!(!nic.is_draining(queue));
    assert_eq!(posted.take().len(), 3);
    assert!(nic_state.requests.get() <= 3, "{nic_state:?}");
    nic.free_queue(queue).unwrap();
}

#[test]
fn inherited_queue_drains_before_reuse() {
    let nic_state = Rc::new(DelayingNic::default());
    nic_state.in_queue.borrow_mut().push_back(frame_to(A, 1));
    nic_state.in_transit.borrow_mut().push_back(frame_to(A, 2));
    let mut nic = MultiQueue::new(Handle(Rc::clone(&nic_state)), Handle(Rc::clone(&nic_state)));
    let mut posted = Posted::new(8);
    assert_eq!(nic.recover(), Ok(()));
    assert_eq!((nic.avail_queues(), nic.alloc_queue()), (0, None));
    let queue = QueueId(0);
    assert_eq!(nic.poll(queue, 0, 8, &mut posted), Ok(1));
    nic_state.arrive();
    nic_state.effective.set(nic_state.last_change.get());
    assert_eq!(nic.free_queue(queue), Err(VmqError::Draining));
    assert_eq!(nic.poll(queue, 1_000_000, 8, &mut posted), Ok(1));
    assert_eq!(posted.take(), [frame_to(A, 1), frame_to(A, 2)]);
    nic.free_queue(queue).unwrap();
    assert_eq!(nic.alloc_queue(), Some(queue));
}

#[test]
fn unsteerable_queue_is_not_allocated() {
    let nic_state = Rc::new(DelayingNic::default());
    nic_state.in_queue.borrow_mut().push_back(frame_to(B, 1));
    let mut nic = MultiQueue::new(Handle(Rc::clone(&nic_state)), Handle(Rc::clone(&nic_state)));
    nic_state.is_closed.set(true);
    assert_eq!(nic.recover(), Err(VmqError::Refused(1)));
    let queue = QueueId(0);
    let mut posted = Posted::new(8);
    nic_state.effective.set(nic_state.last_change.get());
    assert_eq!(nic.poll(queue, 0, 8, &mut posted), Ok(1));
    assert_eq!(nic.poll(queue, 1_000_000, 8, &mut posted), Ok(0));
    assert_eq!(nic.free_queue(queue), Err(VmqError::Draining));
    assert_eq!((nic.avail_queues(), nic.alloc_queue()), (0, None));
}

#[test]
fn a_queue_that_cannot_be_steered_stays_idle() {
    let nic_state = Rc::new(DelayingNic::default());
    let mut nic = MultiQueue::new(Handle(Rc::clone(&nic_state)), Handle(nic_state));
    let queue = nic.alloc_queue().unwrap();
    nic.set_mac(queue, B).unwrap();
    assert_eq!(nic.enable_queue(queue), Err(VmqError::Refused(1)));
    assert_eq!(nic.free_queue(queue), Ok(()));
}

/// Tests a queue after a steering request that `request` has left without an answer: the queue is
/// not reused until frames for `mac` are steered away.
fn check_unanswered_steering(
    nic_state: &Rc<DelayingNic>,
    mac: [u8; 6],
    request: impl Fn(&mut dyn Vmq, QueueId),
) {
    let mut nic = MultiQueue::new(Handle(Rc::clone(nic_state)), Handle(Rc::clone(nic_state)));
    let mut posted = Posted::new(8);
    let queue = nic.alloc_queue().unwrap();
    nic.set_mac(queue, A).unwrap();
    request(&mut nic, queue);
    // No other guest gets the queue, even if no frame arrives for a long time.
    nic_state.effective.set(u64::MAX);
    let mut now = 0;
    for _ in 0..5 {
        assert_eq!(nic.poll(queue, now, 8, &mut posted), Ok(0));
        now += 1_000_000_000;
    }
    assert_eq!(nic.free_queue(queue), Err(VmqError::Draining));
    assert_eq!((nic.avail_queues(), nic.alloc_queue()), (0, None));
    let requests = nic_state.steered.borrow().len();
    assert_eq!(nic.poll(queue, now - 999_000_000, 8, &mut posted), Ok(0));
    assert_eq!(
        nic_state.steered.borrow().len(),
        requests,
        "the driver retried too early"
    );
    // The unanswered change takes effect now, and the queue forwards the frames of its MAC.
    nic_state.in_queue.borrow_mut().push_back(frame_to(A, 1));
    assert_eq!(nic.poll(queue, now, 8, &mut posted), Ok(1));
    nic_state.is_silent.set(false);
    nic_state.effective.set(nic_state.last_change.get());
    assert_eq!(nic.poll(queue, now + 1_000_000_000, 8, &mut posted), Ok(0));
    assert_eq!(nic_state.steered.borrow().last(), Some(&(mac, None)));
    assert!(nic.is_draining(queue), "frames may still be in transit");
    nic_state.effective.set(nic_state.last_change.get());
    assert_eq!(nic.poll(queue, now + 2_000_000_000, 8, &mut posted), Ok(0));
    nic.free_queue(queue).unwrap();
    assert_eq!(posted.take(), [frame_to(A, 1)]);
    let again = nic.alloc_queue().unwrap();
    nic.set_mac(again, A).unwrap();
    nic.enable_queue(again).unwrap();
}

#[test]
fn queue_with_a_late_mac_is_not_reused() {
    let nic_state = Rc::new(DelayingNic::default());
    check_unanswered_steering(&nic_state, A, |nic, queue| {
        nic_state.is_silent.set(true);
        assert_eq!(nic.enable_queue(queue), Err(VmqError::Unanswered));
    });
}

#[test]
fn queue_that_may_keep_its_mac_is_not_reused() {
    let nic_state = Rc::new(DelayingNic::default());
    check_unanswered_steering(&nic_state, A, |nic, queue| {
        nic.enable_queue(queue).unwrap();
        nic_state.is_silent.set(true);
        assert_eq!(nic.disable_queue(queue), Ok(()));
    });
}

#[test]
fn inherited_mac_blocks_queue_reuse() {
    let nic_state = Rc::new(DelayingNic::default());
    check_unanswered_steering(&nic_state, ALL_MACS, |nic, _| {
        nic_state.is_silent.set(true);
        assert_eq!(nic.recover(), Err(VmqError::Unanswered));
    });
}
