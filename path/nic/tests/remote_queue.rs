//! Tests dedicated queues of a device that runs independently of its driver and writes into pages
//! of a guest.

mod common;

use abi::PAGE;
use common::{CountingBell, TestWire, bytes, contents, received};
use nic::dma::soft::{InterruptModeration, SoftDevice};
use nic::dma::{IoAddr, IoTable, RemoteNic, RemoteQueue, RemoteSetup};
use nic::{Buffer, BufferId, Frame, Pool, SmallBatch, SmallFrame};
use shmem::{Area, Span};
use std::rc::Rc;

const ENTRIES: u32 = 8;
const SETUP: RemoteSetup = RemoteSetup {
    entries: ENTRIES,
    mtu: 1500,
    queues: 2,
    merges: false,
    splits: false,
};
/// Size of a guest's buffer in bytes.
const BUFFER: usize = 2048;
/// Number of the guest's buffers.
const BUFFERS: u32 = 6;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Payload of frames that do not take the fast path.
const REJECTED: u8 = 0xee;

/// The driver's side with the queue of one guest, and the device with the pages that it may access.
struct Rig {
    nic: RemoteNic,
    queue: RemoteQueue,
    pool: Pool,
    bell: Rc<CountingBell>,
    test_wire: TestWire,
    device: SoftDevice<TestWire>,
    granted: IoTable,
    memory: Area,
    /// Offset of the queue's memory in `memory`.
    at: usize,
    guest: Area,
    guest_at: IoAddr,
    failed: Vec<BufferId>,
}

impl Rig {
    fn new() -> Self {
        let area = |bytes| Area::anonymous(bytes).unwrap();
        let (memory, pool) = (area(SETUP.bytes()), area(32 * BUFFER));
        let guest = area(BUFFERS as usize * BUFFER);
        let mut granted = IoTable::default();
        let (own, buffers) = (granted.add(memory), granted.add(pool));
        granted.map(own, memory.len()).unwrap();
        granted.map(buffers, pool.len()).unwrap();
        let guest_at = granted.add(guest);
        granted.map(guest_at, guest.len()).unwrap();
        let test_wire = TestWire::default();
        let interrupts = InterruptModeration::default();
        let device = SoftDevice::new(test_wire.clone(), ENTRIES, &[], own, 1518, interrupts);
        let mut nic = RemoteNic::new(SETUP, memory, pool).unwrap();
        assert!(nic.dedicated(0).is_none() && nic.dedicated(3).is_none());
        let queue = nic.dedicated(2).unwrap();
        let places = nic.lay_out().unwrap();
        let bytes = nic::dma::layout::queue_bytes(ENTRIES);
        let mut rig = Self {
            nic,
            queue,
            pool: Pool::new(pool, BUFFER),
            bell: Rc::default(),
            test_wire,
            device,
            granted,
            memory,
            at: places.dedicated.bits() as usize + bytes,
            guest,
            guest_at,
            failed: Vec::new(),
        };
        rig.connect();
        rig
    }

    fn connect(&mut self) {
        let places = self.nic.lay_out().unwrap();
        let bytes = nic::dma::layout::queue_bytes(ENTRIES);
        let second = places.dedicated.add(bytes).unwrap();
        let queues = [places.receive, places.dedicated, second];
        self.device.connect(&queues, places.transmit, 0);
        self.nic.connect(self.bell.clone());
        self.queue.sync_link(|id| panic!("{id:?} is still posted"));
    }

    fn start(&mut self) {
        assert!(self.queue.is_ready());
        self.queue.start(MAC, false);
        self.work();
    }

    /// Returns buffer `n` of the guest.
    fn buffer(&self, n: u32) -> (IoAddr, Buffer) {
        let at = n as usize * BUFFER;
        let span = self.guest.at(at, BUFFER).unwrap();
        let id = BufferId(n);
        (self.guest_at.add(at).unwrap(), Buffer { id, span })
    }

    fn post(&mut self, numbers: std::ops::Range<u32>) {
        for n in numbers {
            let (address, buffer) = self.buffer(n);
            assert!(self.queue.post(address, buffer));
        }
        self.queue.publish();
    }

    /// Runs the device. Returns whether it raises its interrupt.
    fn work(&mut self) -> bool {
        self.device.apply_controls(&self.granted);
        self.device.poll(0, &self.granted);
        self.device.raise(0, &self.granted)
    }

    /// Adds a frame for the guest to the wire.
    fn arrive(&self, mark: u8) -> Vec<u8> {
        let mut frame = bytes(mark, 100);
        frame[..6].copy_from_slice(&MAC);
        self.test_wire
            .arriving
            .borrow_mut()
            .push_back(frame.clone());
        frame
    }

    fn receive(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.queue.receive(64, &mut frames, &mut self.failed);
        frames
    }

    /// Receives up to `budget` small frames whose payload is not [`REJECTED`]; returns them and
    /// their buffers.
    fn receive_small(&mut self, budget: usize) -> (Vec<Vec<u8>>, Vec<BufferId>) {
        let (mut frames, mut buffers) = (SmallBatch::default(), Vec::new());
        let takes = |frame: &SmallFrame| frame.head()[20] != REJECTED;
        self.queue
            .receive_small(budget, takes, &mut frames, &mut buffers);
        let frames = frames.iter().enumerate().map(|(index, frame)| {
            let mut bytes = vec![0; frame.len()];
            let copy = Area::anonymous(PAGE).unwrap().span().take(frame.len());
            frames.copy_to(index, copy, false).unwrap();
            copy.read(&mut bytes).unwrap();
            bytes
        });
        let ids = buffers.iter().map(|buffer| buffer.id).collect();
        (frames.collect(), ids)
    }

    /// Returns the frames in the shared queue.
    fn shared(&mut self) -> Vec<Vec<u8>> {
        received(&mut self.nic, &mut self.pool)
    }

    /// Returns the memory of the guest's queue.
    fn words(&self) -> Span {
        self.memory.span().skip(self.at)
    }

    /// Returns the contents of the guest's memory.
    fn guest_bytes(&self) -> Vec<u8> {
        let mut all = vec![0; self.guest.len()];
        self.guest.span().read(&mut all).unwrap();
        all
    }
}

/// D-32, D-33: the device writes a frame for the guest's MAC into the posted page, and any other
/// frame into the driver's buffers. One interrupt announces both.
#[test]
fn frames_for_a_guest_arrive_in_its_posted_pages() {
    let mut rig = Rig::new();
    rig.shared();
    let early = rig.arrive(1);
    rig.work();
    assert_eq!(rig.shared(), [early], "the queue is not started");
    rig.start();
    rig.post(0..3);
    let frames = [rig.arrive(2), rig.arrive(3)];
    let other = bytes(4, 100);
    rig.test_wire.arriving.borrow_mut().push_back(other.clone());
    assert!(rig.work());
    assert!(!rig.work());
    assert_eq!(rig.shared(), [other]);
    let received = rig.receive();
    assert_eq!(contents(&received), frames);
    let places: Vec<_> = received
        .iter()
        .map(|frame| frame.pieces[0].buffer)
        .collect();
    assert_eq!(places, [BufferId(0), BufferId(1)]);
    assert_eq!(rig.queue.outstanding(), 1);
    rig.receive();
    rig.arrive(5);
    assert!(rig.work(), "both queues are acknowledged");
}

/// The fast path takes small frames up to the first other one, which stays for the slow path. No
/// frame is lost, duplicated or reordered, and the interrupt is acknowledged when the queue is
/// empty.
#[test]
fn small_frames_leave_others_for_the_slow_path() {
    let mut rig = Rig::new();
    rig.start();
    rig.post(0..6);
    assert_eq!(rig.receive_small(64), (Vec::new(), Vec::new()));
    let sent: Vec<_> = [1, 2, REJECTED, 3, 4]
        .into_iter()
        .map(|mark| {
            let mut frame = rig.arrive(mark);
            frame[20] = mark;
            rig.test_wire.arriving.borrow_mut().pop_back();
            rig.test_wire.arriving.borrow_mut().push_back(frame.clone());
            frame
        })
        .collect();
    assert!(rig.work());
    assert_eq!(
        rig.receive_small(1),
        (sent[..1].to_vec(), vec![BufferId(0)])
    );
    assert!(rig.queue.has_more());
    assert_eq!(
        rig.receive_small(64),
        (sent[1..2].to_vec(), vec![BufferId(1)])
    );
    assert!(rig.queue.has_more());
    assert_eq!(rig.receive_small(64), (Vec::new(), Vec::new()));
    let mut frames = Vec::new();
    assert_eq!(rig.queue.receive(1, &mut frames, &mut rig.failed), 1);
    assert_eq!(contents(&frames), sent[2..3]);
    let rest = (sent[3..].to_vec(), vec![BufferId(3), BufferId(4)]);
    assert_eq!(rig.receive_small(64), rest);
    assert!(!rig.queue.has_more());
    assert_eq!(rig.queue.outstanding(), 1);
    let last = rig.arrive(5);
    assert!(rig.work(), "the frames are acknowledged");
    assert_eq!(rig.receive_small(64), (vec![last], vec![BufferId(5)]));
    assert!(rig.failed.is_empty());
}

/// D-4, D-32: the device does not change a posted page that is not, or no longer, granted for I/O.
/// Its descriptor completes with an error, and other frames arrive.
#[test]
fn page_outside_the_io_page_table_is_not_written() {
    let mut rig = Rig::new();
    rig.start();
    rig.post(0..2);
    let (revoked, _) = rig.buffer(0);
    rig.granted.unmap(revoked, PAGE).unwrap();
    let before = rig.guest_bytes();
    rig.arrive(1);
    rig.arrive(2);
    rig.work();
    assert_eq!(contents(&rig.receive()), Vec::<Vec<u8>>::new());
    assert_eq!(
        rig.failed,
        [BufferId(0), BufferId(1)],
        "both lie in that page"
    );
    assert_eq!(rig.guest_bytes(), before);
    assert_eq!(rig.queue.counters().io_error, 2);
    rig.post(2..3);
    let next = rig.arrive(3);
    rig.work();
    assert_eq!(contents(&rig.receive()), [next]);
    assert_eq!(rig.nic.close_reason(), None);
}

/// If the driver posts a page twice, the second frame overwrites the first. This harms only the
/// guest that owns these frames.
#[test]
fn page_posted_twice_is_written_twice() {
    let mut rig = Rig::new();
    rig.start();
    let (address, buffer) = rig.buffer(0);
    for id in [7, 8] {
        let twice = Buffer {
            id: BufferId(id),
            ..buffer
        };
        assert!(rig.queue.post(address, twice));
    }
    rig.queue.publish();
    rig.arrive(1);
    let last = rig.arrive(2);
    rig.work();
    let received = rig.receive();
    assert_eq!(contents(&received), [last.clone(), last]);
    let rest = &rig.guest_bytes()[BUFFER..];
    assert!(rest.iter().all(|byte| *byte == 0));
}

/// D-10, D-11, D-13, D-14, D-34: an invalid completion closes the NIC, and each buffer returns
/// once.
#[test]
fn invalid_dedicated_completion_closes_the_nic() {
    let completions = nic::dma::layout::queue_bytes(ENTRIES) - PAGE;
    // Each case has a completion (index, length, flags, header length), the word `completed`, and
    // the expected error.
    let cases: [([u32; 4], u32, &str); 7] = [
        ([0, 60, 0, 0], 4, "completed but not posted"),
        ([9, 60, 0, 0], 1, "completed but not posted"),
        ([u32::MAX, 60, 0, 0], 1, "completed twice"),
        ([1, 60, 0, 0], 1, "completed before index 0"),
        ([0, 2049, 0, 0], 1, "2049 bytes where 2048 fit"),
        ([0, 2048, 1, 0], 1, "the frame continues in the next buffer"),
        ([0, 60, 0, 60], 1, "a header of 60 bytes does not fit"),
    ];
    for ((words, completed, why), is_fast) in
        cases.iter().flat_map(|case| [(case, false), (case, true)])
    {
        let mut rig = Rig::new();
        rig.start();
        rig.post(0..3);
        rig.words().write_words(completions, words).unwrap();
        rig.words().store_u32(64, *completed).unwrap();
        rig.words().store_u32(384, 1).unwrap();
        if is_fast {
            assert_eq!(rig.receive_small(64), (Vec::new(), Vec::new()));
        }
        assert_eq!(contents(&rig.receive()), Vec::<Vec<u8>>::new());
        let closed = rig.nic.close_reason().unwrap().to_string();
        assert!(
            closed.starts_with("receive queue 2") && closed.ends_with(why),
            "{closed}"
        );
        assert!(rig.receive().is_empty(), "a closed NIC receives nothing");
        rig.nic.disconnect(&mut rig.pool);
        let mut back = std::mem::take(&mut rig.failed);
        rig.queue.sync_link(|id| back.push(id));
        back.sort_by_key(|id| id.0);
        assert_eq!(back, [0, 1, 2].map(BufferId), "{why}");
        rig.connect();
        rig.start();
        rig.post(0..1);
        let frame = rig.arrive(1);
        rig.work();
        assert_eq!(contents(&rig.receive()), [frame], "the next device works");
    }
}

/// D-33: a stopped queue can be started again only after the device has reset it. Frames that
/// waited for buffers move to the shared queue.
#[test]
fn stopped_queue_waits_for_the_device() {
    let mut rig = Rig::new();
    rig.shared();
    rig.start();
    rig.post(0..1);
    let frames = [rig.arrive(1), rig.arrive(2), rig.arrive(3)];
    rig.work();
    let rung = rig.bell.0.get();
    rig.queue.stop();
    assert_eq!(
        rig.bell.0.get(),
        rung + 1,
        "stopping wakes a sleeping device"
    );
    assert_eq!(rig.queue.outstanding(), 0);
    assert!(!rig.queue.is_ready());
    rig.queue.start(MAC, false);
    assert!(!rig.queue.is_started());
    rig.work();
    assert_eq!(rig.shared(), frames[1..]);
    let late = rig.arrive(4);
    rig.work();
    assert_eq!(rig.shared(), [late]);
    rig.start();
    rig.post(3..5);
    let next = rig.arrive(5);
    rig.work();
    let received = rig.receive();
    assert_eq!(contents(&received), [next]);
    assert_eq!(received[0].pieces[0].buffer, BufferId(3));
}

/// D-24: an acknowledgement in one queue re-enables the interrupt, even if the reset of another
/// queue decreases that queue's index by the same amount.
#[test]
fn reset_of_a_queue_hides_no_acknowledgement() {
    let mut rig = Rig::new();
    rig.shared();
    rig.start();
    rig.post(0..1);
    rig.arrive(1);
    rig.work();
    assert_eq!(rig.receive().len(), 1);
    rig.test_wire.arriving.borrow_mut().push_back(bytes(2, 100));
    assert!(rig.work());
    rig.queue.stop();
    rig.work();
    rig.queue.start(MAC, false);
    assert_eq!(rig.shared().len(), 1);
    assert!(!rig.work(), "no frame waits");
    rig.test_wire.arriving.borrow_mut().push_back(bytes(3, 100));
    assert!(rig.work());
}

/// D-24: completions of a stopped queue, which the driver never acknowledges, delay no interrupt of
/// another queue.
#[test]
fn stopped_queue_delays_no_interrupt() {
    let mut rig = Rig::new();
    rig.shared();
    rig.start();
    rig.post(0..2);
    rig.arrive(1);
    rig.work();
    assert_eq!(rig.receive().len(), 1);
    rig.arrive(2);
    assert!(rig.work(), "the driver does not take this frame");
    rig.queue.stop();
    rig.work();
    rig.shared();
    assert!(!rig.work(), "nothing is stored");
    rig.test_wire.arriving.borrow_mut().push_back(bytes(3, 100));
    assert!(rig.work());
    assert!(!rig.work());
    rig.shared();
    assert!(!rig.work());
}

/// D-24: a frame that waited for a buffer raises the interrupt when it is stored.
#[test]
fn frame_delayed_by_a_buffer_raises_the_interrupt() {
    let mut rig = Rig::new();
    rig.shared();
    rig.start();
    rig.post(0..1);
    rig.arrive(1);
    rig.arrive(2);
    assert!(rig.work());
    assert_eq!(rig.receive().len(), 1);
    assert!(!rig.work(), "the second frame waits");
    rig.post(1..2);
    assert!(rig.work());
    assert_eq!(rig.receive().len(), 1);
}

/// D-26, D-34: after a device has died, every buffer returns once, and the next device starts with
/// an empty, disabled queue.
#[test]
fn buffers_return_when_the_link_is_down() {
    let mut rig = Rig::new();
    rig.start();
    rig.post(0..4);
    rig.arrive(1);
    rig.work();
    rig.nic.disconnect(&mut rig.pool);
    assert!(rig.receive().is_empty());
    let mut back = Vec::new();
    rig.queue.sync_link(|id| back.push(id));
    assert_eq!(back, [0, 1, 2, 3].map(BufferId));
    assert!(!rig.queue.is_started() && !rig.queue.is_ready());
    rig.connect();
    assert!(!rig.queue.is_started());
    rig.start();
    rig.post(0..1);
    let frame = rig.arrive(2);
    rig.work();
    assert_eq!(contents(&rig.receive()), [frame]);
}

/// D-25: buffers for waiting frames wake a sleeping device.
#[test]
fn buffers_for_waiting_frames_wake_the_device() {
    let mut rig = Rig::new();
    rig.start();
    let frame = rig.arrive(1);
    rig.work();
    assert!(!rig.device.arm(&rig.granted));
    let rung = rig.bell.0.get();
    rig.post(0..1);
    assert_eq!(rig.bell.0.get(), rung + 1);
    rig.work();
    assert_eq!(contents(&rig.receive()), [frame]);
    assert!(!rig.device.arm(&rig.granted));
    rig.post(1..2);
    assert_eq!(rig.bell.0.get(), rung + 1, "no frame waits");
}

/// D-34: buffers that are too short for a frame are not posted.
#[test]
fn short_buffer_is_not_posted() {
    let mut rig = Rig::new();
    let (address, buffer) = rig.buffer(0);
    assert!(!rig.queue.post(address, buffer), "the queue is not started");
    rig.start();
    let short = Buffer {
        span: buffer.span.take(1517),
        ..buffer
    };
    assert!(!rig.queue.post(address, short));
    assert_eq!(rig.queue.counters().foreign, 1);
    assert!(rig.queue.post(address, buffer));
}
