//! A file that lies in pages outside the pool is sent from there: with a driver domain that reads
//! through the guest's own grant table, so that what it cannot reach arrives nowhere.

use super::*;
use crate::netfront::{GrantError, Outside, Sizes};
use crate::netif::Features;
use crate::testing::{Rig, ipv4_tcp, sizes};
use abi::classic::GrantEntry;
use abi::{DomId, PAGE};
use nic::{Checksum, Offload, Piece};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Pages of the file.
const PAGES: u32 = 64;
/// Bytes of a header as they are made here.
const HEADER: usize = 54;

fn rig(features: Features, entries: u32) -> Rig {
    let rig = Rig::with_outside(sizes(), features, PAGES, entries);
    for page in 0..PAGES {
        let span = rig.outside().page(page).unwrap();
        span.write(&file(page as usize * PAGE, PAGE)).unwrap();
    }
    rig
}

/// Bytes `from ..` of the file.
fn file(from: usize, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 7 + (at >> 8) * 31 + (at >> 16)) as u8;
    (from..from + bytes).map(byte).collect()
}

/// A frame of a header in the pool and `bytes` bytes of the file, and the bytes that it has.
fn frame(rig: &mut Rig, from: usize, bytes: usize) -> Option<(Frame, Vec<u8>)> {
    let header = &ipv4_tcp(bytes, 1)[..HEADER];
    let mut frame = rig.guest_frame(header)?;
    let (mut at, end) = (from, from + bytes);
    while at < end {
        let part = (end - at).min(PAGE - at % PAGE);
        frame.push(Piece {
            span: rig.outside().at(at, part).unwrap(),
            buffer: BufferId::NONE,
        });
        at += part;
    }
    frame.snapshot().unwrap();
    Some((frame, [header, &file(from, bytes)].concat()))
}

/// Pages of the file that the driver domain can reach, which it may only read.
fn reachable(rig: &Rig) -> BTreeSet<u32> {
    let first = (rig.outside().span().addr() - rig.memory().area().span().addr()) / PAGE;
    let table = rig.table_span();
    let entries = (0..table.len() / 8).filter_map(|n| table.load_u64(n * 8).ok());
    let granted = entries.map(GrantEntry).filter(|entry| entry.permits());
    let own = granted.filter(|entry| entry.frame() >= first as u32);
    own.map(|entry| {
        assert!(entry.readonly(), "{entry:?}");
        entry.frame() - first as u32
    })
    .collect()
}

fn send(rig: &mut Rig, frames: &mut Vec<Frame>) -> u32 {
    let sent = rig.front.transmit_tracked(frames, &mut rig.table).unwrap();
    rig.front.publish();
    sent.sent
}

#[test]
fn a_file_goes_from_where_it_lies_and_its_pages_stay_granted() {
    let mut rig = rig(Features::ALL, 64);
    for round in 1..4u64 {
        for from in (0..PAGES as usize * PAGE).step_by(1448).take(100) {
            let (frame, bytes) = frame(&mut rig, from, 1448).unwrap();
            assert_eq!(send(&mut rig, &mut vec![frame]), 1);
            assert_eq!(rig.take(16), [bytes]);
        }
        // 100 × 1448 bytes lie in 36 pages.
        let tracking = rig.front.tracking();
        assert_eq!((tracking.entered, tracking.left), (36, 0));
        // Of each of 35 boundaries of pages, all but those between two frames are crossed by one.
        assert_eq!(tracking.reused, 135 * round - 36);
        assert_eq!(reachable(&rig), (0..36).collect());
        assert_eq!((tracking.copied, tracking.refused), (0, 0));
    }
    rig.front.close(&mut rig.table).unwrap();
    assert_eq!(reachable(&rig), BTreeSet::new());
}

#[test]
fn a_frame_of_64_kb_needs_one_buffer_of_the_pool() {
    let mut rig = rig(Features::ALL, 64);
    let free = rig.front.buffers().available();
    let (mut frame, bytes) = frame(&mut rig, 3000, 65_160).unwrap();
    frame.offload = Offload {
        checksum: Checksum::Blank {
            start: 34,
            offset: 16,
        },
        gso: Some(nic::Gso {
            kind: nic::GsoKind::Tcp4,
            size: 1448,
        }),
    };
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    assert_eq!(rig.front.buffers().available(), free - 1);
    let took = rig.take(16);
    assert!(took == [bytes], "what arrived is not what was sent");
    assert_eq!(
        rig.front.reap(),
        Ok(19),
        "a header, 17 pieces, an extra info"
    );
    assert_eq!(rig.front.buffers().available(), free);
}

#[test]
fn a_checksum_is_filled_in_without_a_byte_of_the_file_being_written() {
    let mut rig = rig(Features::PLAIN, 64);
    let (mut frame, bytes) = frame(&mut rig, 5000, 1400).unwrap();
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    let before = file(0, 2 * PAGE);
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    let [took] = <[_; 1]>::try_from(rig.take(16)).unwrap();
    assert_ne!(took[50..52], bytes[50..52], "the sum");
    assert_eq!((&took[..50], &took[52..]), (&bytes[..50], &bytes[52..]));
    let mut after = vec![0; 2 * PAGE];
    rig.outside()
        .span()
        .take(2 * PAGE)
        .read(&mut after)
        .unwrap();
    assert!(before == after);
    assert_eq!(rig.front.tracking().copied, 0);
}

#[test]
fn pages_of_unanswered_requests_make_no_room_and_others_wait_for_them() {
    let mut rig = rig(Features::ALL, 8);
    let mut frames: Vec<Frame> = Vec::new();
    for page in 0..9 {
        frames.push(frame(&mut rig, page * PAGE, 100).unwrap().0);
    }
    assert_eq!(send(&mut rig, &mut frames), 8);
    assert_eq!(reachable(&rig), (0..8).collect());
    // However often it tries: nothing that is in flight is taken back.
    assert_eq!(send(&mut rig, &mut frames), 0);
    assert_eq!((reachable(&rig).len(), frames.len()), (8, 1));
    assert_eq!(rig.take(16).len(), 8);
    assert_eq!(send(&mut rig, &mut frames), 1);
    assert_eq!(
        reachable(&rig),
        (1..9).collect(),
        "the first inactive one made room"
    );
    let tracking = rig.front.tracking();
    assert_eq!((tracking.entered, tracking.left), (9, 1));
    assert_eq!(rig.take(16).len(), 1);
}

#[test]
fn a_frame_of_more_pages_than_there_are_entries_is_copied() {
    let mut rig = rig(Features::ALL, 8);
    let (frame, bytes) = frame(&mut rig, 0, 12 * PAGE).unwrap();
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    assert!(rig.take(16) == [bytes]);
    assert_eq!(rig.front.tracking().copied, 1);
}

#[test]
fn what_the_monitor_refuses_is_copied() {
    let mut rig = rig(Features::ALL, 8);
    let mut taken = Vec::new();
    while let Ok(gref) = rig.table.grant(DomId(9), 0, true) {
        taken.push(gref);
    }
    let (frame, bytes) = frame(&mut rig, 40, 1400).unwrap();
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    assert_eq!(rig.take(16), [bytes]);
    assert_eq!(reachable(&rig), BTreeSet::new());
    let tracking = rig.front.tracking();
    assert_eq!((tracking.copied, tracking.refused), (1, 1));
}

#[test]
fn a_page_that_the_driver_domain_maps_stays_granted_until_the_interface_goes() {
    let mut rig = rig(Features::ALL, 8);
    let (first, _) = frame(&mut rig, 0, 100).unwrap();
    assert_eq!(send(&mut rig, &mut vec![first]), 1);
    let first = (rig.outside().span().addr() - rig.memory().area().span().addr()) / PAGE;
    let table = rig.table_span();
    let of_file = |n: &usize| GrantEntry(table.load_u64(n * 8).unwrap()).frame() == first as u32;
    let at = (0..table.len() / 8).find(of_file).unwrap();
    let entry = table.u64(at * 8).unwrap();
    let granted = GrantEntry(entry.load(std::sync::atomic::Ordering::Relaxed));
    let mapped = granted.with_flags(granted.flags() | GrantEntry::READING);
    entry.store(mapped.0, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(rig.take(16).len(), 1);
    for page in 1..20 {
        let (frame, bytes) = frame(&mut rig, page * PAGE, 100).unwrap();
        assert_eq!(send(&mut rig, &mut vec![frame]), 1);
        assert_eq!(rig.take(16), [bytes]);
        assert!(reachable(&rig).contains(&0));
    }
    assert!(rig.front.tracking().held_back > 0);
    assert_eq!(rig.front.close(&mut rig.table), Err(GrantError::InUse));
    entry.store(granted.0, std::sync::atomic::Ordering::Relaxed);
    rig.front.close(&mut rig.table).unwrap();
    assert_eq!(reachable(&rig), BTreeSet::new());
}

#[test]
fn an_answer_to_nothing_is_known_as_one() {
    let mut rig = rig(Features::ALL, 8);
    let (frame, _) = frame(&mut rig, 0, 100).unwrap();
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    assert_eq!(rig.take(16).len(), 1);
    let slots = rig.front.tx.slots() as u16;
    let base = rig.front.tx_pool.len() as u16;
    rig.front.reap().unwrap();
    for id in [base, base + slots, u16::MAX] {
        assert!(!rig.front.land(id), "{id}");
    }
}

/// Where a frame of 9000 bytes may begin.
const LAST: usize = PAGES as usize * PAGE - 9000;

proptest! {
    /// Whatever is sent, and whenever it is answered: it arrives as it was, and in order.
    #[test]
    fn whatever_is_sent_arrives(
        ops in prop::collection::vec((0..LAST, 1..9000usize, 0..4usize), 1..80),
        entries in 1..40u32,
    ) {
        let sizes = Sizes { tx_small_pages: 8, tx_large_pages: 8, ..sizes() };
        let mut rig = Rig::with_outside(sizes, Features::ALL, PAGES, Outside::entries(entries));
        for page in 0..PAGES {
            let span = rig.outside().page(page).unwrap();
            span.write(&file(page as usize * PAGE, PAGE)).unwrap();
        }
        let (mut waiting, mut expected, mut arrived) = (Vec::new(), Vec::new(), Vec::new());
        for (from, bytes, answers) in ops {
            if let Some((frame, bytes)) = frame(&mut rig, from, bytes) {
                waiting.push(frame);
                expected.push(bytes);
            }
            send(&mut rig, &mut waiting);
            arrived.extend(rig.take(answers));
            let most = rig.front.tracked_pages().1;
            prop_assert!(reachable(&rig).len() <= most);
        }
        // What waits goes as soon as something is answered.
        for _ in 0..200 {
            arrived.extend(rig.take(4));
            send(&mut rig, &mut waiting);
        }
        prop_assert!(waiting.is_empty());
        prop_assert!(arrived == expected);
        rig.front.close(&mut rig.table).unwrap();
        prop_assert!(reachable(&rig).is_empty());
    }
}
