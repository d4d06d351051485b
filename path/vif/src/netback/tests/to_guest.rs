//! Packets to the guest: `pkt2buffers`, `rxpkt2gnttab`, `rxpkt2rsp`.

use crate::VifDrop;
use crate::netback::{DeliveryReport, buffers};
use crate::netif::{ExtraInfo, Features, RxRequest, RxResponse, rsp, rxf};
use crate::testing::{Rig, TestMemory, frame_at, ipv4_tcp, over_each_format, packet, sizes};
use nic::{Checksum, Frame, Gso, GsoKind, Offload};

/// Delivers frames to a guest that reads the ring by hand.
struct ToGuestRig {
    rig: Rig,
    source: TestMemory,
    from: u32,
}

fn give(sizes: crate::netfront::Sizes) -> ToGuestRig {
    give_with(sizes, Features::ALL)
}

fn give_with(sizes: crate::netfront::Sizes, front: Features) -> ToGuestRig {
    ToGuestRig::of(Rig::with(sizes, front, Features::ALL))
}

impl ToGuestRig {
    fn of(rig: Rig) -> Self {
        Self {
            rig,
            source: TestMemory::new(64),
            from: 0,
        }
    }

    fn give(&mut self, frames: &[Frame]) -> DeliveryReport {
        let pick: Vec<u32> = (0..frames.len() as u32).collect();
        let report = self.rig.back.to_guest(frames, &pick);
        self.rig.back.publish();
        report
    }

    fn responses(&mut self) -> Vec<RxResponse> {
        let raw = self.rig.raw_rx();
        let found = raw.responses(self.from);
        self.from = raw.rsp_prod();
        found.into_iter().map(RxResponse::decode).collect()
    }

    fn frame(&self, at: usize, bytes: &[u8]) -> Frame {
        frame_at(&self.source, at, bytes, usize::MAX)
    }

    /// Returns the bytes that a response names.
    fn bytes(&self, response: &RxResponse) -> Vec<u8> {
        let page = self.rig.layout.rx_pool().start + u32::from(response.id) / 2;
        let page = self.rig.memory().area().page(page).unwrap();
        let mut bytes = vec![0; response.status as usize];
        page.skip(usize::from(response.offset))
            .read(&mut bytes)
            .unwrap();
        bytes
    }

    fn drops(&self, reason: VifDrop) -> u64 {
        self.rig.back.counters().to_guest_drops.get(reason)
    }
}

mod rxpkt2gnttab {
    use super::*;
    use crate::grants::CopySource;
    use abi::GrantStatus;
    use nic::frame::SNAPSHOT_MIN;

    #[test]
    fn empty() {
        over_each_format(|| {
            let mut give = give(sizes());
            assert_eq!(give.rig.back.to_guest(&[], &[]), DeliveryReport::default());
            assert_eq!(
                give.rig.back.to_guest(&[], &[0, 7]),
                DeliveryReport::default()
            );
            give.rig.back.publish();
            assert!(give.responses().is_empty());
        });
    }

    /// One copy for the header and one for the rest, never beyond the frame's length (row 22).
    #[test]
    fn short() {
        over_each_format(|| {
            let mut give = give(sizes());
            let bytes = packet(1514, 3);
            let frame = give.frame(0, &bytes);
            give.rig.back.plan(0, &frame).unwrap();
            let copies = give.rig.back.copies.list.clone();
            assert_eq!(copies.len(), 2);
            assert_eq!(copies[0].source, CopySource::Header { frame: 0, from: 0 });
            assert_eq!(
                (usize::from(copies[0].len), usize::from(copies[1].len)),
                (SNAPSHOT_MIN, 1514 - SNAPSHOT_MIN)
            );
            assert_eq!(copies[0].offset % 64, 0);
            assert_eq!(
                usize::from(copies[1].offset),
                usize::from(copies[0].offset) + SNAPSHOT_MIN
            );
            assert!(
                copies
                    .iter()
                    .all(|copy| copy.status == GrantStatus::GeneralError)
            );
        });
    }

    #[test]
    fn shorter_than_the_snapshot() {
        over_each_format(|| {
            let mut give = give(sizes());
            let frame = give.frame(0, &packet(60, 3));
            give.rig.back.plan(0, &frame).unwrap();
            let copies = &give.rig.back.copies.list;
            assert_eq!((copies.len(), copies[0].len), (1, 60));
        });
    }

    #[test]
    fn two_req() {
        over_each_format(|| {
            let mut give = give(sizes());
            let bytes = packet(5000, 3);
            let frame = frame_at(&give.source, 100, &bytes, 3000);
            give.rig.back.plan(0, &frame).unwrap();
            let copies: Vec<_> = give
                .rig
                .back
                .copies
                .list
                .iter()
                .map(|copy| (usize::from(copy.offset % 2048), usize::from(copy.len)))
                .collect();
            // The copies to the first buffer are the header and the first payload. The copies to
            // the second buffer are the rest of the first piece and the start of the next piece.
            // The third buffer gets the rest.
            assert_eq!(
                copies,
                [
                    (0, SNAPSHOT_MIN),
                    (SNAPSHOT_MIN, 2048 - SNAPSHOT_MIN),
                    (0, 952),
                    (952, 1096),
                    (0, 904)
                ]
            );
        });
    }
}

mod rxpkt2rsp {
    use super::*;

    #[test]
    fn short() {
        over_each_format(|| {
            let mut give = give(sizes());
            let bytes = packet(1514, 3);
            let frame = give.frame(0, &bytes);
            let report = give.give(&[frame]);
            assert_eq!((report.delivered, report.bytes), (1, 1514));
            let responses = give.responses();
            assert_eq!(responses.len(), 1);
            assert_eq!((responses[0].status, responses[0].flags), (1514, 0));
            assert_eq!(give.bytes(&responses[0]), bytes);
        });
    }

    #[test]
    fn two_short() {
        over_each_format(|| {
            let mut give = give(sizes());
            let (one, two) = (packet(60, 3), packet(1514, 4));
            let frames = [give.frame(0, &one), give.frame(4096, &two)];
            assert_eq!(give.give(&frames).delivered, 2);
            let responses = give.responses();
            let got: Vec<_> = responses
                .iter()
                .map(|response| give.bytes(response))
                .collect();
            assert_eq!(got, [one, two]);
            assert!(responses.iter().all(|response| response.flags == 0));
        });
    }

    #[test]
    fn two_slots() {
        over_each_format(|| {
            let mut give = give(sizes());
            let bytes = packet(3000, 3);
            let frame = give.frame(0, &bytes);
            assert_eq!(give.give(&[frame]).delivered, 1);
            let responses = give.responses();
            let shape: Vec<_> = responses.iter().map(|r| (r.status, r.flags)).collect();
            assert_eq!(shape, [(2048, rxf::MORE_DATA), (952, 0)]);
            let got: Vec<u8> = responses.iter().flat_map(|r| give.bytes(r)).collect();
            assert_eq!(got, bytes);
        });
    }

    #[test]
    fn extra() {
        over_each_format(|| {
            let mut give = give(sizes());
            let bytes = ipv4_tcp(5000, 3);
            let mut frame = give.frame(0, &bytes);
            let gso = Gso {
                kind: GsoKind::Tcp4,
                size: 1448,
            };
            let checksum = Checksum::Blank {
                start: 34,
                offset: 16,
            };
            frame.offload = Offload {
                checksum,
                gso: Some(gso),
            };
            assert_eq!(give.rig.back.slots_for(&frame), 4);
            assert_eq!(give.give(&[frame]).delivered, 1);
            let responses = give.responses();
            assert_eq!(responses.len(), 4);
            let flags = rxf::CSUM_BLANK | rxf::DATA_VALIDATED | rxf::EXTRA_INFO | rxf::MORE_DATA;
            assert_eq!(responses[0].flags, flags);
            let [one, two] = responses[1].encode();
            assert_eq!(ExtraInfo::decode(one, two), ExtraInfo::of(gso));
            assert_eq!(responses[2].flags, rxf::MORE_DATA);
            assert_eq!(
                (responses[3].flags, responses[3].status),
                (0, (bytes.len() - 4096) as i16)
            );
            let got: Vec<u8> = [0, 2, 3]
                .iter()
                .flat_map(|n| give.bytes(&responses[*n]))
                .collect();
            assert_eq!(got, bytes);
        });
    }

    /// The second of three buffers is not writable: all parts of that packet report the error, and
    /// no part of the other packets does.
    #[test]
    fn copyerror() {
        over_each_format(|| {
            let mut give = give(sizes());
            let frames = [
                give.frame(0, &packet(60, 1)),
                give.frame(8192, &packet(5000, 2)),
                give.frame(16384, &packet(61, 3)),
            ];
            let request = RxRequest::decode(give.rig.raw_rx().request_at(2));
            let page = give.rig.layout.rx_pool().start + u32::from(request.id) / 2;
            assert_eq!(request.gref, page + 1);
            // Buffers 1 and 2 of the second packet. Buffer 0 shares a page with one of them.
            give.rig
                .table_span()
                .store_u64(request.gref as usize * 8, 0)
                .unwrap();
            let report = give.give(&frames);
            assert_eq!((report.delivered, report.bytes), (2, 121));
            assert_eq!(report.drops.get(VifDrop::Grant), 1);
            let shape: Vec<_> = give
                .responses()
                .iter()
                .map(|r| (r.status, r.flags))
                .collect();
            let more = rxf::MORE_DATA;
            assert_eq!(shape, [(60, 0), (-1, more), (-1, more), (-1, 0), (61, 0)]);
        });
    }

    #[test]
    fn copyerror_extra() {
        over_each_format(|| {
            let mut give = give(sizes());
            let bytes = ipv4_tcp(100, 3);
            let mut frame = give.frame(0, &bytes);
            let gso = Gso {
                kind: GsoKind::Tcp4,
                size: 60,
            };
            let checksum = Checksum::Blank {
                start: 34,
                offset: 16,
            };
            frame.offload = Offload {
                checksum,
                gso: Some(gso),
            };
            give.rig.back.grants_mut().writes_left = 0;
            assert_eq!(give.give(&[frame]).delivered, 0);
            let responses = give.responses();
            assert_eq!(responses[0].status, rsp::ERROR);
            let [one, two] = responses[1].encode();
            assert_eq!(
                ExtraInfo::decode(one, two),
                ExtraInfo::of(gso),
                "the extra info remains an extra info"
            );
            assert_eq!(give.rig.receive(64), Vec::<Vec<u8>>::new());
            assert_eq!(
                give.rig
                    .front
                    .counters()
                    .to_guest_drops
                    .get(VifDrop::PeerError),
                1
            );
        });
    }

    #[test]
    fn too_many_slots() {
        over_each_format(|| {
            let mut give = give(crate::netfront::Sizes {
                rx_pages: 128,
                ..sizes()
            });
            give.rig.back.negotiated.to_guest.max_slots = 3;
            let fits = give.frame(0, &packet(3 * 2048, 1));
            let too_long = give.frame(65536, &packet(3 * 2048 + 1, 2));
            assert_eq!(give.give(&[too_long, fits]).delivered, 1);
            assert_eq!(give.drops(VifDrop::TooManySlots), 1);
            assert_eq!(give.responses().len(), 3, "a dropped frame uses no buffers");
        });
    }

    #[test]
    fn no_request() {
        over_each_format(|| {
            let mut give = give(crate::netfront::Sizes {
                rx_pages: 2,
                ..sizes()
            });
            assert_eq!(give.rig.back.posted(100), 4);
            let long = give.frame(0, &packet(4 * 2048 + 1, 1));
            let fits = give.frame(65536, &packet(4 * 2048, 2));
            let late = give.frame(131_072, &packet(60, 2));
            let report = give.give(&[long, fits, late]);
            assert_eq!(
                (report.delivered, report.drops.get(VifDrop::NoRequest)),
                (1, 2)
            );
            assert_eq!(give.rig.back.posted(1), 0);
            assert_eq!(give.rig.receive(64).len(), 1);
            assert_eq!(give.rig.back.posted(100), 4);
        });
    }

    #[test]
    fn too_short_and_too_long() {
        over_each_format(|| {
            let mut give = give(sizes());
            let frames = [
                give.frame(0, &packet(13, 1)),
                give.frame(4096, &packet(65536, 1)),
            ];
            assert_eq!(give.give(&frames).delivered, 0);
            assert_eq!(
                (give.drops(VifDrop::TooShort), give.drops(VifDrop::TooLong)),
                (1, 1)
            );
            let frame = give.frame(4096, &packet(65535, 1));
            assert_eq!(give.give(&[frame]).delivered, 1, "64 KB pass whole");
            assert_eq!(give.rig.receive(64), [packet(65535, 1)]);
        });
    }

    #[test]
    fn offloads_that_the_guest_does_not_take() {
        over_each_format(|| {
            let gso = Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1448,
            });
            let checksum = Checksum::Blank {
                start: 34,
                offset: 16,
            };
            for (features, plain, whole) in [
                (Features::ALL, 1, 1),
                (Features::CHECKSUM, 1, 0),
                (Features::PLAIN, 0, 0),
            ] {
                let mut give = give_with(sizes(), features);
                let mut frame = give.frame(0, &ipv4_tcp(2000, 3));
                frame.offload = Offload {
                    checksum,
                    gso: None,
                };
                assert_eq!(give.give(std::slice::from_ref(&frame)).delivered, plain);
                frame.offload.gso = gso;
                assert_eq!(give.give(&[frame]).delivered, whole);
                assert_eq!(
                    give.drops(VifDrop::OffloadNotNegotiated),
                    u64::from(2 - plain - whole)
                );
            }
        });
    }

    #[test]
    fn a_blank_checksum_at_an_unsupported_offset() {
        over_each_format(|| {
            let mut give = give(sizes());
            let mut frame = give.frame(0, &ipv4_tcp(2000, 3));
            let checksum = Checksum::Blank {
                start: 84,
                offset: 16,
            };
            frame.offload = Offload {
                checksum,
                gso: None,
            };
            assert_eq!(give.give(&[frame]).delivered, 0);
            assert_eq!(give.drops(VifDrop::BadOffload), 1);
        });
    }

    /// Stock receive requests name whole pages without offsets; frames in them are coloured too.
    #[test]
    fn frames_in_whole_pages_are_coloured() {
        over_each_format(|| {
            let sizes = crate::netfront::Sizes {
                rx_buffer: 4096,
                ..sizes()
            };
            let mut give = give_with(sizes, Features::ALL.without(Features::RX_OFFSET));
            let bytes = packet(9000, 1);
            let frame = give.frame(0, &bytes);
            assert_eq!(give.give(&[frame]).delivered, 1);
            let shape: Vec<_> = give
                .responses()
                .iter()
                .map(|r| (r.offset, r.status))
                .collect();
            assert_eq!(shape, [(0, 4096), (0, 4096), (0, 808)].map(|(_, n)| (0, n)));
            assert_eq!(give.rig.receive(64), [bytes]);
            let mut offsets = Vec::new();
            for n in 0..16 {
                let frame = give.frame(0, &packet(1514, n));
                give.give(&[frame]);
                offsets.extend(give.responses().iter().map(|response| response.offset));
            }
            assert!(
                offsets
                    .iter()
                    .all(|offset| *offset < 512 && offset % 64 == 0)
            );
            offsets.sort_unstable();
            offsets.dedup();
            assert!(offsets.len() >= 8, "colours: {offsets:?}");
        });
    }

    #[test]
    fn netif_11_headroom_moves_frames_in_whole_pages() {
        over_each_format(|| {
            for (headroom, room) in [(2, 4032), (14, 4032), (64, 4032), (65, 3968)] {
                let sizes = crate::netfront::Sizes {
                    rx_buffer: 4096,
                    ..sizes()
                };
                let rig = Rig::with_headroom(sizes, Features::ALL, headroom);
                let mut give = ToGuestRig::of(rig);
                let bytes = packet(9000, 1);
                let frame = give.frame(0, &bytes);
                assert_eq!(give.give(&[frame]).delivered, 1);
                let first = &give.responses()[0];
                assert_eq!((first.offset, first.status), (headroom, room));
                assert_eq!(give.rig.receive(64), [bytes]);
            }
        });
    }

    /// Without the extension a guest posts whole pages, and half pages have no room.
    #[test]
    fn netif_11_headroom_needs_parts_of_pages() {
        for (rx_buffer, back) in [
            (4096, Features::ALL.without(Features::RX_OFFSET)),
            (2048, Features::ALL),
        ] {
            let sizes = crate::netfront::Sizes {
                rx_buffer,
                ..sizes()
            };
            let rig = Rig::with_headroom(sizes, back, 2);
            assert_eq!(rig.record.rx_buffer, rx_buffer);
            let mut give = ToGuestRig::of(rig);
            let bytes = packet(1514, 1);
            let frame = give.frame(0, &bytes);
            assert_eq!(give.give(&[frame]).delivered, 1);
            assert_eq!(give.responses()[0].offset % 64, 0);
            assert_eq!(give.rig.receive(64), [bytes]);
        }
    }

    #[test]
    fn a_frame_that_fits_barely_has_no_colour() {
        over_each_format(|| {
            assert_eq!(buffers::colour(7, 1600, 2048), 448);
            assert_eq!(buffers::colour(7, 1601, 2048), 0);
            assert_eq!(buffers::colour(8, 60, 2048), 0);
            assert_eq!(buffers::colour(9, 60, 2048), 64);
        });
    }
}

/// The header of a segment made by software lies in no buffer.
#[test]
fn to_guest_generated_header_precedes_payload() {
    over_each_format(|| {
        let mut g = give(sizes());
        let bytes = ipv4_tcp(5000, 3);
        let payload = g.frame(0, &bytes[54..]);
        let mut frame = Frame::with_header(&bytes[..54]).unwrap();
        payload.pieces.iter().for_each(|piece| frame.push(*piece));
        assert_eq!(g.give(&[frame]).delivered, 1);
        assert_eq!(g.rig.receive(8), [bytes]);
    });
}
