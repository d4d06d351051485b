//! Attacks on the netfront.

use super::*;
use crate::counters::VifDrop;
use crate::netfront::{GrantError, GrantTable, Sizes};
use crate::netif::{TxResponse, rsp};
use crate::testing::{ipv4_tcp, packet};
use abi::DomId;
use abi::classic::GrantEntry;
use nic::{Checksum, Frame, Gso, GsoKind, Offload};

#[test]
fn attack_01_at_the_frontend() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        rig.raw_tx_back().set_rsp_prod(1);
        assert_eq!(rig.front.reap(), Err(Fatal::Overrun));
        assert!(rig.front.transmit(&mut Vec::new()).is_err());
        let mut rig = Rig::new(sizes());
        rig.raw_rx_back()
            .set_rsp_prod(rig.raw_rx_back().req_prod() + 1);
        assert_eq!(rig.front.receive(64, &mut Vec::new()), Err(Fatal::Overrun));
        assert!(!rig.front.has_work());
    });
}

/// CVE-2026-72380: the frontend rejects a response id that is out of range, unsolicited or
/// repeated.
#[test]
fn attack_02_response_ids() {
    over_each_format(|| {
        let send = |rig: &mut Rig| {
            for n in 0..3 {
                assert!(rig.send(&packet(60, n), Offload::default()));
            }
            let ids: Vec<u16> = (0..3)
                .map(|n| TxRequest::decode(rig.raw_tx_back().request_at(n)).id)
                .collect();
            ids
        };
        let answer = |rig: &Rig, id: u16, status: i16| {
            rig.raw_tx_back()
                .answer(&[TxResponse { id, status }.encode()]);
        };
        // Each id is accepted once: in or out of order, with success or an error.
        let mut rig = Rig::new(sizes());
        let free = rig.front.buffers().available();
        let ids = send(&mut rig);
        for (n, id) in ids.iter().rev().enumerate() {
            answer(&rig, *id, if n == 1 { rsp::DROPPED } else { rsp::OKAY });
        }
        assert_eq!(rig.front.reap(), Ok(3));
        assert_eq!(rig.front.buffers().available(), free);
        assert_eq!(
            rig.front
                .counters()
                .from_guest_drops
                .get(VifDrop::PeerError),
            1
        );

        let unsolicited = 40;
        for bad in [unsolicited, 104, 105, u16::MAX] {
            let mut rig = Rig::new(sizes());
            send(&mut rig);
            answer(&rig, bad, rsp::OKAY);
            assert_eq!(rig.front.reap(), Err(Fatal::ResponseId), "{bad}");
            assert_eq!(rig.front.fatal(), Some(Fatal::ResponseId));
        }
        let mut rig = Rig::new(sizes());
        let ids = send(&mut rig);
        answer(&rig, ids[0], rsp::OKAY);
        answer(&rig, ids[0], rsp::OKAY);
        assert_eq!(rig.front.reap(), Err(Fatal::ResponseId), "twice");
        let mut rig = Rig::new(sizes());
        send(&mut rig);
        answer(&rig, 0, rsp::NULL);
        assert_eq!(
            rig.front.reap(),
            Err(Fatal::ResponseId),
            "no extra info was sent"
        );
    });
}

#[test]
fn attack_02_receive_ids() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let back = rig.raw_rx_back();
        let posted = RxRequest::decode(back.request_at(0)).id;
        let response = |id| {
            RxResponse {
                id,
                offset: 0,
                flags: 0,
                status: 60,
            }
            .encode()
        };
        back.answer(&[response(posted + 1)]);
        assert_eq!(
            rig.front.receive(64, &mut Vec::new()),
            Err(Fatal::ResponseId)
        );
    });
}

/// XSA-155 at the frontend: the receive buffer changes after the frontend has checked it.
#[test]
fn attack_04_double_fetch_at_the_frontend() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let source = TestMemory::new(1);
        let bytes = packet(60, 9);
        assert_eq!(rig.deliver_to_guest(&[frame_at(&source, 0, &bytes, 60)]), 1);
        let mut frames = Vec::new();
        assert_eq!(rig.front.receive(64, &mut frames), Ok(1));
        for n in rig.layout.rx_pool() {
            rig.memory().area().page(n).unwrap().fill(0xee).unwrap();
        }
        rig.raw_rx_back().response(0, [u32::MAX; 2]);
        assert_eq!(frames[0].to_vec().unwrap(), bytes);
        rig.front.receive_done(&mut frames);
    });
}

/// XSA-448 at the frontend: lengths of 0, and lengths beyond the posted buffer. (The backend's
/// counterpart is `netback::tests::txpkt2rsp::invalid`.)
#[test]
fn attack_06_offsets_and_lengths_at_the_frontend() {
    over_each_format(|| {
        let cases: &[(i16, i32, VifDrop)] = &[
            (0, 0, VifDrop::ZeroSize),
            (13, 0, VifDrop::TooShort),
            (-1, 0, VifDrop::PeerError),
            (i16::MIN, 0, VifDrop::PeerError),
            (2048, 1, VifDrop::CrossesPage),
            (2049, 0, VifDrop::CrossesPage),
            (i16::MAX, 0, VifDrop::CrossesPage),
            (60, 2047, VifDrop::CrossesPage),
            (60, 4096, VifDrop::CrossesPage),
            // The part extends into the other half of the page, which holds another packet.
            (60, -2048, VifDrop::CrossesPage),
            (60, -1, VifDrop::CrossesPage),
        ];
        for &(status, shift, reason) in cases {
            let mut rig = Rig::new(sizes());
            let back = rig.raw_rx_back();
            // The second request's buffer is the upper half of a page.
            for n in 0..2 {
                let request = RxRequest::decode(back.request_at(n));
                let bad = n == 1;
                let offset = i32::from(request.offset) + if bad { shift } else { 0 };
                let status = if bad { status } else { 60 };
                let offset = offset as u16;
                back.answer(&[RxResponse {
                    id: request.id,
                    offset,
                    flags: 0,
                    status,
                }
                .encode()]);
            }
            assert_eq!(rig.receive(64).len(), 1, "{status} {shift}");
            let drops = &rig.front.counters().to_guest_drops;
            assert_eq!(
                (drops.get(reason), drops.total()),
                (1, 1),
                "{status} {shift}"
            );
            assert_eq!(
                rig.raw_rx().req_prod(),
                130,
                "both buffers are posted again"
            );
        }
    });
}

/// Oversize at the frontend: the sum of many parts exceeds the longest packet.
#[test]
fn attack_07_oversize_at_the_frontend() {
    over_each_format(|| {
        let mut rig = Rig::new(Sizes {
            rx_pages: 64,
            ..sizes()
        });
        let back = rig.raw_rx_back();
        let parts = 33;
        for n in 0..parts {
            let request = RxRequest::decode(back.request_at(n));
            let flags = if n + 1 < parts { rxf::MORE_DATA } else { 0 };
            let (id, offset) = (request.id, request.offset);
            back.answer(&[RxResponse {
                id,
                offset,
                flags,
                status: 2048,
            }
            .encode()]);
        }
        assert!(rig.receive(64).is_empty());
        assert_eq!(rig.front.counters().to_guest_drops.get(VifDrop::TooLong), 1);
    });
}

#[test]
fn attack_09_driver_stops_consuming() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let bytes = packet(60, 1);
        let mut frames: Vec<Frame> = (0..64).filter_map(|_| rig.guest_frame(&bytes)).collect();
        assert_eq!(frames.len(), 64);
        let mut held = frames.split_off(32);
        assert_eq!(rig.front.transmit(&mut frames).unwrap().sent, 32);
        assert_eq!(rig.front.transmit(&mut held).unwrap().sent, 32);
        rig.front.publish();
        assert!(
            rig.guest_frame(&bytes).is_none(),
            "nothing is left to read into"
        );
        assert_eq!(rig.front.transmit(&mut Vec::new()).unwrap().sent, 0);
        assert_eq!(rig.take_from_guest(64).len(), 64);
        assert_eq!(rig.front.reap(), Ok(64));
        assert!(rig.guest_frame(&bytes).is_some());
    });
}

/// XSA-396: the frontend does not reallocate a grant in use.
#[test]
fn attack_15_grant_in_use() {
    let memory = TestMemory::new(1);
    let table_span = memory.area().page(0).unwrap();
    let mut table = GrantTable::new(table_span);
    let gref = table.grant(DomId(3), 77, true).unwrap();
    let entry = || GrantEntry(table_span.load_u64(gref.index() as usize * 8).unwrap());
    assert_eq!(
        (entry().domain(), entry().frame(), entry().readonly()),
        (DomId(3), 77, true)
    );
    let used = entry().with_flags(entry().flags() | GrantEntry::READING);
    table_span
        .store_u64(gref.index() as usize * 8, used.0)
        .unwrap();
    assert_eq!(table.end(gref), Err(GrantError::InUse));
    assert_eq!(table.available(), 510);
    table_span
        .store_u64(gref.index() as usize * 8, used.with_flags(1).0)
        .unwrap();
    assert_eq!(table.end(gref), Ok(()));
    assert_eq!(entry(), GrantEntry::INVALID);
    assert_eq!(table.end(gref), Err(GrantError::NoSuch));
    assert_eq!(table.end(abi::GrantRef(1 << 19)), Err(GrantError::NoSuch));
    assert_eq!(table.available(), 511);
    for _ in 0..511 {
        assert_ne!(table.grant(DomId(3), 1, false).unwrap().index(), 0);
    }
    assert_eq!(table.grant(DomId(3), 1, false), Err(GrantError::Full));
}

/// firecracker#3905: only negotiated offloads are accepted. (The reverse direction:
/// `netback::tests::rxpkt2rsp::offloads_that_the_guest_does_not_take`,
/// `netback::tests::txpkt2rsp::offload_that_was_not_negotiated`.)
#[test]
fn attack_30_offloads_at_the_frontend() {
    over_each_format(|| {
        use crate::netif::Features;
        let bytes = ipv4_tcp(2000, 3);
        let checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        let gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1000,
        });
        for (features, plain, whole) in [
            (Features::ALL, true, true),
            (Features::CHECKSUM, true, false),
            // The checksum is computed before sending.
            (Features::PLAIN, true, false),
        ] {
            let mut rig = Rig::with(sizes(), Features::ALL, features);
            assert_eq!(
                rig.send(
                    &bytes,
                    Offload {
                        checksum,
                        gso: None
                    }
                ),
                plain
            );
            assert_eq!(rig.send(&bytes, Offload { checksum, gso }), whole);
        }
        let mut rig = Rig::new(sizes());
        assert!(!rig.send(
            &bytes,
            Offload {
                checksum: Checksum::Unknown,
                gso
            }
        ));
        assert_eq!(
            rig.front
                .counters()
                .from_guest_drops
                .get(VifDrop::BadOffload),
            1
        );
    });
}

/// The frontend drops packets with offloads that do not match them, or that it did not negotiate.
#[test]
fn attack_30_offloads_from_a_hostile_driver() {
    over_each_format(|| {
        use crate::netif::{ExtraInfo, Features};
        let case = |features: Features, bytes: &[u8], flags: u16, gso: Option<Gso>| {
            let mut rig = Rig::with(sizes(), features, Features::ALL);
            let back = rig.raw_rx_back();
            let request = RxRequest::decode(back.request_at(0));
            let page = rig.memory().area().page(request.gref - 1).unwrap();
            page.skip(usize::from(request.offset)).write(bytes).unwrap();
            let flags = flags | if gso.is_some() { rxf::EXTRA_INFO } else { 0 };
            let status = bytes.len() as i16;
            let response = RxResponse {
                id: request.id,
                offset: request.offset,
                flags,
                status,
            };
            back.answer(&[response.encode()]);
            if let Some(gso) = gso {
                back.answer(&[ExtraInfo::of(gso).encode()]);
            }
            let mut frames = Vec::new();
            let _ = rig.front.receive(64, &mut frames);
            let found = frames.first().map(|frame| frame.offload);
            rig.front.receive_done(&mut frames);
            rig.front.publish();
            let slots = 1 + u32::from(gso.is_some());
            assert_eq!(
                rig.raw_rx().req_prod(),
                128 + slots,
                "every buffer is posted again"
            );
            found
        };
        let tcp = ipv4_tcp(1000, 1);
        let gso = |kind| Some(Gso { kind, size: 500 });
        let checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        let blank = rxf::CSUM_BLANK;
        let v4 = gso(GsoKind::Tcp4);
        let all = Features::ALL;
        assert_eq!(
            case(all, &tcp, blank, v4),
            Some(Offload { checksum, gso: v4 })
        );
        assert_eq!(
            case(all, &tcp, blank, None),
            Some(Offload {
                checksum,
                gso: None
            })
        );
        let valid = Offload {
            checksum: Checksum::Valid,
            gso: None,
        };
        assert_eq!(case(all, &tcp, rxf::DATA_VALIDATED, None), Some(valid));
        assert_eq!(
            case(all, &tcp, 0, v4),
            None,
            "segments whose checksum is not blank"
        );
        assert_eq!(
            case(all, &tcp, blank, gso(GsoKind::Tcp6)),
            None,
            "the wrong kind"
        );
        assert_eq!(
            case(all, &packet(1000, 1), blank, None),
            None,
            "no checksum to fill in"
        );
        assert_eq!(
            case(all, &tcp[..50], blank, None),
            None,
            "the field lies outside the packet"
        );
        assert_eq!(
            case(Features::CHECKSUM, &tcp, blank, v4),
            None,
            "segments not asked for"
        );
        assert_eq!(
            case(Features::PLAIN, &tcp, blank, None),
            None,
            "blank checksums not asked for"
        );
    });
}
