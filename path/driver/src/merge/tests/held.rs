//! Tests of frames that are held across polls in a guest's posted buffers.

use super::*;
use nic::Pool;
use proptest::prelude::*;
use runtime::testing::{ACK, HEADERS, PSH, packet_with, payloads};
use shmem::Area;
use std::collections::BTreeMap;

/// The number of the guest's connection.
const LINK: u64 = 3;
const LONG: FlushConfig = FlushConfig::After(1000);
const DUE_NS: u64 = 1_000_000;

/// A guest that accepts responses in any order, and the engine of its queue.
struct Queue {
    rig: Rig,
    lro: QueueLro,
    polls: u64,
}

impl Queue {
    fn new(rx_pages: u32, flush: FlushConfig) -> Self {
        let any_order = Features::ALL.with(Features::RX_ANY_ORDER);
        let sizes = Sizes {
            rx_order: 1,
            rx_pages,
            ..sizes()
        };
        Self {
            rig: Rig::with_record(sizes, any_order, back_record(any_order)),
            lro: QueueLro::new(&config(flush)),
            polls: 0,
        }
    }

    /// Receives packets in a poll. Returns the flushed frames, which the guest has received.
    fn poll(&mut self, packets: &[Vec<u8>]) -> Vec<Frame> {
        self.polls += 1;
        let poll = QueuePoll {
            now_ns: self.polls,
            counts: false,
            connection: LINK,
            decided: false,
        };
        let back = &mut self.rig.back;
        back.expect_merged(true);
        let mut frames = receive_into_guest(back, packets);
        back.keep(&mut frames);
        assert_eq!(frames.len(), packets.len());
        back.post_end();
        self.lro.pass(back, poll, &mut frames);
        self.deliver(frames)
    }

    fn deliver(&mut self, frames: Vec<Frame>) -> Vec<Frame> {
        let back = &mut self.rig.back;
        let mut report = vif::netback::DeliveryReport::default();
        for frame in &frames {
            back.deliver(frame, &mut report);
        }
        assert_eq!(
            (report.delivered as usize, report.drops.total()),
            (frames.len(), 0)
        );
        self.lro.reserve(back);
        back.publish();
        self.assert_bounded();
        frames
    }

    /// The requests of held frames, and no others, are outstanding; at least as many are posted.
    fn assert_bounded(&mut self) {
        let (held, back) = (self.lro.stage().held(), &mut self.rig.back);
        assert_eq!(back.outstanding(), held);
        assert_eq!(back.grants_mut().held, held as u64);
        assert!(back.reservable(u32::MAX) as usize >= held, "{held}");
    }

    fn flush_due(&mut self, now_ns: u64, is_open: bool) -> Vec<Frame> {
        let mut out = Vec::new();
        let guest = Some((LINK, &mut self.rig.back));
        self.lro.flush_due(guest, is_open, now_ns, &mut out);
        self.deliver(out)
    }

    /// Returns the packets that the guest has received, after segmentation.
    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        self.rig.front.receive(1024, &mut got).unwrap();
        let mut packets = Vec::new();
        for frame in &got {
            match frame.offload.gso {
                None => packets.push(frame.to_vec().unwrap()),
                Some(_) => {
                    let mut parts = Vec::new();
                    segment(frame, WIRE, &mut parts).unwrap();
                    packets.extend(parts.iter().map(|part| part.to_vec().unwrap()));
                }
            }
        }
        self.rig.front.receive_done(&mut got);
        self.rig.front.publish();
        packets
    }

    fn flushed(&self, reason: &str) -> u64 {
        self.lro.stat()["flushed"][reason].as_u64().unwrap()
    }
}

#[test]
fn frames_of_several_polls_merge_until_due() {
    let mut queue = Queue::new(64, LONG);
    let packets: Vec<_> = (0..12).map(|n| packet(1, n)).collect();
    for packets in packets.chunks(4) {
        assert!(queue.poll(packets).is_empty());
    }
    assert!(queue.received().is_empty());
    let due = queue.lro.due_ns().unwrap();
    assert!((DUE_NS * 61 / 62..=DUE_NS + 3).contains(&due), "{due}");
    assert!(queue.flush_due(due - 1, true).is_empty());
    let flushed = queue.flush_due(due, true);
    assert_eq!((flushed.len(), flushed[0].pieces.len()), (1, 12));
    assert_eq!(queue.received(), packets);
    assert_eq!((queue.lro.due_ns(), queue.flushed("time")), (None, 1));
    let counters = queue.rig.back.counters();
    assert_eq!(
        (counters.meta_requests, counters.to_guest_drops.total()),
        (1, 0)
    );
}

/// With the policy `poll`, nothing is held across polls, and frames of all streams merge.
#[test]
fn policy_poll_merges_within_a_batch() {
    let mut queue = Queue::new(64, FlushConfig::Poll);
    let mixed: Vec<_> = (0..12).map(|n| packet(1 + (n % 2) as u8, n / 2)).collect();
    assert_eq!(queue.poll(&mixed).len(), 2);
    assert!(!queue.lro.holds());
    let (odd, even): (Vec<_>, Vec<_>) = mixed.into_iter().partition(|bytes| bytes[35] == 1);
    assert_eq!(queue.received(), [odd, even].concat());
}

#[test]
fn merged_frame_fits_the_slots_of_a_packet() {
    let mut queue = Queue::new(256, LONG);
    let packets: Vec<_> = (0..64).map(|n| packet(1, n)).collect();
    let flushed = queue.poll(&packets);
    assert_eq!((flushed.len(), flushed[0].pieces.len()), (1, 40));
    assert_eq!(queue.flush_due(2 * DUE_NS, true).len(), 1);
    assert_eq!(queue.received(), packets);
}

#[test]
fn announced_revocation_flushes_held_frames() {
    let mut queue = Queue::new(64, LONG);
    assert!(queue.poll(&stream(1, 0, 4)).is_empty());
    assert!(queue.flush_due(2, true).is_empty());
    queue.rig.back.grants_mut().revocations += 1;
    assert_eq!(queue.flush_due(2, true).len(), 1);
    assert!(queue.poll(&stream(1, 4, 4)).is_empty());
    // A revocation since the last poll may concern the frames of this poll, too.
    queue.rig.back.grants_mut().revocations += 1;
    assert_eq!(queue.poll(&stream(1, 8, 4)).len(), 1);
    assert!(queue.poll(&stream(1, 12, 4)).is_empty());
    assert_eq!(
        (queue.received(), queue.flushed("revoked")),
        (stream(1, 0, 12), 2)
    );
}

/// A page that was revoked by force is inaccessible. The frame is then dropped, and the guest gets
/// all of its buffers back.
#[test]
fn frame_in_a_revoked_page_is_dropped_whole() {
    let mut queue = Queue::new(64, LONG);
    assert!(queue.poll(&stream(1, 0, 4)).is_empty());
    queue.rig.back.grants_mut().revocations += 1;
    let (mut out, back) = (Vec::new(), &mut queue.rig.back);
    queue.lro.flush_due(Some((LINK, back)), true, 2, &mut out);
    // Stands for the unmapped page of the header.
    out[0].pieces[0].span = shmem::Span::EMPTY;
    let mut report = vif::netback::DeliveryReport::default();
    queue.rig.back.deliver(&out[0], &mut report);
    assert_eq!((report.delivered, report.drops.total()), (0, 4));
    queue.lro.reserve(&mut queue.rig.back);
    queue.rig.back.publish();
    queue.assert_bounded();
    assert!(queue.received().is_empty());
    assert_eq!(
        queue.rig.back.reservable(u32::MAX),
        128,
        "every buffer is posted again"
    );
}

#[test]
fn revoked_page_is_not_kept() {
    let mut queue = Queue::new(64, LONG);
    let back = &mut queue.rig.back;
    back.expect_merged(true);
    let mut frames = receive_into_guest(back, &stream(1, 0, 4));
    let raw = queue.rig.raw_rx();
    let request = vif::netif::RxRequest::decode(raw.request_at(1));
    let entry = abi::GrantRef(request.gref).index() as usize * 8;
    queue.rig.table_span().store_u64(entry, 0).unwrap();
    let back = &mut queue.rig.back;
    back.keep(&mut frames);
    let report = back.post_end();
    assert_eq!((report.delivered, report.drops.total()), (0, 2));
    let kept: Vec<_> = frames.iter().map(|frame| frame.to_vec().unwrap()).collect();
    // Two buffers share a page.
    assert_eq!(kept, stream(1, 2, 2));
    assert_eq!((back.outstanding(), back.grants_mut().held), (2, 2));
}

#[test]
fn revoked_queue_flushes_held_frames() {
    let mut queue = Queue::new(64, LONG);
    assert!(queue.poll(&stream(1, 0, 4)).is_empty());
    assert_eq!(queue.flush_due(2, false).len(), 1);
    assert_eq!(
        (queue.received(), queue.flushed("drain")),
        (stream(1, 0, 4), 1)
    );
}

#[test]
fn held_frames_of_a_closed_link_are_discarded() {
    for next in [None, Some(LINK + 1)] {
        let mut queue = Queue::new(64, LONG);
        assert!(queue.poll(&stream(1, 0, 4)).is_empty());
        let mut other = Queue::new(64, LONG);
        let guest = next.map(|number| (number, &mut other.rig.back));
        let mut out = Vec::new();
        queue.lro.flush_due(guest, true, 2 * DUE_NS, &mut out);
        assert!(out.is_empty() && !queue.lro.holds());
        assert_eq!(queue.rig.back.into_grants().held, 0);
    }
}

#[test]
fn changed_settings_flush_held_frames() {
    let mut queue = Queue::new(64, LONG);
    let off = LroConfig {
        at: config::lro::Placement::Virtual,
        ..config(LONG)
    };
    for (n, settings) in (0..).zip([config(FlushConfig::After(50)), off]) {
        assert!(queue.poll(&stream(1, 4 * n, 4)).is_empty());
        queue.lro.set(&settings);
        assert_eq!(queue.lro.due_ns(), Some(0));
        assert_eq!(queue.flush_due(2, true).len(), 1, "{n}");
    }
    assert!(!queue.lro.is_active());
    assert_eq!(queue.received(), stream(1, 0, 8));
}

/// A guest that posts no more buffers keeps half of those that it has posted, and a copied frame
/// never takes the request for a segment size.
#[test]
fn held_frames_leave_posted_buffers() {
    let mut queue = Queue::new(64, LONG);
    let (mut sent, mut most) = (0, 0);
    for n in 0.. {
        // The batch leaves a request for each segment size.
        if queue.rig.back.posted(12) < 12 {
            break;
        }
        let packets: Vec<_> = (0..8).map(|flow| packet(flow, n)).collect();
        let _flushed = queue.poll(&packets);
        sent += packets.len();
        most = most.max(queue.lro.stage().held());
    }
    assert!((32..=64).contains(&most), "{most}");
    assert!(queue.flushed("no_descriptor") > 0);
    // Copies take every request that is not reserved.
    let mut pool = Pool::new(Area::anonymous(2048).unwrap(), 2048);
    let copied = Frame::from_bytes(&packet(9, 0), &mut pool).unwrap();
    let copies = queue.rig.back.posted(u32::MAX);
    assert_eq!(
        queue.rig.deliver_to_guest(&vec![copied; copies as usize]),
        copies
    );
    assert_eq!(queue.rig.back.posted(1), 0);
    let aggregates = queue.lro.aggregates();
    assert!(aggregates > 0);
    assert_eq!(queue.flush_due(100, true).len(), aggregates, "not due");
    assert_eq!(queue.received().len(), sent + copies as usize);
}

/// Frames merge only if a request remains for each segment size.
#[test]
fn frames_pass_unmerged_without_requests() {
    let mut queue = Queue::new(64, LONG);
    let back = &mut queue.rig.back;
    back.expect_merged(true);
    let mut frames = receive_into_guest(back, &stream(1, 0, 8));
    back.keep(&mut frames);
    back.post_end();
    let posted = back.posted(u32::MAX);
    back.reserve(posted - 3);
    let poll = QueuePoll {
        now_ns: 1,
        counts: false,
        connection: LINK,
        decided: false,
    };
    queue.lro.pass(back, poll, &mut frames);
    assert_eq!((frames.len(), queue.lro.holds()), (8, false));
    queue.deliver(frames);
    assert_eq!(queue.received(), stream(1, 0, 8));
}

#[test]
fn batch_leaves_requests_for_segment_sizes() {
    let mut queue = Queue::new(30, LONG);
    let back = &mut queue.rig.back;
    for (is_merging, buffers) in [(true, 40), (false, 60)] {
        back.expect_merged(is_merging);
        let posted = std::iter::from_fn(|| back.post(FRAME)).count();
        assert_eq!(posted, buffers, "{is_merging}");
        for id in (0..posted as u32).rev() {
            back.put_back(BufferId(id), false);
        }
        back.post_end();
    }
    // Without held pages, the guest's frames are merged in runs.
    back.grants_mut().can_hold = false;
    assert!(!back.can_keep());
}

/// A packet of a random trace.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The next packet of a flow, with PSH or not.
    Next(u8, bool),
    /// A packet is lost.
    Skip(u8),
    /// The poll ends, and the next one begins after this many nanoseconds.
    Poll(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..4u8, prop::bool::weighted(0.05)).prop_map(|(flow, psh)| Step::Next(flow, psh)),
        1 => (0..4u8).prop_map(Step::Skip),
        3 => (0..60_000u64).prop_map(Step::Poll),
    ];
    prop::collection::vec(step, 0..200)
}

fn policies() -> impl Strategy<Value = FlushConfig> {
    prop_oneof![
        Just(FlushConfig::Poll),
        Just(FlushConfig::Polls(2)),
        Just(FlushConfig::After(50)),
        Just(FlushConfig::Adaptive),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The engine of a dedicated queue flushes the same frames at the same polls as that of the
    /// shared queue, while the guest has buffers.
    #[test]
    fn queue_merges_like_the_shared_queue(steps in steps(), flush in policies()) {
        let mut queue = Queue::new(256, flush);
        let mut pool = Pool::new(Area::anonymous(512 * 2048).unwrap(), 2048);
        let settings = LroConfig { segments: 40, ..config(flush) };
        let mut shared = LroStage::new(LroSide::Physical, &settings, usize::MAX);
        let mut next = BTreeMap::<u8, u32>::new();
        let (mut batch, mut now_ns) = (Vec::new(), 1);
        let mut sent = BTreeMap::<u8, Vec<Vec<u8>>>::new();
        let mut got = Vec::new();
        let last = [Step::Poll(1), Step::Poll(0)];
        for step in steps.into_iter().chain(last) {
            match step {
                Step::Next(flow, pushed) => {
                    let n = next.entry(flow).or_default();
                    let flags = if pushed { ACK | PSH } else { ACK };
                    let bytes = packet_with(flow, *n, flags);
                    *n += 1;
                    sent.entry(flow).or_default().push(bytes.clone());
                    batch.push(bytes);
                    continue;
                }
                Step::Skip(flow) => {
                    *next.entry(flow).or_default() += 1;
                    continue;
                }
                Step::Poll(ns) => {
                    queue.polls = now_ns - 1;
                    let mut ours = queue.flush_due(now_ns, true);
                    ours.extend(queue.poll(&batch));
                    let arrive = |bytes: Vec<u8>| Frame::from_bytes(&bytes, &mut pool).unwrap();
                    let mut arrived: Vec<_> = batch.drain(..).map(arrive).collect();
                    let mut theirs = Vec::new();
                    shared.pass(now_ns, false, &mut Vec::new(), &mut theirs);
                    shared.pass(now_ns, false, &mut arrived, &mut theirs);
                    let gso = |all: &[Frame]| -> Vec<_> {
                        all.iter().map(|frame| (frame.offload.gso, frame.len())).collect()
                    };
                    prop_assert_eq!(gso(&ours), gso(&theirs));
                    prop_assert_eq!(payloads(&ours), payloads(&theirs));
                    for frame in &mut theirs {
                        frame.recycle(&mut pool);
                    }
                    got.extend(queue.received());
                    now_ns += ns;
                }
            }
        }
        queue.flush_due(now_ns, false);
        got.extend(queue.received());
        for (flow, sent) in sent {
            let got: Vec<_> = got.iter().filter(|bytes| bytes[35] == flow).collect();
            prop_assert_eq!(got, sent.iter().collect::<Vec<_>>(), "flow {}", flow);
        }
        prop_assert_eq!(HEADERS + PAYLOAD, packet(1, 0).len());
        prop_assert!(!queue.lro.holds() && queue.rig.back.outstanding() == 0);
    }
}
