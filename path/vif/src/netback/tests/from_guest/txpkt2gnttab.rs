//! The grants and bytes from which a packet is read.

use super::*;

fn accesses(hand: &mut FromGuestRig) -> Vec<(u32, u16, u16)> {
    let mut frames = Vec::new();
    hand.rig.back.from_guest(64, &mut frames).unwrap();
    hand.rig
        .back
        .chains
        .accesses
        .iter()
        .map(|a| (a.gref.0, a.offset, a.len))
        .collect()
}

#[test]
fn empty() {
    over_each_format(|| {
        assert!(accesses(&mut hand()).is_empty());
    });
}

#[test]
fn short() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[TxRequest {
            offset: 40,
            ..hand.part(1, 60, 0)
        }]);
        assert_eq!(accesses(&mut hand), [(hand.gref(1), 40, 60)]);
    });
}

#[test]
fn two_req() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[
            TxRequest {
                offset: 40,
                ..hand.part(1, 160, txf::MORE_DATA)
            },
            TxRequest {
                offset: 50,
                ..hand.part(2, 60, 0)
            },
        ]);
        assert_eq!(
            accesses(&mut hand),
            [(hand.gref(1), 40, 100), (hand.gref(2), 50, 60)]
        );
    });
}

/// A bad packet between two good ones causes no access.
#[test]
fn an_invalid_packet_between_valid_ones() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[
            hand.part(1, 60, 0),
            hand.part(2, 13, 0),
            hand.part(3, 61, 0),
        ]);
        assert_eq!(
            accesses(&mut hand),
            [(hand.gref(1), 0, 60), (hand.gref(3), 0, 61)]
        );
    });
}

/// However many slots packets have, a batch has a bounded number of accesses and loses no packet.
#[test]
fn many() {
    over_each_format(|| {
        let mut hand = hand();
        let parts = 40;
        for _ in 0..6 {
            let requests: Vec<_> = (0..parts)
                .map(|n| {
                    let more = if n + 1 < parts { txf::MORE_DATA } else { 0 };
                    hand.part(n % 32, if n == 0 { 400 } else { 10 }, more)
                })
                .collect();
            hand.send(&requests);
        }
        let mut frames = Vec::new();
        let first = hand.rig.back.from_guest(64, &mut frames).unwrap();
        assert_eq!(first, 5);
        assert_eq!(hand.rig.back.chains.accesses.len(), 200);
        assert!(hand.rig.back.has_work());
        assert_eq!(hand.take().len(), 1);
    });
}
