//! The cost of descriptors, copies and used rings: frames of 64 and 1514 bytes through a queue
//! pair, both ways, in one thread. The driver's side is counted as well.
//!
//! `cargo bench -p vhost-edge`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic::{Frame, Nic};
use vhost_edge::features::virtio::{EVENT_IDX, MRG_RXBUF, VERSION_1};
use vhost_edge::testing::Rig;
use vhost_edge::testing::driver::{Descriptor, WRITE};
use vhost_edge::testing::front::GPA;
use vhost_edge::testing::rig::offer;

/// Frames of a batch.
const BATCH: usize = 32;
/// Bytes of the header.
const HEADER: usize = 12;
/// Offset of the buffers in the memory.
const BUFFERS: usize = 1 << 18;

/// A driver that posts the same descriptors again and again.
struct Loop {
    rig: Rig,
    frames: Vec<Frame>,
    pick: Vec<u32>,
}

impl Loop {
    fn new(bytes: usize) -> Self {
        let rig = Rig::running(offer(1), 256, VERSION_1 | MRG_RXBUF | EVENT_IDX);
        for (ring, flags, len) in [(0, WRITE, 2048), (1, 0, HEADER + bytes)] {
            for index in 0..256 {
                let at = BUFFERS + (256 * ring + usize::from(index)) * 2048;
                rig.front.rings[ring].ring.describe(
                    index,
                    Descriptor {
                        gpa: GPA + at as u64,
                        bytes: len as u32,
                        flags,
                        next: 0,
                    },
                );
            }
        }
        Self {
            rig,
            frames: Vec::new(),
            pick: (0..BATCH as u32).collect(),
        }
    }

    fn offer(&mut self, ring: usize) {
        let ring = &mut self.rig.front.rings[ring].ring;
        for _ in 0..BATCH {
            ring.offer(ring.avail % 256);
        }
        ring.publish();
    }

    /// The driver sends a batch, and receives it.
    fn turn(&mut self) {
        self.offer(0);
        self.offer(1);
        let Self { rig, frames, pick } = self;
        let taken = rig.ports[0].rx(0, BATCH, &mut rig.pool, frames);
        assert_eq!(taken, BATCH);
        let report = rig.ports[0].tx(0, frames, pick);
        assert_eq!(report.sent as usize, BATCH);
        for frame in frames.iter_mut() {
            frame.recycle(&mut rig.pool);
        }
        frames.clear();
    }
}

fn frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("from_vm_and_to_vm");
    group.throughput(Throughput::Elements(BATCH as u64));
    for bytes in [64, 1514] {
        let mut turns = Loop::new(bytes);
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter(|| turns.turn());
        });
    }
    group.finish();
}

criterion_group!(benches, frames);
criterion_main!(benches);
