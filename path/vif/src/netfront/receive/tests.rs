//! Receive and transmit buffers that swap memory.

use crate::netfront::Sizes;
use crate::netif::{Features, RxRequest, TxRequest};
use crate::testing::{Rig, TestMemory, back_record, frame_at, over_each_format, packet, sizes};
use abi::PAGE;
use abi::classic::GrantEntry;
use nic::Buffers;

/// A granted half page.
type HalfPage = (u32, u16);

/// Returns the halves that the last `count` requests have posted.
fn posted(rig: &Rig, count: u32) -> Vec<HalfPage> {
    let raw = rig.raw_rx_back();
    let last = raw.req_prod().wrapping_sub(count)..raw.req_prod();
    last.map(|at| {
        let request = RxRequest::decode(raw.request_at(at));
        (request.gref, request.offset)
    })
    .collect()
}

/// Sends a frame; returns the half that holds it.
fn send(rig: &mut Rig, bytes: &[u8]) -> HalfPage {
    let raw = rig.raw_tx_back();
    let at = raw.req_prod();
    assert!(rig.send(bytes, nic::Offload::default()));
    let request = TxRequest::decode(raw.request_at(at));
    let half = PAGE as u16 / 2;
    (request.gref, request.offset / half * half)
}

/// Delivers a frame to the guest, which posts its buffer again.
fn receive(rig: &mut Rig, bytes: &[u8]) {
    let source = TestMemory::new(1);
    let frame = frame_at(&source, 0, bytes, bytes.len());
    assert_eq!(rig.deliver_to_guest(&[frame]), 1);
    assert_eq!(rig.receive(64), [bytes]);
}

/// Returns the frames that the driver domain may write according to the grants.
fn writable(rig: &Rig) -> Vec<u32> {
    let table = rig.table_span();
    let entries = (0..table.len() / 8).filter_map(|n| table.load_u64(n * 8).ok());
    let granted = entries.map(GrantEntry).filter(|entry| entry.permits());
    let writable = granted.filter(|entry| !entry.readonly());
    writable.map(GrantEntry::frame).collect()
}

#[test]
fn each_side_writes_memory_that_it_has_read() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        for n in 0..5 {
            let sent = send(&mut rig, &packet(60, n));
            assert_eq!(rig.take_from_guest(16), [packet(60, n)]);
            // The guest takes its buffers back before it sends.
            rig.front.reap().unwrap();
            let received = posted(&rig, rig.layout.sizes().rx_pages * 2)[0];
            receive(&mut rig, &packet(70, n));
            assert_eq!(posted(&rig, 1), [sent], "frame {n}");
            let next = send(&mut rig, &packet(80, n));
            assert_eq!(next, received, "frame {n}");
            assert_eq!(rig.take_from_guest(16), [packet(80, n)]);
            rig.front.reap().unwrap();
        }
        rig.front.close(&mut rig.table).unwrap();
        assert_eq!(writable(&rig), [], "a grant outlives the interface");
    });
}

/// The fast path swaps whole batches.
#[test]
fn batches_of_small_frames_are_swapped() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let sent: Vec<HalfPage> = (0..3).map(|n| send(&mut rig, &packet(60, n))).collect();
        assert_eq!(rig.take_from_guest(16).len(), 3);
        rig.front.reap().unwrap();
        let received = posted(&rig, rig.layout.sizes().rx_pages * 2)[..2].to_vec();
        let source = TestMemory::new(1);
        let frames = [(); 2].map(|()| frame_at(&source, 0, &packet(70, 9), 70));
        assert_eq!(rig.deliver_to_guest(&frames), 2);
        let mut pieces = Vec::new();
        assert_eq!(rig.front.receive_small_frames(64, 2048, &mut pieces), Ok(2));
        rig.front.small_frames_done(&mut pieces);
        rig.front.publish();
        assert_eq!(
            posted(&rig, 2),
            [sent[2], sent[1]],
            "the last one sent first"
        );
        let next = [(); 2].map(|()| send(&mut rig, &packet(80, 1)));
        assert_eq!(
            next.map(Some),
            [received.get(1).copied(), received.first().copied()]
        );
    });
}

/// Without swaps, the driver domain cannot write to transmit buffers (NETIF-23).
#[test]
fn only_swapped_transmit_buffers_are_writable() {
    let writes_to_tx = |rig: &Rig, range: std::ops::Range<u32>| {
        let writable = writable(rig);
        range
            .map(|page| writable.contains(&page))
            .collect::<Vec<_>>()
    };
    let swapping = Rig::new(sizes());
    let whole = Rig::new(Sizes {
        rx_buffer: PAGE as u16,
        ..sizes()
    });
    let elastic = Rig::with_threshold(sizes(), Features::ALL, back_record(Features::ALL), Some(4));
    let spare = Rig::new(Sizes {
        rx_spare_pages: 8,
        ..sizes()
    });
    for (rig, swaps) in [
        (swapping, true),
        (whole, false),
        (elastic, false),
        (spare, false),
    ] {
        let [small, large] = [rig.layout.tx_small(), rig.layout.tx_large()];
        assert!(writes_to_tx(&rig, small).iter().all(|it| *it == swaps));
        assert!(writes_to_tx(&rig, large).iter().all(|it| !it));
    }
}

/// Transmit buffers without swapped memory rest before reuse only if the endpoint writes them.
#[test]
fn netif_30_cpu_payload_selects_the_order_of_buffers() {
    for (features, reused) in [
        (Features::ALL, 1),
        (Features::ALL.with(Features::CPU_PAYLOAD), 0),
    ] {
        let back = back_record(Features::ALL);
        let mut rig = Rig::with_threshold(sizes(), features, back, Some(4));
        let pool = rig.front.buffers();
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        all.iter().take(2).for_each(|buffer| pool.put(buffer.id));
        assert_eq!(pool.take().unwrap().id, all[reused].id);
    }
}
