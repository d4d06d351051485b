//! Errors for packets too big for the next hop.

mod common;

use common::{Build, DST, SRC, any_build, tcp};
use etherparse::{LaxSlicedPacket, NetSlice, SlicedPacket, TransportSlice};
use net::packet::protocol;
use net::packet::too_big::{TooBig, too_big};
use nic::{Frame, Gso, GsoKind};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MTU: usize = 1500;
/// Offset of the IP header of an untagged frame.
const IP: usize = 14;
const ROUTERS: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xfe)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 254)),
];

fn frame_of(bytes: &[u8]) -> Frame {
    common::frame_of(bytes, &[600])
}

fn udp(len: usize) -> Vec<u8> {
    let payload = (0..len).map(|n| n as u8);
    [0, 7, 0, 9, 0, 0, 0, 0]
        .into_iter()
        .chain(payload)
        .collect()
}

fn build(v6: bool, transport: Vec<u8>) -> Build {
    Build {
        protocol: protocol::UDP,
        transport,
        v6,
        ..Build::tcp4(&[])
    }
}

fn answer_to(build: &Build) -> Option<Vec<u8>> {
    too_big(&frame_of(&build.bytes()), MTU, &ROUTERS)
}

/// The simplest Internet checksum, over several parts of even length except the last.
fn sum_of(parts: &[&[u8]]) -> u16 {
    let pairs = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = pairs
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns an error's source address, its MTU, and the quoted packet.
fn parse(bytes: &[u8]) -> (IpAddr, u32, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(bytes).unwrap();
    let from = match packet.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            assert_eq!(sum_of(&[ip.header().slice()]), 0xffff, "IPv4 checksum");
            assert_eq!(ip.header().destination(), common::SRC4);
            IpAddr::from(ip.header().source())
        }
        NetSlice::Ipv6(ip) => {
            assert_eq!(ip.header().destination(), common::SRC6);
            IpAddr::from(ip.header().source())
        }
        NetSlice::Arp(_) => panic!("ARP"),
    };
    match packet.transport.unwrap() {
        TransportSlice::Icmpv4(icmp) => {
            assert_eq!((icmp.type_u8(), icmp.code_u8()), (3, 4));
            assert_eq!(sum_of(&[icmp.slice()]), 0xffff, "ICMP checksum");
            let [_, _, high, low] = icmp.bytes5to8();
            let mtu = u16::from_be_bytes([high, low]);
            (from, mtu.into(), icmp.payload().to_vec())
        }
        TransportSlice::Icmpv6(icmp) => {
            assert_eq!((icmp.type_u8(), icmp.code_u8()), (2, 0));
            let IpAddr::V6(own) = from else { panic!() };
            let valid = icmp.is_checksum_valid(own.octets(), common::SRC6);
            assert!(valid, "ICMPv6 checksum");
            let mtu = u32::from_be_bytes(icmp.bytes5to8());
            (from, mtu, icmp.payload().to_vec())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn ipv4_packet_gets_fragmentation_needed() {
    for tags in 0..=2 {
        for options in [0, 40] {
            let sent = build(false, udp(8000)).tags(tags).options(options);
            let bytes = sent.bytes();
            let answer = answer_to(&sent).unwrap();
            assert_eq!((&answer[..6], &answer[6..12]), (&SRC.0[..], &DST.0[..]));
            let at = sent.network_at();
            assert_eq!(answer[12..at], bytes[12..at], "the same tags");
            let (from, mtu, quote) = parse(&answer);
            assert_eq!((from, mtu), (ROUTERS[1], 1500));
            assert_eq!(quote, bytes[at..sent.transport_at() + 8]);
        }
    }
}

#[test]
fn an_ipv6_packet_is_answered_with_packet_too_big() {
    for tags in 0..=2 {
        let sent = build(true, udp(8000)).tags(tags);
        let bytes = sent.bytes();
        let answer = answer_to(&sent).unwrap();
        let at = sent.network_at();
        assert_eq!(answer.len() - at, 1280, "as much as any link carries");
        let (from, mtu, quote) = parse(&answer);
        assert_eq!((from, mtu), (ROUTERS[0], 1500));
        assert_eq!(quote, bytes[at..at + 1232]);
    }
}

/// Routers behind a NIC are unknown. A router must not receive an error from its own address.
#[test]
fn without_a_router_the_destination_answers() {
    for v6 in [false, true] {
        let frame = frame_of(&build(v6, udp(8000)).bytes());
        let (own, destination): (IpAddr, IpAddr) = match v6 {
            true => (common::SRC6.into(), common::DST6.into()),
            false => (common::SRC4.into(), common::DST4.into()),
        };
        for routers in [&[][..], &[own], &[Ipv4Addr::UNSPECIFIED.into()]] {
            let answer = too_big(&frame, MTU, routers).unwrap();
            assert_eq!(parse(&answer).0, destination);
        }
    }
}

#[test]
fn a_segment_counts_not_the_aggregate() {
    // Segmentation reports an error for the segment size. The aggregate quotes the same headers.
    let sent = Build::tcp4(&[7; 20_000]);
    let mut frame = frame_of(&sent.bytes());
    frame.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: 8948,
    });
    let (_, mtu, quote) = parse(&too_big(&frame, MTU, &ROUTERS).unwrap());
    assert_eq!((mtu, quote.len()), (1500, 28));
}

/// A case: its name, a change of the packet, and bytes to write into the frame.
type Case = (&'static str, fn(&mut Build), &'static [(usize, u8)]);

#[test]
fn fragmentable_packets_and_fragments_get_none() {
    let cases: [Case; 11] = [
        ("may be fragmented", |_| {}, &[(IP + 6, 0)]),
        ("a later fragment", |_| {}, &[(IP + 7, 1)]),
        ("fits", |it| it.transport.truncate(1480), &[]),
        ("claims to fit", |_| {}, &[(IP + 2, 1)]),
        ("to a group of stations", |it| it.destination.0[0] |= 1, &[]),
        ("from a group", |it| it.source.0[0] |= 1, &[]),
        ("from nowhere", |it| it.source4 = [0; 4], &[]),
        ("from itself", |it| it.source4 = [127, 0, 0, 1], &[]),
        ("to a multicast group", |_| {}, &[(IP + 16, 224)]),
        ("to all", |_| {}, &[(IP + 16, 255)]),
        ("no IP", |_| {}, &[(12, 0x88)]),
    ];
    for (case, change, bytes) in cases {
        let mut sent = build(false, udp(8000));
        change(&mut sent);
        let mut all = sent.bytes();
        bytes.iter().for_each(|(at, byte)| all[*at] = *byte);
        assert_eq!(too_big(&frame_of(&all), MTU, &ROUTERS), None, "{case}");
    }
}

#[test]
fn ipv6_packets_that_are_not_answered() {
    let cases: [Case; 6] = [
        ("fits", |it| it.transport.truncate(1460), &[]),
        ("a jumbogram", |_| {}, &[(IP + 4, 0), (IP + 5, 0)]),
        ("from nowhere", |it| it.source6 = [0; 16], &[]),
        ("to a group", |_| {}, &[(IP + 24, 0xff)]),
        ("from a group", |_| {}, &[(IP + 8, 0xff)]),
        (
            "a later fragment",
            |it| it.extensions = vec![(44, vec![0, 8, 0, 0, 0, 1])],
            &[],
        ),
    ];
    for (case, change, bytes) in cases {
        let mut sent = build(true, udp(8000));
        change(&mut sent);
        let mut all = sent.bytes();
        bytes.iter().for_each(|(at, byte)| all[*at] = *byte);
        assert_eq!(too_big(&frame_of(&all), MTU, &ROUTERS), None, "{case}");
    }
    let frame = frame_of(&build(true, udp(8000)).bytes());
    assert_eq!(too_big(&frame, 1279, &ROUTERS), None, "no IPv6 link");
    assert!(too_big(&frame, 1280, &ROUTERS).is_some());
}

#[test]
fn errors_are_not_answered() {
    let icmp = |v6: bool, kind: u8| {
        let mut sent = build(v6, udp(8000));
        sent.protocol = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
        sent.transport[0] = kind;
        sent
    };
    for kind in 0..=255 {
        let is_error = matches!(kind, 3..=5 | 11 | 12);
        assert_eq!(answer_to(&icmp(false, kind)).is_none(), is_error, "{kind}");
        let is_error = kind < 128 || kind == 137;
        assert_eq!(answer_to(&icmp(true, kind)).is_none(), is_error, "{kind}");
    }
}

#[test]
fn each_sender_has_a_rate_limit() {
    const MS: u64 = 1_000_000;
    let frame = frame_of(&build(false, udp(8000)).bytes());
    let fits = frame_of(&build(false, udp(80)).bytes());
    let mut errors = TooBig::default();
    // Packets without an error do not use the limit.
    for _ in 0..100 {
        assert!(errors.answer(&fits, MTU, &ROUTERS, 0).is_none());
    }
    let mut count = |now_ns| {
        let answers = (0..100).filter_map(|_| errors.answer(&frame, MTU, &ROUTERS, now_ns));
        answers.count()
    };
    assert_eq!((count(0), count(0), count(25 * MS)), (20, 0, 2));
    assert_eq!((errors.sent, errors.limited), (22, 278));
}

/// Returns damaged packets, which must never cause a read beyond their end.
fn mutilated() -> impl Strategy<Value = Vec<u8>> {
    let place = (any::<prop::sample::Index>(), any::<u8>());
    let places = prop::collection::vec(place, 0..8);
    (
        any_build(),
        0..3000_usize,
        places,
        any::<prop::sample::Index>(),
    )
        .prop_map(|(mut build, more, places, cut)| {
            build.transport.resize(build.transport.len() + more, 7);
            let mut bytes = build.bytes();
            for (place, byte) in places {
                let at = place.index(bytes.len().min(100));
                bytes[at] = byte;
            }
            let keep = bytes.len() - cut.index(bytes.len()) / 4;
            bytes.truncate(keep);
            bytes
        })
}

proptest! {
    #[test]
    fn every_error_is_sent_to_the_sender(
        bytes in mutilated(),
        mtu in 0..2000_usize,
    ) {
        let frame = frame_of(&bytes);
        if let Some(answer) = too_big(&frame, mtu, &ROUTERS) {
            prop_assert!(answer.len() <= 14 + 8 + 1280);
            prop_assert_eq!(&answer[..6], &bytes[6..12]);
            prop_assert_eq!(&answer[6..12], &bytes[..6]);
            prop_assert_eq!(answer[0] & 1, 0);
            let own = LaxSlicedPacket::from_ethernet(&answer).unwrap();
            prop_assert!(own.stop_err.is_none());
            // No error answers an error, so no storm of errors can arise.
            prop_assert_eq!(too_big(&frame_of(&answer), 0, &ROUTERS), None);
            prop_assert_eq!(too_big(&frame_of(&answer), 1280, &ROUTERS), None);
        }
    }

    #[test]
    fn large_packets_of_any_shape_are_answered(mut sent in any_build(), options in 0..5_usize) {
        sent.transport = tcp(1, 0x10, 4 * options, &[5; 3000]);
        sent.protocol = protocol::TCP;
        sent.destination = DST;
        sent.source = SRC;
        sent.source4 = common::SRC4;
        sent.source6 = common::SRC6;
        let bytes = sent.bytes();
        let frame = frame_of(&bytes);
        let Ok(packet) = net::packet::Packet::parse(frame.header()) else {
            return Ok(());
        };
        let later = match packet.network {
            net::packet::Network::Ipv6(ip) => ip.is_later_fragment(),
            _ => false,
        };
        let answer = too_big(&frame, MTU, &ROUTERS);
        prop_assert_eq!(answer.is_none(), later);
        if let Some(answer) = answer {
            let (_, mtu, quote) = parse(&answer);
            prop_assert_eq!(mtu, 1500);
            let at = sent.network_at();
            prop_assert_eq!(&quote[..], &bytes[at..at + quote.len()]);
        }
    }
}
