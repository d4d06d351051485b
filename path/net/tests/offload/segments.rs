//! Segmentation.

use super::blank;
use super::common::{Build, any_build, frame_of, tcp};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use net::packet::checksum::finish;
use net::packet::segment::{MAX_SEGMENTS, SegmentError, cut, packets, segment, split};
use net::packet::{ParseError, flags, protocol};
use nic::frame::{SNAPSHOT_MAX, SNAPSHOT_MIN};
use nic::{BufferId, Caps, Checksum, Frame, Gso, GsoKind};
use proptest::prelude::*;

const SOFTWARE: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: 1514 + 8,
};

/// Returns whether both checksums are valid according to etherparse.
fn is_right(bytes: &[u8]) -> bool {
    let packet = SlicedPacket::from_ethernet(bytes).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
        panic!("no TCP")
    };
    let payload = tcp.payload();
    let header = tcp.to_header();
    let (network, expected) = match packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let ip = ip.header().to_header();
            (
                ip.header_checksum == ip.calc_header_checksum(),
                header.calc_checksum_ipv4(&ip, payload),
            )
        }
        Some(NetSlice::Ipv6(ip)) => (
            true,
            header.calc_checksum_ipv6(&ip.header().to_header(), payload),
        ),
        _ => panic!("no IP"),
    };
    // 0 and 0xffff are equivalent, and etherparse chooses the other one.
    let same = |sum: u16| if sum == 0 { 0xffff } else { sum };
    network && same(expected.unwrap()) == same(header.checksum)
}

fn gso(build: &Build, size: u16, cuts: &[usize]) -> Frame {
    let mut bytes = build.bytes();
    let checksum = blank(build, &mut bytes);
    let mut frame = frame_of(&bytes, cuts);
    let kind = if build.v6 {
        GsoKind::Tcp6
    } else {
        GsoKind::Tcp4
    };
    frame.offload.checksum = checksum;
    frame.offload.gso = Some(Gso { kind, size });
    frame
}

fn try_segment(frame: &Frame) -> Result<Vec<Frame>, SegmentError> {
    let mut out = Vec::new();
    segment(frame, SOFTWARE, &mut out).map(|()| out)
}

/// A 64 KB packet.
fn large(v6: bool) -> Build {
    let payload: Vec<u8> = (0..65_535usize - 60).map(|at| (at / 7) as u8).collect();
    let transport = tcp(
        u32::MAX - 5000,
        !(flags::SYN | flags::RST | flags::URG),
        12,
        &payload[..payload.len() - 12],
    );
    Build {
        v6,
        transport,
        ..Build::tcp4(&[])
    }
}

#[test]
fn sixty_four_kilobytes_become_mtu_frames() {
    for v6 in [false, true] {
        let build = large(v6);
        let size = if v6 { 1428 } else { 1448 };
        let frame = gso(&build, size, &[5000, 5001, 20_000]);
        let segments = try_segment(&frame).unwrap();
        let payload = &build.transport[32..];
        assert_eq!(segments.len(), payload.len().div_ceil(size.into()));
        let mut joined: Vec<u8> = Vec::new();
        for (index, one) in segments.iter().enumerate() {
            let last = index + 1 == segments.len();
            let bytes = one.to_vec().unwrap();
            assert!(bytes.len() <= 1514 && is_right(&bytes));
            assert_eq!(
                (one.offload.checksum, one.offload.gso),
                (Checksum::Unknown, None)
            );
            let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
            if let Some(NetSlice::Ipv4(ip)) = &packet.net {
                assert_eq!(ip.header().identification(), 0x1234 + index as u16);
            }
            let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
                panic!()
            };
            let expected = (u32::MAX - 5000).wrapping_add(joined.len() as u32);
            assert_eq!(tcp.sequence_number(), expected);
            assert_eq!((tcp.fin(), tcp.psh(), tcp.cwr()), (last, last, index == 0));
            assert!(tcp.ack() && tcp.ece() && !tcp.syn());
            joined.extend(tcp.payload());
        }
        assert_eq!(joined, payload);
        // The original's buffers are returned only through the original.
        assert!(
            segments
                .iter()
                .flat_map(|s| &s.pieces)
                .all(|p| p.buffer == BufferId::NONE)
        );
    }
}

#[test]
fn a_device_that_checksums_gets_blank_ones() {
    let frame = gso(&Build::tcp4(&[5; 300]), 100, &[]);
    let caps = Caps {
        checksum: true,
        ..SOFTWARE
    };
    let mut segments = Vec::new();
    segment(&frame, caps, &mut segments).unwrap();
    assert_eq!(segments.len(), 3);
    for mut one in segments {
        assert_eq!(
            one.offload.checksum,
            Checksum::Blank {
                start: 34,
                offset: 16
            }
        );
        assert_eq!(finish(&mut one), Ok(()));
        assert!(is_right(&one.to_vec().unwrap()));
    }
}

#[test]
fn small_segments_stay_one_segment() {
    for payload in [0, 1, 100] {
        let frame = gso(&Build::tcp6(&vec![5; payload]), 100, &[]);
        let segments = try_segment(&frame).unwrap();
        assert_eq!(segments.len(), 1);
        let bytes = segments[0].to_vec().unwrap();
        assert!(is_right(&bytes));
        assert_eq!(bytes.len(), frame.len());
    }
}

#[test]
fn checked_header_is_sent() {
    // Headers, and payload within the snapshot, are sent from the snapshot.
    let build = Build::tcp4(&[5; 300]);
    let mut frame = gso(&build, 100, &[]);
    frame.pieces[0].span.fill(0xee).unwrap();
    let bytes = try_segment(&frame).unwrap()[0].to_vec().unwrap();
    assert_eq!(bytes[..12], build.bytes()[..12]);
    assert_eq!(bytes[54..SNAPSHOT_MIN], [5; SNAPSHOT_MIN - 54]);
    assert_eq!(bytes[SNAPSHOT_MIN..], [0xee; 154 - SNAPSHOT_MIN]);
    frame.header_mut()[0] = 0x42;
    frame.token = 9;
    let segments = try_segment(&frame).unwrap();
    assert!(
        segments
            .iter()
            .all(|s| s.header()[0] == 0x42 && s.token == 9)
    );
}

#[test]
fn appended_header_is_unchanged() {
    let frame = gso(&Build::tcp4(&[5; 300]), 100, &[]);
    let mut out = vec![Frame::with_header(&[1]).unwrap()];
    segment(&frame, SOFTWARE, &mut out).unwrap();
    assert_eq!((out.len(), out[0].len()), (4, 1));
    let bad = gso(&Build::tcp4(&[5; 300]), 0, &[]);
    assert!(segment(&bad, SOFTWARE, &mut out).is_err());
    assert_eq!(out.len(), 4);
}

#[test]
fn malformed_requests_have_distinct_errors() {
    let build = Build::tcp4(&[5; 300]);
    let good = gso(&build, 100, &[]);
    let with = |change: &dyn Fn(&mut Frame)| {
        let mut frame = good.clone();
        change(&mut frame);
        try_segment(&frame).map(|segments| segments.len())
    };
    assert_eq!(with(&|_| {}), Ok(3));
    assert_eq!(
        with(&|f| f.offload.gso = None),
        Err(SegmentError::NotRequested)
    );
    let gso_of = |kind, size| Some(Gso { kind, size });
    assert_eq!(
        with(&|f| f.offload.gso = gso_of(GsoKind::Tcp4, 0)),
        Err(SegmentError::ZeroSize)
    );
    assert_eq!(
        with(&|f| f.offload.gso = gso_of(GsoKind::Tcp6, 9)),
        Err(SegmentError::WrongKind)
    );
    let wrong = Err(SegmentError::WrongChecksum);
    for (start, offset) in [(33, 16), (34, 6), (0, 0)] {
        assert_eq!(
            with(&|f| f.offload.checksum = Checksum::Blank { start, offset }),
            wrong
        );
    }
    // A valid or unknown checksum is recomputed like a blank one.
    assert_eq!(with(&|f| f.offload.checksum = Checksum::Valid), Ok(3));
    for flag in [flags::SYN, flags::RST, flags::URG] {
        assert_eq!(
            with(&|f| f.header_mut()[47] |= flag),
            Err(SegmentError::Flags)
        );
    }
    for at in [16, 17] {
        assert_eq!(
            with(&|f| f.header_mut()[at] ^= 1),
            Err(SegmentError::LengthMismatch)
        );
    }
    // The total length ends within the TCP header.
    let mut short = frame_of(&Build::tcp4(&[]).bytes(), &[]);
    short.offload.gso = gso_of(GsoKind::Tcp4, 10);
    short.header_mut()[46] = 0x60;
    let headers = Err(SegmentError::Headers(ParseError::TooShort));
    assert_eq!(try_segment(&short).map(|s| s.len()), headers);
    // Fragments.
    assert_eq!(
        with(&|f| f.header_mut()[20] |= 0x20),
        Err(SegmentError::WrongKind)
    );
    assert_eq!(
        with(&|f| f.header_mut()[21] |= 1),
        Err(SegmentError::WrongKind)
    );
    // The frames have another protocol or invalid headers.
    assert_eq!(
        with(&|f| f.header_mut()[23] = protocol::UDP),
        Err(SegmentError::WrongKind)
    );
    let malformed = Err(SegmentError::Headers(ParseError::Malformed));
    assert_eq!(with(&|f| f.header_mut()[14] = 0x41), malformed);
    assert_eq!(
        with(&|f| f.header_mut()[12] = 0x88),
        Err(SegmentError::WrongKind)
    );
}

#[test]
fn ipv6_fragments_and_routed_packets_are_not_cut() {
    for kind in [protocol::FRAGMENT, protocol::ROUTING] {
        let mut build = Build::tcp6(&[5; 300]);
        build.extensions = vec![(kind, vec![0; 6])];
        let frame = gso(&build, 100, &[]);
        assert_eq!(
            try_segment(&frame).map(|s| s.len()),
            Err(SegmentError::WrongKind)
        );
    }
}

#[test]
fn the_work_is_bounded() {
    let frame = |payload, size| gso(&Build::tcp4(&vec![5; payload]), size, &[]);
    assert_eq!(
        try_segment(&frame(MAX_SEGMENTS * 2, 2)).map(|s| s.len()),
        Ok(MAX_SEGMENTS)
    );
    let over = try_segment(&frame(MAX_SEGMENTS * 2 + 1, 2)).map(|s| s.len());
    assert_eq!(over, Err(SegmentError::TooMany));
    let long = |size| {
        let caps = Caps {
            max_frame: 1514,
            ..SOFTWARE
        };
        segment(&frame(5000, size), caps, &mut Vec::new())
    };
    assert_eq!(long(1460), Ok(()));
    assert_eq!(long(1461), Err(SegmentError::TooLong));
    // A tag does not count towards the length.
    let tagged = gso(&Build::tcp4(&[5; 5000]).tags(1), 1460, &[]);
    assert_eq!(
        segment(
            &tagged,
            Caps {
                max_frame: 1514,
                ..SOFTWARE
            },
            &mut Vec::new()
        ),
        Ok(())
    );
    // The maximum length may be below that of a full segment if the frame is shorter than one.
    let caps = Caps {
        max_frame: 1514,
        ..SOFTWARE
    };
    assert_eq!(segment(&frame(1460, 9000), caps, &mut Vec::new()), Ok(()));
}

#[test]
fn headers_beyond_the_snapshot_are_refused() {
    let mut build = Build::tcp6(&[5; 300]).tags(2);
    build.extensions = vec![(protocol::DESTINATION, vec![0; 30])];
    build.transport = tcp(1, 0x10, 12, &[5; 300]);
    assert_eq!(build.transport_at() + 32, SNAPSHOT_MAX - 2);
    assert!(try_segment(&gso(&build, 100, &[])).is_ok());
    build.transport = tcp(1, 0x10, 16, &[5; 300]);
    let outcome = try_segment(&gso(&build, 100, &[])).map(|s| s.len());
    assert_eq!(outcome, Err(SegmentError::Headers(ParseError::TooShort)));
}

proptest! {
    #[test]
    fn segments_joined_are_the_payload(
        build in any_build(),
        payload in prop::collection::vec(any::<u8>(), 0..2000),
        size in 1u16..1390,
        need in 64usize..=SNAPSHOT_MAX,
        mut cuts in prop::collection::vec(0usize..2200, 0..8),
    ) {
        cuts.sort_unstable();
        let mut build = build;
        build.transport[13] &= !(flags::SYN | flags::RST | flags::URG);
        let header = usize::from(build.transport[12] >> 4) * 4;
        build.transport.truncate(header);
        build.transport.extend(&payload);
        let mut frame = gso(&build, size, &cuts);
        frame.extend_snapshot(need).unwrap();
        let count = payload.len().div_ceil(size.into()).max(1);
        let Ok(segments) = try_segment(&frame) else {
            prop_assert!(build.transport_at() + header > SNAPSHOT_MAX || count > MAX_SEGMENTS);
            return Ok(());
        };
        prop_assert_eq!(segments.len(), count);
        let mut joined: Vec<u8> = Vec::new();
        for one in &segments {
            let bytes = one.to_vec().unwrap();
            prop_assert!(bytes.len() <= build.transport_at() + header + usize::from(size));
            prop_assert!(is_right(&bytes));
            joined.extend(&bytes[build.transport_at() + header..]);
        }
        prop_assert_eq!(joined, payload);
        let pieces: usize = segments.iter().map(|one| one.pieces.len()).sum();
        prop_assert!(pieces <= segments.len() + frame.pieces.len());
    }

    #[test]
    fn no_frame_causes_a_panic(
        build in any_build(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        size in any::<u16>(),
        tcp6 in any::<bool>(),
        start in any::<u16>(),
        offset in any::<u16>(),
        small in any::<bool>(),
        max_frame in 0usize..3000,
    ) {
        let mut bytes = build.bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut frame = frame_of(&bytes, &[]);
        let (start, offset) = if small { (start % 150, offset % 30) } else { (start, offset) };
        frame.offload.checksum = Checksum::Blank { start, offset };
        let mut plain = frame.clone();
        let _ = finish(&mut plain);
        let kind = if tcp6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
        frame.offload.gso = Some(Gso { kind, size });
        frame.offload.checksum = Checksum::Unknown;
        let caps = Caps { max_frame, ..SOFTWARE };
        let mut out = Vec::new();
        if segment(&frame, caps, &mut out).is_ok() {
            prop_assert_eq!(out.len(), packets(&frame));
            prop_assert!(out.iter().all(|one| one.len() <= max_frame + one.tag_bytes()));
        } else {
            prop_assert!(out.is_empty());
        }
        if split(&frame, max_frame, &mut out).is_ok() {
            prop_assert!(out.iter().all(|one| one.len() <= max_frame));
        }
    }

    /// Splitting in two steps yields the same segments as in one.
    #[test]
    fn parts_yield_the_segments_of_the_whole(
        build in any_build(),
        payload in prop::collection::vec(any::<u8>(), 1..3000),
        flags in prop::sample::select(vec![0x10u8, 0x18, 0x11, 0x90, 0xd8]),
        cuts in prop::collection::vec(0usize..3000, 0..4),
        size in 1u16..600,
        bytes in 0usize..3000,
    ) {
        let build = Build { transport: tcp(u32::MAX - 700, flags, 12, &payload), ..build };
        let frame = gso(&build, size, &cuts);
        let Ok(whole) = try_segment(&frame) else { return Ok(()) };
        let mut parts = Vec::new();
        let done = split(&frame, bytes, &mut parts);
        let headers = build.transport_at() + 32;
        if headers + usize::from(size) > bytes {
            prop_assert_eq!(done, Err(SegmentError::TooLong));
            return Ok(());
        }
        prop_assert_eq!(done, Ok(()));
        prop_assert!(parts.iter().all(|part| part.len() <= bytes));
        let halves = cut(&frame, bytes);
        prop_assert_eq!(halves.is_ok(), parts.len() > 1);
        let halves = halves.map_or(parts.clone(), |(first, rest)| vec![first, rest]);
        prop_assert_eq!(halves[0].len(), parts[0].len());
        for parts in [parts, halves] {
            let mut twice = Vec::new();
            for part in &parts {
                let count = packets(part);
                // A single segment is an ordinary packet with a blank checksum.
                prop_assert_eq!(part.offload.gso.is_some(), count > 1);
                if count > 1 {
                    twice.extend(try_segment(part).unwrap());
                } else {
                    let mut plain = part.clone();
                    finish(&mut plain).unwrap();
                    twice.push(plain);
                }
            }
            prop_assert_eq!(twice.len(), packets(&frame));
            let bytes = |frames: &[Frame]| -> Vec<Vec<u8>> {
                frames.iter().map(|frame| frame.to_vec().unwrap()).collect()
            };
            prop_assert_eq!(bytes(&twice), bytes(&whole));
        }
    }
}
