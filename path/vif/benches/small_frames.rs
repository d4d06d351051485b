//! Measures the cost of rings, netback and netfront alone: guest → driver → guest in one thread,
//! over a grant mechanism that only looks up entries in the table. No endpoint reads the frames.
//!
//! `cargo bench -p vif`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nic::Frame;
use rustix::time::{ClockId, clock_gettime};
use shmem::sync::fence;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vif::netfront::Sizes;
use vif::testing::{Rig, packet};

/// A guest that sends one batch per turn to itself through the driver domain.
struct Loop {
    rig: Rig,
    at_guest: Vec<Frame>,
    at_driver: Vec<Frame>,
    pick: Vec<u32>,
}

impl Loop {
    fn new(make: impl Fn(Sizes) -> Rig) -> Self {
        let rig = make(Sizes {
            tx_order: 0,
            rx_order: 0,
            rx_pages: 128,
            rx_spare_pages: 0,
            rx_buffer: 2048,
            tx_small_pages: 128,
            tx_large_pages: 32,
        });
        Self {
            rig,
            at_guest: Vec::new(),
            at_driver: Vec::new(),
            pick: Vec::new(),
        }
    }

    fn turn(&mut self, batch: usize, bytes: &[u8]) {
        let Self {
            rig,
            at_guest,
            at_driver,
            pick,
        } = self;
        at_guest.extend((0..batch).filter_map(|_| rig.guest_frame(bytes)));
        rig.front.transmit(at_guest).expect("alive");
        rig.front.publish();
        fence(Ordering::SeqCst);
        let _ = rig.front.notify();

        let taken = rig.back.from_guest(batch, at_driver).expect("alive");
        assert_eq!(taken, batch);
        pick.clear();
        pick.extend(0..taken as u32);
        let report = rig.back.to_guest(at_driver, pick);
        assert_eq!(report.delivered as usize, batch);
        rig.back.publish();
        rig.back.from_guest_done();
        at_driver.clear();
        fence(Ordering::SeqCst);
        let _ = rig.back.notify();

        let received = rig.front.receive(batch, at_guest).expect("alive");
        assert_eq!(received, batch);
        rig.front.receive_done(at_guest);
    }
}

/// Returns the CPU time of this thread, which excludes preemption on a busy machine.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn small_frames(c: &mut Criterion) {
    let batches = [(60, &[1, 8, 32, 64][..]), (1514, &[32]), (65_000, &[1])];
    measure(c, "guest_driver_guest", Rig::untouched, &batches);
    // Buffers swap their memory, as for endpoints that touch payload.
    measure(c, "swapped", Rig::new, &[(60, &[32])]);
}

/// Measures turns with frames of some sizes, in batches of some numbers of frames.
fn measure(c: &mut Criterion, name: &str, make: fn(Sizes) -> Rig, batches: &[(usize, &[usize])]) {
    let mut group = c.benchmark_group(name);
    for &(size, batches) in batches {
        for &batch in batches {
            group.throughput(Throughput::Elements(batch as u64));
            let bytes = packet(size, 1);
            let mut turns = Loop::new(make);
            group.bench_function(BenchmarkId::new(format!("{size}B"), batch), |b| {
                b.iter_custom(|iterations| {
                    let before = cpu_time();
                    for _ in 0..iterations {
                        turns.turn(batch, &bytes);
                    }
                    cpu_time() - before
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, small_frames);
criterion_main!(benches);
