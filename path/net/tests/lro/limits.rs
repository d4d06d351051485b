//! Limits of an aggregate, of the table, and of held buffers.

use crate::common::frame_of;
use crate::packets::{Tcp, stream};
use crate::rig::{geometry, payloads, run, wide};
use net::lro::{Flush, Lro, Reason, Settings};
use nic::Frame;

fn frames(packets: &[Tcp]) -> Vec<Frame> {
    packets.iter().map(|p| frame_of(&p.bytes(), &[])).collect()
}

/// Returns one frame of each of `count` flows.
fn flows(count: usize) -> Vec<Frame> {
    let packets: Vec<_> = (0..count)
        .map(|n| {
            Tcp::v4(0, 100).with(|p| {
                p.host = n as u8;
                p.port = n as u16;
            })
        })
        .collect();
    frames(&packets)
}

fn held(settings: Settings) -> Lro {
    Lro::new(
        Settings {
            flush: Flush::After { us: 1000 },
            hold_max_us: 1000,
            ..settings
        },
        3,
    )
}

/// LR-50: the number of segments per aggregate is limited.
#[test]
fn segments_per_aggregate_are_limited() {
    for (segments, expected) in [
        (0, vec![10; 10]),
        (1, vec![10; 10]),
        (3, vec![30, 30, 30, 10]),
        (64, vec![100]),
    ] {
        let settings = Settings { segments, ..wide() };
        assert_eq!(geometry(settings, &stream(false, 10, 10)), expected);
    }
    // A limit above the maximum for segmentation is capped.
    let settings = Settings {
        segments: 10_000,
        ..wide()
    };
    assert_eq!(geometry(settings, &stream(false, 600, 10)), [5120, 880]);
}

/// LR-51, and row 7 of the attacks: with any layout of headers, no aggregate exceeds the configured
/// bytes or IP's 65 535.
#[test]
fn bytes_per_aggregate_are_limited() {
    for bytes in [0, 1, 1000, 1513, 1514, 1515, 3000, 65_535, usize::MAX] {
        for v6 in [false, true] {
            for tags in [0, 2] {
                let settings = Settings { bytes, ..wide() };
                let packets: Vec<_> = stream(v6, 100, 1440)
                    .into_iter()
                    .map(|packet| packet.with(|p| p.tags = tags))
                    .collect();
                let (out, _) = run(settings, frames(&packets));
                let single = packets[0].bytes().len();
                let limit = bytes.min(packets[0].network_at() + 65_535);
                assert!(out.iter().all(|frame| frame.len() <= limit.max(single)));
                let fit = limit.saturating_sub(single) / 1440 + 1;
                assert_eq!(payloads(&out)[0], 1440 * fit.clamp(1, 64), "{bytes}");
            }
        }
    }
}

/// LR-51: lengths at the limit of 16 bits.
#[test]
fn lengths_of_16_bits_do_not_wrap() {
    for len in [65_535 - 40, 65_535 - 41, 32_768, 32_747, 32_748] {
        let sizes = geometry(wide(), &stream(false, 3, len));
        assert!(sizes.iter().all(|size| *size <= 65_535 - 40), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), 3 * len);
    }
    assert_eq!(geometry(wide(), &stream(false, 2, 32_747)), [65_494]);
    assert_eq!(
        geometry(wide(), &stream(false, 2, 32_748)),
        [32_748, 32_748]
    );
}

/// LR-52: the table is bounded; the oldest aggregate is flushed and counted.
#[test]
fn the_oldest_aggregate_is_flushed() {
    let settings = Settings { flows: 4, ..wide() };
    let mut lro = held(settings);
    let mut out = Vec::new();
    lro.poll(0, &mut flows(4), &mut out);
    assert_eq!((out.len(), lro.held()), (0, 4));
    let mut next = flows(6).split_off(4);
    lro.poll(10, &mut next, &mut out);
    assert_eq!((out.len(), lro.held()), (2, 4));
    assert_eq!(lro.counters().flushed(Reason::TableFull), 2);
    let firsts: Vec<_> = out.iter().map(|frame| frame.header()[29]).collect();
    assert_eq!(firsts, [0, 1]);
}

/// LR-52: a flood of flows, even of colliding ones, never holds more than the table, and loses
/// nothing.
#[test]
fn a_flood_of_flows_is_bounded() {
    for flows_max in [0, 1, 8, 64, 1024] {
        let settings = Settings {
            flows: flows_max,
            ..wide()
        };
        let mut lro = held(settings);
        let mut out = Vec::new();
        for _ in 0..3 {
            lro.poll(0, &mut flows(5000), &mut out);
            assert!(lro.held() <= flows_max.max(1));
        }
        lro.drain(1, &mut out);
        assert_eq!(out.len(), 15_000);
        assert_eq!(lro.counters().aggregates, 15_000);
    }
    // The packets have the same addresses and ports but different MACs, so all flows share one
    // bucket.
    let packets: Vec<_> = (0..100)
        .map(|mac| Tcp::v4(0, 100).with(|p| p.mac = mac))
        .collect();
    let mut lro = held(wide());
    let mut out = Vec::new();
    lro.poll(0, &mut frames(&packets), &mut out);
    assert_eq!(lro.held() + out.len(), 100);
    assert_eq!(lro.held(), 8);
    assert_eq!(lro.counters().flushed(Reason::TableFull), 92);
}

/// LR-53: if buffers run low, the oldest aggregates are flushed and counted, and no more than
/// needed.
#[test]
fn relief_takes_the_oldest() {
    let mut lro = held(wide());
    let mut out = Vec::new();
    let mut batch = flows(3);
    batch.extend(frames(&[Tcp::v4(100, 100).with(|p| {
        p.host = 0;
        p.port = 0;
    })]));
    lro.poll(0, &mut batch, &mut out);
    assert_eq!((out.len(), lro.held()), (0, 4));
    lro.flush_oldest(0, 5, &mut out);
    assert_eq!(out.len(), 0);
    lro.flush_oldest(1, 5, &mut out);
    assert_eq!((payloads(&out), lro.held()), (vec![200], 2));
    lro.flush_oldest(100, 5, &mut out);
    assert_eq!((payloads(&out), lro.held()), (vec![200, 100, 100], 0));
    assert_eq!(lro.counters().flushed(Reason::NoDescriptor), 3);
    assert_eq!(lro.next_due(), None);
}
