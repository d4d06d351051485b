//! Tests from which memory a frame's bytes are read, and how often.

mod common;

use common::{bytes, pool};
use nic::frame::{SNAPSHOT_MAX, SNAPSHOT_MIN};
use nic::{BufferId, Buffers, Checksum, CopyError, Frame, Gso, GsoKind, Piece, Pool};
use proptest::prelude::*;
use shmem::{Area, Span};

fn area_of(bytes: &[u8]) -> Span {
    let area = Area::anonymous(bytes.len().max(1)).unwrap();
    area.span().write(bytes).unwrap();
    area.span().take(bytes.len())
}

/// Returns `bytes` cut at `cuts` into separate pieces.
fn pieces_of(bytes: &[u8], cuts: &[usize]) -> Vec<Piece> {
    let mut at = 0;
    let mut pieces = Vec::new();
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let end = cut.clamp(at, bytes.len());
        pieces.push(Piece {
            span: area_of(&bytes[at..end]),
            buffer: BufferId::NONE,
        });
        at = end;
    }
    pieces
}

#[test]
fn header_is_sent_from_the_snapshot() {
    let memory = area_of(&bytes(1, 200));
    let piece = Piece {
        span: memory,
        buffer: BufferId::NONE,
    };
    let frame = Frame::new(piece, 150).unwrap();
    memory.fill(0xff).unwrap();
    let sent = frame.to_vec().unwrap();
    assert_eq!(sent.len(), 150);
    assert_eq!(&sent[..SNAPSHOT_MIN], &bytes(1, SNAPSHOT_MIN)[..]);
    assert_eq!(&sent[SNAPSHOT_MIN..], &[0xff; 150 - SNAPSHOT_MIN][..]);
}

#[test]
fn snapshot_extension_rereads_no_byte() {
    let memory = area_of(&bytes(1, 200));
    let mut frame = Frame::new(
        Piece {
            span: memory,
            buffer: BufferId::NONE,
        },
        200,
    )
    .unwrap();
    memory.write(&[0xff; SNAPSHOT_MIN]).unwrap();
    frame.extend_snapshot(100).unwrap();
    assert_eq!(frame.header(), &bytes(1, 100)[..]);
    memory.fill(0).unwrap();
    frame.extend_snapshot(80).unwrap();
    frame.extend_snapshot(1000).unwrap();
    assert_eq!(frame.header().len(), SNAPSHOT_MAX);
    assert_eq!(&frame.header()[..100], &bytes(1, 100)[..]);
    assert_eq!(&frame.header()[100..], &[0; SNAPSHOT_MAX - 100][..]);
}

#[test]
fn a_bare_header_has_no_piece() {
    let mut frame = Frame::with_header(&[7; 54]).unwrap();
    frame.push(Piece {
        span: area_of(&bytes(3, 100)),
        buffer: BufferId::NONE,
    });
    assert_eq!(frame.len(), 154);
    assert_eq!(frame.header(), &[7; 54][..]);
    let whole = [&[7; 54][..], &bytes(3, 100)].concat();
    assert_eq!(frame.to_vec().unwrap(), whole);
    let to = area_of(&[0; 200]);
    assert_eq!(frame.copy_to(to), Ok(154));
    let mut copied = [0; 154];
    to.read(&mut copied).unwrap();
    assert_eq!(&copied[..], &whole[..]);
    // The snapshot continues after the bare header.
    frame.snapshot().unwrap();
    assert_eq!(frame.header(), &whole[..SNAPSHOT_MIN]);
    frame.extend_snapshot(120).unwrap();
    assert_eq!(frame.header(), &whole[..120]);
    assert_eq!(frame.to_vec().unwrap(), whole);
    frame.header_mut()[0] = 9;
    assert_eq!(frame.to_vec().unwrap()[..2], [9, 7]);
}

#[test]
fn a_bare_header_has_a_maximum_length() {
    assert!(Frame::with_header(&[0; SNAPSHOT_MAX]).is_some());
    assert!(Frame::with_header(&[0; SNAPSHOT_MAX + 1]).is_none());
    assert!(Frame::with_header(&[]).unwrap().is_empty());
}

#[test]
fn recycling_returns_buffers_and_clears_the_frame() {
    let mut buffers = pool(4, 64);
    let mut frame = Frame::from_bytes(&bytes(1, 200), &mut buffers).unwrap();
    assert_eq!((frame.pieces.len(), buffers.available()), (4, 0));
    frame.recycle(&mut buffers);
    assert_eq!(buffers.available(), 4);
    assert!(frame.is_empty());
    assert_eq!(frame.to_vec().unwrap(), Vec::<u8>::new());
    let mut bare = Frame::with_header(&[1; 20]).unwrap();
    bare.recycle(&mut buffers);
    bare.push(Piece {
        span: area_of(&[5; 10]),
        buffer: BufferId::NONE,
    });
    bare.snapshot().unwrap();
    assert_eq!(bare.to_vec().unwrap(), [5; 10]);
}

#[test]
fn failed_copies_return_their_buffers() {
    let mut buffers = pool(3, 64);
    assert_eq!(
        Frame::from_bytes(&[0; 193], &mut buffers).unwrap_err(),
        CopyError::NoBuffer
    );
    assert_eq!(buffers.available(), 3);
    let frame = Frame::from_bytes(&[0; 100], &mut buffers).unwrap();
    assert_eq!(frame.copied(&mut buffers).unwrap_err(), CopyError::NoBuffer);
    assert_eq!(buffers.available(), 1);
    // A supply of empty buffers.
    struct EmptyBuffers;
    impl Buffers for EmptyBuffers {
        fn take(&mut self) -> Option<nic::Buffer> {
            Some(nic::Buffer {
                id: BufferId(0),
                span: Span::EMPTY,
            })
        }
        fn take_large(&mut self) -> Option<nic::Buffer> {
            None
        }
        fn put(&mut self, _: BufferId) {}
    }
    assert_eq!(
        Frame::from_bytes(&[1], &mut EmptyBuffers).unwrap_err(),
        CopyError::NoBuffer
    );
}

#[test]
fn a_frame_continues_in_large_buffers() {
    struct Two(Pool, Pool);
    impl Buffers for Two {
        fn take(&mut self) -> Option<nic::Buffer> {
            self.0.take()
        }
        fn take_large(&mut self) -> Option<nic::Buffer> {
            self.1.take()
        }
        fn put(&mut self, _: BufferId) {}
    }
    let mut buffers = Two(pool(2, 64), pool(1, 512));
    let frame = Frame::from_bytes(&bytes(2, 600), &mut buffers).unwrap();
    let lengths: Vec<usize> = frame.pieces.iter().map(|piece| piece.span.len()).collect();
    assert_eq!(lengths, [64, 512, 24]);
    assert_eq!(frame.to_vec().unwrap(), bytes(2, 600));
}

#[test]
fn a_copy_has_the_snapshot_and_the_offloads() {
    let memory = area_of(&bytes(1, 300));
    let mut frame = Frame::new(
        Piece {
            span: memory,
            buffer: BufferId::NONE,
        },
        300,
    )
    .unwrap();
    frame.header_mut()[3] = 0xee;
    frame.token = 77;
    frame.offload.checksum = nic::Checksum::Valid;
    let mut buffers = pool(8, 50);
    let copy = frame.copied(&mut buffers).unwrap();
    assert_eq!(copy.to_vec().unwrap(), frame.to_vec().unwrap());
    assert_eq!(copy.header(), frame.header());
    assert_eq!((copy.token, copy.offload), (77, frame.offload));
    memory.fill(0).unwrap();
    // The copy's memory holds the same bytes, so a new snapshot reads them.
    let mut again = copy.clone();
    again.snapshot().unwrap();
    assert_eq!(again.to_vec().unwrap(), copy.to_vec().unwrap());
}

#[test]
fn lengths_are_those_of_the_segments() {
    let mut bytes = vec![0; 54 + 3000];
    bytes[46] = 5 << 4;
    let mut frame = Frame::empty();
    for piece in pieces_of(&bytes, &[]) {
        frame.push(piece);
    }
    frame.snapshot().unwrap();
    assert_eq!((frame.longest_packet(), frame.wire_bytes()), (3054, 3054));
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    for (size, longest, wire) in [
        (1000, 1054, 3000 + 3 * 54),
        (1, 55, 3000 * 55),
        (0, 54, 3000 * 55),
        (65_535, 3054, 3054),
    ] {
        frame.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size,
        });
        let found = (frame.longest_packet(), frame.wire_bytes());
        assert_eq!(found, (longest, wire), "{size}");
    }
    // Neither of two VLAN tags counts towards the length.
    bytes[12..14].copy_from_slice(&[0x88, 0xa8]);
    bytes[16..18].copy_from_slice(&[0x81, 0x00]);
    bytes[54] = 5 << 4;
    let mut tagged = Frame::empty();
    for piece in pieces_of(&bytes, &[]) {
        tagged.push(piece);
    }
    tagged.snapshot().unwrap();
    tagged.offload = frame.offload;
    tagged.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: 1460,
    });
    tagged.offload.checksum = Checksum::Blank {
        start: 42,
        offset: 16,
    };
    let longest = tagged.longest_packet() - tagged.tag_bytes();
    assert_eq!(longest, 14 + 40 + 1460);
    // A TCP header outside the snapshot has no effect.
    frame.offload.checksum = Checksum::Blank {
        start: 2000,
        offset: 16,
    };
    assert_eq!((frame.longest_packet(), frame.wire_bytes()), (3054, 3054));
}

#[test]
fn a_pool_accepts_only_outstanding_buffers() {
    let mut buffers = pool(2, 2048);
    let first = buffers.take().unwrap();
    assert_ne!(first.id, buffers.take().unwrap().id);
    assert_eq!(buffers.take(), None);
    buffers.put(first.id);
    buffers.put(first.id);
    buffers.put(BufferId::NONE);
    buffers.put(BufferId(2));
    assert_eq!(buffers.available(), 1);
    // The pool hands out the last returned buffer first.
    assert_eq!(buffers.take(), Some(first));
}

proptest! {
    #[test]
    fn all_reads_of_a_frame_return_the_same_bytes(
        len in 0usize..400,
        bare in 0usize..=SNAPSHOT_MAX,
        need in 0usize..200,
        mut cuts in prop::collection::vec(0usize..400, 0..6),
        offset in 0usize..450,
        ask in 0usize..450,
        size in 1usize..200,
    ) {
        cuts.sort_unstable();
        let whole = bytes(5, len);
        let bare = bare.min(len);
        let mut frame = Frame::with_header(&whole[..bare]).unwrap();
        for piece in pieces_of(&whole[bare..], &cuts) {
            frame.push(piece);
        }
        frame.snapshot().unwrap();
        frame.extend_snapshot(need).unwrap();
        prop_assert_eq!(frame.len(), len);
        let known = need.clamp(SNAPSHOT_MIN, SNAPSHOT_MAX).max(bare).min(len);
        prop_assert_eq!(frame.header(), &whole[..known]);
        prop_assert_eq!(&frame.to_vec().unwrap(), &whole);

        let mut rest = Vec::new();
        for span in frame.payload_from(offset) {
            let mut part = vec![0; span.len()];
            span.read(&mut part).unwrap();
            prop_assert!(!part.is_empty());
            rest.extend(part);
        }
        prop_assert_eq!(&rest[..], &whole[offset.max(known).min(len)..]);

        let mut prefix = vec![0; ask];
        let got = frame.prefix(&mut prefix).unwrap();
        prop_assert_eq!(got, ask.min(len));
        prop_assert_eq!(&prefix[..got], &whole[..got]);

        let to = area_of(&vec![0; ask]);
        prop_assert_eq!(frame.copy_to(to).unwrap(), ask.min(len));
        let mut copied = vec![0; ask];
        to.read(&mut copied).unwrap();
        prop_assert_eq!(&copied[..ask.min(len)], &whole[..ask.min(len)]);

        let mut buffers = pool(450, size);
        let copy = frame.copied(&mut buffers).unwrap();
        prop_assert_eq!(&copy.to_vec().unwrap(), &whole);
        let mut own = copy;
        own.snapshot().unwrap();
        prop_assert_eq!(&own.to_vec().unwrap(), &whole);
        own.recycle(&mut buffers);
        prop_assert_eq!(buffers.available(), 450);
    }
}
