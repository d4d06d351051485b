//! Guest → driver → guest in one thread: packets arrive complete and in order, and nothing leaks.

use crate::netfront::{Sizes, TX_SMALL_BYTES};
use crate::netif::Features;
use crate::ring::Format;
use crate::testing::{
    Rig, TestMemory, frame_at, ipv4_tcp, over_each_format, packet, sizes, with_format,
};
use nic::{Buffers, Checksum, Frame, Gso, GsoKind, Offload, Piece, SmallBatch, SmallFrame};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Op {
    /// The guest sends a packet of this many bytes.
    Send(u32),
    /// The guest sends a packet that lies outside its transmit buffers.
    SendForeign(u32),
    /// The driver consumes up to this many packets and answers them.
    Take(u8),
    /// The driver delivers a packet of the first number of bytes, in pieces of the second.
    Give(u32, u16),
    /// The guest receives up to this many packets; if `hold`, it posts the buffers again later.
    Receive(u8, bool),
    /// The guest posts the buffers that it held.
    Post,
}

fn op() -> impl Strategy<Value = Op> {
    let len = || prop_oneof![14..100_u32, 1400..1700_u32, 14..65_536_u32];
    prop_oneof![
        4 => len().prop_map(Op::Send),
        1 => len().prop_map(Op::SendForeign),
        3 => any::<u8>().prop_map(Op::Take),
        4 => (len(), 1..u16::MAX).prop_map(|(len, piece)| Op::Give(len, piece)),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(n, hold)| Op::Receive(n, hold)),
        1 => Just(Op::Post),
    ]
}

struct World {
    rig: Rig,
    source: TestMemory,
    foreign: TestMemory,
    seed: u64,
    to_driver: VecDeque<Vec<u8>>,
    to_guest: VecDeque<Vec<u8>>,
    held: Vec<Frame>,
    held_small_frames: Vec<Piece>,
}

impl World {
    /// Executes `op`; with `short`, on the fast path where possible.
    fn run(&mut self, op: &Op, short: bool) {
        self.seed += 1;
        if short && self.run_short(op) {
            return;
        }
        match *op {
            Op::Send(len) => {
                let bytes = packet(len as usize, self.seed);
                if self.rig.send(&bytes, Offload::default()) {
                    self.to_driver.push_back(bytes);
                }
            }
            Op::SendForeign(len) => {
                let bytes = packet(len as usize, self.seed);
                let mut frames = vec![frame_at(&self.foreign, 64, &bytes, 1000)];
                if self.rig.front.transmit(&mut frames).unwrap().sent == 1 {
                    self.to_driver.push_back(bytes);
                }
                self.rig.front.publish();
            }
            Op::Take(budget) => {
                for bytes in self.rig.take_from_guest(usize::from(budget)) {
                    assert_eq!(Some(bytes), self.to_driver.pop_front());
                }
                self.rig.front.reap().unwrap();
            }
            Op::Give(len, piece) => {
                let bytes = packet(len as usize, self.seed);
                let frame = frame_at(&self.source, 0, &bytes, usize::from(piece));
                let posted = self.rig.back.posted(64);
                let delivered = self.rig.deliver_to_guest(&[frame]);
                let fits = len.div_ceil(u32::from(self.rig.back.negotiated().rx_buffer));
                let most = u32::from(self.rig.back.peer().max_slots);
                assert_eq!(delivered == 1, fits <= posted && fits <= most);
                if delivered == 1 {
                    self.to_guest.push_back(bytes);
                }
            }
            Op::Receive(budget, hold) => {
                let mut frames = Vec::new();
                self.rig
                    .front
                    .receive(usize::from(budget), &mut frames)
                    .unwrap();
                for frame in &frames {
                    assert_eq!(Some(frame.to_vec().unwrap()), self.to_guest.pop_front());
                }
                self.held.append(&mut frames);
                if !hold {
                    self.post();
                }
            }
            Op::Post => self.post(),
        }
    }

    fn post(&mut self) {
        self.rig
            .front
            .small_frames_done(&mut self.held_small_frames);
        self.rig.front.receive_done(&mut self.held);
        self.rig.front.publish();
    }

    fn run_short(&mut self, op: &Op) -> bool {
        let rig = &mut self.rig;
        match *op {
            Op::Send(len) if len as usize <= TX_SMALL_BYTES => {
                let bytes = packet(len as usize, self.seed);
                let Some(buffer) = rig.front.buffers().take() else {
                    return true;
                };
                buffer.span.write(&bytes).unwrap();
                let mut pieces = vec![Piece {
                    span: buffer.span.take(bytes.len()),
                    buffer: buffer.id,
                }];
                if rig.front.transmit_small_frames(&mut pieces).unwrap().sent == 1 {
                    self.to_driver.push_back(bytes);
                }
                for left in pieces {
                    rig.front.buffers().put(left.buffer);
                }
                rig.front.publish();
            }
            Op::Take(budget) => {
                let mut small_frames = SmallBatch::default();
                let taken = rig
                    .back
                    .small_frames_from_guest(budget.into(), &mut small_frames)
                    .unwrap();
                assert!(small_frames.len() <= budget.into());
                let sum: usize = small_frames.iter().map(SmallFrame::len).sum();
                assert_eq!(
                    (taken.requests, taken.bytes),
                    (small_frames.len(), sum as u64)
                );
                for small_frame in &*small_frames {
                    let bytes = small_frame.to_frame().unwrap().to_vec().unwrap();
                    assert_eq!(Some(bytes), self.to_driver.pop_front());
                }
                rig.back.from_guest_done();
                rig.front.reap().unwrap();
            }
            Op::Give(len, _) if len as usize <= rig.back.longest_small_frame() => {
                let bytes = packet(len as usize, self.seed);
                let span = self.source.area().at(0, bytes.len()).unwrap();
                span.write(&bytes).unwrap();
                let mut small_frames = SmallBatch::default();
                small_frames.push(span).unwrap();
                let posted = rig.back.posted(1);
                let report = rig.back.small_frames_to_guest(&small_frames, &[0], 0);
                rig.back.publish();
                assert_eq!(report.delivered, posted);
                if posted == 1 {
                    self.to_guest.push_back(bytes);
                }
            }
            Op::Receive(budget, hold) => {
                let first = self.held_small_frames.len();
                let pieces = &mut self.held_small_frames;
                let taken = rig.front.receive_small_frames(budget.into(), 2048, pieces);
                assert_eq!(taken, Ok(pieces.len() - first));
                for piece in &pieces[first..] {
                    let mut bytes = vec![0; piece.span.len()];
                    piece.span.read(&mut bytes).unwrap();
                    assert_eq!(Some(bytes), self.to_guest.pop_front());
                }
                if !hold {
                    self.post();
                }
            }
            _ => return false,
        }
        true
    }

    /// Drains both directions and checks that every buffer has returned.
    fn end(mut self) {
        for _ in 0..64 {
            self.run(&Op::Take(255), false);
            self.run(&Op::Receive(255, false), false);
        }
        assert!(self.to_driver.is_empty() && self.to_guest.is_empty());
        let drops = |counters: &crate::InterfaceCounters| {
            counters.from_guest_drops.total()
                - counters.from_guest_drops.get(crate::VifDrop::NoBuffer)
                - counters.from_guest_drops.get(crate::VifDrop::TooManySlots)
        };
        assert_eq!(
            (
                drops(self.rig.back.counters()),
                drops(self.rig.front.counters())
            ),
            (0, 0)
        );
        let sizes = *self.rig.layout.sizes();
        let pool = self.rig.front.buffers();
        assert_eq!(pool.available(), sizes.tx_small_pages as usize * 2);
        assert_eq!(pool.available_large(), sizes.tx_large_pages as usize);
        let negotiated = *self.rig.back.negotiated();
        let buffers = sizes.rx_pages * (4096 / u32::from(negotiated.rx_buffer));
        let want = buffers.min(crate::ring::slots(negotiated.rx_order));
        assert_eq!(self.rig.back.posted(u32::MAX), want);
    }
}

fn world(sizes: Sizes, features: Features) -> World {
    World {
        rig: Rig::with(sizes, features, Features::ALL),
        source: TestMemory::new(17),
        foreign: TestMemory::new(17),
        seed: 0,
        to_driver: VecDeque::new(),
        to_guest: VecDeque::new(),
        held: Vec::new(),
        held_small_frames: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(100)
    })]

    #[test]
    fn frames_pass_unchanged(ops in prop::collection::vec((op(), any::<bool>()), 0..150)) {
        let pages = Sizes { rx_buffer: 4096, rx_order: 1, tx_order: 1, ..sizes() };
        for (sizes, features) in [
            (sizes(), Features::ALL),
            (pages, Features::ALL.without(Features::RX_OFFSET)),
            (Sizes { rx_pages: 200, tx_large_pages: 0, ..sizes() }, Features::ALL),
        ] {
            for format in Format::ALL {
                let mut world = with_format(format, || world(sizes, features));
                for (op, short) in &ops {
                    world.run(op, *short);
                }
                world.end();
            }
        }
    }
}

#[test]
fn a_64_kb_segment_passes_uncut_in_both_directions() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let bytes = ipv4_tcp(65_535 - 54, 3);
        let gso = Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        };
        let offload = Offload {
            checksum: Checksum::Blank {
                start: 34,
                offset: 16,
            },
            gso: Some(gso),
        };
        for _ in 0..20 {
            assert!(rig.send(&bytes, offload));
            let mut frames = Vec::new();
            assert_eq!(rig.back.from_guest(64, &mut frames), Ok(1));
            assert_eq!((frames[0].offload, frames[0].len()), (offload, 65_535));
            // The driver domain forwards the frame directly from the sender's pages.
            assert_eq!(rig.deliver_to_guest(&frames), 1);
            rig.back.from_guest_done();
            let mut frames = Vec::new();
            assert_eq!(rig.front.receive(64, &mut frames), Ok(1));
            assert_eq!(frames[0].offload, offload);
            assert!(frames[0].to_vec().unwrap() == bytes);
            rig.front.receive_done(&mut frames);
            rig.front.publish();
        }
        assert_eq!(rig.front.counters().from_guest, 20);
        assert_eq!(rig.front.counters().to_guest_bytes, 20 * 65_535);
        assert_eq!(rig.back.counters().from_guest_bytes, 20 * 65_535);
    });
}

/// A guest can send a received frame unchanged: the netfront copies the bytes out of the receive
/// buffer, and posts that again.
#[test]
fn received_frames_can_be_sent_on() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let source = TestMemory::new(1);
        for n in 0..500 {
            let bytes = packet(1000, n);
            assert_eq!(
                rig.deliver_to_guest(&[frame_at(&source, 0, &bytes, 1000)]),
                1
            );
            let mut frames = Vec::new();
            assert_eq!(rig.front.receive(64, &mut frames), Ok(1));
            assert_eq!(rig.front.transmit(&mut frames).unwrap().sent, 1);
            assert!(frames.is_empty());
            rig.front.receive_done(&mut frames);
            rig.front.publish();
            assert_eq!(rig.take_from_guest(64), [bytes]);
        }
    });
}

#[test]
fn changed_header_is_sent() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let bytes = packet(1000, 1);
        let mut frame = rig.guest_frame(&bytes).unwrap();
        frame.header_mut()[..6].copy_from_slice(&[0xff; 6]);
        assert_eq!(rig.front.transmit(&mut vec![frame]).unwrap().bytes, 1000);
        rig.front.publish();
        assert_eq!(
            rig.take_from_guest(64),
            [[&[0xff; 6], &bytes[6..]].concat()]
        );
    });
}

#[test]
fn frames_without_room_stay_in_the_queue() {
    over_each_format(|| {
        let mut rig = Rig::new(Sizes {
            tx_small_pages: 200,
            ..sizes()
        });
        let bytes = packet(60, 1);
        let mut frames: Vec<Frame> = (0..300).filter_map(|_| rig.guest_frame(&bytes)).collect();
        assert_eq!(frames.len(), 300);
        assert_eq!(rig.front.transmit(&mut frames).unwrap().sent, 256);
        assert_eq!(frames.len(), 44);
        rig.front.publish();
        assert!(!rig.front.prepare_sleep(true));
        assert_eq!(rig.take_from_guest(10).len(), 10);
        assert!(
            rig.pending_doorbells().1,
            "the frontend requested a notification of room"
        );
        assert!(rig.front.has_unreaped_responses());
        assert_eq!(rig.front.transmit(&mut frames).unwrap().sent, 10);
        assert_eq!(frames.len(), 34);
    });
}

#[test]
fn oversized_frames_are_dropped_and_buffers_kept() {
    over_each_format(|| {
        let mut rig = Rig::new(Sizes {
            tx_large_pages: 3,
            ..sizes()
        });
        let foreign = TestMemory::new(17);
        let before = (
            rig.front.buffers().available(),
            rig.front.buffers().available_large(),
        );
        let mut frames = vec![
            frame_at(&foreign, 0, &packet(13, 1), 13),
            frame_at(&foreign, 0, &packet(65_536, 1), 70_000),
            frame_at(&foreign, 0, &packet(40_000, 1), 70_000),
            rig.guest_frame(&packet(13, 1)).unwrap(),
        ];
        let report = rig.front.transmit(&mut frames).unwrap();
        assert_eq!((report.sent, report.dropped, frames.len()), (0, 4, 0));
        assert_eq!(
            (
                rig.front.buffers().available(),
                rig.front.buffers().available_large()
            ),
            before
        );
        let drops = rig.front.counters().from_guest_drops;
        assert_eq!(drops.get(crate::VifDrop::TooShort), 2);
        assert_eq!(drops.get(crate::VifDrop::TooLong), 1);
        assert_eq!(drops.get(crate::VifDrop::NoBuffer), 1);
    });
}

#[test]
fn buffers_are_given_back_once() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let pool = rig.front.buffers();
        let before = pool.available();
        let buffer = pool.take().unwrap();
        pool.put(buffer.id);
        pool.put(buffer.id);
        pool.put(nic::BufferId::NONE);
        pool.put(nic::BufferId(12_345));
        assert_eq!(pool.available(), before);
        let large = pool.take_large().unwrap();
        assert_eq!(large.span.len(), 4096);
        pool.put(large.id);
        assert_eq!(pool.available(), before);
    });
}

#[test]
fn closing_ends_every_grant_that_is_not_in_use() {
    over_each_format(|| {
        use abi::classic::GrantEntry;
        let mut rig = Rig::new(sizes());
        let before = rig.table.available();
        let at = rig.record.event.index() as usize * 8;
        let entry = rig.table_span().load_u64(at).unwrap();
        let used = GrantEntry(entry).flags() | GrantEntry::WRITING;
        rig.table_span()
            .store_u64(at, GrantEntry(entry).with_flags(used).0)
            .unwrap();
        assert!(rig.front.close(&mut rig.table).is_err());
        assert_eq!(
            rig.table.available(),
            before + rig.layout.grants() as usize - 1
        );
        assert!(rig.front.receive(1, &mut Vec::new()).is_err());
        rig.table_span().store_u64(at, entry).unwrap();
        assert_eq!(rig.front.close(&mut rig.table), Ok(()));
        assert_eq!(rig.table.available(), before + rig.layout.grants() as usize);
    });
}

/// The frontend computes the checksums that the backend cannot: here one that the backend does not
/// support, and one at an unexpected offset.
#[test]
fn checksums_without_offload_are_filled_in() {
    over_each_format(|| {
        let blank = |start, offset| Offload {
            checksum: Checksum::Blank { start, offset },
            gso: None,
        };
        let bytes = ipv4_tcp(301, 4);
        for (features, offload) in [
            (Features::PLAIN, blank(34, 16)),
            (Features::ALL, blank(34, 6)),
            (Features::ALL, blank(54, 2)),
        ] {
            let Checksum::Blank { start, offset } = offload.checksum else {
                unreachable!()
            };
            let (start, field) = (usize::from(start), usize::from(start + offset));
            let mut rig = Rig::with(sizes(), Features::ALL, features);
            assert!(rig.send(&bytes, offload));
            let mut frames = Vec::new();
            assert_eq!(rig.back.from_guest(1, &mut frames), Ok(1));
            assert_eq!(frames[0].offload, Offload::default());
            let sent = frames[0].to_vec().unwrap();
            // The checksum field is the complement of the sum over all bytes, including its old
            // value.
            let old = u32::from(u16::from_be_bytes([bytes[field], bytes[field + 1]]));
            let sum = shmem::ones_sum_bytes(&sent[start..], old);
            let folded = (sum >> 16) + (sum & 0xffff);
            let folded = (folded >> 16) + (folded & 0xffff);
            assert_eq!(folded, 0xffff, "{offload:?}");
            assert_eq!(sent[..field], bytes[..field]);
            assert_eq!(sent[field + 2..], bytes[field + 2..]);
            rig.back.from_guest_done();
        }
    });
}
