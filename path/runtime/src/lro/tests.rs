use super::*;
use crate::testing::{ACK, HEADERS, PAYLOAD, PSH, config, packet, packet_with, payloads};
use config::lro::Placement;
use nic::{Buffers, Pool};
use shmem::Area;
use vif::netfront::Sizes;
use vif::netif::{RxRequest, RxResponse, rxf};
use vif::testing::Rig;

fn pool(buffers: usize) -> Pool {
    Pool::new(Area::anonymous(buffers * 2048).unwrap(), 2048)
}

fn frames(pool: &mut Pool, packets: &[Vec<u8>]) -> Vec<Frame> {
    let frame = |bytes: &Vec<u8>| Frame::from_bytes(bytes, pool).unwrap();
    packets.iter().map(frame).collect()
}

fn payloads_of(packets: &[Vec<u8>]) -> Vec<u8> {
    packets.iter().flat_map(|p| p[HEADERS..].to_vec()).collect()
}

#[test]
fn lro_is_on_where_it_is_configured() {
    for (at, physical, is_virtual) in [
        (Placement::None, false, false),
        (Placement::Physical, true, false),
        (Placement::Virtual, false, true),
        (Placement::Both, true, true),
    ] {
        let config = LroConfig {
            at,
            ..LroConfig::default()
        };
        let active = |side| LroStage::new(side, &config, 64).is_active();
        assert_eq!(
            (active(LroSide::Physical), active(LroSide::Virtual)),
            (physical, is_virtual)
        );
    }
}

#[test]
fn packets_of_a_poll_merge_and_return_buffers() {
    for buffers in [FormKey::Skb, FormKey::Page] {
        let mut pool = pool(64);
        let config = LroConfig {
            buffers,
            ..config(FlushConfig::Poll)
        };
        let mut lro_stage = LroStage::new(LroSide::Physical, &config, 32);
        let packets: Vec<_> = (0..10).map(|n| packet(1, n)).collect();
        let mut arrived = frames(&mut pool, &packets);
        let mut out = Vec::new();
        lro_stage.pass(0, true, &mut arrived, &mut out);
        assert_eq!((arrived.len(), out.len(), lro_stage.held()), (0, 1, 0));
        assert_eq!(out[0].len(), HEADERS + 10 * PAYLOAD);
        assert_eq!(payloads(&out), payloads_of(&packets));
        let stat = lro_stage.stat();
        assert_eq!(
            (&stat["segments"], &stat["aggregates"]),
            (&10.into(), &1.into())
        );
        assert_eq!(stat["rate"], 10.0);
        out[0].recycle(&mut pool);
        assert_eq!(pool.available(), 64);
    }
}

#[test]
fn held_packets_are_flushed_when_due() {
    let mut pool = pool(64);
    let mut lro_stage = LroStage::new(LroSide::Physical, &config(FlushConfig::After(50)), 32);
    let packets = [packet(1, 0), packet(1, 1)];
    let mut out = Vec::new();
    lro_stage.pass(1_000, true, &mut frames(&mut pool, &packets), &mut out);
    assert_eq!((out.len(), lro_stage.held()), (0, 2));
    let due = lro_stage.next_due().unwrap();
    assert!((49_000..=51_000).contains(&due), "{due}");
    lro_stage.pass(due - 1, false, &mut Vec::new(), &mut out);
    assert!(out.is_empty());
    lro_stage.pass(due, false, &mut Vec::new(), &mut out);
    assert_eq!((out.len(), lro_stage.held()), (1, 0));
    assert_eq!(lro_stage.next_due(), None);
    assert_eq!(lro_stage.stat()["latency_us"]["count"], 1);
    let p50 = lro_stage.stat()["latency_us"]["p50"].as_f64().unwrap();
    assert!((48.0..=50.0).contains(&p50), "{p50}");
}

#[test]
fn delayed_aggregation_counts_only_real_polls() {
    let mut pool = pool(64);
    let mut lro_stage = LroStage::new(LroSide::Physical, &config(FlushConfig::Polls(2)), 32);
    let mut out = Vec::new();
    lro_stage.pass(0, false, &mut frames(&mut pool, &[packet(1, 0)]), &mut out);
    // These calls have no frames and are not polls.
    lro_stage.pass(1_000, false, &mut Vec::new(), &mut out);
    lro_stage.pass(2_000, false, &mut Vec::new(), &mut out);
    assert_eq!((out.len(), lro_stage.held()), (0, 1));
    lro_stage.pass(
        3_000,
        false,
        &mut frames(&mut pool, &[packet(1, 1)]),
        &mut out,
    );
    assert_eq!((out.len(), out[0].len()), (1, HEADERS + 2 * PAYLOAD));
}

#[test]
fn a_packet_with_psh_never_waits() {
    let mut pool = pool(64);
    let mut lro_stage = LroStage::new(LroSide::Virtual, &config(FlushConfig::After(5000)), 32);
    let packets = [packet(1, 0), packet_with(1, 1, ACK | PSH)];
    let mut out = Vec::new();
    lro_stage.pass(0, true, &mut frames(&mut pool, &packets), &mut out);
    assert_eq!((out.len(), lro_stage.held()), (1, 0));
}

#[test]
fn held_buffers_are_limited() {
    let mut pool = pool(256);
    let mut lro_stage = LroStage::new(LroSide::Physical, &config(FlushConfig::After(5000)), 40);
    let mut out = Vec::new();
    let mut given = 0;
    for n in 0..20 {
        let packets: Vec<_> = (0..8).map(|flow| packet(flow, n)).collect();
        given += packets.len();
        lro_stage.pass(
            u64::from(n),
            true,
            &mut frames(&mut pool, &packets),
            &mut out,
        );
        assert!(lro_stage.held() <= 40, "{}", lro_stage.held());
        let delivered: usize = out
            .iter()
            .map(|frame| (frame.len() - HEADERS) / PAYLOAD)
            .sum();
        assert_eq!(delivered + lro_stage.held(), given, "nothing is lost");
    }
    let flushed = &lro_stage.stat()["flushed"];
    assert!(flushed["no_descriptor"].as_u64() > Some(0), "{flushed}");
    lro_stage.drain(21, &mut out);
    for frame in &mut out {
        frame.recycle(&mut pool);
    }
    assert_eq!((lro_stage.held(), pool.available()), (0, 256));
}

#[test]
fn disabling_flushes_held_frames() {
    let mut pool = pool(64);
    let mut lro_stage = LroStage::new(LroSide::Virtual, &config(FlushConfig::After(5000)), 32);
    let packets: Vec<_> = (0..4).map(|n| packet(1, n)).collect();
    let mut out = Vec::new();
    lro_stage.pass(0, true, &mut frames(&mut pool, &packets[..2]), &mut out);
    assert!(out.is_empty());
    let off = LroConfig {
        at: Placement::Physical,
        ..config(FlushConfig::Poll)
    };
    lro_stage.set(&off);
    assert!(lro_stage.is_active() && lro_stage.next_due() == Some(0));
    lro_stage.pass(1, true, &mut frames(&mut pool, &packets[2..]), &mut out);
    assert_eq!(out.len(), 3);
    assert_eq!(payloads(&out), payloads_of(&packets));
    assert!(!lro_stage.is_active() && lro_stage.next_due().is_none());
    lro_stage.set(&config(FlushConfig::Poll));
    assert!(lro_stage.is_active());
    assert_eq!(lro_stage.stat()["segments"], 2, "counters continue");
}

#[test]
fn new_rules_apply_from_the_next_poll() {
    let mut pool = pool(64);
    let mut lro_stage = LroStage::new(LroSide::Physical, &config(FlushConfig::After(5000)), 32);
    let packets: Vec<_> = (0..4).map(|n| packet(1, n)).collect();
    let mut out = Vec::new();
    lro_stage.pass(0, true, &mut frames(&mut pool, &packets[..2]), &mut out);
    lro_stage.set(&config(FlushConfig::Poll));
    lro_stage.pass(10, true, &mut frames(&mut pool, &packets[2..]), &mut out);
    assert_eq!(lro_stage.held(), 0);
    assert_eq!(payloads(&out), payloads_of(&packets));
    assert_eq!(lro_stage.stat()["flush"], "poll");
}

#[test]
fn sums_include_all_stages_of_a_domain() {
    let mut pool = pool(64);
    let mut sums = Sums::default();
    for flow in 0..2 {
        let mut lro_stage = LroStage::new(LroSide::Physical, &config(FlushConfig::After(50)), 32);
        let packets: Vec<_> = (0..4).map(|n| packet(flow, n)).collect();
        let mut out = Vec::new();
        lro_stage.pass(0, true, &mut frames(&mut pool, &packets), &mut out);
        lro_stage.pass(60_000, false, &mut Vec::new(), &mut out);
        lro_stage.add_to(&mut sums);
    }
    LroStage::new(LroSide::Physical, &LroConfig::default(), 32).add_to(&mut sums);
    let value = Value::from(sums);
    assert_eq!(
        (&value["segments"], &value["aggregates"]),
        (&8.into(), &2.into())
    );
    let waits: Vec<_> = value["waits_ns"].as_object().unwrap().values().collect();
    assert_eq!(waits, [&Value::from(2)], "{value}");
    assert_eq!(value["wait_sum_ns"], 120_000, "{value}");
}

/// While aggregates hold a netfront's buffers, some buffers must stay posted for the driver domain.
/// Otherwise the netfront and the driver domain would wait for each other.
#[test]
fn a_ring_keeps_buffers_while_others_are_held() {
    for buffers in [FormKey::Skb, FormKey::Page] {
        let sizes = Sizes {
            rx_pages: 16,
            ..vif::testing::sizes()
        };
        let mut rig = Rig::new(sizes);
        let config = LroConfig {
            buffers,
            ..config(FlushConfig::After(5000))
        };
        let mut lro_stage = LroStage::new(LroSide::Virtual, &config, 16);
        let memory = Area::anonymous(8 * 2048).unwrap();
        let mut source = Pool::new(memory, 2048);
        let (mut arrived, mut out, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        let mut sent = Vec::new();
        for n in 0..60 {
            let packets = [packet(1, n), packet(2, n)];
            let mut given = frames(&mut source, &packets);
            sent.extend(packets);
            assert_eq!(
                rig.deliver_to_guest(&given),
                2,
                "batch {n}: the ring has no buffers"
            );
            given
                .iter_mut()
                .for_each(|frame| frame.recycle(&mut source));
            rig.front.receive(64, &mut arrived).unwrap();
            lro_stage.pass(u64::from(n), false, &mut arrived, &mut out);
            passed.extend(out.iter().map(|frame| frame.to_vec().unwrap()));
            rig.front.receive_done(&mut out);
            rig.front.publish();
        }
        lro_stage.drain(60, &mut out);
        passed.extend(out.iter().map(|frame| frame.to_vec().unwrap()));
        rig.front.receive_done(&mut out);
        rig.front.publish();
        for flow in [1, 2] {
            let of = |all: &[Vec<u8>]| -> Vec<u8> {
                let mine = all.iter().filter(|bytes| bytes[35] == flow);
                mine.flat_map(|bytes| bytes[HEADERS..].to_vec()).collect()
            };
            assert_eq!(of(&passed), of(&sent), "flow {flow}");
        }
        assert!(passed.len() < sent.len() / 2, "{} packets", passed.len());
        assert_eq!(rig.back.posted(64), 32, "every buffer is posted again");
        assert_eq!(source.free(), Some(8));
    }
}

/// A packet from another guest of the machine may have its header in a separate slot. Hatori & Oi's
/// guest did not merge these packets (V.B).
#[test]
fn packets_with_a_header_slot_are_merged() {
    for buffers in [FormKey::Skb, FormKey::Page] {
        let mut rig = Rig::new(vif::testing::sizes());
        let packets: Vec<_> = (0..10).map(|n| packet(1, n)).collect();
        let back = rig.raw_rx_back();
        let mut responses = Vec::new();
        for (bytes, at) in packets.iter().zip((0..).step_by(2)) {
            let (header, payload) = bytes.split_at(HEADERS);
            for (part, at, flags) in [(header, at, rxf::MORE_DATA), (payload, at + 1, 0)] {
                let request = RxRequest::decode(back.request_at(at));
                let page = rig.layout.rx_pool().start + u32::from(request.id) / 2;
                let page = rig.memory().area().page(page).unwrap();
                page.skip(usize::from(request.offset)).write(part).unwrap();
                let response = RxResponse {
                    id: request.id,
                    offset: request.offset,
                    flags,
                    status: part.len() as i16,
                };
                responses.push(response.encode());
            }
        }
        back.answer(&responses);
        let config = LroConfig {
            buffers,
            ..config(FlushConfig::Poll)
        };
        let mut lro_stage = LroStage::new(LroSide::Virtual, &config, 64);
        let (mut arrived, mut out) = (Vec::new(), Vec::new());
        assert_eq!(rig.front.receive(64, &mut arrived), Ok(10));
        lro_stage.pass(0, false, &mut arrived, &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(payloads(&out), payloads_of(&packets));
        rig.front.receive_done(&mut out);
        rig.front.publish();
        assert_eq!(
            rig.raw_rx().req_prod(),
            128 + 20,
            "every buffer is posted again"
        );
    }
}

#[test]
fn held_aggregates_are_limited_on_request() {
    let mut pool = pool(64);
    let mut lro_stage = LroStage::new(LroSide::Physical, &config(FlushConfig::After(5000)), 64);
    let packets: Vec<_> = (0..3)
        .flat_map(|flow| (0..4).map(move |n| packet(flow, n)))
        .collect();
    let mut out = Vec::new();
    lro_stage.pass(1, true, &mut frames(&mut pool, &packets), &mut out);
    assert_eq!((lro_stage.aggregates(), lro_stage.held()), (3, 12));
    lro_stage.limit_held((12, 3), 2, &mut out);
    assert!(out.is_empty());
    lro_stage.limit_held((11, 3), 2, &mut out);
    assert_eq!((out.len(), lro_stage.held()), (1, 8));
    lro_stage.limit_held((64, 1), 2, &mut out);
    assert_eq!((out.len(), lro_stage.aggregates()), (2, 1));
    lro_stage.flush_revoked(3, &mut out);
    assert_eq!(payloads(&out), payloads_of(&packets), "the oldest first");
    let stat = lro_stage.stat();
    assert_eq!(stat["flushed"]["no_descriptor"], 2);
    assert_eq!(stat["flushed"]["revoked"], 1);
}

#[test]
fn counters_of_several_engines_add_up() {
    let mut pool = pool(64);
    let stages = [2, 3].map(|count| {
        let mut stage = LroStage::new(LroSide::Physical, &config(FlushConfig::After(50)), 32);
        let packets: Vec<_> = (0..count).map(|n| packet(1, n)).collect();
        let mut out = Vec::new();
        stage.pass(0, true, &mut frames(&mut pool, &packets), &mut out);
        if count == 2 {
            stage.drain(40_000, &mut out);
        }
        stage
    });
    let unused = LroStage::new(LroSide::Physical, &LroConfig::default(), 32);
    let stat = unused.stat_with(&stages);
    assert_eq!((&stat["segments"], &stat["merged"]), (&5.into(), &1.into()));
    assert_eq!(
        (&stat["held"], &stat["flush"]),
        (&3.into(), &"adaptive".into())
    );
    assert_eq!(stat["latency_us"]["count"], 1);
    assert_eq!(stat["latency_us"]["max"], 40.0);
}
