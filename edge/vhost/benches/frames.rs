//! Measures the shim alone. It copies frames of 64 and 1514 bytes between the virtual machine's
//! buffers and a netfront's, in both directions, on the fast path and on the slow path. The virtual
//! machine's driver runs on another processor, whose cache holds the lines that the shim reads and
//! writes. Only the shim's time is counted.
//!
//! `cargo bench -p vhost-edge`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic::{Buffers, Frame, Nic, Piece};
use rustix::thread::{CpuSet, sched_setaffinity};
use shmem::Span;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use vhost_edge::features::virtio::{EVENT_IDX, MRG_RXBUF, VERSION_1};
use vhost_edge::testing::Rig;
use vhost_edge::testing::driver::{Descriptor, DriverRing, WRITE};
use vhost_edge::testing::front::GPA;
use vhost_edge::testing::rig::offer;

/// Frames per batch.
const BATCH: usize = 64;
/// Bytes of a frame's virtio header.
const HEADER: usize = 12;
/// Bytes of a buffer.
const BUFFER: usize = 2048;
/// Offset of the first buffer in the virtual machine's memory.
const BUFFERS: usize = 1 << 18;
/// Entries of a ring.
const ENTRIES: u16 = 256;
/// Index of the receive ring.
const RECEIVE: usize = 0;
/// Index of the transmit ring.
const TRANSMIT: usize = 1;

/// Pins the calling thread to one processor.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // On a machine with one processor, both threads share it.
    let _ = sched_setaffinity(None, &set);
}

/// The virtual machine's driver: it writes headers and frames, and reads received ones.
struct Driver {
    rings: [DriverRing; 2],
    buffers: Span,
    bytes: usize,
}

impl Driver {
    /// Returns the buffer that belongs to an entry of a ring.
    fn buffer(&self, ring: usize, entry: u16) -> Span {
        let at = BUFFER * (usize::from(ENTRIES) * ring + usize::from(entry));
        self.buffers.skip(at).take(HEADER + self.bytes)
    }

    /// Makes a batch available in each ring.
    fn offer(&mut self) {
        let frame = vec![0; HEADER + self.bytes];
        let mut received = frame.clone();
        for ring in [RECEIVE, TRANSMIT] {
            for n in 0..BATCH as u16 {
                let entry = self.rings[ring].avail.wrapping_add(n) % ENTRIES;
                let (flags, len) = match ring {
                    RECEIVE => (WRITE, BUFFER),
                    _ => (0, frame.len()),
                };
                let at = BUFFERS + BUFFER * (usize::from(ENTRIES) * ring + usize::from(entry));
                self.rings[ring].describe(
                    entry,
                    Descriptor {
                        gpa: GPA + at as u64,
                        bytes: len as u32,
                        flags,
                        next: 0,
                    },
                );
                let buffer = self.buffer(ring, entry);
                let done = match ring {
                    RECEIVE => buffer.read(&mut received),
                    _ => buffer.write(&frame),
                };
                done.expect("memory");
            }
            for _ in 0..BATCH {
                let head = self.rings[ring].avail % ENTRIES;
                self.rings[ring].offer(head);
            }
            self.rings[ring].publish();
            while self.rings[ring].returned().is_some() {}
        }
    }
}

/// The shim, and a driver in another thread.
struct Shim {
    rig: Rig,
    turn: SyncSender<()>,
    offered: Receiver<()>,
    frames: Vec<Frame>,
    pieces: Vec<Piece>,
    pick: Vec<u32>,
}

/// A function that moves one batch and returns the number of frames.
type Move = fn(&mut Shim) -> usize;

impl Shim {
    fn new(bytes: usize) -> Self {
        pin(0);
        let rig = Rig::running(offer(1), ENTRIES, VERSION_1 | MRG_RXBUF | EVENT_IDX);
        let mut driver = Driver {
            rings: [RECEIVE, TRANSMIT].map(|ring| rig.front.rings[ring].ring.clone()),
            buffers: rig.front.at(BUFFERS, 2 * BUFFER * usize::from(ENTRIES)),
            bytes,
        };
        let (turn, turns) = sync_channel(1);
        let (offer, offered) = sync_channel(1);
        thread::spawn(move || {
            pin(1);
            while turns.recv().is_ok() {
                driver.offer();
                let _ = offer.send(());
            }
        });
        Self {
            rig,
            turn,
            offered,
            frames: Vec::new(),
            pieces: Vec::new(),
            pick: (0..BATCH as u32).collect(),
        }
    }

    /// Runs `turns` turns. Returns the total time spent in `from_vm` and in `to_vm`.
    fn run(&mut self, from_vm: Move, to_vm: Move, turns: u64) -> [Duration; 2] {
        let mut times = [Duration::ZERO; 2];
        for _ in 0..turns {
            self.turn.send(()).expect("the driver");
            self.offered.recv().expect("the driver");
            for (time, act) in times.iter_mut().zip([from_vm, to_vm]) {
                let start = Instant::now();
                let moved = act(self);
                *time += start.elapsed();
                assert_eq!(moved, BATCH);
            }
            let pool = &mut self.rig.pool;
            self.frames
                .drain(..)
                .for_each(|mut frame| frame.recycle(pool));
            self.pieces
                .drain(..)
                .for_each(|piece| pool.put(piece.buffer));
        }
        times
    }
}

fn slow_from_vm(shim: &mut Shim) -> usize {
    let Rig { ports, pool, .. } = &mut shim.rig;
    ports[0].rx(0, BATCH, pool, &mut shim.frames)
}

fn slow_to_vm(shim: &mut Shim) -> usize {
    let report = shim.rig.ports[0].tx(0, &shim.frames, &shim.pick);
    report.sent as usize
}

fn fast_from_vm(shim: &mut Shim) -> usize {
    let Rig { ports, pool, .. } = &mut shim.rig;
    let port = ports[0].small_frames().expect("a fast path");
    port.rx_small_frames(0, BATCH, pool, &mut shim.pieces)
}

fn fast_to_vm(shim: &mut Shim) -> usize {
    let port = shim.rig.ports[0].small_frames().expect("a fast path");
    port.tx_small_frames(0, &shim.pieces).sent as usize
}

fn frames(c: &mut Criterion) {
    let paths: [(&str, Move, Move); 2] = [
        ("slow", slow_from_vm, slow_to_vm),
        ("fast", fast_from_vm, fast_to_vm),
    ];
    for (direction, name) in ["from_vm", "to_vm"].into_iter().enumerate() {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(BATCH as u64));
        for bytes in [64, 1514] {
            for (path, from_vm, to_vm) in paths {
                let mut shim = Shim::new(bytes);
                group.bench_function(BenchmarkId::new(path, bytes), |b| {
                    b.iter_custom(|turns| shim.run(from_vm, to_vm, turns)[direction]);
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, frames);
criterion_main!(benches);
