//! Guests with multicast control (NETIF-28).

use crate::VifDrop;
use crate::netback::{GROUPS_MAX, MulticastFilter};
use crate::netif::{TxResponse, extra, rsp, txf};
use crate::testing::{Rig, TestMemory, frame_at, over_each_format, packet, sizes};
use shmem::{Area, Span};

const GROUP: [u8; 6] = [1, 0, 0x5e, 4, 5, 6];
const OTHER: [u8; 6] = [0x33, 0x33, 0, 0, 0, 7];

/// Returns a back end whose connection has just begun, its filter, and the filter's memory.
fn choosing() -> (Rig, MulticastFilter, Span) {
    let mut rig = Rig::new(sizes());
    let memory = Area::anonymous(abi::PAGE).unwrap().span();
    let groups = MulticastFilter::in_memory(memory);
    groups.begin();
    rig.back.offer_multicast_filter(groups);
    (rig, groups, memory)
}

/// Returns a dummy request without a page, with this id.
fn dummy(id: u32, flags: u16) -> [u32; 3] {
    [0, u32::from(txf::EXTRA_INFO | flags) << 16, id]
}

fn info(kind: u8, flags: u8, group: [u8; 6]) -> [u32; 3] {
    let [a, b, c, d, e, f] = group;
    [
        u32::from_le_bytes([kind, flags, a, b]),
        u32::from_le_bytes([c, d, e, f]),
        0,
    ]
}

/// Sends these slots, which yield no packet, and returns the responses.
fn answers(rig: &mut Rig, slots: &[[u32; 3]]) -> Vec<i16> {
    let raw = rig.raw_tx();
    let from = raw.rsp_prod();
    raw.send(slots);
    assert!(rig.take_from_guest(64).is_empty());
    let answers = raw.responses(from).into_iter().map(TxResponse::decode);
    answers.map(|answer| answer.status).collect()
}

/// Returns whether the guest receives a frame to this address.
fn receives(rig: &mut Rig, to: [u8; 6]) -> bool {
    let source = TestMemory::new(1);
    let mut bytes = packet(60, 1);
    bytes[..6].copy_from_slice(&to);
    let frames = [frame_at(&source, 0, &bytes, 60)];
    rig.back
        .match_multicast(&frames, &[0])
        .is_none_or(|matching| matching == [0])
}

#[test]
fn netif_28_guests_receive_their_multicast_groups() {
    over_each_format(|| {
        let (mut rig, groups, _) = choosing();
        let join = [dummy(7, 0), info(extra::TYPE_MCAST_ADD, 0, GROUP)];
        assert!(
            receives(&mut rig, OTHER),
            "the guest has not enabled the filter"
        );
        assert_eq!(answers(&mut rig, &join), [rsp::OKAY, rsp::NULL]);
        assert!(receives(&mut rig, OTHER));
        groups.apply(true);
        assert!(receives(&mut rig, GROUP) && !receives(&mut rig, OTHER));
        assert!(receives(&mut rig, [0xff; 6]) && receives(&mut rig, [2, 0, 0, 0, 0, 9]));
        // Several changes together, in order.
        let changes = [
            dummy(8, 0),
            info(extra::TYPE_MCAST_DEL, extra::FLAG_MORE, GROUP),
            info(extra::TYPE_MCAST_ADD, 0, OTHER),
        ];
        assert_eq!(
            answers(&mut rig, &changes),
            [rsp::OKAY, rsp::NULL, rsp::NULL]
        );
        assert!(!receives(&mut rig, GROUP) && receives(&mut rig, OTHER));
        let counters = rig.back.counters();
        assert_eq!(counters.to_guest_drops.get(VifDrop::NotWanted), 2);
        assert_eq!(counters.from_guest_drops.total(), 0);
        assert_eq!(counters.from_guest, 0, "nothing was sent");
    });
}

#[test]
fn netif_28_invalid_change_is_rejected() {
    over_each_format(|| {
        let join = info(extra::TYPE_MCAST_ADD, 0, GROUP);
        let and_more = info(extra::TYPE_MCAST_ADD, extra::FLAG_MORE, GROUP);
        let part = [0, 0, 60 << 16 | 9];
        let (error, null) = (rsp::ERROR, rsp::NULL);
        // A GSO packet, an extra info that claims a successor, and one of an unknown type.
        let gso = [u32::from(extra::TYPE_GSO) | 1448 << 16, 1, 0];
        for (slots, wanted) in [
            (vec![dummy(1, 0), and_more, gso], vec![error, null, null]),
            (
                vec![dummy(1, txf::MORE_DATA), join, part],
                vec![error, null, error],
            ),
            (
                vec![dummy(1, 0), and_more, [9, 0, 0]],
                vec![error, null, null],
            ),
        ] {
            let (mut rig, groups, _) = choosing();
            groups.apply(true);
            assert_eq!(answers(&mut rig, &slots), wanted);
            let drops = rig.back.counters().from_guest_drops;
            assert_eq!((drops.get(VifDrop::BadExtra), drops.total()), (1, 1));
            assert!(!receives(&mut rig, GROUP));
        }
        // A guest that was not offered multicast control.
        let mut rig = Rig::new(sizes());
        assert_eq!(answers(&mut rig, &[dummy(1, 0), join]), [error, null]);
        assert!(receives(&mut rig, OTHER));
    });
}

#[test]
fn netif_28_filter_is_bounded() {
    over_each_format(|| {
        let (mut rig, _, _) = choosing();
        let join = |n: usize| {
            let group = [1, 0, 0x5e, 0, 1, n as u8];
            [dummy(1, 0), info(extra::TYPE_MCAST_ADD, 0, group)]
        };
        for n in 0..GROUPS_MAX {
            assert_eq!(answers(&mut rig, &join(n)), [rsp::OKAY, rsp::NULL]);
        }
        let beyond = answers(&mut rig, &join(GROUPS_MAX));
        assert_eq!(beyond, [rsp::ERROR, rsp::NULL]);
        let drops = rig.back.counters().from_guest_drops;
        assert_eq!(drops.get(VifDrop::TooManyGroups), 1);
    });
}

#[test]
fn netif_28_a_request_waits_for_its_info() {
    over_each_format(|| {
        let (mut rig, groups, _) = choosing();
        groups.apply(true);
        assert!(answers(&mut rig, &[dummy(1, 0)]).is_empty());
        assert!(!receives(&mut rig, GROUP));
        let join = info(extra::TYPE_MCAST_ADD, 0, GROUP);
        assert_eq!(answers(&mut rig, &[join]), [rsp::OKAY, rsp::NULL]);
        assert!(receives(&mut rig, GROUP));
    });
}

#[test]
fn netif_28_restart_keeps_list_or_passes_all() {
    over_each_format(|| {
        let (mut rig, _, memory) = choosing();
        let join = [dummy(1, 0), info(extra::TYPE_MCAST_ADD, 0, GROUP)];
        assert_eq!(answers(&mut rig, &join), [rsp::OKAY, rsp::NULL]);
        let mut next = Rig::new(sizes());
        next.back
            .offer_multicast_filter(MulticastFilter::in_memory(memory));
        MulticastFilter::in_memory(memory).apply(true);
        assert!(receives(&mut next, GROUP) && !receives(&mut next, OTHER));
        // The memory is no longer accessible, so later changes cannot be recorded.
        memory.fill(0).unwrap();
        MulticastFilter::in_memory(memory).apply(true);
        assert_eq!(answers(&mut next, &join), [rsp::OKAY, rsp::NULL]);
        assert!(receives(&mut next, GROUP) && receives(&mut next, OTHER));
    });
}
