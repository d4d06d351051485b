//! The case tables of FreeBSD's netback, under its names, with additions.

mod device_buffers;
mod from_guest;
mod kept_frames;
mod multicast_filter;
mod segments;
mod small_frames;
mod to_guest;
mod zero_copy;

use super::Netback;
use crate::netif::Negotiated;
use crate::ring::BadPages;
use crate::testing::{FakeGrants, Rig, TestMemory, frame_at, over_each_format, packet, sizes};
use nic::Offload;
use shmem::Span;

#[test]
fn the_bell_is_rung_for_a_sleeper_only() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        // Both ends are awake, but a new ring requests one notification.
        assert_eq!(rig.pending_doorbells(), (false, false));
        assert!(rig.send(&packet(60, 1), Offload::default()));
        assert_eq!(rig.pending_doorbells(), (false, false));
        // One notification is for the buffers posted at the start, one for the packet; neither end
        // slept.
        assert_eq!(rig.front.counters().notifications, 2);
        assert!(rig.back.prepare_sleep(), "there is work");
        assert_eq!(rig.take_from_guest(64).len(), 1);
        assert!(!rig.back.prepare_sleep());
        assert!(rig.send(&packet(60, 1), Offload::default()));
        assert_eq!(rig.pending_doorbells(), (true, false));
        assert_eq!(rig.pending_doorbells(), (false, false), "once");
        rig.back.disarm();
        assert_eq!(rig.take_from_guest(64).len(), 1);

        assert!(!rig.front.prepare_sleep(false));
        let source = TestMemory::new(1);
        assert_eq!(
            rig.deliver_to_guest(&[frame_at(&source, 0, &packet(60, 1), 60)]),
            1
        );
        assert_eq!(rig.pending_doorbells(), (false, true));
        assert!(rig.front.prepare_sleep(false), "there is work");
        assert_eq!(rig.receive(64).len(), 1);
    });
}

#[test]
fn buffers_are_requested_only_if_wanted() {
    over_each_format(|| {
        let mut rig = Rig::new(crate::netfront::Sizes {
            rx_pages: 1,
            ..sizes()
        });
        let source = TestMemory::new(1);
        let frames: Vec<_> = (0..2)
            .map(|_| frame_at(&source, 0, &packet(60, 1), 60))
            .collect();
        assert_eq!(rig.deliver_to_guest(&frames), 2);
        let _ = rig.pending_doorbells();
        rig.back.arm(true);
        assert_eq!(rig.receive(64).len(), 2);
        assert_eq!(rig.pending_doorbells(), (true, false));
    });
}

#[test]
fn is_short_once_half_the_buffers_are_unnotified() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let _ = rig.pending_doorbells();
        let posted = rig.back.posted(u32::MAX);
        let source = TestMemory::new(1);
        let half: Vec<_> = (0..posted.div_ceil(2))
            .map(|_| frame_at(&source, 0, &packet(60, 1), 60))
            .collect();
        let pick: Vec<u32> = (0..half.len() as u32).collect();
        assert!(!rig.back.is_short_of_buffers(), "no buffer is used");
        rig.back.to_guest(&half, &pick[1..]);
        assert!(
            !rig.back.is_short_of_buffers(),
            "as many are posted as used"
        );
        rig.back.to_guest(&half, &pick[..2]);
        assert!(rig.back.is_short_of_buffers());
        rig.back.publish();
        assert!(
            rig.back.is_short_of_buffers(),
            "the guest was not notified of the used buffers"
        );
        let _ = rig.back.notify();
        assert!(!rig.back.is_short_of_buffers());
    });
}

#[test]
fn a_netback_requires_the_negotiated_pages() {
    over_each_format(|| {
        let rig = Rig::new(sizes());
        let memory = TestMemory::new(4);
        let page = |n| memory.area().page(n).unwrap();
        let grants = FakeGrants::new(rig.table_span(), memory.area(), abi::DomId(7));
        let negotiated = Negotiated {
            tx_order: 1,
            ..*rig.back.negotiated()
        };
        let made = |tx: &[Span], rx: &[Span], event: Span| {
            Netback::new(negotiated, tx, rx, event, grants).map(|_| ())
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
