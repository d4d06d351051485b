use super::record::RX_BUFFER_MIN;
use super::*;
use crate::ring::Format;
use crate::testing::{TestMemory, hostile_records, hostile_words, ipv4_tcp, packet};
use abi::{GrantRef, PAGE, RECORD_BYTES};
use nic::{Checksum, Gso, GsoKind, Offload};
use proptest::prelude::*;

#[test]
fn netif_2_a_transmit_request_as_bytes() {
    let request = TxRequest {
        gref: 0x0403_0201,
        offset: 0x0605,
        flags: 0x0807,
        id: 0x0a09,
        size: 0x0c0b,
    };
    let bytes: Vec<u8> = request
        .encode()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(bytes, (1..=12).collect::<Vec<u8>>());
}

#[test]
fn netif_3_a_transmit_response_as_bytes() {
    let [word] = TxResponse {
        id: 0x0201,
        status: rsp::DROPPED,
    }
    .encode();
    assert_eq!(word.to_le_bytes(), [1, 2, 0xfe, 0xff]);
    assert_eq!(TxResponse::decode([word]).status, -2);
}

#[test]
fn netif_4_a_receive_request_as_bytes() {
    let request = RxRequest {
        id: 0x0201,
        offset: 0x0403,
        gref: 0x0807_0605,
    };
    let bytes: Vec<u8> = request
        .encode()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(bytes, (1..=8).collect::<Vec<u8>>());
}

#[test]
fn netif_5_a_receive_response_as_bytes() {
    let response = RxResponse {
        id: 0x0201,
        offset: 0x0403,
        flags: 0x0605,
        status: 0x0807,
    };
    let bytes: Vec<u8> = response
        .encode()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(bytes, (1..=8).collect::<Vec<u8>>());
    assert!(
        RxResponse {
            flags: rxf::MORE_DATA,
            ..response
        }
        .has(rxf::MORE_DATA)
    );
    assert!(
        !RxResponse {
            flags: rxf::MORE_DATA,
            ..response
        }
        .has(rxf::EXTRA_INFO)
    );
}

#[test]
fn netif_6_an_extra_info_as_bytes() {
    let gso = Gso {
        kind: GsoKind::Tcp6,
        size: 0x0403,
    };
    let info = ExtraInfo::of(gso);
    let bytes: Vec<u8> = info
        .encode()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(bytes, [1, 0, 3, 4, 2, 0, 0, 0]);
    assert_eq!(info.gso.gso(), Some(gso));
    assert_eq!(
        GsoInfo {
            size: 0,
            ..info.gso
        }
        .gso(),
        None
    );
    assert_eq!(
        GsoInfo {
            kind: 3,
            ..info.gso
        }
        .gso(),
        None
    );
    assert_eq!(
        GsoInfo {
            kind: 0,
            ..info.gso
        }
        .gso(),
        None
    );
    assert_eq!(
        GsoInfo {
            kind: 1,
            ..info.gso
        }
        .gso()
        .unwrap()
        .kind,
        GsoKind::Tcp4
    );
}

fn front() -> FrontRecord {
    FrontRecord {
        table: abi::Handle(7),
        features: Features::ALL,
        max_slots: MAX_SLOTS,
        rx_buffer: 2048,
        mac: [2, 0, 0, 0, 0, 9],
        event: GrantRef(5),
        tx_ring: [1, 2].map(GrantRef).into_iter().collect(),
        rx_ring: [3, 4, 6, 7].map(GrantRef).into_iter().collect(),
    }
}

fn back() -> BackRecord {
    BackRecord {
        features: Features::ALL,
        max_order: 2,
        max_slots: MAX_SLOTS,
    }
}

#[test]
fn netif_14_records_survive_the_wire() {
    assert_eq!(FrontRecord::decode(&front().encode()), Ok(front()));
    assert_eq!(BackRecord::decode(&back().encode()), Ok(back()));
    let refs: Vec<u32> = front().references().map(|gref| gref.0).collect();
    assert_eq!(refs, [1, 2, 3, 4, 6, 7, 5]);
    assert_eq!((front().tx_order(), front().rx_order()), (1, 2));
}

#[test]
fn attack_24_nonsense_in_the_records() {
    type Change = (usize, &'static [u8], RecordError);
    let cases: &[Change] = &[
        (0, b"GWNB", RecordError::Magic),
        (0, &[0], RecordError::Magic),
        (4, &[2], RecordError::Version(2)),
        (6, &[17, 0], RecordError::MaxSlots),
        (12, &[5], RecordError::RingOrder),
        (13, &[255], RecordError::RingOrder),
        (14, &[0, 0], RecordError::RxBuffer),
        (14, &[0xff, 0x07], RecordError::RxBuffer),
        (14, &[0x01, 0x10], RecordError::RxBuffer),
        (20, &[1], RecordError::Mac),
        (20, &[0; 6], RecordError::Mac),
        (16, &[0; 4], RecordError::Reference),
        (16, &[1, 0, 0, 0], RecordError::Reference),
        (36, &[7, 0, 0, 0], RecordError::Reference),
        // The ring has more pages than references.
        (12, &[2], RecordError::Reference),
    ];
    for (at, bytes, error) in cases {
        let mut body = front().encode();
        body[*at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(FrontRecord::decode(&body), Err(*error), "{at} {bytes:?}");
    }
    assert_eq!(
        FrontRecord::decode(&[0; RECORD_BYTES]),
        Err(RecordError::Magic)
    );
    assert_eq!(
        BackRecord::decode(&front().encode()),
        Err(RecordError::Magic)
    );
    let mut body = back().encode();
    body[12] = 5;
    assert_eq!(BackRecord::decode(&body), Err(RecordError::RingOrder));
}

#[test]
fn netif_16_negotiation() {
    let negotiated = Negotiated::of(&back(), &front()).unwrap();
    assert_eq!((negotiated.tx_order, negotiated.rx_order), (1, 2));
    assert_eq!((negotiated.rx_buffer, negotiated.rx_offset), (2048, true));
    assert_eq!(negotiated.to_guest.max_slots, MAX_SLOTS);
    assert!(negotiated.from_guest.gso(GsoKind::Tcp4) && negotiated.from_guest.gso(GsoKind::Tcp6));

    let smaller = BackRecord {
        max_order: 1,
        ..back()
    };
    assert_eq!(
        Negotiated::of(&smaller, &front()),
        Err(RecordError::RingOrder)
    );
    let smaller = BackRecord {
        max_order: 0,
        ..back()
    };
    let small_rx = FrontRecord {
        rx_ring: front().rx_ring[..1].into(),
        ..front()
    };
    assert_eq!(
        Negotiated::of(&smaller, &small_rx),
        Err(RecordError::RingOrder)
    );

    let stock = BackRecord {
        max_slots: MAX_SLOTS_STOCK,
        ..back()
    };
    assert_eq!(
        Negotiated::of(&stock, &front())
            .unwrap()
            .from_guest
            .max_slots,
        18
    );
    let greedy = FrontRecord {
        max_slots: u16::MAX,
        ..front()
    };
    let greedy_back = BackRecord {
        max_slots: u16::MAX,
        ..back()
    };
    assert_eq!(
        Negotiated::of(&greedy_back, &greedy)
            .unwrap()
            .to_guest
            .max_slots,
        MAX_SLOTS
    );
    let no_copy = FrontRecord {
        features: Features::SG,
        ..front()
    };
    assert_eq!(Negotiated::of(&back(), &no_copy), Err(RecordError::RxCopy));
}

#[test]
fn netif_25_rings_are_native_if_both_ends_request() {
    let native = Features::ALL.with(Features::NATIVE_RINGS);
    let agreed = |back_features, front_features| {
        let back = BackRecord {
            features: back_features,
            ..back()
        };
        let front = FrontRecord {
            features: front_features,
            ..front()
        };
        Negotiated::of(&back, &front).unwrap().format
    };
    assert_eq!(agreed(native, native), Format::Native);
    assert_eq!(agreed(native, Features::ALL), Format::Xen);
    assert_eq!(agreed(Features::ALL, native), Format::Xen);
}

#[test]
fn netif_30_cpu_payload_needs_no_offer() {
    for (features, stated) in [
        (Features::ALL, false),
        (Features::ALL.with(Features::CPU_PAYLOAD), true),
    ] {
        let front = FrontRecord {
            features,
            ..front()
        };
        let negotiated = Negotiated::of(&back(), &front).unwrap();
        assert_eq!(negotiated.cpu_payload, stated);
    }
}

#[test]
fn netif_25_control_blocks_follow_event_words() {
    let memory = TestMemory::new(1);
    let page = memory.area().page(0).unwrap();
    let blocks = [0, 1].map(|ring| rings::control_block(page, ring));
    let places = blocks.map(|block| (block.addr() - page.addr(), block.len()));
    assert_eq!(places, [(256, 256), (512, 256)]);
    assert!(rings::control_block(page.take(700), 1).is_empty());
}

#[test]
fn netif_11_parts_of_pages_need_the_offset() {
    let without = Features::ALL.without(Features::RX_OFFSET);
    for (back_features, front_features) in [
        (without, Features::ALL),
        (Features::ALL, without),
        (without, without),
    ] {
        let back = BackRecord {
            features: back_features,
            ..back()
        };
        let half = FrontRecord {
            features: front_features,
            ..front()
        };
        assert_eq!(Negotiated::of(&back, &half), Err(RecordError::RxBuffer));
        let whole = FrontRecord {
            rx_buffer: PAGE as u16,
            ..half
        };
        let negotiated = Negotiated::of(&back, &whole).unwrap();
        assert!(!negotiated.rx_offset);
    }
    assert_eq!(RX_BUFFER_MIN, 2048);
}

#[test]
fn netif_15_abilities_follow_features() {
    let all = PeerCaps::of(Features::ALL, 40);
    let plain = PeerCaps::of(Features::PLAIN, 40);
    let checksum = PeerCaps::of(Features::CHECKSUM, 40);
    let none = PeerCaps::of(Features(0), 40);
    let no_sg = PeerCaps::of(Features::ALL.without(Features::SG), 40);
    assert_eq!(
        (
            all.max_slots,
            plain.max_slots,
            none.max_slots,
            no_sg.max_slots
        ),
        (40, 40, 1, 1)
    );
    assert!(
        !no_sg.gso_tcpv4 && !no_sg.gso_tcpv6,
        "segments need several slots"
    );

    let blank = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    let gso = |kind| Some(Gso { kind, size: 1448 });
    let offload = |checksum, gso| Offload { checksum, gso };
    for (able, v4, v6, gso4, gso6) in [
        (all, true, true, true, true),
        (checksum, true, true, false, false),
        (plain, false, false, false, false),
        // Blank IPv4 checksums are allowed unless a peer opts out; blank IPv6 checksums are allowed
        // only if it opts in.
        (none, true, false, false, false),
        (no_sg, true, true, false, false),
    ] {
        assert!(able.takes(&Offload::default(), false));
        assert!(able.takes(&offload(Checksum::Valid, None), true));
        assert_eq!(able.takes(&offload(blank, None), false), v4);
        assert_eq!(able.takes(&offload(blank, None), true), v6);
        assert_eq!(able.takes(&offload(blank, gso(GsoKind::Tcp4)), false), gso4);
        assert_eq!(able.takes(&offload(blank, gso(GsoKind::Tcp6)), true), gso6);
    }
    assert!(Features::ALL.has(Features::PLAIN.without(Features::NO_CSUM)));
    assert!(!Features::ALL.has(Features::NO_CSUM));
    assert!(Features(0).with(Features::SG).has(Features::SG));
}

/// FreeBSD's cases `checksum {arp, icmp, tcp, udp}`: only TCP and UDP packets have a checksum to
/// compute.
#[test]
fn netif_9_checksum_arp_icmp_tcp_udp() {
    let tcp = ipv4_tcp(100, 1);
    let with = |at: usize, byte: u8| {
        let mut bytes = tcp.clone();
        bytes[at] = byte;
        bytes
    };
    let found = transport::find(&tcp).unwrap();
    assert_eq!((found.ipv6, found.tcp, found.start), (false, true, 34));
    assert_eq!(
        found.blank_checksum(),
        Checksum::Blank {
            start: 34,
            offset: 16
        }
    );
    let udp = transport::find(&with(23, 17)).unwrap();
    assert_eq!(
        udp.blank_checksum(),
        Checksum::Blank {
            start: 34,
            offset: 6
        }
    );
    assert_eq!((found.checksum_end(), udp.checksum_end()), (52, 42));
    assert_eq!(transport::find(&with(23, 1)), None, "icmp");
    assert_eq!(transport::find(&with(13, 6)), None, "arp");
    assert_eq!(transport::find(&with(14, 0x65)), None, "version");
    assert_eq!(transport::find(&with(14, 0x44)), None, "header length");
    assert_eq!(transport::find(&with(14, 0x4f)).unwrap().start, 14 + 60);
    assert_eq!(transport::find(&with(20, 0x20)), None, "more fragments");
    assert_eq!(transport::find(&with(21, 1)), None, "a later fragment");
    assert_eq!(transport::find(&packet(60, 1)), None);
    for len in 0..34 {
        assert_eq!(transport::find(&tcp[..len]), None, "{len}");
    }
}

#[test]
fn netif_9_behind_tags_and_extension_headers() {
    let tcp = ipv4_tcp(100, 1);
    let mut tagged = tcp[..12].to_vec();
    tagged.extend([0x81, 0x00, 0, 7]);
    tagged.extend(&tcp[12..]);
    assert_eq!(transport::find(&tagged).unwrap().start, 38);
    let mut twice = tcp[..12].to_vec();
    twice.extend([0x88, 0xa8, 0, 7, 0x81, 0x00, 0, 8]);
    twice.extend(&tcp[12..]);
    assert_eq!(transport::find(&twice).unwrap().start, 42);
    let mut thrice = tcp[..12].to_vec();
    thrice.extend([0x88, 0xa8, 0, 7, 0x81, 0x00, 0, 8, 0x81, 0x00, 0, 9]);
    thrice.extend(&tcp[12..]);
    assert_eq!(transport::find(&thrice), None);

    let mut v6 = vec![0; 128];
    v6[12..14].copy_from_slice(&[0x86, 0xdd]);
    v6[14] = 0x60;
    v6[20] = 6;
    let found = transport::find(&v6).unwrap();
    assert_eq!((found.ipv6, found.tcp, found.start), (true, true, 54));
    // Hop-by-hop options of 16 bytes, then destination options of 8, then UDP.
    v6[20] = 0;
    v6[54..56].copy_from_slice(&[60, 1]);
    v6[70..72].copy_from_slice(&[17, 0]);
    let found = transport::find(&v6).unwrap();
    assert_eq!((found.tcp, found.start), (false, 78));
    v6[54] = 44;
    assert_eq!(transport::find(&v6), None, "a fragment");
    v6[54] = 0;
    for at in [62, 70, 78, 86] {
        v6[at] = 0;
    }
    v6[14] = 0x40;
    assert_eq!(transport::find(&v6), None);
}

proptest! {
    #[test]
    fn any_words_decode(data in prop::collection::vec(any::<u8>(), 0..200)) {
        hostile_words(&data);
    }

    #[test]
    fn any_record_decodes(
        data in prop::collection::vec(any::<u8>(), 0..256),
        front in any::<bool>(),
    ) {
        let mut body = if front { self::front().encode() } else { back().encode() };
        for (n, byte) in data.iter().enumerate().filter(|(n, byte)| **byte > 250 || *n % 7 == 0) {
            body[n] ^= byte;
        }
        hostile_records(&body);
        hostile_records(&data);
    }
}
