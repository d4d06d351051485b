//! Sends a file from pages outside the pool. The driver domain reads through the guest's grant
//! table, so bytes in ungranted pages would not arrive.

use super::*;
use crate::netfront::{ExternalPages, GrantError, Sizes};
use crate::netif::Features;
use crate::testing::{Rig, ipv4_tcp, sizes};
use abi::classic::GrantEntry;
use abi::{DomId, PAGE};
use nic::{Checksum, Offload, Piece};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Pages of the file.
const PAGES: u32 = 64;
/// Bytes of a locally built header.
const HEADER: usize = 54;

fn rig(features: Features, entries: u32) -> Rig {
    let rig = Rig::with_outside(sizes(), features, PAGES, entries);
    for page in 0..PAGES {
        let span = rig.outside().page(page).unwrap();
        span.write(&file(page as usize * PAGE, PAGE)).unwrap();
    }
    rig
}

/// Returns `bytes` bytes of the file at `from`.
fn file(from: usize, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 7 + (at >> 8) * 31 + (at >> 16)) as u8;
    (from..from + bytes).map(byte).collect()
}

/// Returns a frame of a header in the pool and `bytes` bytes of the file, and its expected bytes.
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

/// Returns the pages of the file that the driver domain can access, all read-only.
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
fn file_is_sent_in_place_and_pages_stay_granted() {
    let mut rig = rig(Features::ALL, 64);
    for round in 1..4u64 {
        for from in (0..PAGES as usize * PAGE).step_by(1448).take(100) {
            let (frame, bytes) = frame(&mut rig, from, 1448).unwrap();
            assert_eq!(send(&mut rig, &mut vec![frame]), 1);
            assert_eq!(rig.take_from_guest(16), [bytes]);
        }
        // 100 × 1448 bytes lie in 36 pages.
        let tracking = rig.front.tracking();
        assert_eq!((tracking.granted, tracking.revoked), (36, 0));
        // One frame crosses each of the 35 page boundaries, except a boundary that lies between two
        // frames.
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
    let took = rig.take_from_guest(16);
    assert!(took == [bytes], "what arrived is not what was sent");
    assert_eq!(
        rig.front.reap(),
        Ok(19),
        "a header, 17 pieces, an extra info"
    );
    assert_eq!(rig.front.buffers().available(), free);
}

#[test]
fn checksum_is_computed_without_writing_the_file() {
    let mut rig = rig(Features::PLAIN, 64);
    let (mut frame, bytes) = frame(&mut rig, 5000, 1400).unwrap();
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    let before = file(0, 2 * PAGE);
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    let [took] = <[_; 1]>::try_from(rig.take_from_guest(16)).unwrap();
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
fn pages_in_flight_are_not_evicted() {
    let mut rig = rig(Features::ALL, 8);
    let mut frames: Vec<Frame> = Vec::new();
    for page in 0..9 {
        frames.push(frame(&mut rig, page * PAGE, 100).unwrap().0);
    }
    assert_eq!(send(&mut rig, &mut frames), 8);
    assert_eq!(reachable(&rig), (0..8).collect());
    // However often the guest tries, no page in flight is revoked.
    assert_eq!(send(&mut rig, &mut frames), 0);
    assert_eq!((reachable(&rig).len(), frames.len()), (8, 1));
    assert_eq!(rig.take_from_guest(16).len(), 8);
    assert_eq!(send(&mut rig, &mut frames), 1);
    assert_eq!(
        reachable(&rig),
        (1..9).collect(),
        "the first idle page was revoked for it"
    );
    let tracking = rig.front.tracking();
    assert_eq!((tracking.granted, tracking.revoked), (9, 1));
    assert_eq!(rig.take_from_guest(16).len(), 1);
}

#[test]
fn frame_of_more_pages_than_entries_is_copied() {
    let mut rig = rig(Features::ALL, 8);
    let (frame, bytes) = frame(&mut rig, 0, 12 * PAGE).unwrap();
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    assert!(rig.take_from_guest(16) == [bytes]);
    assert_eq!(rig.front.tracking().copied, 1);
}

#[test]
fn rejected_pages_are_copied() {
    let mut rig = rig(Features::ALL, 8);
    let mut taken = Vec::new();
    while let Ok(gref) = rig.table.grant(DomId(9), 0, true) {
        taken.push(gref);
    }
    let (frame, bytes) = frame(&mut rig, 40, 1400).unwrap();
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    assert_eq!(rig.take_from_guest(16), [bytes]);
    assert_eq!(reachable(&rig), BTreeSet::new());
    let tracking = rig.front.tracking();
    assert_eq!((tracking.copied, tracking.refused), (1, 1));
}

#[test]
fn mapped_page_stays_granted_until_close() {
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
    assert_eq!(rig.take_from_guest(16).len(), 1);
    for page in 1..20 {
        let (frame, bytes) = frame(&mut rig, page * PAGE, 100).unwrap();
        assert_eq!(send(&mut rig, &mut vec![frame]), 1);
        assert_eq!(rig.take_from_guest(16), [bytes]);
        assert!(reachable(&rig).contains(&0));
    }
    assert!(rig.front.tracking().failed_revocations > 0);
    assert_eq!(rig.front.close(&mut rig.table), Err(GrantError::InUse));
    entry.store(granted.0, std::sync::atomic::Ordering::Relaxed);
    rig.front.close(&mut rig.table).unwrap();
    assert_eq!(reachable(&rig), BTreeSet::new());
}

#[test]
fn an_unsolicited_answer_is_recognized() {
    let mut rig = rig(Features::ALL, 8);
    let (frame, _) = frame(&mut rig, 0, 100).unwrap();
    assert_eq!(send(&mut rig, &mut vec![frame]), 1);
    assert_eq!(rig.take_from_guest(16).len(), 1);
    let slots = rig.front.tx.slots() as u16;
    let base = rig.front.tx_pool.len() as u16;
    rig.front.reap().unwrap();
    for id in [base, base + slots, u16::MAX] {
        assert!(!rig.front.complete_request(id), "{id}");
    }
}

/// Last offset at which a frame of 9000 bytes may start.
const LAST: usize = PAGES as usize * PAGE - 9000;

proptest! {
    /// Frames arrive intact and in order, for any interleaving of sending and answering.
    #[test]
    fn frames_arrive_intact_and_in_order(
        ops in prop::collection::vec((0..LAST, 1..9000usize, 0..4usize), 1..80),
        entries in 1..40u32,
    ) {
        let sizes = Sizes { tx_small_pages: 8, tx_large_pages: 8, ..sizes() };
        let entries = ExternalPages::entries(entries);
        let mut rig = Rig::with_outside(sizes, Features::ALL, PAGES, entries);
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
            arrived.extend(rig.take_from_guest(answers));
            let most = rig.front.tracked_pages().1;
            prop_assert!(reachable(&rig).len() <= most);
        }
        // Waiting frames are sent once a request is answered.
        for _ in 0..200 {
            arrived.extend(rig.take_from_guest(4));
            send(&mut rig, &mut waiting);
        }
        prop_assert!(waiting.is_empty());
        prop_assert!(arrived == expected);
        rig.front.close(&mut rig.table).unwrap();
        prop_assert!(reachable(&rig).is_empty());
    }
}
