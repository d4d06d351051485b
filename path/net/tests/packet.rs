//! Header parsing: no input makes the parser panic, and it finds every header that etherparse
//! finds.

mod common;

use common::Build;
use etherparse::{LaxSlicedPacket, NetSlice, SlicedPacket, TransportSlice};
use net::packet::{Network, Packet, ParseError, Transport, ethertype, protocol};
use proptest::prelude::*;

#[test]
fn a_tcp_packet_in_two_tags() {
    let bytes = Build::tcp4(b"hello").tags(2).options(8).bytes();
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(
        (packet.tags, packet.ethertype, packet.network_at),
        (2, ethertype::IPV4, 22)
    );
    let Network::Ipv4(ip) = packet.network else {
        panic!("{packet:?}")
    };
    assert_eq!(ip.transport_at, 22 + 28);
    assert!(!ip.is_fragment());
    let Ok(Transport::Tcp(tcp)) = packet.transport(&bytes) else {
        panic!()
    };
    assert_eq!(&bytes[tcp.payload_at..], b"hello");
}

#[test]
fn three_tags_are_too_many() {
    let mut bytes = Build::tcp4(b"").tags(2).bytes();
    for _ in 0..4 {
        bytes.insert(12, 0);
    }
    bytes[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(Packet::parse(&bytes), Err(ParseError::TooManyTags));
}

#[test]
fn extension_headers_are_followed_up_to_the_bound() {
    let chain = |count: usize| {
        let mut build = Build::tcp6(b"x");
        build.extensions = vec![(protocol::DESTINATION, vec![0; 6]); count];
        Packet::parse(&build.bytes()[..])
    };
    let packet = chain(8).unwrap();
    let Network::Ipv6(ip) = packet.network else {
        panic!()
    };
    assert_eq!(
        (ip.protocol, ip.transport_at),
        (protocol::TCP, 14 + 40 + 64)
    );
    assert_eq!(chain(9), Err(ParseError::TooManyExtensions));
}

#[test]
fn every_kind_of_extension_has_its_length() {
    let mut build = Build::tcp6(b"x");
    build.extensions = vec![
        (protocol::HOP_BY_HOP, vec![0; 14]),
        (protocol::ROUTING, vec![0; 6]),
        (protocol::MOBILITY, vec![0; 6]),
        // Its length counts units of four bytes, minus two.
        (protocol::AUTHENTICATION, vec![0; 14]),
    ];
    let mut bytes = build.bytes();
    let authentication = 14 + 40 + 16 + 8 + 8;
    bytes[authentication + 1] = 2;
    let packet = Packet::parse(&bytes).unwrap();
    let Network::Ipv6(ip) = packet.network else {
        panic!()
    };
    assert_eq!(
        (ip.protocol, ip.transport_at),
        (protocol::TCP, authentication + 16)
    );
    assert!(ip.routed);
    let plain = Packet::parse(&Build::tcp6(b"x").bytes()).unwrap();
    assert!(matches!(plain.network, Network::Ipv6(ip) if !ip.routed && ip.fragment.is_none()));
}

#[test]
fn later_fragments_have_no_transport() {
    for (offset, more, later) in [(0, true, false), (1, true, true), (185, false, true)] {
        let mut bytes = Build::tcp4(b"payload").bytes();
        let field: u16 = offset | if more { 0x2000 } else { 0 };
        bytes[20..22].copy_from_slice(&field.to_be_bytes());
        let packet = Packet::parse(&bytes).unwrap();
        let Network::Ipv4(ip) = packet.network else {
            panic!()
        };
        assert_eq!((ip.fragment_offset, ip.more_fragments), (offset, more));
        assert_eq!((ip.is_later_fragment(), ip.is_fragment()), (later, true));
        assert_eq!(packet.transport(&bytes) == Ok(Transport::None), later);

        let mut build = Build::tcp6(b"payload");
        let field = (offset << 3) | u16::from(more);
        let [high, low] = field.to_be_bytes();
        build.extensions = vec![(protocol::FRAGMENT, vec![high, low, 0, 0, 0, 0])];
        let bytes = build.bytes();
        let packet = Packet::parse(&bytes).unwrap();
        let Network::Ipv6(ip) = packet.network else {
            panic!()
        };
        assert_eq!(ip.fragment, Some((offset, more)));
        assert_eq!(ip.is_later_fragment(), later);
        assert_eq!(packet.transport(&bytes) == Ok(Transport::None), later);
    }
}

#[test]
fn later_fragments_hold_only_payload() {
    let mut build = Build::tcp6(b"");
    build.extensions = vec![
        (protocol::FRAGMENT, vec![0, 8, 0, 0, 0, 0]),
        (protocol::DESTINATION, vec![0; 6]),
    ];
    let packet = Packet::parse(&build.bytes()).unwrap();
    let Network::Ipv6(ip) = packet.network else {
        panic!()
    };
    assert_eq!(
        (ip.protocol, ip.transport_at),
        (protocol::DESTINATION, 14 + 40 + 8)
    );
}

#[test]
fn every_field_of_arp_is_read() {
    let bytes = common::arp(2, [1; 6], [10, 0, 0, 1], [3; 6], [10, 0, 0, 2]);
    let packet = Packet::parse(&bytes).unwrap();
    let Network::Arp(arp) = packet.network else {
        panic!()
    };
    assert_eq!(
        (arp.operation, arp.sender_mac.0, arp.target_mac.0),
        (2, [1; 6], [3; 6])
    );
    assert_eq!(
        (arp.sender.octets(), arp.target.octets()),
        ([10, 0, 0, 1], [10, 0, 0, 2])
    );
    for len in 0..bytes.len() {
        assert_eq!(Packet::parse(&bytes[..len]), Err(ParseError::TooShort));
    }
    for at in 14..20 {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert_eq!(Packet::parse(&bad), Err(ParseError::Malformed));
    }
    let mut reverse = bytes.clone();
    reverse[12..14].copy_from_slice(&ethertype::RARP.to_be_bytes());
    assert!(matches!(
        Packet::parse(&reverse).unwrap().network,
        Network::Arp(_)
    ));
}

#[test]
fn headers_that_contradict_themselves() {
    let good = Build::tcp4(b"").bytes();
    for (at, value) in [(14, 0x44), (14, 0x65), (14, 0x40)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(Packet::parse(&bad), Err(ParseError::Malformed));
    }
    let mut bad = good.clone();
    bad[34 + 12] = 0x40;
    assert_eq!(
        Packet::parse(&bad).unwrap().transport(&bad),
        Err(ParseError::Malformed)
    );
    bad[34 + 12] = 0xf0;
    assert_eq!(
        Packet::parse(&bad).unwrap().transport(&bad),
        Err(ParseError::TooShort)
    );
    let mut bad = Build::tcp6(b"").bytes();
    bad[14] = 0x40;
    assert_eq!(Packet::parse(&bad), Err(ParseError::Malformed));
}

#[test]
fn a_parsed_transport_ends_within_the_bytes() {
    for (number, header) in [
        (protocol::TCP, 20),
        (protocol::UDP, 8),
        (protocol::ICMP, 4),
        (protocol::ICMPV6, 4),
    ] {
        let mut build = Build::tcp4(&[]);
        build.protocol = number;
        build.transport = vec![0x50; header];
        let bytes = build.bytes();
        let packet = Packet::parse(&bytes).unwrap();
        let found = packet.transport(&bytes).unwrap();
        match (number, found) {
            (protocol::TCP, Transport::Tcp(tcp)) => assert_eq!((tcp.at, tcp.payload_at), (34, 54)),
            (protocol::UDP, Transport::Udp { at }) => assert_eq!(at, 34),
            (_, Transport::Icmp { at }) => assert_eq!(at, 34),
            other => panic!("{other:?}"),
        }
        let short = &bytes[..bytes.len() - 1];
        assert_eq!(packet.transport(short), Err(ParseError::TooShort));
    }
    let mut build = Build::tcp4(&[]);
    build.protocol = 132;
    let bytes = build.bytes();
    assert_eq!(
        Packet::parse(&bytes).unwrap().transport(&bytes),
        Ok(Transport::None)
    );
    let other = [[0u8; 12].as_slice(), &[0x88, 0xcc]].concat();
    let packet = Packet::parse(&other).unwrap();
    assert_eq!(
        (packet.network, packet.transport(&other)),
        (Network::Other, Ok(Transport::None))
    );
}

/// The body of the fuzz target of the same name.
fn parse_anything(bytes: &[u8]) {
    if let Ok(packet) = Packet::parse(bytes) {
        assert!(packet.network_at <= bytes.len());
        match packet.network {
            Network::Ipv4(ip) => assert!(ip.transport_at <= bytes.len()),
            Network::Ipv6(ip) => assert!(ip.transport_at <= bytes.len()),
            _ => {}
        }
        if let Ok(Transport::Tcp(tcp)) = packet.transport(bytes) {
            assert!(tcp.at + 20 <= tcp.payload_at && tcp.payload_at <= bytes.len());
        }
    }
    // The reverse: this parser parses every packet that etherparse parses.
    let Ok(theirs) = SlicedPacket::from_ethernet(bytes) else {
        return;
    };
    let Ok(ours) = Packet::parse(bytes) else {
        return;
    };
    let tags = theirs.link_exts.len();
    if ours.tags != tags {
        return;
    }
    match (&theirs.net, ours.network) {
        (Some(NetSlice::Ipv4(theirs)), Network::Ipv4(ours)) => {
            let header = theirs.header();
            assert_eq!(header.source(), ours.source.octets());
            assert_eq!(header.destination(), ours.destination.octets());
            assert_eq!(header.protocol().0, ours.protocol);
            assert_eq!(usize::from(header.total_len()), ours.total_len);
        }
        (Some(NetSlice::Ipv6(theirs)), Network::Ipv6(ours)) => {
            let header = theirs.header();
            assert_eq!(header.source(), ours.source.octets());
            assert_eq!(usize::from(header.payload_length()), ours.payload_len);
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_anything(&bytes);
    }

    #[test]
    fn no_corrupted_packet_causes_a_panic(
        build in common::any_build(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = build.bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        parse_anything(&bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        parse_anything(&bytes);
    }

    #[test]
    fn etherparse_finds_the_same(build in common::any_build()) {
        let bytes = build.bytes();
        let theirs = LaxSlicedPacket::from_ethernet(&bytes).unwrap();
        let ours = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(theirs.link_exts.len(), ours.tags);
        let Some(TransportSlice::Tcp(tcp)) = &theirs.transport else {
            return Err(TestCaseError::fail("no TCP"));
        };
        let Ok(Transport::Tcp(found)) = ours.transport(&bytes) else {
            return Err(TestCaseError::fail("no TCP found"));
        };
        prop_assert_eq!(tcp.sequence_number(), found.sequence);
        prop_assert_eq!(tcp.slice(), &bytes[found.at..]);
        prop_assert_eq!(tcp.payload(), &bytes[found.payload_at..]);
        prop_assert_eq!(tcp.psh(), found.flags & net::packet::flags::PSH != 0);
        prop_assert_eq!(tcp.cwr(), found.flags & net::packet::flags::CWR != 0);
    }
}
