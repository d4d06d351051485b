//! Measures the driver's time to receive frames from descriptor rings: posting buffers, checking
//! completions, taking snapshots and returning buffers. The measurement excludes the device's time.
//!
//! `cargo bench -p nic`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic::dma::layout::queue_bytes;
use nic::dma::receive::ReceiveSetup;
use nic::dma::soft::InterruptModeration;
use nic::dma::{IoTable, ReceiveQueue, SoftDevice, Wire};
use nic::{Frame, Pool};
use shmem::Area;
use std::time::{Duration, Instant};

const ENTRIES: u32 = 256;
const BATCH: usize = 64;
const BUFFER: usize = 2048;
const BUFFERS: usize = 1024;

/// A wire on which the same frame arrives repeatedly.
#[derive(Debug)]
struct Repeated {
    bytes: Vec<u8>,
    left: usize,
}

impl Wire for Repeated {
    fn has_room(&self, _len: usize) -> bool {
        true
    }

    fn send(&mut self, _now_ns: u64, _bytes: Vec<u8>) {}

    fn receive(&mut self, _now_ns: u64) -> Option<Vec<u8>> {
        // The next batch arrives after the device has found the wire empty.
        let Some(left) = self.left.checked_sub(1) else {
            self.left = BATCH;
            return None;
        };
        self.left = left;
        Some(self.bytes.clone())
    }

    fn due_ns(&self, _n: usize) -> Option<u64> {
        Some(0)
    }
}

/// A driver and its device.
struct Loop {
    table: IoTable,
    queue: ReceiveQueue,
    device: SoftDevice<Repeated>,
    pool: Pool,
    frames: Vec<Frame>,
}

impl Loop {
    /// Creates a driver and a device. With `maps`, each buffer is mapped only while it is posted,
    /// like a guest's buffer.
    fn new(len: usize, maps: bool) -> Option<Self> {
        let area = |bytes| Area::anonymous(bytes).ok();
        let (rings, buffers) = (area(2 * queue_bytes(ENTRIES))?, area(BUFFERS * BUFFER)?);
        let mut table = IoTable::default();
        let (base, of_buffers) = (table.add(rings), table.add(buffers));
        table.map(base, rings.len()).ok()?;
        if !maps {
            table.map(of_buffers, buffers.len()).ok()?;
        }
        let setup = ReceiveSetup {
            number: 0,
            entries: ENTRIES,
            maps,
            longest: 1518,
            merges: false,
        };
        let wire = Repeated {
            bytes: vec![1; len],
            left: BATCH,
        };
        let transmit = base.add(queue_bytes(ENTRIES))?;
        let interrupts = InterruptModeration::default();
        Some(Self {
            queue: ReceiveQueue::new(setup, rings.span(), None)?,
            device: SoftDevice::new(wire, ENTRIES, &[base], transmit, 1518, interrupts),
            table,
            pool: Pool::new(buffers, BUFFER),
            frames: Vec::new(),
        })
    }

    /// Receives a batch, and returns the time that the driver spent.
    fn turn(&mut self) -> Duration {
        let Self {
            table,
            queue,
            device,
            pool,
            frames,
        } = self;
        let start = Instant::now();
        let posted = queue.post(table, usize::MAX, false, pool);
        let first = start.elapsed();
        device.poll(0, table);
        let start = Instant::now();
        let received = queue.receive(table, BATCH, pool, frames);
        for frame in &mut *frames {
            frame.recycle(pool);
        }
        frames.clear();
        let second = start.elapsed();
        assert!(posted.is_ok());
        assert_eq!(received, Ok(BATCH));
        first + second
    }
}

fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("dma_receive");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, maps) in [("shared", false), ("dedicated", true)] {
        for len in [60, 1514] {
            let mut turns = Loop::new(len, maps).expect("memory");
            group.bench_function(BenchmarkId::new(name, len), |b| {
                b.iter_custom(|iterations| (0..iterations).map(|_| turns.turn()).sum());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, receive);
criterion_main!(benches);
