//! Tests a device that merges received frames. Merged frames have several buffers and a segment
//! size, and the device holds them no longer than until the interrupt.

mod common;

use common::{CountingBell, TestWire, bytes, counter};
use nic::dma::layout::{MERGED_MAX, Merged, queue_bytes};
use nic::dma::soft::{Arrival, InterruptModeration, Merger, SoftDevice};
use nic::dma::{IoAddr, IoTable, RemoteNic, RemoteQueue, RemoteSetup};
use nic::{Buffer, BufferId, Checksum, Frame, Gso, GsoKind, Nic, Offload, Pool};
use shmem::{Area, Span};
use std::rc::Rc;

const ENTRIES: u32 = 64;
const SETUP: RemoteSetup = RemoteSetup {
    entries: ENTRIES,
    mtu: 1500,
    queues: 1,
    merges: true,
    splits: false,
};
const BUFFER: usize = 2048;
const BUFFERS: usize = 128;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MERGED: Merged = Merged {
    gso: Gso {
        kind: GsoKind::Tcp4,
        size: 1000,
    },
    tcp: 34,
    fixed_id: true,
};
const OFFLOAD: Offload = Offload {
    checksum: Checksum::Blank {
        start: 34,
        offset: 16,
    },
    gso: Some(MERGED.gso),
};
/// Time for which [`Joiner`] holds frames, in nanoseconds.
const HOLD_NS: u64 = 100;

/// Joins all frames that arrive within [`HOLD_NS`].
#[derive(Debug, Default)]
struct Joiner {
    held: Vec<u8>,
    since_ns: Option<u64>,
}

impl Merger for Joiner {
    fn pass(&mut self, now_ns: u64, frames: &mut Vec<Arrival>, _: &mut Vec<Arrival>) {
        self.since_ns.get_or_insert(now_ns);
        self.held
            .extend(frames.drain(..).flat_map(|frame| frame.bytes));
    }

    fn flush(&mut self, _: u64, out: &mut Vec<Arrival>) {
        if self.since_ns.take().is_some() {
            out.push(Arrival {
                bytes: std::mem::take(&mut self.held),
                valid: false,
                merged: Some(MERGED),
            });
        }
    }

    fn due_ns(&self) -> Option<u64> {
        self.since_ns.map(|since_ns| since_ns + HOLD_NS)
    }
}

struct Rig {
    nic: RemoteNic,
    queue: RemoteQueue,
    pool: Pool,
    test_wire: TestWire,
    device: SoftDevice<TestWire>,
    granted: IoTable,
    memory: Area,
    guest: Area,
    guest_at: IoAddr,
    failed: Vec<BufferId>,
}

fn rig(delay_ns: u64) -> Rig {
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let (memory, pool, guest) = (
        area(SETUP.bytes()),
        area(BUFFERS * BUFFER),
        area(BUFFERS * BUFFER),
    );
    let mut granted = IoTable::default();
    let [own, _, guest_at] = [memory, pool, guest].map(|of| {
        let at = granted.add(of);
        granted.map(at, of.len()).unwrap();
        at
    });
    let test_wire = TestWire::default();
    let interrupts = InterruptModeration {
        delay_ns,
        frames: 0,
    };
    let device = SoftDevice::new(test_wire.clone(), ENTRIES, &[], own, 1518, interrupts);
    let mut device = device.merging(Box::<Joiner>::default());
    let mut nic = RemoteNic::new(SETUP, memory, pool).unwrap();
    let mut queue = nic.dedicated(1).unwrap();
    let places = nic.lay_out().unwrap();
    device.connect(&[places.receive, places.dedicated], places.transmit, 0);
    nic.connect(Rc::<CountingBell>::default());
    queue.sync_link(|_| ());
    let mut rig = Rig {
        nic,
        queue,
        pool: Pool::new(pool, BUFFER),
        test_wire,
        device,
        granted,
        memory,
        guest,
        guest_at,
        failed: Vec::new(),
    };
    assert!(rig.shared().is_empty());
    rig
}

impl Rig {
    fn start(&mut self, merges: bool) {
        self.queue.start(MAC, merges);
        self.work(0);
        for n in 0..40 {
            let at = n as usize * BUFFER;
            let buffer = Buffer {
                id: BufferId(n),
                span: self.guest.at(at, BUFFER).unwrap(),
            };
            assert!(self.queue.post(self.guest_at.add(at).unwrap(), buffer));
        }
        self.queue.publish();
    }

    fn work(&mut self, now_ns: u64) -> bool {
        self.device.apply_controls(&self.granted);
        self.device.poll(now_ns, &self.granted);
        self.device.raise(now_ns, &self.granted)
    }

    fn arrive(&self, mark: u8, mac: [u8; 6]) -> Vec<u8> {
        let mut frame = bytes(mark, 1500);
        frame[..6].copy_from_slice(&mac);
        self.test_wire
            .arriving
            .borrow_mut()
            .push_back(frame.clone());
        frame
    }

    fn shared(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.nic.rx(0, 64, &mut self.pool, &mut frames);
        frames
    }

    fn of_guest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.queue.receive(64, &mut frames, &mut self.failed);
        frames
    }

    /// Writes completions into a queue's memory, as a hostile device does, and raises its
    /// interrupt.
    fn complete(&self, queue: Span, completions: &[[u32; 4]]) {
        let at = queue_bytes(ENTRIES) - abi::PAGE;
        for (n, words) in completions.iter().enumerate() {
            queue.write_words(at + n * 16, words).unwrap();
        }
        queue.store_u32(64, completions.len() as u32).unwrap();
        queue.store_u32(384, 1).unwrap();
    }
}

/// D-39: a merged frame of the shared queue arrives in several buffers when the interrupt is due.
#[test]
fn merged_frame_arrives_with_the_interrupt() {
    let mut rig = rig(60);
    let frames = [1, 2, 3].map(|mark| rig.arrive(mark, [4; 6])).concat();
    assert!(!rig.work(10), "the device holds the frames");
    assert_eq!(rig.device.due_ns(10), Some(10 + HOLD_NS));
    assert!(!rig.work(109));
    assert!(rig.work(110), "the holding time has passed");
    let received = rig.shared();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].to_vec().unwrap(), frames);
    assert_eq!(received[0].pieces.len(), frames.len().div_ceil(BUFFER));
    assert_eq!((received[0].offload, received[0].fixed_id), (OFFLOAD, true));
}

/// D-39: an interrupt for stored frames also announces held frames.
#[test]
fn interrupt_covers_held_frames() {
    let mut rig = rig(60);
    rig.start(false);
    rig.arrive(1, MAC);
    assert!(!rig.work(10));
    let held = rig.arrive(2, [4; 6]);
    assert!(!rig.work(20));
    assert!(rig.work(70));
    assert_eq!(rig.of_guest().len(), 1);
    assert_eq!(rig.shared()[0].to_vec().unwrap(), held);
    assert_eq!(rig.device.due_ns(70), None);
}

/// D-40: the device merges a guest's frames only if the driver permits it, and stores them in the
/// guest's pages.
#[test]
fn guest_frames_are_merged_if_the_guest_accepts_them() {
    for merges in [true, false] {
        let mut rig = rig(0);
        rig.start(merges);
        let frames = [1, 2, 3].map(|mark| rig.arrive(mark, MAC));
        rig.work(10);
        rig.work(110);
        let received = rig.of_guest();
        let whole = common::contents(&received);
        if merges {
            assert_eq!(whole, [frames.concat()]);
            assert_eq!(received[0].offload, OFFLOAD);
            let buffers = received[0].pieces.iter().map(|piece| piece.buffer.0);
            assert_eq!(buffers.collect::<Vec<_>>(), [0, 1, 2]);
        } else {
            assert_eq!(whole, frames);
        }
        assert_eq!(rig.queue.outstanding(), 37);
        assert!(rig.failed.is_empty());
    }
}

/// D-40: a merged frame that fits one buffer still has two buffers in a guest's queue, but one in
/// the shared queue.
#[test]
fn merged_frame_for_a_guest_has_two_buffers() {
    for (mac, buffers) in [(MAC, 2), ([4; 6], 1)] {
        let mut rig = rig(0);
        rig.start(true);
        let frame = rig.arrive(1, mac);
        rig.work(10);
        rig.work(110);
        let received = [rig.of_guest(), rig.shared()].concat();
        assert_eq!(common::contents(&received), [frame]);
        assert_eq!(received[0].pieces.len(), buffers);
    }
}

/// D-40: frames that the device has merged for a guest use the shared queue if the guest's queue no
/// longer merges.
#[test]
fn held_frames_of_stopped_queues_use_the_shared_one() {
    let mut rig = rig(0);
    rig.start(true);
    let frame = rig.arrive(1, MAC);
    rig.work(10);
    rig.queue.stop();
    rig.work(110);
    let received = rig.shared();
    assert_eq!(common::contents(&received), [frame]);
}

/// D-26: held frames are lost with the link.
#[test]
fn held_frames_are_lost_with_the_link() {
    let mut rig = rig(0);
    rig.arrive(1, [4; 6]);
    rig.work(10);
    rig.device.discard(20);
    assert_eq!(rig.device.counters().missed, 1);
    assert_eq!(rig.device.due_ns(20), None);
}

/// D-13, D-39: a description that does not fit its frame drops the frame, in both kinds of queues.
#[test]
fn impossible_descriptions_are_malformed() {
    let size = 1000 << 16;
    let cases = [
        // The segment size is 0.
        ([0, 100, 8 | 34 << 16, 0], false),
        // The TCP header lies within the Ethernet header, after the frame, or after the snapshot.
        ([0, 100, 8 | 13 << 16, size], false),
        ([0, 100, 8 | 81 << 16, size], false),
        ([0, 2000, 16 | 109 << 16, size], false),
        ([0, 100, 8 | 80 << 16, size], true),
        ([0, 100, 16 | 14 << 16, size], true),
    ];
    for (words, is_good) in cases {
        let mut rig = rig(0);
        rig.start(true);
        let shared = rig.memory.span();
        rig.complete(shared, &[words]);
        assert_eq!(rig.shared().len(), usize::from(is_good), "{words:?}");
        assert_eq!(counter(&rig.nic, "rx_malformed"), u64::from(!is_good));
        rig.complete(shared.skip(SETUP.bytes() - queue_bytes(ENTRIES)), &[words]);
        assert_eq!(rig.of_guest().len(), usize::from(is_good), "{words:?}");
        assert_eq!(rig.failed.len(), usize::from(!is_good));
        assert_eq!(rig.nic.close_reason(), None);
    }
}

/// Completes buffers of the guest's queue or of the shared queue. Returns why the NIC is closed,
/// and checks that each buffer returns once.
fn closed_by(completions: &[[u32; 4]], of_guest: bool) -> Option<String> {
    let mut rig = rig(0);
    rig.start(true);
    let at = if of_guest {
        SETUP.bytes() - queue_bytes(ENTRIES)
    } else {
        0
    };
    rig.complete(rig.memory.span().skip(at), completions);
    let received = if of_guest {
        rig.of_guest()
    } else {
        rig.shared()
    };
    assert!(received.is_empty());
    let closed = rig.nic.close_reason();
    rig.nic.disconnect(&mut rig.pool);
    assert_eq!(rig.pool.available(), BUFFERS);
    let mut back = std::mem::take(&mut rig.failed);
    rig.queue.sync_link(|id| back.push(id));
    back.sort_by_key(|id| id.0);
    assert_eq!(back, (0..40).map(BufferId).collect::<Vec<_>>());
    closed.map(|why| why.misuse.to_string())
}

/// D-13: the maximum length of a frame and the rule that buffers are full limit the number of a
/// frame's buffers.
#[test]
fn endless_frame_closes_the_nic() {
    let full = BUFFER as u32;
    let endless: Vec<_> = (0..33).map(|n| [n, full, 1, 0]).collect();
    let why = format!("{} bytes where {MERGED_MAX} fit", 32 * BUFFER);
    let gap = |len| {
        Some(format!(
            "the frame continues after {len} bytes in a buffer of {BUFFER}"
        ))
    };
    for of_guest in [false, true] {
        assert_eq!(closed_by(&endless, of_guest), Some(why.clone()));
        // Empty parts close the NIC, with and without an error, also after a full part.
        for error in [0, 4] {
            let empty: Vec<_> = (0..8).map(|n| [n, 0, 1 | error, 0]).collect();
            assert_eq!(closed_by(&empty, of_guest), gap(0));
        }
        for second in [0, 1, full - 1] {
            let parts = [[0, full, 1, 0], [1, second, 1, 0]];
            assert_eq!(closed_by(&parts, of_guest), gap(second));
        }
    }
    // The first part of a guest's frame may be short.
    let short = [[0, 1, 1, 0], [1, full, 1, 0]];
    assert_eq!(closed_by(&short, true), None);
    assert_eq!(closed_by(&short, false), gap(1));
}
