//! Received frames that outlive their batch.

use super::*;
use crate::netback::{DeliveryReport, Returned};
use crate::netif::Features;
use nic::{BufferId, Frame, Piece};

const FRAME: usize = 1519;

fn rig() -> Rig {
    let any_order = Features::ALL.with(Features::RX_ANY_ORDER);
    Rig::with(sizes(), any_order, any_order)
}

/// Receives packets of 100 bytes into the guest's posted buffers, in a batch.
fn received(rig: &mut Rig, count: u64) -> Vec<Frame> {
    rig.back.expect_merged(true);
    let mut one = |n| {
        let buffer = rig.back.post(FRAME).unwrap();
        let span = buffer.span.take(100);
        span.write(&packet(100, n)).unwrap();
        let buffer = buffer.id;
        Frame::new(Piece { span, buffer }, 100).unwrap()
    };
    (0..count).map(&mut one).collect()
}

fn deliver(rig: &mut Rig, frame: &Frame) {
    let mut report = DeliveryReport::default();
    rig.back.deliver(frame, &mut report);
    assert_eq!((report.delivered, report.drops.total()), (1, 0));
    rig.back.publish();
}

/// Kept frames are delivered in any order, and later batches pass meanwhile.
#[test]
fn kept_frames_are_delivered_in_any_order() {
    over_each_format(|| {
        let mut rig = rig();
        let mut kept = received(&mut rig, 4);
        rig.back.refuse(kept[1].pieces[0].buffer);
        kept.remove(1);
        rig.back.keep(&mut kept);
        let report = rig.back.post_end();
        assert_eq!((report.delivered, report.drops.total()), (0, 0));
        assert_eq!((rig.back.outstanding(), rig.back.grants_mut().held), (3, 3));
        let mut later = received(&mut rig, 2);
        rig.back.keep(&mut later);
        rig.back.post_end();
        deliver(&mut rig, &later[1]);
        deliver(&mut rig, &kept[2]);
        rig.back
            .return_buffer(kept[0].pieces[0].buffer, Returned::Unused);
        deliver(&mut rig, &kept[1]);
        assert_eq!(rig.receive(64), [1, 3, 2].map(|n| packet(100, n)));
        assert_eq!((rig.back.outstanding(), rig.back.grants_mut().held), (1, 1));
        assert_eq!(
            rig.back.into_grants().held,
            0,
            "the last one ends with the link"
        );
    });
}

#[test]
fn guest_that_requires_order_keeps_no_frames() {
    let mut rig = Rig::new(sizes());
    assert!(!rig.back.can_keep());
    rig.back.expect_merged(true);
    assert!(
        rig.back.skips_requests(),
        "its segment sizes need skipped requests"
    );
    let mut other = self::rig();
    assert!(other.back.can_keep());
    other.back.grants_mut().can_hold = false;
    assert!(!other.back.can_keep());
}

/// No other frame uses reserved requests.
#[test]
fn reserved_requests_are_not_posted() {
    let mut rig = rig();
    let all = rig.back.posted(u32::MAX);
    assert_eq!(rig.back.reserve(5), 5);
    assert_eq!(
        (rig.back.posted(u32::MAX), rig.back.posted(3)),
        (all - 5, 3)
    );
    let source = TestMemory::new(1);
    let frame = frame_at(&source, 0, &packet(60, 1), 60);
    let copies = vec![frame; all as usize];
    assert_eq!(rig.deliver_to_guest(&copies), all - 5);
    assert_eq!((rig.back.posted(1), rig.back.reservable(u32::MAX)), (0, 5));
    assert_eq!(rig.back.reserve(u32::MAX), 5, "as many as there are");
    assert_eq!(rig.back.reserve(0), 0);
    assert_eq!(rig.back.posted(u32::MAX), 5);
}

/// A frame outside the buffers of the batch is dropped, and holds no page.
#[test]
fn frame_of_no_batch_is_not_kept() {
    let mut rig = rig();
    let mut frames = received(&mut rig, 2);
    frames[0].pieces[0].buffer = BufferId(200);
    rig.back.keep(&mut frames);
    assert_eq!((frames.len(), rig.back.outstanding()), (1, 1));
    assert_eq!(rig.back.grants_mut().held, 1);
    rig.back.post_end();
}
