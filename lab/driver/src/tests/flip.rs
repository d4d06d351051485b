//! Tests of page flipping.

use super::*;
use crate::exchange::{Exchanges, NicPages};
use crate::flip::FlipGrants;
use nic::{Buffers, Frame, Piece};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn flip(monitor: &Monitor) -> FlipGrants {
    flip_with(monitor, &Rc::default())
}

fn flip_with(monitor: &Monitor, exchanges: &Rc<RefCell<Exchanges>>) -> FlipGrants {
    let own = (Slot(FIRST + SLOTS), EXCHANGED_PAGES);
    let exchange = (EXCHANGE, own, Rc::clone(exchanges));
    let flip = FlipGrants::bind(monitor.guest.clone(), MAC, exchange);
    assert_eq!(monitor.take_calls(), ["TableBind 1"]);
    flip.unwrap()
}

fn transferred(monitor: &Monitor) -> Vec<(u32, Vec<u8>)> {
    std::mem::take(&mut monitor.state.lock().unwrap().transferred)
}

/// Returns the contents of a page with `parts` at offset 16 and zeros elsewhere.
fn page_of(parts: &[&[u8]]) -> Vec<u8> {
    let mut page = vec![0; 16];
    page.extend(parts.concat());
    page.resize(PAGE, 0);
    page
}

#[test]
fn flip_transfers_one_clean_page_per_buffer() {
    let monitor = Monitor::new();
    let mut flip = flip(&monitor);
    // The number of pages limits the transfers per hypercall.
    let status = write(&mut flip, &[1, 2, 3, 4, 5, 6, 7], source());
    assert_eq!(status, [GrantStatus::Okay; 7]);
    assert_eq!(
        monitor.take_calls(),
        ["GrantTransfer 3", "GrantTransfer 3", "GrantTransfer 1"]
    );
    let expected: Vec<_> = (1..8).map(|gref| (gref, page_of(&[b"abcd"]))).collect();
    assert_eq!(transferred(&monitor), expected);
    // All copies to one buffer are transferred in one page.
    let copy = |gref, offset| CopyOut {
        source: CopySource::Span(source()),
        gref: GrantRef(gref),
        offset,
        len: 4,
        status: GrantStatus::GeneralError,
    };
    let mut copies = [copy(1, 16), copy(1, 20), copy(2, 16)];
    flip.write(&mut copies, &[]);
    assert_eq!(monitor.take_calls(), ["GrantTransfer 2"]);
    let expected = [(1, page_of(&[b"abcd", b"abcd"])), (2, page_of(&[b"abcd"]))];
    assert_eq!(transferred(&monitor), expected);
    drop(flip);
    assert_eq!(monitor.take_calls(), ["TableEnd 1"]);
}

/// Bytes of a failed transfer do not reach another buffer.
#[test]
fn flip_clears_pages_of_failed_transfers() {
    let monitor = Monitor::new();
    let mut flip = flip(&monitor);
    let status = write(&mut flip, &[READ_ONLY, 1], source());
    assert_eq!(status, [GrantStatus::PermissionDenied, GrantStatus::Okay]);
    // A failed copy makes the frame incomplete.
    let copy = |source, offset, len| CopyOut {
        source,
        gref: GrantRef(1),
        offset,
        len,
        status: GrantStatus::GeneralError,
    };
    let invalid = CopySource::Header { frame: 9, from: 0 };
    for bad in [
        copy(invalid, 100, 4),
        copy(CopySource::Span(source()), 4094, 4),
    ] {
        let mut copies = [copy(CopySource::Span(source()), 16, 4), bad];
        flip.write(&mut copies, &[]);
        assert_eq!(copies[1].status, GrantStatus::BadCopyArg);
    }
    let status = write(&mut flip, &[2, 3, 4], source().take(2));
    assert_eq!(status, [GrantStatus::Okay; 3]);
    let mut expected = vec![(1, page_of(&[b"abcd"]))];
    expected.extend([2, 3, 4].map(|gref| (gref, page_of(&[b"ab"]))));
    assert_eq!(transferred(&monitor), expected);
}

#[test]
fn flip_reads_like_map_and_rejects_device_writes() {
    let monitor = Monitor::new();
    let mut flip = flip(&monitor);
    let got = read(&mut flip, &[3, UNGRANTED]);
    let at = span(&monitor.guest, Slot(FIRST + 3), 8, 100).unwrap();
    assert_eq!(got, [Ok(at), Err(GrantStatus::BadRef)]);
    assert_eq!(monitor.mapped(), [(FIRST + 3, false)].into());
    flip.read_end();
    assert_eq!(monitor.take_calls(), ["GrantMap 2", "GrantUnmap 1"]);
    let mut posted = [GrantAccess {
        gref: GrantRef(1),
        offset: 0,
        len: 100,
        result: Ok(Span::EMPTY),
    }];
    flip.post_begin(&mut posted);
    assert_eq!(posted[0].result, Err(GrantStatus::GeneralError));
}

/// Receives a frame of `len` bytes to `mac` into a buffer of the NIC.
fn receive(pages: &mut NicPages, mac: [u8; 6], len: usize) -> Frame {
    let buffer = pages.take().unwrap();
    let mut bytes = vec![7; len];
    bytes[..6].copy_from_slice(&mac);
    buffer.span.write(&bytes).unwrap();
    let piece = Piece {
        span: buffer.span,
        buffer: buffer.id,
    };
    Frame::new(piece, len).unwrap()
}

/// Delivers a frame to grant `gref`, as a netback does. Returns the contents of its page.
fn deliver(monitor: &Monitor, flip: &mut FlipGrants, frame: &Frame, gref: u32) -> Vec<u8> {
    let header = CopySource::Header { frame: 0, from: 0 };
    let payload = frame.payload().next().unwrap();
    let copy = |source, at, len| CopyOut::new(source, GrantRef(gref), at, len);
    let mut copies = [
        copy(header, 0, frame.header_len()),
        copy(CopySource::Span(payload), frame.header_len(), payload.len()),
    ];
    flip.write(&mut copies, std::slice::from_ref(frame));
    assert_eq!(copies.map(|copy| copy.status), [GrantStatus::Okay; 2]);
    assert_eq!(monitor.take_calls(), ["GrantTransfer 1"]);
    let [(to, page)] = transferred(monitor).try_into().unwrap();
    assert_eq!(to, gref);
    page
}

/// Returns the contents of the page that holds a frame's payload.
fn rest_of(frame: &Frame) -> Vec<u8> {
    let span = frame.payload().next().unwrap();
    let mut bytes = vec![0; span.len()];
    span.read(&mut bytes).unwrap();
    bytes
}

#[test]
fn received_pages_change_hands_without_a_copy() {
    let monitor = Monitor::new();
    let exchanges = Rc::default();
    let mut pages = NicPages::new(Rc::clone(&exchanges));
    assert!(pages.take().is_none(), "no guest is connected");
    let mut flip = flip_with(&monitor, &exchanges);
    // A longer frame than the next one is dropped, and its bytes remain in the buffer.
    let mut dropped = receive(&mut pages, MAC, 2000);
    dropped.recycle(&mut pages);
    let mut frame = receive(&mut pages, MAC, 1514);
    let page = deliver(&monitor, &mut flip, &frame, 3);
    assert_eq!(page[..6], MAC);
    assert!(page[6..1514].iter().all(|byte| *byte == 7));
    assert!(page[1514..].iter().all(|byte| *byte == 0));
    // The page itself was transferred: the buffer continues with the page that the guest gave up.
    assert!(rest_of(&frame).iter().all(|byte| *byte == 0));
    frame.recycle(&mut pages);
    // Half of the pages remain for frames of other sources.
    let taken: Vec<_> = std::iter::from_fn(|| pages.take()).collect();
    assert_eq!(taken.len(), 2);
    assert_eq!(write(&mut flip, &[4, 5], source()), [GrantStatus::Okay; 2]);
    assert_eq!(transferred(&monitor).len(), 2);
    // The buffers of an ended exchange are neither returned nor taken.
    drop(flip);
    taken.iter().for_each(|buffer| pages.put(buffer.id));
    assert!(!pages.add_owner(taken[0].id));
    assert!(pages.take().is_none());
}

/// A frame to several guests remains in the driver's page for the others.
#[test]
fn frames_to_other_addresses_are_copied() {
    let monitor = Monitor::new();
    let exchanges = Rc::default();
    let mut pages = NicPages::new(Rc::clone(&exchanges));
    let mut flip = flip_with(&monitor, &exchanges);
    let frame = receive(&mut pages, [0xff; 6], 1514);
    for gref in [1, 2] {
        let page = deliver(&monitor, &mut flip, &frame, gref);
        assert!(page[6..1514].iter().all(|byte| *byte == 7));
        assert!(rest_of(&frame).iter().all(|byte| *byte == 7));
    }
}

/// A NIC learns the guest to which its frames are sent.
#[test]
fn frames_in_pages_of_other_guests_are_copied() {
    let monitor = Monitor::new();
    let exchanges: Rc<RefCell<Exchanges>> = Rc::default();
    let mut pages = NicPages::new(Rc::clone(&exchanges));
    let other = Area::anonymous(4 * PAGE).unwrap();
    exchanges.borrow_mut().add(Slot(100), other);
    let mut flip = flip_with(&monitor, &exchanges);
    for (gref, is_copied) in [(1, true), (2, false)] {
        let mut frame = receive(&mut pages, MAC, 1514);
        let start = frame.pieces[0].span.addr();
        let in_other = (other.span().addr()..other.span().addr() + other.len()).contains(&start);
        assert_eq!(in_other, is_copied);
        let page = deliver(&monitor, &mut flip, &frame, gref);
        assert!(page[6..1514].iter().all(|byte| *byte == 7));
        let remains = rest_of(&frame).iter().all(|byte| *byte == 7);
        assert_eq!(remains, is_copied);
        frame.recycle(&mut pages);
    }
    // Another NIC has its own preference.
    let mut second = NicPages::new(Rc::clone(&exchanges));
    assert!(second.take().unwrap().id.0 >= driver::nics::buffers::FIRST_PAGE + 100);
}
