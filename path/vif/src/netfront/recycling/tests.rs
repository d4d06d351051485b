//! Pages enter and leave the pool. The driver domain writes through the guest's grant table, so a
//! posted buffer in an ungranted page would lose a frame.

use super::*;
use crate::netfront::{GrantError, GrantTable, GrantedPage, Sizes};
use crate::netif::Features;
use crate::testing::{Rig, TestMemory, back_record, frame_at, packet, sizes};
use abi::DomId;
use abi::Handle;
use abi::classic::GrantEntry;
use nic::Frame;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

const PAGES: u32 = 8;
const SPARE: u32 = 8;

fn rig(rx_buffer: u16, threshold: Option<u32>) -> Rig {
    let sizes = Sizes {
        rx_pages: PAGES,
        rx_spare_pages: SPARE,
        rx_buffer,
        ..sizes()
    };
    let back = back_record(Features::ALL);
    Rig::with_threshold(sizes, Features::ALL, back, threshold)
}

/// Returns the frames of the pool that the driver domain can access.
fn reachable(rig: &Rig) -> BTreeSet<u32> {
    let (pool, spare) = (rig.layout.rx_pool(), rig.layout.rx_spare());
    let table = rig.table_span();
    (0..table.len() / 8)
        .filter_map(|n| table.load_u64(n * 8).ok())
        .map(GrantEntry)
        .filter(|entry| entry.permits())
        .map(GrantEntry::frame)
        .filter(|frame| pool.contains(frame) || spare.contains(frame))
        .collect()
}

/// Delivers a burst of frames, which the guest then holds.
fn burst(rig: &mut Rig, frames: u64, out: &mut Vec<Frame>) {
    let source = TestMemory::new(1);
    for n in 0..frames {
        let bytes = packet(1000, n);
        assert_eq!(
            rig.deliver_to_guest(&[frame_at(&source, 0, &bytes, 1000)]),
            1,
            "{n}"
        );
    }
    let before = out.len();
    rig.front.receive(256, out).unwrap();
    for (frame, n) in out[before..].iter().zip(0..) {
        assert_eq!(frame.to_vec().unwrap(), packet(1000, n));
    }
    rig.front.refill(&mut rig.table);
    rig.front.publish();
}

fn done(rig: &mut Rig, frames: &mut Vec<Frame>) {
    rig.front.receive_done(frames);
    rig.front.release(&mut rig.table);
    rig.front.publish();
}

#[test]
fn the_ring_stays_filled_while_the_guest_has_frames() {
    let mut rig = rig(4096, None);
    let mut held = Vec::new();
    assert_eq!(rig.front.rx_pages(), (8, 16));
    burst(&mut rig, 8, &mut held);
    assert_eq!(rig.back.posted(64), PAGES, "as many as before");
    assert_eq!(rig.front.rx_pages(), (16, 16));
    burst(&mut rig, 8, &mut held);
    assert_eq!(rig.back.posted(64), 0, "no further page is available");
    done(&mut rig, &mut held);
    assert_eq!(rig.back.posted(64), PAGES);
    // Without a threshold, all pages stay in the pool.
    assert_eq!(
        (reachable(&rig).len(), rig.front.recycling().granted),
        (16, 8)
    );
}

#[test]
fn pages_are_revoked_on_leave_and_zeroed_on_entry() {
    let mut rig = rig(4096, Some(0));
    let mut held = Vec::new();
    for round in 0..5 {
        burst(&mut rig, 3, &mut held);
        assert_eq!(reachable(&rig).len(), 11);
        done(&mut rig, &mut held);
        let reached = reachable(&rig);
        assert_eq!(
            reached.len(),
            PAGES as usize,
            "only posted pages are accessible"
        );
        let counted = 11 * round + 3;
        let recycling = *rig.front.recycling();
        assert_eq!((recycling.granted, recycling.revoked), (counted, counted));
        // The domain may reuse pages outside the pool.
        let pool = rig.layout.rx_pool().chain(rig.layout.rx_spare());
        for frame in pool.filter(|frame| !reached.contains(frame)) {
            let own = rig.memory().area().page(frame).unwrap();
            own.fill(0x5a).unwrap();
        }
        burst(&mut rig, 8, &mut held);
        let posted: Vec<u32> = reachable(&rig).difference(&reached).copied().collect();
        assert_eq!(posted.len(), SPARE as usize, "all of them have entered");
        for frame in posted {
            let mut bytes = [1; abi::PAGE];
            let page = rig.memory().area().page(frame).unwrap();
            page.read(&mut bytes).unwrap();
            assert_eq!(bytes, [0; abi::PAGE]);
        }
        done(&mut rig, &mut held);
    }
}

#[test]
fn the_threshold_limits_the_free_pages() {
    for (threshold, left) in [(0, 6), (2, 4), (6, 0), (9, 0)] {
        let mut rig = rig(4096, Some(threshold));
        let mut held = Vec::new();
        for _ in 0..3 {
            burst(&mut rig, 6, &mut held);
            done(&mut rig, &mut held);
        }
        let recycling = rig.front.recycling();
        assert_eq!(recycling.revoked, 3 * left, "threshold {threshold}");
        let entered = if left == 0 { 6 } else { 6 + 2 * left };
        assert_eq!(recycling.granted, entered, "threshold {threshold}");
        assert_eq!(rig.front.rx_pages().0, 8 + 6 - left as usize);
    }
}

/// Thesis, 5.3: a page with two buffers is revoked only when both are free.
#[test]
fn a_page_is_revoked_when_both_buffers_are_free() {
    let mut rig = rig(2048, Some(0));
    let mut held = Vec::new();
    burst(&mut rig, 2, &mut held);
    assert_eq!(rig.front.recycling().granted, 1, "two buffers, one page");
    let mut one = vec![held.remove(0)];
    done(&mut rig, &mut one);
    assert_eq!(
        rig.front.recycling().revoked,
        0,
        "a frame holds its other half"
    );
    done(&mut rig, &mut held);
    assert_eq!(rig.front.recycling().revoked, 1);
}

#[test]
fn a_page_in_use_is_not_recycled_before_its_release() {
    let mut rig = rig(4096, Some(0));
    let mut held = Vec::new();
    burst(&mut rig, 2, &mut held);
    let entries: Vec<_> = held
        .iter()
        .map(|frame| {
            let buffer = frame.pieces[0].buffer;
            let index = super::super::pool::rx_index(buffer).unwrap();
            let gref = rig.front.rx_pool.get(index).unwrap().gref;
            rig.table_span().u64(gref.index() as usize * 8).unwrap()
        })
        .collect();
    // The driver domain is copying into one of them.
    entries[1].fetch_or(
        u64::from(abi::classic::GrantEntry::WRITING),
        Ordering::Relaxed,
    );
    done(&mut rig, &mut held);
    assert_eq!(
        (
            rig.front.recycling().revoked,
            rig.front.recycling().failed_revocations
        ),
        (1, 1)
    );
    assert_eq!(rig.front.rx_pages().0, 9);
    entries[1].fetch_and(
        !u64::from(abi::classic::GrantEntry::WRITING),
        Ordering::Relaxed,
    );
    done(&mut rig, &mut held);
    assert_eq!(rig.front.recycling().revoked, 2);
    assert_eq!(rig.front.rx_pages().0, 8);
}

/// A monitor that temporarily rejects some pages, as the real one does with entries in quarantine
/// (N-12).
struct Refusing<'a> {
    table: &'a mut GrantTable,
    refused: BTreeSet<u32>,
}

impl Granter for Refusing<'_> {
    fn enter(
        &mut self,
        to: DomId,
        pages: &[GrantedPage],
        made: &mut Vec<Result<GrantRef, GrantError>>,
    ) {
        for page in pages {
            made.push(match self.refused.contains(&page.frame) {
                true => Err(GrantError::InUse),
                false => self.table.grant(to, page.frame, page.readonly),
            });
        }
    }

    fn revoke_pages(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>) {
        self.table.revoke_pages(grefs, left);
    }

    fn revoke_if_unused(&mut self, gref: GrantRef) -> bool {
        self.table.revoke_if_unused(gref)
    }

    fn end(&mut self, grefs: &mut Vec<GrantRef>) {
        Granter::end(self.table, grefs);
    }

    fn table(&self) -> Handle {
        Handle(0)
    }
}

#[test]
fn others_enter_in_place_of_a_page_that_is_refused() {
    let mut rig = rig(4096, Some(0));
    let source = TestMemory::new(1);
    let frame = || frame_at(&source, 0, &packet(100, 1), 100);
    assert_eq!(rig.deliver_to_guest(&[frame(), frame()]), 2);
    let mut held = Vec::new();
    rig.front.receive(64, &mut held).unwrap();
    let first = rig.layout.rx_spare().start;
    let mut granter = Refusing {
        table: &mut rig.table,
        refused: [first].into(),
    };
    rig.front.refill(&mut granter);
    let recycling = *rig.front.recycling();
    assert_eq!((recycling.granted, recycling.refused), (1, 1));
    rig.front.refill(&mut granter);
    assert_eq!(rig.front.recycling().granted, 2, "another one");
    rig.front.publish();
    assert_eq!(rig.back.posted(64), PAGES);
    assert!(!reachable(&rig).contains(&first));
}

#[derive(Clone, Debug)]
enum Op {
    /// The driver delivers this many frames of this length.
    Give(u8, u16),
    Receive(u8),
    Refill,
    /// The guest releases this many of its frames.
    Done(u8),
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..12_u8, 60..9000_u16).prop_map(|(n, len)| Op::Give(n, len)),
        4 => (1..16_u8).prop_map(Op::Receive),
        3 => Just(Op::Refill),
        3 => any::<u8>().prop_map(Op::Done),
        3 => Just(Op::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// At all times the driver domain can access exactly the pages in the pool. Every frame arrives
    /// intact, no page is lost, and free pages beyond the threshold are revoked.
    #[test]
    fn only_pool_pages_are_accessible(
        ops in prop::collection::vec(op(), 1..60),
        half in any::<bool>(),
        threshold in prop::option::of(0..10_u32),
    ) {
        let mut rig = rig(if half { 2048 } else { 4096 }, threshold);
        let entries = rig.table.available();
        let source = TestMemory::new(4);
        let (mut sent, mut held) = (std::collections::VecDeque::new(), Vec::<Frame>::new());
        let mut seed = 0;
        for op in ops {
            match op {
                Op::Give(n, len) => for _ in 0..n {
                    seed += 1;
                    let bytes = packet(usize::from(len), seed);
                    let frame = frame_at(&source, 0, &bytes, usize::from(len));
                    if rig.deliver_to_guest(&[frame]) == 1 {
                        sent.push_back(bytes);
                    }
                },
                Op::Receive(budget) => {
                    let before = held.len();
                    rig.front.receive(usize::from(budget), &mut held).unwrap();
                    for frame in &held[before..] {
                        assert_eq!(Some(frame.to_vec().unwrap()), sent.pop_front());
                    }
                }
                Op::Refill => rig.front.refill(&mut rig.table),
                Op::Done(n) => {
                    let n = usize::from(n).min(held.len());
                    rig.front.receive_done(&mut held.drain(..n).collect());
                }
                Op::Release => {
                    rig.front.release(&mut rig.table);
                    let free = rig.front.rx_pool.available();
                    if let Some(threshold) = threshold {
                        // The other half of a page may keep it in the pool.
                        prop_assert!(half || free <= threshold as usize);
                    }
                }
            }
            rig.front.publish();
            let reached = reachable(&rig).len();
            prop_assert_eq!(reached, rig.front.rx_pages().0);
            let recycling = rig.front.recycling();
            prop_assert_eq!(reached as u64, 8 + recycling.granted - recycling.revoked);
        }
        rig.front.receive_done(&mut held);
        prop_assert_eq!(rig.back.counters().to_guest_drops.get(crate::VifDrop::Grant), 0);
        prop_assert_eq!(rig.front.counters().to_guest_drops.total(), 0);
        rig.front.close(&mut rig.table).unwrap();
        prop_assert!(reachable(&rig).is_empty());
        let fixed = (rig.layout.frames() - PAGES - SPARE) as usize;
        prop_assert_eq!(rig.table.available(), entries + fixed + PAGES as usize);
    }
}
