//! Tests a device that splits headers of received frames, in the shared queue and in a guest's
//! queue.

mod common;

use common::{CountingBell, TestWire, bytes, contents, counter};
use nic::dma::layout::queue_bytes;
use nic::dma::soft::{InterruptModeration, SoftDevice};
use nic::dma::{IoTable, Misuse, RemoteNic, RemoteQueue, RemoteSetup};
use nic::frame::SNAPSHOT_MAX;
use nic::{Buffer, BufferId, Frame, Nic, Pool};
use shmem::{Area, Span};
use std::rc::Rc;

const ENTRIES: u32 = 64;
const SETUP: RemoteSetup = RemoteSetup {
    entries: ENTRIES,
    mtu: 1500,
    queues: 1,
    merges: false,
    splits: true,
};
const BUFFER: usize = 2048;
const BUFFERS: usize = 128;
/// Number of the guest's buffers.
const GUEST_BUFFERS: u32 = 40;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [4; 6];
/// Initial value of the bytes of all buffers.
const UNWRITTEN: u8 = 0x5a;

struct Rig {
    nic: RemoteNic,
    queue: RemoteQueue,
    pool: Pool,
    test_wire: TestWire,
    device: SoftDevice<TestWire>,
    granted: IoTable,
    memory: Area,
    /// Buffers of the driver and of the guest.
    buffers: [Area; 2],
    failed: Vec<BufferId>,
}

fn rig() -> Rig {
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let (memory, pool, guest) = (
        area(SETUP.bytes()),
        area(BUFFERS * BUFFER),
        area(GUEST_BUFFERS as usize * BUFFER),
    );
    for buffers in [pool, guest] {
        buffers.span().fill(UNWRITTEN).unwrap();
    }
    let mut granted = IoTable::default();
    let [own, _, guest_at] = [memory, pool, guest].map(|of| {
        let at = granted.add(of);
        granted.map(at, of.len()).unwrap();
        at
    });
    let test_wire = TestWire::default();
    let interrupts = InterruptModeration::default();
    let mut device = SoftDevice::new(test_wire.clone(), ENTRIES, &[], own, 1518, interrupts);
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
        buffers: [pool, guest],
        failed: Vec::new(),
    };
    assert!(rig.shared().is_empty());
    rig.queue.start(MAC, true);
    rig.work();
    for n in 0..GUEST_BUFFERS {
        let at = n as usize * BUFFER;
        let buffer = Buffer {
            id: BufferId(n),
            span: guest.at(at, BUFFER).unwrap(),
        };
        assert!(rig.queue.post(guest_at.add(at).unwrap(), buffer));
    }
    rig.queue.publish();
    rig
}

impl Rig {
    fn work(&mut self) {
        self.device.apply_controls(&self.granted);
        self.device.poll(0, &self.granted);
        self.device.raise(0, &self.granted);
    }

    fn arrive(&self, mark: u8, len: usize, mac: [u8; 6]) -> Vec<u8> {
        let mut frame = bytes(mark, len);
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

    /// Returns the memory of the guest's queue or of the shared queue.
    fn queue_memory(&self, of_guest: bool) -> Span {
        // The space for the headers of both queues is at the end of the memory.
        let headers = 2 * ENTRIES as usize * SNAPSHOT_MAX;
        let at = match of_guest {
            true => SETUP.bytes() - headers - queue_bytes(ENTRIES),
            false => 0,
        };
        self.memory.span().skip(at).take(queue_bytes(ENTRIES))
    }

    /// Completes buffers as a hostile device does.
    fn complete(&self, of_guest: bool, completions: &[[u32; 4]]) {
        let queue = self.queue_memory(of_guest);
        let at = queue_bytes(ENTRIES) - abi::PAGE;
        for (n, words) in completions.iter().enumerate() {
            queue.write_words(at + n * 16, words).unwrap();
        }
        queue.store_u32(64, completions.len() as u32).unwrap();
        queue.store_u32(384, 1).unwrap();
    }

    fn receive(&mut self, of_guest: bool) -> Vec<Frame> {
        match of_guest {
            true => self.of_guest(),
            false => self.shared(),
        }
    }

    /// Sets the link down, and checks that each buffer returns once.
    fn end(&mut self, frames: Vec<Frame>, of_guest: bool) {
        self.nic.disconnect(&mut self.pool);
        let mut back = std::mem::take(&mut self.failed);
        for mut frame in frames {
            match of_guest {
                true => back.extend(frame.pieces.iter().map(|piece| piece.buffer)),
                false => frame.recycle(&mut self.pool),
            }
        }
        self.queue.sync_link(|id| back.push(id));
        back.sort_by_key(|id| id.0);
        assert_eq!(back, (0..GUEST_BUFFERS).map(BufferId).collect::<Vec<_>>());
        assert_eq!(self.pool.available(), BUFFERS);
    }
}

/// D-44: headers are in the driver's memory. Each buffer begins with unused space for the header,
/// and holds the rest after that.
#[test]
fn headers_are_stored_separately() {
    for (of_guest, mac) in [(false, OTHER), (true, MAC)] {
        let mut rig = rig();
        let frames = [14, 60, 127, 128, 129, 1514].map(|len| rig.arrive(len as u8, len, mac));
        rig.work();
        let received = rig.receive(of_guest);
        assert_eq!(contents(&received), frames);
        for (frame, bytes) in received.iter().zip(&frames) {
            let header = bytes.len().min(SNAPSHOT_MAX);
            assert_eq!((frame.bare(), frame.header()), (header, &bytes[..header]));
            let [piece] = frame.pieces.as_slice() else {
                panic!("{frame:?} has several pieces");
            };
            assert_eq!(piece.span.len(), bytes.len() - header);
        }
        // The device has not written to the unused space.
        let last = received[5].pieces[0].span;
        assert_eq!(last.addr() % BUFFER, SNAPSHOT_MAX);
        let [pool, guest] = rig.buffers;
        let of = if of_guest { guest } else { pool };
        let front = of.at(last.addr() - SNAPSHOT_MAX - of.span().addr(), SNAPSHOT_MAX);
        let mut found = [0; SNAPSHOT_MAX];
        front.unwrap().read(&mut found).unwrap();
        assert_eq!(found, [UNWRITTEN; SNAPSHOT_MAX]);
        assert_eq!(rig.nic.close_reason(), None);
        rig.end(received, of_guest);
    }
}

/// D-14, D-44: an impossible header length closes the NIC, and no buffer is lost.
#[test]
fn impossible_headers_close_the_nic() {
    let cases = [
        ([0, 500, 0, 127], Misuse::BadHeader(127)),
        ([0, 500, 0, 129], Misuse::BadHeader(129)),
        ([0, 500, 0, 0], Misuse::BadHeader(0)),
        ([0, 500, 0, 0xffff], Misuse::BadHeader(0xffff)),
        ([0, 60, 0, 61], Misuse::BadHeader(61)),
        ([0, 60, 0, 128], Misuse::BadHeader(128)),
    ];
    for (words, misuse) in cases {
        for of_guest in [false, true] {
            let mut rig = rig();
            rig.complete(of_guest, &[words]);
            let frames = rig.receive(of_guest);
            assert!(frames.is_empty(), "{words:?}");
            let closed = rig.nic.close_reason().map(|why| why.misuse);
            assert_eq!(closed, Some(misuse), "{words:?}");
            rig.end(frames, of_guest);
        }
    }
    // The frame fills its buffer and continues.
    for (of_guest, misuse) in [
        (
            false,
            Misuse::TooLong {
                len: 2048,
                most: 1518,
            },
        ),
        (true, Misuse::UnexpectedContinuation),
    ] {
        let mut rig = rig();
        rig.complete(of_guest, &[[0, BUFFER as u32, 1, 128]]);
        let frames = rig.receive(of_guest);
        assert_eq!(rig.nic.close_reason().map(|why| why.misuse), Some(misuse));
        rig.end(frames, of_guest);
    }
    // The header length of an error completion is ignored.
    for of_guest in [false, true] {
        let mut rig = rig();
        rig.complete(of_guest, &[[0, 0, 4, 0xffff]]);
        let frames = rig.receive(of_guest);
        assert!(frames.is_empty() && rig.nic.close_reason().is_none());
        let errors = match of_guest {
            true => rig.queue.counters().io_error,
            false => counter(&rig.nic, "rx_io_error"),
        };
        assert_eq!(errors, 1);
        rig.end(frames, of_guest);
    }
}
