use super::*;
use net::packet::checksum::{Sum, pseudo_v4};
use nic::{BufferId, Checksum, Gso, GsoKind, Piece};
use shmem::Area;

const HEADERS: usize = 54;
const NOTHING: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: 1514,
};
const EVERYTHING: Caps = Caps {
    checksum: true,
    tso: true,
    max_frame: 1514,
};

/// TCP over IPv4 with `payload` bytes, its checksum blank.
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

/// What the port is given: sequence number, length, offloads left, whether the checksum is right.
#[derive(Debug, PartialEq)]
struct Given {
    sequence: u32,
    len: usize,
    blank: bool,
    gso: bool,
    right: bool,
}

fn given(frame: &Frame) -> Given {
    let bytes = frame.to_vec().unwrap();
    let pseudo = pseudo_v4(
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        6,
        bytes.len() - 34,
    );
    let mut sum = Sum::new(pseudo);
    sum.add_bytes(&bytes[34..]);
    Given {
        sequence: u32::from_be_bytes(bytes[38..42].try_into().unwrap()),
        len: bytes.len(),
        blank: matches!(frame.offload.checksum, Checksum::Blank { .. }),
        gso: frame.offload.gso.is_some(),
        right: sum.folded() == 0xffff,
    }
}

/// Delivers all of `frames` to a NIC; what the port was given, call by call.
fn deliver(outbox: &mut Outbox, frames: &[Frame], pick: &[u32], caps: Caps) -> Vec<Vec<Given>> {
    let mut calls = Vec::new();
    let takes = Takes {
        caps,
        finds_checksum: false,
    };
    outbox.deliver(frames, pick, takes, |frames, pick| {
        let chosen = pick.iter().map(|&n| given(&frames[n as usize]));
        calls.push(chosen.collect());
    });
    calls
}

#[test]
fn what_the_port_takes_is_handed_over_as_it_is() {
    let frames = [tcp(area(), 100, 1), aggregate(area(), 4000, 1000)];
    let mut outbox = Outbox::default();
    let calls = deliver(&mut outbox, &frames, &[1, 0], EVERYTHING);
    assert_eq!(calls, [[given(&frames[1]), given(&frames[0])]]);
    assert_eq!((outbox.segmented, outbox.checksummed), (0, 0));
}

#[test]
fn a_checksum_that_the_port_cannot_fill_in_is_filled_in() {
    let mut outbox = Outbox::default();
    let calls = deliver(&mut outbox, &[tcp(area(), 101, 1)], &[0], NOTHING);
    let [call] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert!(call[0].right && !call[0].blank, "{call:?}");
    assert_eq!(outbox.checksummed, 1);
}

/// A frame in a tunnel: 50 bytes of outer headers before that of `tcp`.
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
fn guests_get_no_blank_checksum_inside_a_tunnel() {
    for (finds_checksum, filled_in) in [(false, 0), (true, 1)] {
        let mut outbox = Outbox::default();
        let takes = Takes {
            caps: EVERYTHING,
            finds_checksum,
        };
        let mut right = Vec::new();
        let frames = [tunnelled(area(), 301), tcp(area(), 10, 1)];
        outbox.deliver(&frames, &[0, 1], takes, |frames, pick| {
            for frame in pick.iter().map(|&n| &frames[n as usize]) {
                let bytes = frame.to_vec().unwrap();
                let inner = &bytes[bytes.len().saturating_sub(HEADERS + 301)..];
                let ips = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
                let pseudo = pseudo_v4(ips[0], ips[1], 6, inner.len() - 34);
                let mut sum = Sum::new(pseudo);
                sum.add_bytes(&inner[34..]);
                right.push((frame.offload.checksum, sum.folded() == 0xffff));
            }
        });
        let inside = match finds_checksum {
            true => (Checksum::Unknown, true),
            false => (frames[0].offload.checksum, false),
        };
        assert_eq!(right, [inside, (frames[1].offload.checksum, false)]);
        assert_eq!(outbox.checksummed, filled_in);
        assert_eq!(outbox.unfit, Unfit::default());
    }
}

#[test]
fn an_aggregate_is_cut_and_everything_stays_in_order() {
    let frames = [
        tcp(area(), 10, 1),
        aggregate(area(), 2500, 1000),
        tcp(area(), 10, 9000),
    ];
    let mut outbox = Outbox::default();
    let calls = deliver(&mut outbox, &frames, &[0, 1, 2], NOTHING);
    let [call] = &calls[..] else {
        panic!("{calls:?}")
    };
    let sequences: Vec<u32> = call.iter().map(|given| given.sequence).collect();
    assert_eq!(sequences, [1, 1000, 2000, 3000, 9000]);
    let lens: Vec<usize> = call.iter().map(|given| given.len - HEADERS).collect();
    assert_eq!(lens, [10, 1000, 1000, 500, 10]);
    assert!(
        call.iter().all(|g| g.right && !g.blank && !g.gso),
        "{call:?}"
    );
    assert_eq!((outbox.segmented, outbox.checksummed), (3, 2));
}

#[test]
fn an_aggregate_for_a_port_without_checksums_alone_is_cut_too() {
    let caps = Caps {
        checksum: false,
        ..EVERYTHING
    };
    let mut outbox = Outbox::default();
    let calls = deliver(&mut outbox, &[aggregate(area(), 2000, 1000)], &[0], caps);
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 2);
    assert!(calls[0].iter().all(|given| given.right), "{calls:?}");
    assert_eq!(outbox.unfit, Unfit::default());
}

#[test]
fn what_fits_no_port_is_counted_by_reason() {
    let long = tcp(area(), 3000, 1);
    let wrong = aggregate(area(), 2000, 0);
    let mut field = tcp(area(), 10, 1);
    field.offload.checksum = Checksum::Blank {
        start: 60_000,
        offset: 60_000,
    };
    let mut outbox = Outbox::default();
    let calls = deliver(&mut outbox, &[long, wrong, field], &[0, 1, 2], NOTHING);
    assert!(calls.is_empty(), "{calls:?}");
    assert_eq!(
        outbox.unfit,
        Unfit {
            too_long: 1,
            bad_offload: 2,
            fault: 0
        }
    );
}

#[test]
fn very_many_segments_do_not_pile_up() {
    let area = area();
    let frames: Vec<Frame> = (0..8).map(|_| aggregate(area, 512, 1)).collect();
    let mut outbox = Outbox::default();
    let calls = deliver(&mut outbox, &frames, &[0, 1, 2, 3, 4, 5, 6, 7], NOTHING);
    assert_eq!(outbox.segmented, 8 * 512);
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 8 * 512);
    assert!(calls.iter().all(|call| call.len() < 2 * AT_ONCE));
}
