//! From a ring to packets.

use super::*;

#[test]
fn emptyring() {
    over_each_format(|| {
        let mut hand = hand();
        assert!(hand.take().is_empty());
        assert!(!hand.rig.back.has_work());
        assert!(hand.answers().is_empty());
    });
}

#[test]
fn one_req() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[hand.part(1, 60, 0)]);
        assert!(hand.rig.back.has_work());
        assert_eq!(hand.take(), [bytes_at(1, 0, 60)]);
        assert_eq!(hand.answers(), [(101, rsp::OKAY)]);
        assert!(!hand.rig.back.has_work());
    });
}

#[test]
fn two_req() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[hand.part(1, 160, txf::MORE_DATA), hand.part(2, 60, 0)]);
        assert_eq!(
            hand.take(),
            [[bytes_at(1, 0, 100), bytes_at(2, 0, 60)].concat()]
        );
        assert_eq!(hand.answers(), [(101, rsp::OKAY), (102, rsp::OKAY)]);
    });
}

#[test]
fn three_req() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[
            hand.part(1, 3000, txf::MORE_DATA),
            TxRequest {
                offset: 4000,
                ..hand.part(2, 96, txf::MORE_DATA)
            },
            TxRequest {
                offset: 7,
                ..hand.part(3, 1000, 0)
            },
        ]);
        let want = [
            bytes_at(1, 0, 1904),
            bytes_at(2, 4000, 96),
            bytes_at(3, 7, 1000),
        ]
        .concat();
        assert_eq!(hand.take(), [want]);
        assert_eq!(hand.answers().len(), 3);
    });
}

#[test]
fn several_packets_of_a_batch_keep_their_order() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[
            hand.part(1, 60, 0),
            hand.part(2, 1100, txf::MORE_DATA),
            hand.part(3, 100, 0),
            hand.part(4, 61, 0),
        ]);
        let mut frames = Vec::new();
        assert_eq!(hand.rig.back.from_guest(2, &mut frames), Ok(2));
        assert_eq!(
            frames.iter().map(|frame| frame.token).collect::<Vec<_>>(),
            [0, 1]
        );
        assert!(
            hand.answers().is_empty(),
            "no response while the packet is in use"
        );
        hand.rig.back.from_guest_done();
        assert_eq!(hand.answers().len(), 3);
        assert_eq!(hand.take(), [bytes_at(4, 0, 61)]);
        assert_eq!(hand.rig.back.counters().from_guest, 3);
        assert_eq!(hand.rig.back.counters().from_guest_bytes, 60 + 1100 + 61);
    });
}

#[test]
fn extra() {
    over_each_format(|| {
        let mut hand = hand();
        let bytes = ipv4_tcp(3000, 5);
        let page = hand
            .rig
            .memory()
            .area()
            .page(hand.rig.layout.tx_small().start)
            .unwrap();
        page.write(&bytes).unwrap();
        let first = hand.part(0, bytes.len() as u16, txf::CSUM_BLANK | txf::EXTRA_INFO);
        let gso = Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        };
        hand.rig
            .raw_tx()
            .send(&[first.encode(), gso_slot(ExtraInfo::of(gso))]);
        let mut frames = Vec::new();
        assert_eq!(hand.rig.back.from_guest(64, &mut frames), Ok(1));
        assert_eq!(frames[0].to_vec().unwrap(), bytes);
        assert_eq!(
            frames[0].offload,
            Offload {
                checksum: Checksum::Blank {
                    start: 34,
                    offset: 16
                },
                gso: Some(gso)
            }
        );
        hand.rig.back.from_guest_done();
        assert_eq!(hand.answers(), [(100, rsp::OKAY), (0, rsp::NULL)]);
    });
}

/// An incomplete packet stays in the ring and does not keep the backend awake.
#[test]
fn partial() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[hand.part(1, 200, txf::MORE_DATA)]);
        assert!(hand.rig.back.has_work());
        assert!(hand.take().is_empty());
        assert!(!hand.rig.back.has_work());
        assert!(!hand.rig.back.prepare_sleep());
        assert_eq!(hand.rig.raw_tx().req_event(), 2);
        assert!(hand.answers().is_empty());
        hand.send(&[hand.part(2, 100, 0)]);
        assert!(hand.rig.back.has_work());
        assert_eq!(
            hand.take(),
            [[bytes_at(1, 0, 100), bytes_at(2, 0, 100)].concat()]
        );
        assert_eq!(hand.answers().len(), 2);
    });
}

#[test]
fn a_partial_segment_after_a_complete_one() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[hand.part(1, 60, 0), hand.part(2, 100, txf::EXTRA_INFO)]);
        assert_eq!(hand.take(), [bytes_at(1, 0, 60)]);
        assert_eq!(hand.answers(), [(101, rsp::OKAY)]);
        assert!(!hand.rig.back.has_work());
        let gso = ExtraInfo {
            kind: 77,
            ..ExtraInfo::default()
        };
        hand.rig.raw_tx().send(&[gso_slot(gso)]);
        assert!(hand.take().is_empty());
        assert_eq!(hand.answers(), [(102, rsp::ERROR), (0, rsp::NULL)]);
    });
}

#[test]
fn wraps() {
    over_each_format(|| {
        let mut hand = hand();
        for _ in 0..255 {
            hand.send(&[hand.part(0, 60, 0)]);
            assert_eq!(hand.take().len(), 1);
        }
        assert_eq!(hand.answers().len(), 255);
        hand.send(&[hand.part(1, 160, txf::MORE_DATA), hand.part(2, 60, 0)]);
        assert_eq!(
            hand.take(),
            [[bytes_at(1, 0, 100), bytes_at(2, 0, 60)].concat()]
        );
        assert_eq!(hand.answers(), [(101, rsp::OKAY), (102, rsp::OKAY)]);
    });
}
