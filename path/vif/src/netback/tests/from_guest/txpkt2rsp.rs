//! Responses to a packet.

use super::*;

#[test]
fn emptypkt() {
    over_each_format(|| {
        let mut hand = hand();
        hand.rig.back.from_guest_done();
        assert!(hand.answers().is_empty());
    });
}

#[test]
fn long() {
    over_each_format(|| {
        let mut hand = hand();
        let parts = MAX_SLOTS - 10;
        let mut requests = vec![hand.part(0, parts * 100, txf::MORE_DATA)];
        for n in 1..parts {
            let more = if n + 1 < parts { txf::MORE_DATA } else { 0 };
            requests.push(hand.part(u32::from(n), 100, more));
        }
        hand.send(&requests);
        assert_eq!(hand.take()[0].len(), usize::from(parts) * 100);
        let want: Vec<_> = (0..parts).map(|n| (100 + n, rsp::OKAY)).collect();
        assert_eq!(hand.answers(), want);
    });
}

/// Malformed packets get errors, and the packet after each one passes.
#[test]
fn invalid() {
    over_each_format(|| {
        type Case = (VifDrop, fn(&FromGuestRig) -> Vec<TxRequest>);
        let cases: &[Case] = &[
            (VifDrop::ZeroSize, |h| vec![h.part(1, 0, 0)]),
            (VifDrop::TooShort, |h| vec![h.part(1, 13, 0)]),
            (VifDrop::CrossesPage, |h| {
                vec![TxRequest {
                    offset: 4037,
                    ..h.part(1, 60, 0)
                }]
            }),
            (VifDrop::CrossesPage, |h| {
                vec![TxRequest {
                    offset: u16::MAX,
                    ..h.part(1, 60, 0)
                }]
            }),
            (VifDrop::CrossesPage, |h| vec![h.part(1, 4097, 0)]),
            (VifDrop::CrossesPage, |h| vec![h.part(1, u16::MAX, 0)]),
            (VifDrop::ZeroSize, |h| {
                vec![h.part(1, 100, txf::MORE_DATA), h.part(2, 0, 0)]
            }),
            (VifDrop::CrossesPage, |h| {
                vec![
                    h.part(1, 5000, txf::MORE_DATA),
                    TxRequest {
                        offset: 1,
                        ..h.part(2, 4096, 0)
                    },
                ]
            }),
            (VifDrop::SizeMismatch, |h| {
                vec![h.part(1, 100, txf::MORE_DATA), h.part(2, 100, 0)]
            }),
            (VifDrop::SizeMismatch, |h| {
                vec![h.part(1, 100, txf::MORE_DATA), h.part(2, 3000, 0)]
            }),
            (VifDrop::TooManySlots, |h| {
                (0..41)
                    .map(|n| {
                        let more = if n < 40 { txf::MORE_DATA } else { 0 };
                        h.part(n % 32, if n == 0 { 4100 } else { 1 }, more)
                    })
                    .collect()
            }),
            (VifDrop::BadOffload, |h| {
                vec![h.part(1, 60, txf::CSUM_BLANK)]
            }),
        ];
        for (n, (reason, requests)) in cases.iter().enumerate() {
            let mut hand = hand();
            let requests = requests(&hand);
            hand.send(&requests);
            hand.send(&[hand.part(9, 60, 0)]);
            assert_eq!(hand.take(), [bytes_at(9, 0, 60)], "case {n}");
            assert_eq!(hand.drops(*reason), 1, "case {n}");
            assert_eq!(
                hand.rig.back.counters().from_guest_drops.total(),
                1,
                "case {n}"
            );
            let mut want: Vec<_> = requests.iter().map(|r| (r.id, rsp::ERROR)).collect();
            want.push((109, rsp::OKAY));
            assert_eq!(hand.answers(), want, "case {n}");
        }
    });
}

#[test]
fn invalid_extra() {
    over_each_format(|| {
        let gso = ExtraInfo::of(Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        });
        let more = ExtraInfo {
            flags: extra::FLAG_MORE,
            ..gso
        };
        let cases: &[(VifDrop, u16, &[ExtraInfo])] = &[
            (
                VifDrop::BadExtra,
                txf::CSUM_BLANK,
                &[ExtraInfo { kind: 0, ..gso }],
            ),
            (
                VifDrop::BadExtra,
                txf::CSUM_BLANK,
                &[ExtraInfo { kind: 2, ..gso }],
            ),
            (
                VifDrop::BadExtra,
                txf::CSUM_BLANK,
                &[ExtraInfo {
                    gso: GsoInfo { size: 0, ..gso.gso },
                    ..gso
                }],
            ),
            (
                VifDrop::BadExtra,
                txf::CSUM_BLANK,
                &[ExtraInfo {
                    gso: GsoInfo { kind: 9, ..gso.gso },
                    ..gso
                }],
            ),
            (VifDrop::BadExtra, txf::CSUM_BLANK, &[more, gso]),
            (VifDrop::BadOffload, 0, &[gso]),
            // The page holds no TCP packet, which the netback detects when it parses the header.
            (VifDrop::BadOffload, txf::CSUM_BLANK, &[gso]),
        ];
        for (n, (reason, flags, infos)) in cases.iter().enumerate() {
            let mut hand = hand();
            let first = hand.part(1, 100, flags | txf::EXTRA_INFO | txf::MORE_DATA);
            let mut words = vec![first.encode()];
            words.extend(infos.iter().map(|info| gso_slot(*info)));
            words.push(hand.part(2, 40, 0).encode());
            hand.rig.raw_tx().send(&words);
            assert!(hand.take().is_empty(), "case {n}");
            assert_eq!(hand.drops(*reason), 1, "case {n}");
            let mut want = vec![(101, rsp::ERROR)];
            want.extend(infos.iter().map(|_| (0, rsp::NULL)));
            want.push((102, rsp::ERROR));
            assert_eq!(hand.answers(), want, "case {n}");
        }
    });
}

/// The grant is invalid: unknown, another domain's, or revoked.
#[test]
fn error() {
    over_each_format(|| {
        let mut hand = hand();
        let entry = hand.gref(3) as usize * 8;
        hand.rig.table_span().store_u64(entry, 0).unwrap();
        hand.send(&[
            TxRequest {
                gref: 0,
                ..hand.part(1, 60, 0)
            },
            TxRequest {
                gref: u32::MAX,
                ..hand.part(2, 60, 0)
            },
            hand.part(3, 60, 0),
            hand.part(4, 160, txf::MORE_DATA),
            TxRequest {
                gref: 1 << 19,
                ..hand.part(5, 60, 0)
            },
            hand.part(6, 60, 0),
        ]);
        assert_eq!(hand.take(), [bytes_at(6, 0, 60)]);
        assert_eq!(hand.drops(VifDrop::Grant), 4);
        let want = (101..=105)
            .map(|id| (id, rsp::ERROR))
            .chain([(106, rsp::OKAY)]);
        assert_eq!(hand.answers(), want.collect::<Vec<_>>());
    });
}

/// All grants of a batch fail: no access stays open, and the responses are published.
#[test]
fn a_failed_batch_is_answered() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[TxRequest {
            gref: 0,
            ..hand.part(1, 60, 0)
        }]);
        let mut frames = Vec::new();
        assert_eq!(hand.rig.back.from_guest(64, &mut frames), Ok(0));
        assert_eq!(hand.answers(), [(101, rsp::ERROR)]);
        assert!(!hand.rig.back.grants_mut().reading);
    });
}

#[test]
fn offload_that_was_not_negotiated() {
    over_each_format(|| {
        let bytes = ipv4_tcp(100, 5);
        let gso = gso_slot(ExtraInfo::of(Gso {
            kind: GsoKind::Tcp4,
            size: 60,
        }));
        for (features, plain, whole) in [
            (Features::ALL, 1, 1),
            (Features::CHECKSUM, 1, 0),
            (Features::PLAIN, 0, 0),
            (Features::ALL.without(Features::GSO_TCPV4), 1, 0),
            (Features::ALL.without(Features::SG), 1, 0),
        ] {
            let mut hand = hand_with(Features::ALL, features);
            let page = hand
                .rig
                .memory()
                .area()
                .page(hand.rig.layout.tx_small().start)
                .unwrap();
            page.write(&bytes).unwrap();
            let first = hand.part(0, bytes.len() as u16, txf::CSUM_BLANK);
            hand.send(&[first]);
            assert_eq!(hand.take().len(), plain, "{features:?}");
            let first = TxRequest {
                flags: txf::CSUM_BLANK | txf::EXTRA_INFO,
                ..first
            };
            hand.rig.raw_tx().send(&[first.encode(), gso]);
            assert_eq!(hand.take().len(), whole, "{features:?}");
            assert_eq!(
                hand.drops(VifDrop::OffloadNotNegotiated),
                2 - plain as u64 - whole as u64
            );
        }
        // Several slots without scatter-gather.
        let mut hand = hand_with(Features::ALL, Features::ALL.without(Features::SG));
        hand.send(&[hand.part(1, 160, txf::MORE_DATA), hand.part(2, 60, 0)]);
        assert!(hand.take().is_empty());
        assert_eq!(hand.drops(VifDrop::TooManySlots), 1);
    });
}

/// Otherwise a kernel behind the driver domain would cut one packet into 65 000 segments.
#[test]
fn segments_too_small_for_their_packet_are_refused() {
    over_each_format(|| {
        for (size, taken) in [(1, 0), (2, 1), (1448, 1), (65_535, 1)] {
            let mut hand = hand_with(Features::ALL, Features::ALL);
            let parts = 2100usize;
            let page = hand
                .rig
                .memory()
                .area()
                .page(hand.rig.layout.tx_small().start)
                .unwrap();
            let bytes = ipv4_tcp(parts, 5);
            page.write(&bytes).unwrap();
            let gso = gso_slot(ExtraInfo::of(Gso {
                kind: GsoKind::Tcp4,
                size,
            }));
            let flags = txf::CSUM_BLANK | txf::EXTRA_INFO;
            let first = hand.part(0, bytes.len() as u16, flags);
            hand.rig.raw_tx().send(&[first.encode(), gso]);
            assert_eq!(hand.take().len(), taken, "{size}");
            assert_eq!(hand.drops(VifDrop::BadOffload), 1 - taken as u64, "{size}");
        }
    });
}

/// The whole checksum field must lie within the packet.
#[test]
fn offload_of_a_packet_that_ends_before_its_checksum() {
    over_each_format(|| {
        let bytes = ipv4_tcp(100, 5);
        for (len, taken) in [(51, 0), (52, 1)] {
            let mut hand = hand();
            let page = hand.rig.layout.tx_small().start;
            let page = hand.rig.memory().area().page(page).unwrap();
            page.write(&bytes).unwrap();
            hand.send(&[hand.part(0, len, txf::CSUM_BLANK)]);
            assert_eq!(hand.take().len(), taken, "{len}");
            assert_eq!(hand.drops(VifDrop::BadOffload), 1 - taken as u64);
        }
    });
}

#[test]
fn validated_checksums_are_passed_on() {
    over_each_format(|| {
        let mut hand = hand();
        hand.send(&[hand.part(1, 60, txf::DATA_VALIDATED)]);
        let mut frames = Vec::new();
        assert_eq!(hand.rig.back.from_guest(64, &mut frames), Ok(1));
        assert_eq!(frames[0].offload.checksum, Checksum::Valid);
    });
}
