//! The packets in memory, and a pass of the engine over them.

use net::lro::{AggregateForm, Flush, Lro, MergeRules, Settings};
use net::packet::checksum::{Sum, pseudo_v4};
use nic::{BufferId, Checksum, Frame, Piece};
use shmem::{Area, Span};
use std::fmt;
use std::ops::Range;

/// Packets per pass over memory.
pub(crate) const PACKETS: usize = 16_384;
/// Bytes of a buffer: half a page.
const BUFFER: usize = 2048;
/// Segments of a flow that may merge into one packet.
const MERGED_SEGMENTS: usize = 32;
/// Payload of a segment: Ethernet's MTU, with timestamps.
const PAYLOAD: usize = 1448;
const HEADER: usize = 14 + 20 + 32;
/// Packets per poll.
const BUDGET: usize = 64;

/// State of headers and checksums when the engine starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Column {
    /// Headers are in the cache, snapshots exist, checksums are known to be valid.
    Hot,
    /// Headers are in the second-level cache; the measurement includes taking the snapshots.
    Cold,
    /// Like `Hot`, but the engine computes checksums; the payload is in the cache.
    Verified,
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) rules: MergeRules,
    pub(crate) form: AggregateForm,
    pub(crate) column: Column,
    /// Flows interleaved packet by packet.
    pub(crate) flows: usize,
}

/// Returns every cell, in the order of the table.
pub(crate) fn cells() -> impl Iterator<Item = Cell> {
    [
        (MergeRules::Gro, AggregateForm::Skb, Column::Hot),
        (MergeRules::Gro, AggregateForm::Skb, Column::Cold),
        (MergeRules::Gro, AggregateForm::Skb, Column::Verified),
        (MergeRules::Gro, AggregateForm::Page, Column::Hot),
        (MergeRules::Lro, AggregateForm::Skb, Column::Hot),
        (MergeRules::Lro, AggregateForm::Skb, Column::Cold),
        (MergeRules::Lro, AggregateForm::Skb, Column::Verified),
    ]
    .into_iter()
    .flat_map(|(rules, form, column)| {
        [1, 8, 64, 512].map(|flows| Cell {
            rules,
            form,
            column,
            flows,
        })
    })
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!(
            "{:?}/{:?}/{:?}/{}",
            self.rules, self.form, self.column, self.flows
        );
        f.write_str(&name.to_lowercase())
    }
}

impl Cell {
    /// Creates an engine that holds aggregates until it is drained.
    pub(crate) fn engine(self) -> Lro {
        let settings = Settings {
            rules: self.rules,
            form: self.form,
            flush: Flush::After { us: u32::MAX },
            hold_max_us: u32::MAX,
            ..Settings::default()
        };
        Lro::new(settings, 1)
    }
}

/// Returns the headers of segment `n` of a flow.
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
    let start = (flow as u32).wrapping_mul(0x9e37_79b1);
    let sequence = start.wrapping_add((n * PAYLOAD) as u32);
    put(38, &sequence.to_be_bytes());
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

/// Reused vectors.
#[derive(Default)]
pub(crate) struct Room {
    frames: Vec<Frame>,
    out: Vec<Frame>,
}

type Part = fn(&Packets, &mut Lro, Range<usize>, (usize, bool), &mut Room);

/// All packets in memory, in order of arrival.
pub(crate) struct Packets {
    area: Area,
    /// Packets after which all flows have sent their train.
    window: usize,
}

impl Packets {
    pub(crate) fn new(flows: usize) -> Self {
        let area = Area::anonymous(PACKETS * BUFFER).expect("memory");
        for index in 0..PACKETS {
            let n = index / flows % MERGED_SEGMENTS;
            let at = area.at(index * BUFFER, BUFFER).expect("a buffer");
            at.write(&header(index % flows, n)).expect("memory");
        }
        Self {
            area,
            window: flows * MERGED_SEGMENTS,
        }
    }

    fn span(&self, index: usize) -> Span {
        let span = self.area.at(index * BUFFER, HEADER + PAYLOAD);
        span.expect("a buffer")
    }

    /// Receives packets as a NIC would.
    fn receive(&self, range: Range<usize>, checksum: Checksum, out: &mut Vec<Frame>) {
        for index in range {
            if index + 8 < PACKETS {
                self.span(index + 8).take(HEADER).prefetch();
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

    /// Runs one pass over all packets; returns the time stamp counter cycles of the measured part.
    pub(crate) fn pass(&self, lro: &mut Lro, column: Column, room: &mut Room) -> u64 {
        self.pass_by(Self::measured_part, lro, column, room)
    }

    /// Runs an unmeasured pass.
    pub(crate) fn warm_up(&self, lro: &mut Lro, column: Column, room: &mut Room) {
        self.pass_by(Self::part, lro, column, room);
    }

    fn pass_by(&self, part: Part, lro: &mut Lro, column: Column, room: &mut Room) -> u64 {
        let checksum = match column {
            Column::Verified => Checksum::Unknown,
            Column::Hot | Column::Cold => Checksum::Valid,
        };
        let batch = BUDGET.min(self.window);
        let mut cycles = 0;
        for start in (0..PACKETS).step_by(batch) {
            let mut arriving = start..start + batch;
            if column == Column::Verified {
                for index in arriving.clone() {
                    let _ = shmem::ones_sum(self.span(index), 0);
                }
            }
            if column != Column::Cold {
                self.receive(arriving.clone(), checksum, &mut room.frames);
                arriving = 0..0;
            }
            let drain = (start + batch).is_multiple_of(self.window);
            let before = shmem::time::tsc();
            part(self, lro, arriving, (start, drain), room);
            cycles += shmem::time::tsc() - before;
            room.out.clear();
        }
        cycles
    }

    /// [`Packets::part`] under a name by which valgrind counts it.
    #[inline(never)]
    fn measured_part(
        &self,
        lro: &mut Lro,
        arriving: Range<usize>,
        now: (usize, bool),
        room: &mut Room,
    ) {
        self.part(lro, arriving, now, room);
    }

    /// The timed and counted part: one poll.
    fn part(
        &self,
        lro: &mut Lro,
        arriving: Range<usize>,
        (now, drain): (usize, bool),
        room: &mut Room,
    ) {
        self.receive(arriving, Checksum::Valid, &mut room.frames);
        lro.poll(now as u64, &mut room.frames, &mut room.out);
        if drain {
            lro.drain(now as u64, &mut room.out);
        }
    }
}
