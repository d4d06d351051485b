//! The case tables of FreeBSD's netback, by its names, and what is ours to add.

mod from_guest;
mod groups;
mod lent;
mod posted;
mod segments;
mod small_frames;
mod to_guest;

use super::Netback;
use crate::netif::Terms;
use crate::ring::BadPages;
use crate::testing::{FakeGrants, Memory, Rig, frame_at, over_each_format, packet, sizes};
use nic::Offload;
use shmem::Span;

#[test]
fn the_bell_is_rung_for_a_sleeper_only() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        // Both ends are awake, but a new ring asks to be told once.
        assert_eq!(rig.bells(), (false, false));
        assert!(rig.send(&packet(60, 1), Offload::default()));
        assert_eq!(rig.bells(), (false, false));
        // Of the buffers that were posted at the start, and of the packet; nobody slept.
        assert_eq!(rig.front.counters().notifications, 2);
        assert!(rig.back.prepare_sleep(), "there is work");
        assert_eq!(rig.take(64).len(), 1);
        assert!(!rig.back.prepare_sleep());
        assert!(rig.send(&packet(60, 1), Offload::default()));
        assert_eq!(rig.bells(), (true, false));
        assert_eq!(rig.bells(), (false, false), "once");
        rig.back.disarm();
        assert_eq!(rig.take(64).len(), 1);

        assert!(!rig.front.prepare_sleep(false));
        let source = Memory::new(1);
        assert_eq!(rig.give(&[frame_at(&source, 0, &packet(60, 1), 60)]), 1);
        assert_eq!(rig.bells(), (false, true));
        assert!(rig.front.prepare_sleep(false), "there is work");
        assert_eq!(rig.receive(64).len(), 1);
    });
}

#[test]
fn the_guest_is_asked_for_buffers_only_if_they_are_wanted() {
    over_each_format(|| {
        let mut rig = Rig::new(crate::netfront::Sizes {
            rx_pages: 1,
            ..sizes()
        });
        let source = Memory::new(1);
        let frames: Vec<_> = (0..2)
            .map(|_| frame_at(&source, 0, &packet(60, 1), 60))
            .collect();
        assert_eq!(rig.give(&frames), 2);
        let _ = rig.bells();
        rig.back.arm(true);
        assert_eq!(rig.receive(64).len(), 2);
        assert_eq!(rig.bells(), (true, false));
    });
}

#[test]
fn a_guest_is_short_of_buffers_once_half_of_them_are_used_without_a_word() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let _ = rig.bells();
        let posted = rig.back.posted(u32::MAX);
        let source = Memory::new(1);
        let half: Vec<_> = (0..posted.div_ceil(2))
            .map(|_| frame_at(&source, 0, &packet(60, 1), 60))
            .collect();
        let pick: Vec<u32> = (0..half.len() as u32).collect();
        assert!(!rig.back.is_short(), "nothing is used");
        rig.back.to_guest(&half, &pick[1..]);
        assert!(!rig.back.is_short(), "as many are left");
        rig.back.to_guest(&half, &pick[..2]);
        assert!(rig.back.is_short());
        rig.back.publish();
        assert!(rig.back.is_short(), "it sees them, but was not told");
        let _ = rig.back.notify();
        assert!(!rig.back.is_short());
    });
}

#[test]
fn a_netback_wants_the_pages_that_were_agreed_on() {
    over_each_format(|| {
        let rig = Rig::new(sizes());
        let memory = Memory::new(4);
        let page = |n| memory.area().page(n).unwrap();
        let grants = FakeGrants::new(rig.table_span(), memory.area(), abi::DomId(7));
        let terms = Terms {
            tx_order: 1,
            ..*rig.back.terms()
        };
        let made = |tx: &[Span], rx: &[Span], event: Span| {
            Netback::new(terms, tx, rx, event, grants).map(|_| ())
        };
        assert_eq!(made(&[page(0), page(1)], &[page(2)], page(3)), Ok(()));
        assert_eq!(made(&[page(0)], &[page(2)], page(3)), Err(BadPages));
        assert_eq!(made(&[page(0), page(1)], &[], page(3)), Err(BadPages));
        assert_eq!(
            made(&[page(0), page(1)], &[page(2)], Span::EMPTY),
            Err(BadPages)
        );
    });
}
