//! Receive buffers whose pages are exchanged (NETIF-26), with a correct monitor and hostile driver
//! domains.

use crate::Fatal;
use crate::netfront::{GrantError, Sizes};
use crate::netif::{Features, Negotiated, RecordError, RxRequest, RxResponse, rsp, rxf};
use crate::testing::{Rig, TestMemory, back_record, frame_at, over_each_format, packet, sizes};
use abi::classic::GrantEntry;
use abi::{Handle, PAGE};
use std::sync::atomic::{AtomicU64, Ordering};

fn rig() -> Rig {
    let back = back_record(Features::ALL.with(Features::RX_FLIP));
    Rig::with_record(sizes(), Features::ALL, back)
}

/// Returns the request at the head of the ring, and its entry of the guest's table.
fn posted(rig: &Rig, n: u32) -> (RxRequest, &'static AtomicU64) {
    let request = RxRequest::decode(rig.raw_rx_back().request_at(n));
    let entry = rig.table_span().u64(request.gref as usize * 8);
    (request, entry.unwrap())
}

fn answer(rig: &Rig, request: &RxRequest, flags: u16, status: i16) {
    let response = RxResponse {
        id: request.id,
        offset: 0,
        flags,
        status,
    };
    rig.raw_rx_back().answer(&[response.encode()]);
}

fn mark(entry: &AtomicU64, flags: u16) {
    let now = GrantEntry(entry.load(Ordering::Relaxed));
    entry.store(now.with_flags(flags).0, Ordering::Relaxed);
}

#[test]
fn netif_26_exchanged_buffers_are_whole_pages() {
    let rig = rig();
    assert!(rig.record.features.has(Features::RX_FLIP));
    assert_eq!(
        (rig.record.table, rig.record.rx_buffer),
        (Handle(5), PAGE as u16)
    );
    let back = back_record(Features::ALL.with(Features::RX_FLIP));
    let mut half = rig.record.clone();
    half.rx_buffer = 2048;
    assert_eq!(Negotiated::of(&back, &half), Err(RecordError::RxBuffer));
    // A guest that did not negotiate exchange keeps its pages.
    let plain = Rig::new(sizes());
    assert!(!plain.record.features.has(Features::RX_FLIP));
}

/// Each packet arrives in an otherwise zeroed page.
#[test]
fn frames_arrive_in_pages_that_hold_nothing_else() {
    over_each_format(|| {
        let mut rig = rig();
        let source = TestMemory::new(17);
        let (first, pages) = (rig.layout.frames(), rig.layout.sizes().rx_pages);
        for round in 0..200u64 {
            let len = [60, 1514, 4000, 4097, 40_000][round as usize % 5];
            let bytes = packet(len, round);
            let frame = frame_at(&source, 0, &bytes, 1460);
            assert_eq!(rig.deliver_to_guest(&[frame]), 1, "round {round}");
            let mut frames = Vec::new();
            assert_eq!(rig.front.receive(8, &mut frames), Ok(1));
            assert_eq!(frames[0].to_vec().unwrap(), bytes);
            // The guest fills its whole page.
            for piece in &frames[0].pieces {
                let at = piece.span.addr() - rig.memory().area().span().addr();
                let page = rig.memory().area().page((at / PAGE) as u32).unwrap();
                let mut whole = vec![0; PAGE];
                page.read(&mut whole).unwrap();
                let (from, to) = (at % PAGE, at % PAGE + piece.span.len());
                assert!(
                    whole[..from]
                        .iter()
                        .chain(&whole[to..])
                        .all(|byte| *byte == 0)
                );
                assert!(at / PAGE >= first as usize, "in an exchanged page");
                page.fill(0xaa).unwrap();
            }
            rig.front.receive_done(&mut frames);
            rig.front.publish();
        }
        assert_eq!(
            rig.back.posted(pages + 1),
            pages,
            "every buffer is posted again"
        );
        // The layout's frames for them are untouched.
        for n in rig.layout.rx_pool() {
            let page = rig.memory().area().page(n).unwrap();
            assert!(page.sub(0, PAGE).is_some_and(|page| {
                let mut bytes = vec![0; PAGE];
                page.read(&mut bytes).unwrap();
                bytes.iter().all(|byte| *byte == Rig::INITIAL_BYTE)
            }));
        }
    });
}

#[test]
fn a_response_without_its_page_ends_the_interface() {
    over_each_format(|| {
        // The page was not exchanged, or its exchange is in progress, or a hostile driver domain
        // has set the marks that it can.
        for flags in [2, 2 | 4, 2 | 8] {
            let mut rig = rig();
            let (request, entry) = posted(&rig, 0);
            mark(entry, flags);
            answer(&rig, &request, 0, 60);
            let got = rig.front.receive(8, &mut Vec::new());
            assert_eq!(got, Err(Fatal::NotExchanged), "{flags}");
        }
        // The result is the same for a packet of several buffers.
        let mut rig = rig();
        let [(one, entry), (two, _)] = [0, 1].map(|n| posted(&rig, n));
        mark(entry, GrantEntry::TRANSFERRED);
        answer(&rig, &one, rxf::MORE_DATA, 4000);
        answer(&rig, &two, 0, 60);
        let got = rig.front.receive(8, &mut Vec::new());
        assert_eq!(got, Err(Fatal::NotExchanged));
    });
}

/// A buffer that returns unused accepts no page until it is posted again.
#[test]
fn an_unused_buffer_is_the_guests_own() {
    over_each_format(|| {
        for status in [rsp::ERROR, rsp::DROPPED] {
            let mut rig = rig();
            let (request, entry) = posted(&rig, 0);
            answer(&rig, &request, 0, status);
            let mut frames = Vec::new();
            assert_eq!(rig.front.receive(8, &mut frames), Ok(0));
            let now = GrantEntry(entry.load(Ordering::Relaxed));
            // The buffer was posted again, behind all others.
            assert!(now.accepts());
            // The netfront cannot end the offer during the exchange.
            let (request, entry) = posted(&rig, 1);
            mark(entry, 2 | 4);
            answer(&rig, &request, 0, status);
            let got = rig.front.receive(8, &mut frames);
            assert_eq!(got, Err(Fatal::NotExchanged));
        }
    });
}

#[test]
fn closing_takes_every_offer_back() {
    let mut rig = rig();
    let before = rig.table.available();
    let (_, moving) = posted(&rig, 0);
    mark(moving, 2 | 4);
    assert_eq!(rig.front.close(&mut rig.table), Err(GrantError::InUse));
    let entries = |rig: &Rig| -> Vec<GrantEntry> {
        let entry = |n| rig.table_span().load_u64(n as usize * 8).unwrap();
        (1..=rig.layout.grants())
            .map(entry)
            .map(GrantEntry)
            .collect()
    };
    assert!(entries(&rig).iter().all(|entry| !entry.accepts()));
    mark(moving, GrantEntry::TRANSFERRED);
    assert_eq!(rig.front.close(&mut rig.table), Ok(()));
    assert_eq!(rig.table.available(), before + rig.layout.grants() as usize);
    assert!(
        entries(&rig)
            .iter()
            .all(|entry| *entry == GrantEntry::INVALID)
    );
}

/// A rejected frame leaves its buffers intact.
#[test]
fn undelivered_frame_costs_no_buffer() {
    over_each_format(|| {
        let back = back_record(Features::ALL.with(Features::RX_FLIP));
        let small = Sizes {
            rx_pages: 4,
            ..sizes()
        };
        let mut rig = Rig::with_record(small, Features::ALL, back);
        let source = TestMemory::new(4);
        let bytes = packet(9000, 1);
        for round in 0..20 {
            // The second page of three is not transferred.
            rig.back.grants_mut().writes_left = 1 + round % 3;
            assert_eq!(
                rig.deliver_to_guest(&[frame_at(&source, 0, &bytes, 4096)]),
                0
            );
            assert_eq!(rig.receive(8), Vec::<Vec<u8>>::new());
            rig.back.grants_mut().writes_left = u64::MAX;
            assert_eq!(
                rig.deliver_to_guest(&[frame_at(&source, 0, &bytes, 4096)]),
                1
            );
            assert_eq!(rig.receive(8), std::slice::from_ref(&bytes));
        }
    });
}
