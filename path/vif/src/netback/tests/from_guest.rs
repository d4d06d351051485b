//! Packets from the guest: `ring2pkt`, `txpkt2rsp`, `txpkt2gnttab`.

use crate::Drop;
use crate::netif::{
    ExtraInfo, Features, GsoInfo, MAX_SLOTS, TxRequest, TxResponse, extra, rsp, txf,
};
use crate::testing::{Rig, ipv4_tcp, over_each_format, packet, sizes};
use nic::{Checksum, Gso, GsoKind, Offload};

/// A rig whose guest's end is written by hand. Transmit page `n` of the guest's holds pattern
/// `n`, from its first byte to its last.
struct Hand {
    rig: Rig,
    tx_from: u32,
}

fn hand() -> Hand {
    hand_with(Features::ALL, Features::ALL)
}

fn hand_with(front: Features, back: Features) -> Hand {
    let rig = Rig::with(sizes(), front, back);
    for n in 0..rig.layout.sizes().tx_small_pages {
        let page = rig
            .memory()
            .area()
            .page(rig.layout.tx_small().start + n)
            .unwrap();
        page.write(&packet(abi::PAGE, u64::from(n))).unwrap();
    }
    Hand { rig, tx_from: 0 }
}

/// What transmit page `page` holds at `offset`.
fn bytes_at(page: u32, offset: usize, len: usize) -> Vec<u8> {
    packet(abi::PAGE, u64::from(page))[offset..offset + len].to_vec()
}

impl Hand {
    /// The grant of transmit page `n`.
    fn gref(&self, n: u32) -> u32 {
        self.rig.layout.tx_small().start + n + 1
    }

    /// A request for the first `size` bytes of transmit page `page`; id 100 + page.
    fn part(&self, page: u32, size: u16, flags: u16) -> TxRequest {
        TxRequest {
            gref: self.gref(page),
            offset: 0,
            flags,
            id: 100 + page as u16,
            size,
        }
    }

    fn send(&self, requests: &[TxRequest]) {
        let words: Vec<_> = requests.iter().map(|request| request.encode()).collect();
        self.rig.raw_tx().send(&words);
    }

    fn take(&mut self) -> Vec<Vec<u8>> {
        self.rig.take(64)
    }

    /// Responses since this was last asked: (id, status).
    fn answers(&mut self) -> Vec<(u16, i16)> {
        let raw = self.rig.raw_tx();
        let found = raw.responses(self.tx_from);
        self.tx_from = raw.rsp_prod();
        found
            .into_iter()
            .map(TxResponse::decode)
            .map(|response| (response.id, response.status))
            .collect()
    }

    fn drops(&self, reason: Drop) -> u64 {
        self.rig.back.counters().from_guest_drops.get(reason)
    }
}

fn gso_slot(info: ExtraInfo) -> [u32; 3] {
    let [one, two] = info.encode();
    [one, two, 0]
}

mod ring2pkt {
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
                "nothing is answered while it is used"
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

    /// A packet whose rest is not there yet is left alone, and is no reason to stay awake.
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
    fn partial_behind_a_whole_one() {
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
}

mod txpkt2rsp {
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

    /// Everything that makes a packet wrong in itself: answered with errors, and the packet after
    /// it passes.
    #[test]
    fn invalid() {
        over_each_format(|| {
            type Case = (Drop, fn(&Hand) -> Vec<TxRequest>);
            let cases: &[Case] = &[
                (Drop::ZeroSize, |h| vec![h.part(1, 0, 0)]),
                (Drop::TooShort, |h| vec![h.part(1, 13, 0)]),
                (Drop::CrossesPage, |h| {
                    vec![TxRequest {
                        offset: 4037,
                        ..h.part(1, 60, 0)
                    }]
                }),
                (Drop::CrossesPage, |h| {
                    vec![TxRequest {
                        offset: u16::MAX,
                        ..h.part(1, 60, 0)
                    }]
                }),
                (Drop::CrossesPage, |h| vec![h.part(1, 4097, 0)]),
                (Drop::CrossesPage, |h| vec![h.part(1, u16::MAX, 0)]),
                (Drop::ZeroSize, |h| {
                    vec![h.part(1, 100, txf::MORE_DATA), h.part(2, 0, 0)]
                }),
                (Drop::CrossesPage, |h| {
                    vec![
                        h.part(1, 5000, txf::MORE_DATA),
                        TxRequest {
                            offset: 1,
                            ..h.part(2, 4096, 0)
                        },
                    ]
                }),
                (Drop::SizeMismatch, |h| {
                    vec![h.part(1, 100, txf::MORE_DATA), h.part(2, 100, 0)]
                }),
                (Drop::SizeMismatch, |h| {
                    vec![h.part(1, 100, txf::MORE_DATA), h.part(2, 3000, 0)]
                }),
                (Drop::TooManySlots, |h| {
                    (0..41)
                        .map(|n| {
                            let more = if n < 40 { txf::MORE_DATA } else { 0 };
                            h.part(n % 32, if n == 0 { 4100 } else { 1 }, more)
                        })
                        .collect()
                }),
                (Drop::BadOffload, |h| vec![h.part(1, 60, txf::CSUM_BLANK)]),
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
            let cases: &[(Drop, u16, &[ExtraInfo])] = &[
                (
                    Drop::BadExtra,
                    txf::CSUM_BLANK,
                    &[ExtraInfo { kind: 0, ..gso }],
                ),
                (
                    Drop::BadExtra,
                    txf::CSUM_BLANK,
                    &[ExtraInfo { kind: 2, ..gso }],
                ),
                (
                    Drop::BadExtra,
                    txf::CSUM_BLANK,
                    &[ExtraInfo {
                        gso: GsoInfo { size: 0, ..gso.gso },
                        ..gso
                    }],
                ),
                (
                    Drop::BadExtra,
                    txf::CSUM_BLANK,
                    &[ExtraInfo {
                        gso: GsoInfo { kind: 9, ..gso.gso },
                        ..gso
                    }],
                ),
                (Drop::BadExtra, txf::CSUM_BLANK, &[more, gso]),
                (Drop::BadOffload, 0, &[gso]),
                // The page holds no TCP: found when the packet is looked at.
                (Drop::BadOffload, txf::CSUM_BLANK, &[gso]),
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

    /// The grant is the error: an unknown one, another domain's, one that was ended.
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
            assert_eq!(hand.drops(Drop::Grant), 4);
            let want = (101..=105)
                .map(|id| (id, rsp::ERROR))
                .chain([(106, rsp::OKAY)]);
            assert_eq!(hand.answers(), want.collect::<Vec<_>>());
        });
    }

    /// Only grants that fail: nothing is held, the answers are out.
    #[test]
    fn error_alone() {
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
                    hand.drops(Drop::OffloadNotNegotiated),
                    2 - plain as u64 - whole as u64
                );
            }
            // Several slots without scatter-gather.
            let mut hand = hand_with(Features::ALL, Features::ALL.without(Features::SG));
            hand.send(&[hand.part(1, 160, txf::MORE_DATA), hand.part(2, 60, 0)]);
            assert!(hand.take().is_empty());
            assert_eq!(hand.drops(Drop::TooManySlots), 1);
        });
    }

    /// The checksum's place has to be in the packet, to its last byte.
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
                assert_eq!(hand.drops(Drop::BadOffload), 1 - taken as u64);
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
}

mod txpkt2gnttab {
    use super::*;

    fn accesses(hand: &mut Hand) -> Vec<(u32, u16, u16)> {
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

    /// A bad packet between two good ones asks for no access.
    #[test]
    fn bad_between() {
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

    /// However many slots packets have: the accesses of a batch are bounded, none are lost.
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
}
