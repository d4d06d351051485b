//! Every row of the table of rules, and the requirements on single packets.

use crate::common::frame_of;
use crate::packets::{Tcp, stream, timestamp};
use crate::rig::{geometry, geometry_of, payloads, run, wide, wire};
use net::lro::rules::{FieldTest, RULES};
use net::lro::{Lro, MergeRules, Psh, Reason, Settings};
use net::packet::flags::{ACK, CWR, ECE, FIN, PSH};
use nic::{Checksum, Frame, Gso, GsoKind};

/// Sends two packets, the second one changed. Returns why the first was flushed without the second.
fn reason(v6: bool, change: impl FnOnce(&mut Tcp)) -> Reason {
    let mut packets = stream(v6, 2, 100);
    change(&mut packets[1]);
    let frames: Vec<_> = packets.iter().map(|p| frame_of(&p.bytes(), &[])).collect();
    let (out, lro) = run(wide(), frames);
    assert_eq!(out.len(), 2);
    let mut reasons = Reason::ALL
        .into_iter()
        .filter(|reason| lro.counters().flushed(*reason) > 0 && *reason != Reason::Poll);
    let found = reasons.next().expect("a reason");
    assert_eq!(reasons.next(), None);
    found
}

/// Only the first packet may have CWR, even if a later one has the same header.
#[test]
fn later_packet_with_cwr_does_not_follow() {
    for v6 in [false, true] {
        let mut packets = stream(v6, 4, 100);
        packets[0].flags |= CWR;
        packets[3].flags |= CWR;
        assert_eq!(geometry(wide(), &packets), [300, 100]);
    }
}

/// LR-21: for each field that must be equal, the engine counts a difference under the field's
/// reason.
#[test]
fn every_rule_is_counted_by_its_name() {
    for v6 in [false, true] {
        let is = |expected, change: &dyn Fn(&mut Tcp)| {
            assert_eq!(reason(v6, change), expected, "v6: {v6}");
        };
        is(Reason::Sequence, &|p| p.sequence += 100);
        is(Reason::Sequence, &|p| p.sequence -= 100);
        is(Reason::Acknowledgement, &|p| p.acknowledgement += 1);
        is(Reason::Flags, &|p| p.flags |= ECE);
        is(Reason::Flags, &|p| p.reserved = 1);
        is(Reason::Window, &|p| p.window -= 1);
        is(Reason::UrgentPointer, &|p| p.urgent = 1);
        is(Reason::Length, &|p| p.payload.push(1));
        is(Reason::TrafficClass, &|p| p.tos = 4);
        is(Reason::TrafficClass, &|p| p.tos = 0xf0);
        is(Reason::HopLimit, &|p| p.ttl = 9);
        is(Reason::HeaderLengths, &|p| p.options = timestamp(1, 1));
        is(Reason::Ack, &|p| p.payload.clear());
        is(Reason::Control, &|p| p.flags |= 2);
        if v6 {
            is(Reason::FlowLabel, &|p| p.label = 1);
            is(Reason::FlowLabel, &|p| p.label = 0xf_0000);
            is(Reason::HeaderLengths, &|p| {
                p.extensions = vec![(0, vec![0; 6])]
            });
            is(Reason::Fragment, &|p| p.extensions = vec![(44, vec![0; 6])]);
            is(Reason::IpOptions, &|p| {
                p.extensions = vec![(43, vec![0; 6])]
            });
            is(Reason::Hidden, &|p| {
                p.extensions = vec![(44, vec![0, 8, 0, 0, 0, 0])]
            });
        } else {
            is(Reason::Identification, &|p| p.id += 1);
            is(Reason::DontFragment, &|p| p.fragment = 0);
            is(Reason::DontFragment, &|p| p.fragment = 0xc000);
            is(Reason::IpOptions, &|p| p.ip_options = vec![1; 4]);
            is(Reason::Fragment, &|p| p.fragment = 0x2000);
            is(Reason::Hidden, &|p| p.fragment = 8);
        }
    }
    let mut packets = stream(true, 2, 100);
    packets[0].extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
    packets[1].extensions = vec![(60, vec![1, 4, 0, 0, 0, 1])];
    assert_eq!(geometry(wide(), &packets), [100, 100]);
    for packet in &mut packets {
        packet.extensions.clear();
    }
    packets[0].options = timestamp(1, 1);
    packets[1].options = timestamp(1, 2);
    assert_eq!(geometry(wide(), &packets), [100, 100]);
}

/// LR-11: the table names each field once, with a source for every rule.
#[test]
fn the_table_names_each_field_once() {
    for (n, rule) in RULES.iter().enumerate() {
        assert!(rule.why.len() > 3, "{:?}", rule.field);
        assert!(RULES[..n].iter().all(|other| other.field != rule.field));
        for rules in [MergeRules::Gro, MergeRules::Lro] {
            let same = rule.test(rules) == net::lro::rules::test(rules, rule.field);
            assert!(same && (rule.gro != FieldTest::Any), "{:?}", rule.field);
        }
    }
}

/// LR-22: FIN is merged and ends the aggregate; segmentation restores its packet.
#[test]
fn fin_is_the_last() {
    let mut packets = stream(false, 4, 100);
    packets[1].flags |= FIN;
    assert_eq!(geometry(wide(), &packets), [200, 200]);
    packets[0].flags |= FIN;
    assert_eq!(geometry(wide(), &packets), [100, 100, 200]);
}

/// LR-22: packets that all have ECE are equal; CWR stays on the first.
#[test]
fn equal_ece_flags_merge() {
    let mut packets = stream(false, 3, 100);
    for packet in &mut packets {
        packet.flags |= ECE;
    }
    packets[0].flags |= CWR;
    assert_eq!(geometry(wide(), &packets), [300]);
}

/// LR-22: `psh = merge` loses nothing except the position of PSH.
#[test]
fn psh_merged_is_on_the_last() {
    let mut packets = stream(false, 3, 100);
    packets[0].flags |= PSH;
    let frames: Vec<_> = packets.iter().map(|p| frame_of(&p.bytes(), &[])).collect();
    let merge = Settings {
        psh: Psh::Merge,
        ..wide()
    };
    let (out, _) = run(merge, frames);
    assert_eq!(payloads(&out), [300]);
    packets[0].flags = ACK;
    packets[2].flags |= PSH;
    let expected: Vec<_> = packets.iter().map(Tcp::bytes).collect();
    assert_eq!(wire(&out), expected);
}

/// LR-12: padding is not payload; a padded packet passes unmerged.
#[test]
fn padded_and_cut_packets_are_not_merged() {
    let packets = stream(false, 3, 4);
    for (change, sizes) in [(60, vec![4, 4, 4]), (56, vec![4, 4, 4])] {
        let mut bytes: Vec<_> = packets.iter().map(Tcp::bytes).collect();
        bytes[1].resize(change, 0);
        assert_eq!(geometry_of(wide(), &bytes), sizes);
    }
}

/// LR-12: a GSO frame passes and ends its flow's aggregate.
#[test]
fn frames_to_be_segmented_pass() {
    let packets = stream(false, 4, 100);
    let mut frames: Vec<_> = packets.iter().map(|p| frame_of(&p.bytes(), &[])).collect();
    frames[2].offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: 50,
    });
    let (out, lro) = run(wide(), frames);
    assert_eq!(payloads(&out), [200, 100, 100]);
    assert_eq!(out[1].offload.gso.unwrap().size, 50);
    assert_eq!(lro.counters().flushed(Reason::Gso), 1);
}

fn states(states: [Checksum; 2], change: impl FnOnce(&mut Vec<u8>)) -> (Vec<Frame>, Lro) {
    let packets = stream(false, 2, 101);
    let mut second = packets[1].bytes();
    change(&mut second);
    let mut frames = vec![frame_of(&packets[0].bytes(), &[]), frame_of(&second, &[])];
    for (frame, state) in frames.iter_mut().zip(states) {
        frame.offload.checksum = state;
    }
    run(wide(), frames)
}

const BLANK: Checksum = Checksum::Blank {
    start: 34,
    offset: 16,
};

/// Replaces the checksum of a packet of [`states`] by the pseudo header's sum.
fn make_blank(bytes: &mut [u8]) {
    let sum = net::packet::checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 121);
    let sum = net::packet::checksum::fold(sum);
    bytes[50..52].copy_from_slice(&sum.to_be_bytes());
}

/// LR-13: valid and blank checksums are accepted; unknown ones are verified.
#[test]
fn unknown_checksums_are_verified() {
    let count = |states_: [Checksum; 2], change: &dyn Fn(&mut Vec<u8>)| {
        let (out, lro) = states(states_, change);
        (out.len(), lro.counters().bad_checksums)
    };
    let (unknown, valid) = (Checksum::Unknown, Checksum::Valid);
    assert_eq!(count([unknown, unknown], &|_| {}), (1, 0));
    assert_eq!(count([unknown, valid], &|bytes| bytes[60] ^= 1), (1, 0));
    assert_eq!(count([unknown, unknown], &|bytes| bytes[60] ^= 1), (2, 1));
    assert_eq!(count([unknown, unknown], &|bytes| bytes[150] ^= 1), (2, 1));
    assert_eq!(count([valid, BLANK], &|bytes| make_blank(bytes)), (1, 0));
    assert_eq!(count([valid, BLANK], &|bytes| bytes[50] ^= 1), (2, 0));
    let elsewhere = Checksum::Blank {
        start: 34,
        offset: 6,
    };
    assert_eq!(
        count([valid, elsewhere], &|bytes| make_blank(bytes)),
        (2, 0)
    );
    // The IPv4 header checksum is always verified.
    assert_eq!(count([valid, valid], &|bytes| bytes[24] ^= 1), (2, 1));
    // Valid, but not the value that segmentation would write.
    assert_eq!(
        count([valid, valid], &|bytes| bytes[50..52].fill(0)),
        (2, 0)
    );
}

/// LR-13: 0 and 0xffff are both valid if the sum is 0xffff. In the TCP and in the IPv4 field, only
/// the value that segmentation writes is merged.
#[test]
fn the_two_zeros_of_a_checksum() {
    let mut packets = stream(false, 2, 102);
    // A word of payload that makes the checksum 0xffff.
    let payload = packets[1].payload.len();
    packets[1].payload[payload - 2..].fill(0);
    let bytes = packets[1].bytes();
    let rest = u16::from_be_bytes([bytes[50], bytes[51]]);
    packets[1].payload[payload - 2..].copy_from_slice(&rest.to_be_bytes());
    let mut bytes: Vec<_> = packets.iter().map(Tcp::bytes).collect();
    assert_eq!(bytes[1][50..52], [0xff, 0xff]);
    assert_eq!(geometry_of(wide(), &bytes), [204]);
    bytes[1][50..52].fill(0);
    assert_eq!(geometry_of(wide(), &bytes), [102, 102]);
    let mut ip = stream(false, 2, 102);
    let second = ip[1].bytes();
    let missing = u16::from_be_bytes([second[24], second[25]]);
    for packet in &mut ip {
        packet.id = packet.id.wrapping_add(missing);
    }
    let mut bytes: Vec<_> = ip.iter().map(Tcp::bytes).collect();
    assert_eq!(bytes[1][24..26], [0, 0]);
    assert_eq!(geometry_of(wide(), &bytes), [204]);
    bytes[1][24..26].fill(0xff);
    assert_eq!(geometry_of(wide(), &bytes), [102, 102]);
}

/// LR-14: packets other than TCP pass immediately and flush no aggregate.
#[test]
fn other_protocols_pass() {
    let packets = stream(false, 2, 100);
    let mut udp = packets[0].bytes();
    udp[23] = 17;
    let arp = crate::common::arp(1, [2; 6], [1; 4], [0; 6], [2; 4]);
    let bytes = [
        packets[0].bytes(),
        udp,
        arp,
        vec![0; 10],
        packets[1].bytes(),
    ];
    let frames: Vec<_> = bytes.iter().map(|bytes| frame_of(bytes, &[])).collect();
    let (out, lro) = run(wide(), frames);
    assert_eq!(out.len(), 4);
    assert_eq!(lro.counters().segments, 2);
    assert_eq!(lro.counters().flushed(Reason::Poll), 1);
}

/// LR-15: tags are part of a flow's identity, and headers of every form merge.
#[test]
fn vlan_tags_and_stations() {
    for v6 in [false, true] {
        for tags in [0, 1, 2] {
            let tagged = |tag, mac| {
                let change = move |p: &mut Tcp| {
                    p.tags = tags;
                    p.tag = tag;
                    p.mac = mac;
                };
                stream(v6, 2, 100)
                    .into_iter()
                    .map(move |packet| packet.with(change))
            };
            let same: Vec<_> = tagged(1, 1).collect();
            assert_eq!(geometry(wide(), &same), [200]);
            let mixed: Vec<_> = tagged(1, 1).zip(tagged(1, 9)).collect();
            let mixed: Vec<_> = mixed.into_iter().flat_map(|(a, b)| [a, b]).collect();
            assert_eq!(geometry(wide(), &mixed), [200, 200]);
            if tags > 0 {
                let mixed: Vec<_> = tagged(1, 1).zip(tagged(2, 1)).collect();
                let mixed: Vec<_> = mixed.into_iter().flat_map(|(a, b)| [a, b]).collect();
                assert_eq!(geometry(wide(), &mixed), [200, 200]);
            }
        }
    }
}

/// LR-16: a TCP packet without visible ports flushes everything, so that it overtakes nothing.
#[test]
fn hidden_headers_flush_everything() {
    let long = Tcp::of(true, 1200, 100).with(|p| {
        p.extensions = vec![(0, vec![0; 14]), (60, vec![0; 54])];
    });
    let packets = [stream(true, 2, 100), vec![long]].concat();
    assert_eq!(geometry(wide(), &packets)[0], 200);
    let bytes: Vec<_> = packets.iter().map(Tcp::bytes).collect();
    let frames: Vec<_> = bytes.iter().map(|bytes| frame_of(bytes, &[])).collect();
    let (out, lro) = run(wide(), frames);
    assert_eq!(out[1].to_vec().unwrap(), bytes[2]);
    assert_eq!(lro.counters().flushed(Reason::Hidden), 1);
}
