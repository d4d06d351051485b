use super::*;
use crate::fast_path::FastPath;
use crate::testing::{Machine, frame, mac};
use abi::PAGE;
use nic::{BufferId, Piece};
use proptest::prelude::*;
use shmem::Area;
use std::slice;
use std::sync::OnceLock;

const SECOND_NS: u64 = 1_000_000_000;
/// Length of the longest frame: a 64 KB IP packet with its Ethernet header.
const FRAME_MAX: u32 = 65_549;

fn limit(bytes_per_s: u64, burst_bytes: u32) -> EgressQueue {
    let mut queue = EgressQueue::default();
    queue.set(Some(&FrameLimit {
        rate_mbps: bytes_per_s as f64 / 125_000.0,
        burst_bytes,
    }));
    queue
}

/// A guest with unlimited receive buffers.
struct UnlimitedBuffers;

impl PostedBuffers for UnlimitedBuffers {
    fn free(&self) -> u32 {
        u32::MAX
    }

    fn slots(&self, _: &Frame) -> u32 {
        1
    }

    fn longest_fit(&self, _: &Frame) -> usize {
        usize::MAX
    }
}

/// Returns a queued frame of `bytes` bytes.
fn queued(bytes: u32) -> Box<Queued> {
    static MEMORY: OnceLock<Area> = OnceLock::new();
    let area = MEMORY.get_or_init(|| Area::anonymous(32 * PAGE).unwrap());
    let span = area.at(0, bytes as usize).unwrap();
    let piece = Piece {
        span,
        buffer: BufferId::NONE,
    };
    Box::new(Queued {
        frame: Frame::new(piece, bytes as usize).unwrap(),
        whole: None,
        owner: Queued::COPIED,
        units: 1,
    })
}

/// Pushes frames of these lengths at `now_ns`. Returns the number of bytes that pass.
fn offer(queue: &mut EgressQueue, now_ns: u64, frames: &[u32]) -> u64 {
    for bytes in frames {
        queue.push(queued(*bytes), (0, 0), now_ns);
    }
    let mut lost = Vec::new();
    queue.expire(now_ns, &mut lost);
    let mut bytes = 0;
    while let Some(queued) = queue.take(now_ns, &UnlimitedBuffers, &mut lost) {
        bytes += queued.frame.len() as u64;
    }
    for (cause, queued) in lost {
        queue.count_drop(cause, &queued.frame);
    }
    bytes
}

/// Returns the number of dropped packets.
fn dropped(queue: &EgressQueue) -> u64 {
    queue.drops.total()
}

/// Returns the maximum number of bytes that may pass within `ns`.
fn max_bytes(bytes_per_s: u64, burst: u32, ns: u64) -> u128 {
    let accrued = u128::from(bytes_per_s) * u128::from(ns) / u128::from(SECOND_NS);
    // The bucket may have contained a fraction of a byte at the start.
    accrued + u128::from(burst) + 1
}

/// Returns batches of frame lengths, each with the time since the previous batch.
fn batches() -> impl Strategy<Value = Vec<(u64, Vec<u32>)>> {
    let waits = prop_oneof![0u64..1000, 0u64..20_000_000, 0u64..3 * SECOND_NS];
    let frames = prop::collection::vec(14..FRAME_MAX, 0..20);
    prop::collection::vec((waits, frames), 1..60)
}

proptest! {
    #[test]
    fn eq_6_no_interval_exceeds_its_tokens_and_a_burst(
        bytes_per_s in 1_000u64..2_000_000_000,
        burst in 1u32..1_000_000,
        batches in batches(),
    ) {
        let mut limit = limit(bytes_per_s, burst);
        let (mut now, mut passed, mut offered) = (5, Vec::new(), 0);
        for (wait, frames) in &batches {
            now += wait;
            passed.push((now, offer(&mut limit, now, frames)));
            offered += frames.len() as u64;
        }
        for (first, (begin, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for (end, bytes) in &passed[first..] {
                sum += u128::from(*bytes);
                let most = max_bytes(bytes_per_s, burst.max(FRAME_MAX), end - begin);
                prop_assert!(sum <= most, "{sum} of {most}");
            }
        }
        prop_assert!(dropped(&limit) <= offered);
    }

    /// If senders exceed the rate, frames pass at the rate.
    #[test]
    fn excess_frames_pass_at_the_rate(
        bytes_per_s in 10_000u64..1_000_000_000,
        burst in FRAME_MAX..1_000_000,
        bytes in 60u32..FRAME_MAX,
        over in 2u64..10,
    ) {
        let mut limit = limit(bytes_per_s, burst);
        let gap = (u64::from(bytes) * SECOND_NS / bytes_per_s / over).max(1);
        let (mut passed, frames) = (0, 2_000);
        for n in 0..frames {
            passed += u128::from(offer(&mut limit, n * gap, &[bytes]));
        }
        let accrued = max_bytes(bytes_per_s, 0, (frames - 1) * gap);
        prop_assert!(passed + 2 >= accrued, "{passed} of {accrued}");
    }

    /// After a long pause, exactly one burst passes, regardless of the earlier traffic.
    #[test]
    fn exactly_one_burst_passes_after_a_pause(
        bytes_per_s in 1_000u64..1_000_000_000,
        burst in FRAME_MAX..1_000_000,
        batches in batches(),
        pause_s in 2_000u64..1_000_000_000,
    ) {
        let mut limit = limit(bytes_per_s, burst);
        let mut now = 0;
        for (wait, frames) in &batches {
            now += wait;
            offer(&mut limit, now, frames);
        }
        limit.drain().for_each(drop);
        now += pause_s * SECOND_NS;
        let mut left = burst;
        let mut frames = Vec::new();
        while left > 0 {
            let bytes = left.min(FRAME_MAX);
            frames.push(bytes);
            left -= bytes;
        }
        frames.push(14);
        let passed = offer(&mut limit, now, &frames);
        prop_assert_eq!(passed, u64::from(burst));
    }

    /// If the clock jumps forward or back, at most one burst passes in a batch.
    #[test]
    fn clock_jumps_release_at_most_a_burst(
        bytes_per_s in 1_000u64..1_000_000_000,
        burst in FRAME_MAX..1_000_000,
        times in prop::collection::vec(any::<u64>(), 1..50),
    ) {
        let mut limit = limit(bytes_per_s, burst);
        for at in times {
            let bytes = offer(&mut limit, at, &[FRAME_MAX; 40]);
            prop_assert!(bytes <= burst.into());
        }
    }
}

#[test]
fn queued_frames_pass_when_the_limit_is_removed() {
    let mut limit = limit(1, 100);
    assert_eq!(offer(&mut limit, 0, &[60, 60, 40]), 60, "in order");
    limit.set(None);
    assert_eq!(
        offer(&mut limit, 0, &[FRAME_MAX]),
        60 + 40 + u64::from(FRAME_MAX)
    );
    assert!(limit.can_be_bypassed() && dropped(&limit) == 0);
}

#[test]
fn eq_5_frames_are_dropped_after_half_a_second() {
    let mut limit = limit(1, 100);
    assert_eq!(offer(&mut limit, 0, &[100, 60]), 100);
    let due_ns = limit.due_ns(0).unwrap();
    assert_eq!(
        due_ns, MAX_WAIT_NS,
        "the frame expires before its tokens arrive"
    );
    offer(&mut limit, due_ns - 1, &[]);
    assert!(!limit.is_empty());
    offer(&mut limit, due_ns, &[]);
    assert!(limit.is_empty() && limit.drops.get(QueueDropReason::Late) == 1);
    assert_eq!(limit.due_ns(due_ns), None);
}

#[test]
fn rates_are_at_least_one_byte_per_second() {
    for (mbps, bytes) in [
        (1e-9, 1),
        (0.008, 1000),
        (8.0, 1_000_000),
        (1e9, 125_000_000_000_000),
    ] {
        assert_eq!(bytes_per_s(mbps), bytes);
    }
    let mut limit = limit(0, 1);
    assert_eq!(
        offer(&mut limit, 0, &[60]),
        60,
        "a frame longer than the burst leaves a debt"
    );
    assert!(!limit.can_send_now(59 * SECOND_NS, || 60));
    assert_eq!(offer(&mut limit, 60 * SECOND_NS, &[60]), 60);
}

/// Returns a machine of three guests. The second guest has a limit of 10 000 bytes per second with
/// a burst of 3000 bytes.
fn machine() -> Machine {
    let mut machine = Machine::new(3);
    let limit = FrameLimit {
        rate_mbps: 0.08,
        burst_bytes: 3000,
    };
    let port = machine.switch.ports.vif_mut(1).unwrap();
    port.egress.set(Some(&limit));
    machine
}

const MS: u64 = 1_000_000;

#[test]
fn limited_frames_wait_without_delaying_others() {
    let mut machine = machine();
    let free = machine.guests[0].front.buffers().available();
    let to = |n: usize| -> Vec<_> {
        let frames = (0..5).map(|number| frame(mac(n), mac(0), 1000, number));
        frames.collect()
    };
    for sent in to(1).iter().zip(&to(2)) {
        machine.send(0, sent.0);
        machine.send(0, sent.1);
    }
    assert_eq!(machine.forward_from(0).packets, 10);
    assert_eq!(machine.received(1), to(1)[..3]);
    assert_eq!(machine.received(2), to(2));
    // The sender gets its pages back.
    machine.guests[0].front.reap().unwrap();
    assert_eq!(machine.guests[0].front.buffers().available(), free);
    let queue = &machine.port(1).egress;
    assert_eq!(
        (queue.units(), queue.stat(0)["bytes"].as_u64()),
        (2, Some(2000))
    );
    assert_eq!(queue.due_ns(0), Some(100 * MS), "the time for 1000 bytes");
    machine.drain(99 * MS);
    assert!(machine.received(1).is_empty());
    machine.drain(100 * MS);
    assert_eq!(machine.received(1), to(1)[3..4]);
    machine.drain(200 * MS);
    assert_eq!(machine.received(1), to(1)[4..]);
    assert!(machine.switch.queueing.is_empty());
    assert_eq!(machine.port(1).traffic.out_packets, 5);
    // The limit does not apply to frames from the guest.
    let sent: Vec<_> = (0..9).map(|n| frame(mac(2), mac(1), 1400, n)).collect();
    sent.iter().for_each(|bytes| machine.send(1, bytes));
    assert_eq!(machine.forward_from(1).packets, 9);
    assert_eq!(machine.received(2), sent);
}

/// Both paths take tokens from the same bucket, and keep the order of their frames.
#[test]
fn limited_small_frames_wait_in_order() {
    let (mut machine, mut fast) = (machine(), FastPath::default());
    let small: Vec<_> = (0..35).map(|n| frame(mac(1), mac(0), 100, n)).collect();
    let other = frame(mac(2), mac(0), 100, 9);
    small[..20].iter().for_each(|bytes| machine.send(0, bytes));
    machine.send(0, &other);
    assert!(fast.forward_from(&mut machine.switch, 0, 0, 64).is_some());
    machine.publish();
    assert_eq!(machine.received(1), small[..20]);
    assert_eq!(machine.received(2), slice::from_ref(&other));
    small[20..].iter().for_each(|bytes| machine.send(0, bytes));
    machine.send(0, &other);
    fast.forward_from(&mut machine.switch, 0, 0, 64);
    machine.publish();
    assert_eq!(machine.received(1), small[20..30]);
    assert_eq!(machine.received(2), [other]);
    let more = frame(mac(1), mac(0), 100, 99);
    machine.send(0, &more);
    fast.forward_from(&mut machine.switch, 0, 60 * MS, 64);
    machine.forward_from_at(0, 60 * MS);
    let mut all = small[30..].to_vec();
    all.push(more);
    assert_eq!(machine.received(1), all);
    assert_eq!(dropped(&machine.port(1).egress), 0);
}

/// Returns a TCP aggregate for the limited guest, with `payload` bytes in packets of 1000 bytes.
fn aggregate(payload: usize) -> (Vec<u8>, nic::Offload) {
    let mut tcp = vif::testing::ipv4_tcp(payload, 1);
    tcp[..6].copy_from_slice(&mac(1));
    tcp[6..12].copy_from_slice(&mac(0));
    tcp[47] = 0x10;
    let offload = nic::Offload {
        checksum: nic::Checksum::Blank {
            start: 34,
            offset: 16,
        },
        gso: Some(nic::Gso {
            kind: nic::GsoKind::Tcp4,
            size: 1000,
        }),
    };
    (tcp, offload)
}

/// An aggregate counts as one frame with one header, regardless of its number of packets.
#[test]
fn aggregates_count_as_one_frame() {
    let mut machine = machine();
    let (tcp, offload) = aggregate(2900);
    assert!(machine.guests[0].send(&tcp, offload));
    assert!(machine.guests[0].send(&tcp, offload));
    machine.forward_from(0);
    assert_eq!(machine.port(1).traffic.out_bytes, tcp.len() as u64);
    assert_eq!(machine.port(1).egress.stat(0)["bytes"], tcp.len() as u64);
}

/// The queue splits an aggregate longer than the burst, so that the aggregate leaves no large debt.
#[test]
fn aggregates_are_split_at_the_burst() {
    let mut machine = machine();
    let (tcp, offload) = aggregate(7500);
    assert!(machine.guests[0].send(&tcp, offload));
    machine.forward_from(0);
    let mut lengths = vec![machine.received(1)];
    for ms in 1..500 {
        machine.drain(ms * MS);
        lengths.push(machine.received(1));
    }
    let lengths: Vec<usize> = lengths.concat().iter().map(Vec::len).collect();
    assert_eq!(lengths, [54 + 2000, 54 + 2000, 54 + 2000, 54 + 1500]);
    assert_eq!(dropped(&machine.port(1).egress), 0);
}

/// A trace shows that a frame waits; a capture shows its final result.
#[test]
fn waiting_frames_are_traced_and_captured() {
    let mut machine = machine();
    let bytes = frame(mac(1), mac(0), 2900, 1);
    machine.send(0, &bytes);
    machine.forward_from(0);
    let capture = crate::capture::CaptureRequest {
        id: 1,
        of: "g1",
        snaplen: 100,
    };
    let captured = |machine: &mut Machine| machine.switch.capture.request(capture, 0).unwrap();
    captured(&mut machine);
    machine.switch.trace.request();
    machine.send(0, &bytes);
    machine.send(0, &bytes);
    machine.forward_from(0);
    assert!(
        captured(&mut machine)["frames"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let trace = machine.switch.trace.request().to_string();
    assert!(trace.contains("waits in the queue towards g1"), "{trace}");
    machine.drain(300 * MS);
    let report = captured(&mut machine);
    assert_eq!(
        report["frames"][0]["dropped"],
        serde_json::Value::Null,
        "{report}"
    );
    machine.drain(500 * MS);
    let report = captured(&mut machine);
    let why = "dropped, queue_late: It waited for 0.5 s in the queue towards the guest";
    assert_eq!(report["frames"][0]["dropped"], why, "{report}");
}
