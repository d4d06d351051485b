use super::*;
use crate::fast_path::FastPath;
use crate::testing::{Machine, frame, mac};
use net::bridge::DropReason;
use proptest::prelude::*;
use serde_json::Value;

const SECOND_NS: u64 = 1_000_000_000;
/// The longest frame: 64 KB of IP, and Ethernet.
const LONGEST: u32 = 65_549;

fn limit(bytes_per_s: u64, burst_bytes: u32) -> GuestLimit {
    let mut limit = GuestLimit::default();
    limit.set(Some(&Limit {
        rate_mbps: bytes_per_s as f64 / BYTES_PER_S_PER_MBPS,
        burst_bytes,
    }));
    limit
}

/// Bytes of those of these frames that may go.
fn offer(limit: &mut GuestLimit, now_ns: u64, frames: &[u32]) -> u64 {
    let pick: Vec<u32> = (0..frames.len() as u32).collect();
    let mut room = vec![77];
    let admitted = limit.admit(now_ns, &pick, &mut room, |n| frames[n as usize] as usize);
    assert!(admitted.is_sorted(), "they keep their order");
    let bytes = admitted.iter().map(|n| u64::from(frames[*n as usize]));
    bytes.sum()
}

/// What may pass within `ns` at the most.
fn most(bytes_per_s: u64, burst: u32, ns: u64) -> u128 {
    let accrued = u128::from(bytes_per_s) * u128::from(ns) / u128::from(SECOND_NS);
    // A part of a byte may have been in the bucket at the beginning.
    accrued + u128::from(burst) + 1
}

/// A batch at a time, and how long after the one before it.
fn batches() -> impl Strategy<Value = Vec<(u64, Vec<u32>)>> {
    let waits = prop_oneof![0u64..1000, 0u64..20_000_000, 0u64..3 * SECOND_NS];
    let frames = prop::collection::vec(14..LONGEST, 0..20);
    prop::collection::vec((waits, frames), 1..60)
}

proptest! {
    #[test]
    fn no_window_has_more_than_its_time_and_a_burst(
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
                let most = most(bytes_per_s, burst.max(LONGEST), end - begin);
                prop_assert!(sum <= most, "{sum} of {most}");
            }
        }
        prop_assert!(limit.dropped <= offered);
    }

    /// Of frames that come faster than the rate as many pass as it has room for.
    #[test]
    fn the_rate_is_reached(
        bytes_per_s in 10_000u64..1_000_000_000,
        burst in LONGEST..1_000_000,
        bytes in 60u32..LONGEST,
        over in 2u64..10,
    ) {
        let mut limit = limit(bytes_per_s, burst);
        let gap = (u64::from(bytes) * SECOND_NS / bytes_per_s / over).max(1);
        let (mut passed, frames) = (0, 2_000);
        for n in 0..frames {
            passed += u128::from(offer(&mut limit, n * gap, &[bytes]));
        }
        let accrued = most(bytes_per_s, 0, (frames - 1) * gap);
        prop_assert!(passed + 2 >= accrued, "{passed} of {accrued}");
    }

    /// However long nothing came, a burst may pass, and no more than that; whatever came before
    /// is forgotten.
    #[test]
    fn a_pause_leaves_neither_debt_nor_more_than_a_burst(
        bytes_per_s in 1_000u64..1_000_000_000,
        burst in LONGEST..1_000_000,
        batches in batches(),
        pause_s in 2_000u64..1_000_000_000,
    ) {
        let mut limit = limit(bytes_per_s, burst);
        let mut now = 0;
        for (wait, frames) in &batches {
            now += wait;
            offer(&mut limit, now, frames);
        }
        now += pause_s * SECOND_NS;
        let passed = offer(&mut limit, now, &[burst / 2, burst - burst / 2, 1]);
        prop_assert_eq!(passed, u64::from(burst));
    }

    /// A clock that jumps, forward or back, gives nobody more than a burst.
    #[test]
    fn times_may_jump(
        bytes_per_s in 1_000u64..1_000_000_000,
        burst in LONGEST..1_000_000,
        times in prop::collection::vec(any::<u64>(), 1..50),
    ) {
        let mut limit = limit(bytes_per_s, burst);
        let (mut latest, mut at) = (times[0], times[0]);
        let mut passed = u128::from(offer(&mut limit, at, &[LONGEST; 40]));
        for time in &times[1..] {
            at = *time;
            let bytes = u128::from(offer(&mut limit, at, &[LONGEST; 40]));
            prop_assert!(bytes <= burst.into());
            if at <= latest {
                prop_assert_eq!(offer(&mut limit, at, &[burst]), 0, "time that was is no time");
            }
            latest = latest.max(at);
            passed += bytes;
        }
        prop_assert!(passed <= most(bytes_per_s, burst, latest - times[0]));
    }
}

#[test]
fn what_is_limited_no_more_passes_and_what_was_dropped_stays_counted() {
    let mut limit = limit(1, 100);
    assert_eq!(
        offer(&mut limit, 0, &[60, 60, 40]),
        100,
        "the smaller one fits"
    );
    assert_eq!(limit.dropped, 1);
    limit.set(None);
    assert_eq!(offer(&mut limit, 0, &[LONGEST; 3]), 3 * u64::from(LONGEST));
    assert_eq!(limit.dropped, 1);
}

#[test]
fn a_rate_is_never_nothing() {
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
        "longer than the burst: a debt"
    );
    assert_eq!(offer(&mut limit, 59 * SECOND_NS, &[60]), 0);
    assert_eq!(offer(&mut limit, 60 * SECOND_NS, &[60]), 60);
}

/// A machine of three guests, the second of which has a limit: 1000 bytes a second, 3000 at once.
fn machine() -> Machine {
    let mut machine = Machine::new(3);
    let limit = Limit {
        rate_mbps: 0.008,
        burst_bytes: 3000,
    };
    let port = machine.switch.ports.vif_mut(1).unwrap();
    port.limit.set(Some(&limit));
    machine
}

fn stat(machine: &Machine) -> Value {
    crate::report::stat(&crate::report::Sources {
        switch: &machine.switch,
        queues: &[],
        dedicated: &[],
        asked: &[],
    })
}

#[test]
fn who_is_limited_gets_a_burst_and_nobody_else_loses_anything() {
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
    assert_eq!(machine.carry(0).packets, 10);
    assert_eq!(machine.received(1), to(1)[..3]);
    assert_eq!(machine.received(2), to(2));
    let told = stat(&machine);
    assert_eq!(told["drops"]["rate_to_guest"], 2);
    assert_eq!(told["ports"]["g1"]["rate_to_guest"], 2);
    assert_eq!(told["ports"]["g2"]["rate_to_guest"], 0);
    assert_eq!(machine.port(1).traffic.out_packets, 3);
    // What was dropped is answered like all else, and what it sends itself is not limited.
    machine.guests[0].front.reap().unwrap();
    assert_eq!(machine.guests[0].front.buffers().available(), free);
    let sent: Vec<_> = (0..9).map(|n| frame(mac(2), mac(1), 1400, n)).collect();
    sent.iter().for_each(|bytes| machine.send(1, bytes));
    assert_eq!(machine.carry(1).packets, 9);
    assert_eq!(machine.received(2), sent);
}

/// Both paths take from the same bucket, and the guests beside it stay on the fast one.
#[test]
fn small_frames_are_limited_on_the_fast_path() {
    let (mut machine, mut fast) = (machine(), FastPath::default());
    let small: Vec<_> = (0..35).map(|n| frame(mac(1), mac(0), 100, n)).collect();
    small.iter().for_each(|bytes| machine.send(0, bytes));
    let other = frame(mac(2), mac(0), 100, 9);
    machine.send(0, &other);
    let carried = fast.carry(&mut machine.switch, 0, 0, 64);
    assert_eq!(carried.unwrap().carried.packets, 36);
    machine.publish();
    assert_eq!(machine.received(1), small[..30]);
    assert_eq!(machine.received(2), [other]);
    assert_eq!(machine.port(1).limit.dropped, 5);
    machine.send(0, &small[0]);
    machine.carry(0);
    assert_eq!(machine.port(1).limit.dropped, 6);
    // A tenth of a second later there is room for one.
    machine.send(0, &small[0]);
    machine.send(0, &small[1]);
    fast.carry(&mut machine.switch, 0, SECOND_NS / 10, 64);
    machine.publish();
    assert_eq!(machine.received(1), small[..1]);
    assert_eq!(machine.port(1).limit.dropped, 7);
}

/// An aggregate is one frame with one header, however many packets it is worth.
#[test]
fn an_aggregate_counts_once() {
    let mut machine = machine();
    let mut tcp = vif::testing::ipv4_tcp(2900 - 54, 1);
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
    assert!(machine.guests[0].send(&tcp, offload));
    assert!(machine.guests[0].send(&tcp, offload));
    machine.carry(0);
    assert_eq!(machine.port(1).limit.dropped, 1);
    assert_eq!(machine.port(1).traffic.out_bytes, tcp.len() as u64);
}

/// What is followed or captured is told of a drop, and of why.
#[test]
fn a_frame_above_the_rate_has_a_fate() {
    let mut machine = machine();
    let bytes = frame(mac(1), mac(0), 2900, 1);
    machine.send(0, &bytes);
    machine.carry(0);
    let asked = crate::capture::Asked {
        id: 1,
        of: "g1",
        snaplen: 100,
    };
    machine.switch.capture.request(asked, 0).unwrap();
    machine.switch.trace.request();
    machine.send(0, &bytes);
    machine.carry(0);
    let why = "dropped, rate_to_guest: Above the rate of the guest that it is for";
    let seen = machine.switch.capture.request(asked, 0).unwrap();
    assert_eq!(seen["frames"][0]["dropped"], why, "{seen}");
    let trace = machine.switch.trace.request().to_string();
    assert!(trace.contains(why), "{trace}");
    assert_eq!(
        machine
            .switch
            .bridge
            .drops(0)
            .unwrap()
            .get(DropReason::RateLimit),
        0
    );
}
