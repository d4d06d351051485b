//! Tests rings between a driver and a hostile device, and between a device and a hostile driver.
//! The clauses are those of [specs/dma.md](../../../specs/dma.md).

mod common;

use abi::PAGE;
use common::{TestWire, bytes};
use nic::dma::layout::{
    Completion, Descriptor, DeviceMemory, MappedMemory, Merged, OwnMemory, queue_bytes,
};
use nic::dma::queue::{DeviceQueue, DriverQueue};
use nic::dma::receive::ReceiveSetup;
use nic::dma::soft::InterruptModeration;
use nic::dma::{IoAddr, IoTable, Misuse, QueueName, ReceiveQueue, SoftDevice};
use nic::{Buffer, BufferId, Buffers, Frame, Gso, GsoKind, Pool};
use proptest::prelude::*;
use shmem::Area;
use std::collections::BTreeSet;

const ENTRIES: u32 = 8;
const BUFFER: usize = 512;
const LONGEST: usize = 1200;

/// A supply that panics if a buffer is taken or returned twice.
#[derive(Debug)]
struct Supply {
    pool: Pool,
    used: BTreeSet<u32>,
}

impl Buffers for Supply {
    fn take(&mut self) -> Option<Buffer> {
        let buffer = self.pool.take()?;
        assert!(self.used.insert(buffer.id.0), "handed out twice");
        Some(buffer)
    }

    fn take_large(&mut self) -> Option<Buffer> {
        None
    }

    fn put(&mut self, id: BufferId) {
        assert!(self.used.remove(&id.0), "returned twice");
        self.pool.put(id);
    }
}

/// A receive queue, and a device that the test controls.
struct Rig {
    table: IoTable,
    base: IoAddr,
    queue: ReceiveQueue,
    device: DeviceQueue,
    supply: Supply,
    memory: Area,
    frames: Vec<Frame>,
}

impl Rig {
    fn new() -> Self {
        let memory = Area::anonymous(queue_bytes(ENTRIES)).unwrap();
        let area = Area::anonymous(16 * BUFFER).unwrap();
        let mut table = IoTable::default();
        let base = table.add(memory);
        table.map(base, memory.len()).unwrap();
        table.add(area);
        let setup = ReceiveSetup {
            number: 3,
            entries: ENTRIES,
            maps: true,
            longest: LONGEST,
            merges: true,
        };
        Self {
            queue: ReceiveQueue::new(setup, memory.span(), None).unwrap(),
            device: DeviceQueue::new(ENTRIES, 0),
            supply: Supply {
                pool: Pool::new(area, BUFFER),
                used: BTreeSet::new(),
            },
            table,
            base,
            memory,
            frames: Vec::new(),
        }
    }

    fn post(&mut self, count: usize) {
        let Self { table, supply, .. } = self;
        self.queue.post(table, count, false, supply).unwrap();
    }

    /// Completes the next posted buffer, if any.
    fn complete(&mut self, completion: Completion) {
        let memory = MappedMemory {
            io: &self.table,
            base: self.base,
            entries: ENTRIES,
        };
        if self.device.peek(&memory).unwrap().is_some() {
            self.device.complete(&memory, completion).unwrap();
            self.device.publish(&memory).unwrap();
        }
    }

    /// Writes an arbitrary completion into a slot, and publishes an arbitrary index.
    fn forge(&mut self, slot: u32, completion: Completion, completed: u32) {
        let memory = MappedMemory {
            io: &self.table,
            base: self.base,
            entries: ENTRIES,
        };
        memory.set_completion(slot, completion.encode()).unwrap();
        memory.set_completed(completed).unwrap();
    }

    fn receive(&mut self, budget: usize) -> Result<usize, nic::dma::DmaError> {
        let Self {
            table,
            supply,
            frames,
            ..
        } = self;
        self.queue.receive(table, budget, supply, frames)
    }

    /// Returns the error that a forged completion in slot 1 causes after three buffers were posted
    /// and the first was completed.
    fn misuse(forged: Completion, completed: u32) -> nic::dma::DmaError {
        let mut rig = Self::new();
        rig.post(3);
        rig.complete(Completion {
            len: 60,
            ..Completion::default()
        });
        assert_eq!(rig.receive(8), Ok(1));
        rig.forge(1, forged, completed);
        let error = rig.receive(8).unwrap_err();
        rig.close();
        error
    }

    /// Withdraws all buffers, and checks that none is lost.
    fn close(&mut self) {
        let Self {
            table,
            supply,
            frames,
            ..
        } = self;
        self.queue.withdraw(table, |id| supply.put(id));
        frames.drain(..).for_each(|mut frame| frame.recycle(supply));
        assert_eq!(supply.used, BTreeSet::new());
        assert_eq!(table.mapped_pages(), self.memory.len() / PAGE);
    }
}

/// D-10 to D-14: each violation has its own error, which names the queue and the index.
#[test]
fn violations_name_the_queue_and_the_index() {
    let good = Completion {
        index: 1,
        len: 60,
        ..Completion::default()
    };
    let gap = |len, error| Completion {
        len,
        error,
        more: true,
        ..good
    };
    let cases = [
        (Completion { index: 2, ..good }, 2, Misuse::OutOfOrder(1)),
        (Completion { index: 0, ..good }, 2, Misuse::CompletedTwice),
        (Completion { index: 9, ..good }, 2, Misuse::NotPosted),
        (good, 4, Misuse::NotPosted),
        (good, 0, Misuse::NotPosted),
        (
            Completion { len: 513, ..good },
            2,
            Misuse::TooLong {
                len: 513,
                most: 512,
            },
        ),
        (
            Completion {
                header_len: 7,
                ..good
            },
            2,
            Misuse::BadHeader(7),
        ),
        (
            gap(0, false),
            2,
            Misuse::PartialBuffer { len: 0, most: 512 },
        ),
        (
            gap(511, false),
            2,
            Misuse::PartialBuffer {
                len: 511,
                most: 512,
            },
        ),
        (gap(0, true), 2, Misuse::PartialBuffer { len: 0, most: 512 }),
    ];
    for (forged, completed, expected) in cases {
        let error = Rig::misuse(forged, completed);
        assert_eq!(
            (error.queue, error.misuse),
            (QueueName::Receive(3), expected)
        );
        let index = if completed == 2 {
            forged.index
        } else {
            completed
        };
        assert_eq!(error.index, index);
    }
    let text = Rig::misuse(Completion { index: 0, ..good }, 2).to_string();
    assert_eq!(text, "receive queue 3, index 0: completed twice");
}

/// D-13: the parts of a frame together exceed the maximum length.
#[test]
fn endless_frame_is_too_long() {
    let mut rig = Rig::new();
    rig.post(8);
    for _ in 0..8 {
        rig.complete(Completion {
            len: 512,
            more: true,
            ..Completion::default()
        });
    }
    let error = rig.receive(8).unwrap_err();
    let (len, most) = (3 * 512, LONGEST as u32);
    assert_eq!(
        (error.index, error.misuse),
        (2, Misuse::TooLong { len, most })
    );
    rig.close();
}

/// D-15: an error completion drops its whole frame, and no other frame.
#[test]
fn frame_with_an_error_is_dropped() {
    let mut rig = Rig::new();
    rig.post(4);
    let part = |len, more, error| Completion {
        len,
        more,
        error,
        ..Completion::default()
    };
    rig.complete(part(512, true, false));
    rig.complete(part(0, false, true));
    rig.complete(part(10, false, false));
    rig.complete(part(60, false, false));
    assert_eq!(rig.receive(8), Ok(1));
    assert_eq!(rig.frames[0].len(), 60);
    let counters = rig.queue.counters();
    assert_eq!((counters.io_error, counters.malformed), (1, 1));
    rig.close();
}

#[derive(Clone, Debug)]
enum Op {
    Post(usize),
    Complete(Completion),
    Forge(u32, Completion, u32),
    Receive(usize),
    Recycle,
    Withdraw,
}

fn completion() -> impl Strategy<Value = Completion> {
    let index = prop_oneof![0..40u32, any::<u32>()];
    let len = prop_oneof![4 => 0..=512u32, 1 => 500..1300u32, 1 => any::<u32>()];
    let header_len = prop_oneof![8 => Just(0u16), 1 => any::<u16>()];
    let flags = (
        prop::bool::weighted(0.3),
        any::<bool>(),
        prop::bool::weighted(0.1),
        prop::option::weighted(0.2, (0..2000u16, any::<u8>(), any::<bool>())),
    );
    let all = (index, len, header_len, flags);
    all.prop_map(
        |(index, len, header_len, (more, valid, error, merged))| Completion {
            index,
            // Most frames continue only after a full buffer.
            len: if more && len < 500 {
                BUFFER as u32
            } else {
                len
            },
            header_len,
            more,
            valid,
            error,
            merged: merged.map(|(size, tcp, fixed_id)| Merged {
                gso: Gso {
                    kind: GsoKind::Tcp4,
                    size,
                },
                tcp,
                fixed_id,
            }),
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let completed = prop_oneof![0..40u32, any::<u32>()];
    prop_oneof![
        4 => (0..10usize).prop_map(Op::Post),
        8 => completion().prop_map(Op::Complete),
        1 => (0..ENTRIES, completion(), completed).prop_map(|(slot, forged, completed)| {
            Op::Forge(slot, forged, completed)
        }),
        4 => (0..10usize).prop_map(Op::Receive),
        2 => Just(Op::Recycle),
        1 => Just(Op::Withdraw),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// D-16: each buffer has exactly one owner, and none is lost, for arbitrary writes of the
    /// device.
    #[test]
    fn hostile_device_loses_and_duplicates_no_buffer(
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut rig = Rig::new();
        for op in ops {
            let mut failed = false;
            match op {
                Op::Post(count) => rig.post(count),
                Op::Complete(completion) => rig.complete(completion),
                Op::Forge(slot, forged, completed) => rig.forge(slot, forged, completed),
                Op::Receive(budget) => failed = rig.receive(budget).is_err(),
                Op::Recycle => {
                    let Rig { supply, frames, .. } = &mut rig;
                    frames.drain(..).for_each(|mut frame| frame.recycle(supply));
                }
                Op::Withdraw => failed = true,
            }
            if failed {
                let Rig { supply, table, queue, .. } = &mut rig;
                let start = queue.withdraw(table, |id| supply.put(id));
                rig.device = DeviceQueue::new(ENTRIES, start);
                rig.forge(0, Completion::default(), start);
            }
            let mut in_frames = BTreeSet::new();
            for frame in &rig.frames {
                prop_assert!((14..=LONGEST).contains(&frame.len()));
                for piece in &frame.pieces {
                    prop_assert!(rig.supply.used.contains(&piece.buffer.0));
                    prop_assert!(in_frames.insert(piece.buffer.0), "in two frames");
                }
            }
            let held = in_frames.len() + rig.queue.posted();
            prop_assert_eq!(held, rig.supply.used.len());
        }
        rig.close();
    }
}

/// Number of pages that a hostile driver posts, maps and unmaps.
const PAGES: usize = 4;

#[derive(Clone, Debug)]
enum DriverOp {
    Map(usize),
    Unmap(usize),
    Post { at: usize, len: usize },
    Arrive(usize),
    Work,
}

fn driver_op() -> impl Strategy<Value = DriverOp> {
    // Some addresses lie before or after the pages.
    let at = 0..(PAGES + 2) * PAGE;
    prop_oneof![
        2 => (0..PAGES).prop_map(DriverOp::Map),
        1 => (0..PAGES).prop_map(DriverOp::Unmap),
        4 => (at, 0..2000usize).prop_map(|(at, len)| DriverOp::Post { at, len }),
        1 => Just(DriverOp::Post { at: PAGE, len: 0 }),
        4 => (14..1500usize).prop_map(DriverOp::Arrive),
        3 => Just(DriverOp::Work),
    ]
}

/// The device, a driver that posts arbitrary addresses, and the expected contents of the driver's
/// pages.
struct Driven {
    table: IoTable,
    device: SoftDevice<TestWire>,
    queue: DriverQueue<OwnMemory, ()>,
    test_wire: TestWire,
    pages: Area,
    first: IoAddr,
    expected: Vec<u8>,
    arrived: Vec<Vec<u8>>,
    /// Number of stored bytes of the current frame.
    stored: usize,
    mapped: [u32; PAGES],
}

impl Driven {
    fn new() -> Self {
        let rings = Area::anonymous(2 * queue_bytes(ENTRIES)).unwrap();
        let pages = Area::anonymous((PAGES + 2) * PAGE).unwrap();
        let mut table = IoTable::default();
        let base = table.add(rings);
        table.map(base, rings.len()).unwrap();
        let first = table.add(pages);
        let transmit = base.add(queue_bytes(ENTRIES)).unwrap();
        let memory = OwnMemory::new(rings.span(), ENTRIES).unwrap();
        let test_wire = TestWire::default();
        let interrupts = InterruptModeration::default();
        let wire = test_wire.clone();
        let device = SoftDevice::new(wire, ENTRIES, &[base], transmit, 1518, interrupts);
        Self {
            table,
            device,
            queue: DriverQueue::new(QueueName::Receive(0), memory, ENTRIES, 0),
            test_wire,
            pages,
            first,
            expected: vec![0; pages.len()],
            arrived: Vec::new(),
            stored: 0,
            mapped: [0; PAGES],
        }
    }

    fn page(&self, page: usize) -> IoAddr {
        self.first.add((page + 1) * PAGE).unwrap()
    }

    fn is_mapped(&self, at: usize, len: usize) -> bool {
        (at / PAGE..(at + len).div_ceil(PAGE)).all(|page| {
            let page = page.checked_sub(1).and_then(|page| self.mapped.get(page));
            page.is_some_and(|times| *times > 0)
        })
    }

    fn run(&mut self, op: DriverOp) -> Result<(), TestCaseError> {
        match op {
            DriverOp::Map(page) => {
                self.table.map(self.page(page), PAGE).unwrap();
                self.mapped[page] += 1;
            }
            DriverOp::Unmap(page) => {
                let unmapped = self.table.unmap(self.page(page), PAGE);
                prop_assert_eq!(unmapped.is_ok(), self.mapped[page] > 0);
                self.mapped[page] = self.mapped[page].saturating_sub(1);
            }
            DriverOp::Post { at, len } => {
                let descriptor = Descriptor {
                    address: self.first.add(at).unwrap(),
                    len: len as u32,
                    header: None,
                    checksum: None,
                };
                let _ = self.queue.post((), descriptor);
                self.queue.publish().unwrap();
            }
            DriverOp::Arrive(len) => {
                let frame = bytes(self.arrived.len() as u8 + 1, len);
                self.test_wire
                    .arriving
                    .borrow_mut()
                    .push_back(frame.clone());
                self.arrived.push(frame);
            }
            DriverOp::Work => self.work()?,
        }
        Ok(())
    }

    fn work(&mut self) -> Result<(), TestCaseError> {
        self.device.poll(0, &self.table);
        while let Some(((), descriptor, completion)) = self.queue.take().unwrap() {
            let at = (descriptor.address.bits() - self.first.bits()) as usize;
            let frame = self.arrived.first().cloned().unwrap();
            let rest = &frame[self.stored..];
            let part = &rest[..rest.len().min(descriptor.len as usize)];
            let is_stored = !part.is_empty() && self.is_mapped(at, part.len());
            prop_assert_eq!(completion.error, !is_stored);
            if !completion.error {
                prop_assert_eq!(completion.len as usize, part.len());
                self.expected[at..at + part.len()].copy_from_slice(part);
            }
            if completion.more {
                self.stored += part.len();
            } else {
                self.stored = 0;
                self.arrived.remove(0);
            }
        }
        let mut found = vec![0; self.pages.len()];
        self.pages.span().read(&mut found).unwrap();
        prop_assert!(
            found == self.expected,
            "the device wrote outside the posted and mapped bytes"
        );
        Ok(())
    }
}

/// D-43: a descriptor of an empty buffer loses one frame, and the queue continues to work.
#[test]
fn empty_buffer_completes_with_an_error() {
    let mut driven = Driven::new();
    driven.run(DriverOp::Map(0)).unwrap();
    for len in [0, 0, 600, 0, 600, 600] {
        driven.run(DriverOp::Post { at: PAGE, len }).unwrap();
    }
    // The third frame is lost at the fourth descriptor.
    for len in [100, 100, 1200, 1200] {
        driven.run(DriverOp::Arrive(len)).unwrap();
    }
    driven.work().unwrap();
    assert_eq!(driven.arrived, [] as [Vec<u8>; 0]);
    let counters = driven.device.counters();
    assert_eq!((counters.empty_buffers, counters.too_long), (3, 0));
}

#[test]
fn only_buffers_of_published_completions_are_completed() {
    let mut driven = Driven::new();
    driven.run(DriverOp::Map(0)).unwrap();
    for _ in 0..3 {
        driven.run(DriverOp::Post { at: PAGE, len: 600 }).unwrap();
    }
    for _ in 0..2 {
        driven.run(DriverOp::Arrive(100)).unwrap();
    }
    driven.device.poll(0, &driven.table);
    let completed = |driven: &Driven| {
        (0..4)
            .filter(|n| driven.queue.completed(*n).is_some())
            .count()
    };
    assert_eq!(completed(&driven), 0, "the driver has not read the index");
    driven.queue.peek().unwrap().unwrap();
    assert_eq!(completed(&driven), 2);
    driven.queue.pop().unwrap();
    assert_eq!(completed(&driven), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// D-4, D-5, D-43: the device writes only bytes that are posted and mapped at the time of the
    /// write.
    #[test]
    fn device_writes_only_posted_and_mapped_bytes(
        ops in prop::collection::vec(driver_op(), 1..60),
    ) {
        let mut driven = Driven::new();
        for op in ops {
            driven.run(op)?;
        }
        driven.work()?;
    }
}
