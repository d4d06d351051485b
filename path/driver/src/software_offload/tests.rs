use super::*;
use net::packet::checksum::{Sum, pseudo_v4};
use nic::{BufferId, Checksum, Gso, GsoKind, Piece};
use shmem::Area;

const HEADERS: usize = 54;
const NO_OFFLOADS: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: 1514,
};
const ALL_OFFLOADS: Caps = Caps {
    checksum: true,
    tso: true,
    max_frame: 1514,
};

/// Returns a TCP/IPv4 frame with `payload` bytes and a blank checksum.
fn tcp(area: Area, payload: usize, sequence: u32) -> Frame {
    let len = HEADERS + payload;
    let mut bytes = vec![0; len];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00]);
    let ip = [
        0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    bytes[14..34].copy_from_slice(&ip);
    bytes[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    bytes[38..42].copy_from_slice(&sequence.to_be_bytes());
    bytes[46] = 5 << 4;
    bytes[47] = 0x10;
    let pseudo = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, len - 34);
    bytes[50..52].copy_from_slice(&Sum::new(pseudo).folded().to_be_bytes());
    for (n, byte) in bytes[HEADERS..].iter_mut().enumerate() {
        *byte = (n * 7) as u8;
    }
    let span = area.at(0, len).unwrap();
    span.write(&bytes).unwrap();
    let piece = Piece {
        span,
        buffer: BufferId::NONE,
    };
    let mut frame = Frame::new(piece, len).unwrap();
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    frame
}

fn aggregate(area: Area, payload: usize, size: u16) -> Frame {
    let mut frame = tcp(area, payload, 1000);
    frame.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size,
    });
    frame
}

fn area() -> Area {
    Area::anonymous(64 << 10).unwrap()
}

/// Properties of a frame that was passed to the port.
#[derive(Debug, PartialEq)]
struct SentFrame {
    sequence: u32,
    len: usize,
    blank: bool,
    gso: bool,
    is_valid: bool,
}

fn sent_frame(frame: &Frame) -> SentFrame {
    let bytes = frame.to_vec().unwrap();
    let pseudo = pseudo_v4(
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        6,
        bytes.len() - 34,
    );
    let mut sum = Sum::new(pseudo);
    sum.add_bytes(&bytes[34..]);
    SentFrame {
        sequence: u32::from_be_bytes(bytes[38..42].try_into().unwrap()),
        len: bytes.len(),
        blank: matches!(frame.offload.checksum, Checksum::Blank { .. }),
        gso: frame.offload.gso.is_some(),
        is_valid: sum.folded() == 0xffff,
    }
}

/// Delivers the frames of `frames` whose indices are in `pick` to a NIC. Returns the frames that
/// the NIC receives, call by call.
fn deliver(
    software_offload: &mut SoftwareOffloads,
    frames: &[Frame],
    pick: &[u32],
    caps: Caps,
) -> Vec<Vec<SentFrame>> {
    let mut calls = Vec::new();
    let takes = PortOffloads {
        caps,
        finds_checksum: false,
    };
    software_offload.deliver(frames, pick, takes, |frames, pick| {
        let chosen = pick.iter().map(|&n| sent_frame(&frames[n as usize]));
        calls.push(chosen.collect());
    });
    calls
}

#[test]
fn supported_frames_pass_unchanged() {
    let frames = [tcp(area(), 100, 1), aggregate(area(), 4000, 1000)];
    let mut software_offload = SoftwareOffloads::default();
    let calls = deliver(&mut software_offload, &frames, &[1, 0], ALL_OFFLOADS);
    assert_eq!(calls, [[sent_frame(&frames[1]), sent_frame(&frames[0])]]);
    assert_eq!(
        (software_offload.segmented, software_offload.checksummed),
        (0, 0)
    );
}

/// If the port accepted these segments, it would send packets that exceed the network's MTU, and a
/// NIC might stall.
#[test]
fn oversized_segments_are_dropped_for_tso_ports() {
    let mut software_offload = SoftwareOffloads::default();
    let frames = [
        aggregate(area(), 20_000, 1461),
        aggregate(area(), 20_000, 65_535),
        aggregate(area(), 20_000, 1460),
        aggregate(area(), 1000, 65_535),
    ];
    let calls = deliver(&mut software_offload, &frames, &[0, 1, 2, 3], ALL_OFFLOADS);
    assert_eq!(calls, [[sent_frame(&frames[2]), sent_frame(&frames[3])]]);
    assert_eq!(software_offload.tx_errors.get(TxError::TooLong), 2);
}

#[test]
fn unsupported_checksum_is_computed() {
    let mut software_offload = SoftwareOffloads::default();
    let calls = deliver(
        &mut software_offload,
        &[tcp(area(), 101, 1)],
        &[0],
        NO_OFFLOADS,
    );
    let [call] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert!(call[0].is_valid && !call[0].blank, "{call:?}");
    assert_eq!(software_offload.checksummed, 1);
}

/// Returns a tunnelled frame: the frame of [`tcp`] after 50 bytes of outer headers.
fn tunnelled(area: Area, payload: usize) -> Frame {
    let inner = tcp(area, payload, 1).to_vec().unwrap();
    let mut bytes = vec![0; 50];
    bytes[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    bytes[23] = 17;
    bytes.extend(inner);
    let span = area.at(0, bytes.len()).unwrap();
    span.write(&bytes).unwrap();
    let piece = Piece {
        span,
        buffer: BufferId::NONE,
    };
    let mut frame = Frame::new(piece, bytes.len()).unwrap();
    let (start, offset) = (84, 16);
    frame.offload.checksum = Checksum::Blank { start, offset };
    frame
}

#[test]
fn tunnelled_blank_checksum_is_computed_for_guests() {
    for (finds_checksum, filled_in) in [(false, 0), (true, 1)] {
        let mut software_offload = SoftwareOffloads::default();
        let takes = PortOffloads {
            caps: ALL_OFFLOADS,
            finds_checksum,
        };
        let mut is_valid = Vec::new();
        let frames = [tunnelled(area(), 301), tcp(area(), 10, 1)];
        software_offload.deliver(&frames, &[0, 1], takes, |frames, pick| {
            for frame in pick.iter().map(|&n| &frames[n as usize]) {
                let bytes = frame.to_vec().unwrap();
                let inner = &bytes[bytes.len().saturating_sub(HEADERS + 301)..];
                let ips = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
                let pseudo = pseudo_v4(ips[0], ips[1], 6, inner.len() - 34);
                let mut sum = Sum::new(pseudo);
                sum.add_bytes(&inner[34..]);
                is_valid.push((frame.offload.checksum, sum.folded() == 0xffff));
            }
        });
        let inside = match finds_checksum {
            true => (Checksum::Unknown, true),
            false => (frames[0].offload.checksum, false),
        };
        assert_eq!(is_valid, [inside, (frames[1].offload.checksum, false)]);
        assert_eq!(software_offload.checksummed, filled_in);
        assert_eq!(software_offload.tx_errors, Counts::default());
    }
}

#[test]
fn aggregates_are_segmented_in_order() {
    let frames = [
        tcp(area(), 10, 1),
        aggregate(area(), 2500, 1000),
        tcp(area(), 10, 9000),
    ];
    let mut software_offload = SoftwareOffloads::default();
    let calls = deliver(&mut software_offload, &frames, &[0, 1, 2], NO_OFFLOADS);
    let [call] = &calls[..] else {
        panic!("{calls:?}")
    };
    let sequences: Vec<u32> = call.iter().map(|sent_frame| sent_frame.sequence).collect();
    assert_eq!(sequences, [1, 1000, 2000, 3000, 9000]);
    let lens: Vec<usize> = call
        .iter()
        .map(|sent_frame| sent_frame.len - HEADERS)
        .collect();
    assert_eq!(lens, [10, 1000, 1000, 500, 10]);
    assert!(
        call.iter().all(|g| g.is_valid && !g.blank && !g.gso),
        "{call:?}"
    );
    assert_eq!(
        (software_offload.segmented, software_offload.checksummed),
        (3, 2)
    );
}

#[test]
fn aggregate_is_segmented_without_checksum_offload() {
    let caps = Caps {
        checksum: false,
        ..ALL_OFFLOADS
    };
    let mut software_offload = SoftwareOffloads::default();
    let calls = deliver(
        &mut software_offload,
        &[aggregate(area(), 2000, 1000)],
        &[0],
        caps,
    );
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 2);
    assert!(
        calls[0].iter().all(|sent_frame| sent_frame.is_valid),
        "{calls:?}"
    );
    assert_eq!(software_offload.tx_errors, Counts::default());
}

#[test]
fn unsendable_frames_are_counted_by_reason() {
    let long = tcp(area(), 3000, 1);
    let wrong = aggregate(area(), 2000, 0);
    let mut field = tcp(area(), 10, 1);
    field.offload.checksum = Checksum::Blank {
        start: 60_000,
        offset: 60_000,
    };
    let mut software_offload = SoftwareOffloads::default();
    let calls = deliver(
        &mut software_offload,
        &[long, wrong, field],
        &[0, 1, 2],
        NO_OFFLOADS,
    );
    assert!(calls.is_empty(), "{calls:?}");
    let counts = TxError::ALL.map(|error| software_offload.tx_errors.get(error));
    assert_eq!(counts, [1, 2, 0]);
}

#[test]
fn segments_of_a_batch_are_sent_in_parts() {
    let area = area();
    let frames: Vec<Frame> = (0..8).map(|_| aggregate(area, 512, 1)).collect();
    let mut software_offload = SoftwareOffloads::default();
    let calls = deliver(
        &mut software_offload,
        &frames,
        &[0, 1, 2, 3, 4, 5, 6, 7],
        NO_OFFLOADS,
    );
    assert_eq!(software_offload.segmented, 8 * 512);
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 8 * 512);
    assert!(calls.iter().all(|call| call.len() < 2 * FLUSH_FRAMES));
}
