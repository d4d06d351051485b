//! What large receive offload costs: the engine alone, cycles per packet by number of interleaved
//! flows.
//!
//! Every flow sends [`TRAIN`] segments of [`PAYLOAD`] bytes, in turn with the other flows, polls take
//! [`BUDGET`] packets, and aggregates are held until every flow has sent its train: so the LRO rate
//! is the same in every cell, whatever the number of flows. (Flushed at every poll, 64 packets of 512
//! flows could not merge at all.) Timed are the polls and the final flush.
//!
//! | column | packets |
//! |---|---|
//! | `hot` | headers in the cache, snapshots made, checksums known to be right |
//! | `cold` | headers out of the second-level cache, snapshots made within the time |
//! | `verified` | as `hot`, checksums computed by the engine, payload in the cache |

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use net::lro::{Flush, Form, Lro, Settings};
use net::packet::checksum::{Sum, pseudo_v4};
use nic::{BufferId, Checksum, Frame, Piece};
use shmem::{Area, Span};
use std::time::Duration;

/// Packets of a pass over memory.
const PACKETS: usize = 16_384;
/// Bytes of a buffer: half a page.
const BUFFER: usize = 2048;
/// Segments of a flow that can become one packet.
const TRAIN: usize = 32;
/// Payload of a segment: Ethernet's MTU, with timestamps.
const PAYLOAD: usize = 1448;
const HEADER: usize = 14 + 20 + 32;
/// Packets of a poll.
const BUDGET: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Column {
    Hot,
    Cold,
    Verified,
}

/// Headers of segment `n` of a flow.
fn header(flow: usize, n: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &[2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1, 8, 0]);
    put(14, &[0x45, 0]);
    put(16, &((HEADER - 14 + PAYLOAD) as u16).to_be_bytes());
    put(18, &(n as u16).to_be_bytes());
    put(20, &[0x40, 0, 64, 6]);
    put(26, &[10, 0, (flow >> 8) as u8, flow as u8, 10, 1, 0, 1]);
    put(34, &(40_000 + flow as u16).to_be_bytes());
    put(36, &[0x14, 0x51]);
    put(38, &((n * PAYLOAD) as u32).to_be_bytes());
    put(42, &[0, 0, 0, 9, 0x80, 0x10, 0xff, 0xff]);
    put(54, &[1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
    let mut ip = Sum::default();
    ip.add_bytes(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&(!ip.folded()).to_be_bytes());
    let source = [10, 0, (flow >> 8) as u8, flow as u8].into();
    let mut tcp = Sum::new(pseudo_v4(source, [10, 1, 0, 1].into(), 6, 32 + PAYLOAD));
    // The payload is zeros.
    tcp.add_bytes(&bytes[34..]);
    bytes[50..52].copy_from_slice(&tcp.finish().to_be_bytes());
    bytes
}

/// All packets in memory, in order of arrival.
struct Packets {
    area: Area,
    /// Packets after which all flows have sent their train.
    window: usize,
}

impl Packets {
    fn new(flows: usize) -> Self {
        let area = Area::anonymous(PACKETS * BUFFER).expect("memory");
        for index in 0..PACKETS {
            let n = index / flows % TRAIN;
            let at = area.at(index * BUFFER, BUFFER).expect("a buffer");
            at.write(&header(index % flows, n)).expect("memory");
        }
        Self {
            area,
            window: flows * TRAIN,
        }
    }

    fn span(&self, index: usize) -> Span {
        let span = self.area.at(index * BUFFER, HEADER + PAYLOAD);
        span.expect("a buffer")
    }

    /// Takes packets as a NIC would.
    fn receive(&self, range: std::ops::Range<usize>, checksum: Checksum, out: &mut Vec<Frame>) {
        for index in range {
            if index + 8 < PACKETS {
                self.span(index + 8).prefetch();
            }
            let piece = Piece {
                span: self.span(index),
                buffer: BufferId(index as u32),
            };
            let mut frame = Frame::new(piece, HEADER + PAYLOAD).expect("memory");
            frame.offload.checksum = checksum;
            out.push(frame);
        }
    }

    /// One pass over all packets; cycles of what is measured.
    fn pass(&self, lro: &mut Lro, column: Column, room: &mut Room) -> u64 {
        let checksum = match column {
            Column::Verified => Checksum::Unknown,
            _ => Checksum::Valid,
        };
        let mut cycles = 0;
        for start in (0..PACKETS).step_by(BUDGET.min(self.window)) {
            let range = start..start + BUDGET.min(self.window);
            let end = range.end;
            if column != Column::Cold {
                for index in range.clone() {
                    let _ = shmem::ones_sum(self.span(index), 0);
                }
                self.receive(range.clone(), checksum, &mut room.frames);
            }
            let before = shmem::time::tsc();
            if column == Column::Cold {
                self.receive(range, checksum, &mut room.frames);
            }
            lro.poll(start as u64, &mut room.frames, &mut room.out);
            if end % self.window == 0 {
                lro.drain(start as u64, &mut room.out);
            }
            cycles += shmem::time::tsc() - before;
            room.out.clear();
        }
        cycles
    }
}

#[derive(Default)]
struct Room {
    frames: Vec<Frame>,
    out: Vec<Frame>,
}

fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("lro");
    group
        .throughput(Throughput::Elements(PACKETS as u64))
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    for (column, name) in [
        (Column::Hot, "hot"),
        (Column::Cold, "cold"),
        (Column::Verified, "verified"),
    ] {
        for (form, form_name) in [(Form::Skb, "skb"), (Form::Page, "page")] {
            for flows in [1, 8, 64, 512] {
                let packets = Packets::new(flows);
                let mut lro = Lro::new(
                    Settings {
                        form,
                        flush: Flush::After { us: u32::MAX },
                        hold_max_us: u32::MAX,
                        ..Settings::default()
                    },
                    1,
                );
                let (mut cycles, mut passes) = (0, 0);
                let mut room = Room::default();
                let id = format!("{name}/{form_name}/{flows}");
                group.bench_function(&id, |b| {
                    b.iter_custom(|iterations| {
                        let spent: u64 = (0..iterations)
                            .map(|_| packets.pass(&mut lro, column, &mut room))
                            .sum();
                        cycles += spent;
                        passes += iterations;
                        let ns = u128::from(spent) * 1_000_000_000;
                        Duration::from_nanos((ns / u128::from(shmem::time::tsc_hz())) as u64)
                    });
                });
                if passes > 0 {
                    println!(
                        "lro/{id}: {:.1} cycles/packet, LRO rate {:.2}",
                        cycles as f64 / (passes * PACKETS as u64) as f64,
                        lro.counters().rate(),
                    );
                }
            }
        }
    }
}

criterion_group!(benches, engine);
criterion_main!(benches);
