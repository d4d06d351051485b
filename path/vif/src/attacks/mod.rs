//! Tests of the attacks in SPECIFICATION's attack table that a virtual interface must survive.
//! `ring::tests` and `netif::tests` test the attacks that the ring or the records reject.

mod backend;
mod frontend;

use crate::Fatal;
use crate::netif::{FATAL_SLOTS, RxRequest, RxResponse, TxRequest, rxf, txf};
use crate::testing::{
    Rig, TestMemory, frame_at, hostile_backend, hostile_frontend, over_each_format, sizes,
};
use proptest::prelude::*;

fn tx_gref(rig: &Rig, page: u32) -> u32 {
    rig.layout.tx_small().start + page + 1
}

fn tx_part(rig: &Rig, id: u16, size: u16, flags: u16) -> [u32; 3] {
    TxRequest {
        gref: tx_gref(rig, 1),
        offset: 0,
        flags,
        id,
        size,
    }
    .encode()
}

/// XSA-403, XSA-216: granted pages hold no stale data, and only a frame's bytes are written.
#[test]
fn attack_22_stale_bytes() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let whole = |rig: &Rig, n: u32| {
            let mut bytes = vec![0; abi::PAGE];
            rig.memory()
                .area()
                .page(n)
                .unwrap()
                .read(&mut bytes)
                .unwrap();
            bytes
        };
        let event = rig.layout.event();
        let mut page = whole(&rig, event);
        // Skips the rings' words.
        page.drain(256..768);
        assert!(page.iter().all(|byte| *byte == 0));
        for n in event + 1..rig.layout.frames() {
            assert!(whole(&rig, n).iter().all(|byte| *byte == 0), "frame {n}");
        }
        let source = TestMemory::new(1);
        source.area().span().fill(0xaa).unwrap();
        let bytes = vec![0x55; 61];
        assert_eq!(rig.deliver_to_guest(&[frame_at(&source, 0, &bytes, 61)]), 1);
        let written: usize = rig
            .layout
            .rx_pool()
            .map(|n| whole(&rig, n).iter().filter(|byte| **byte != 0).count())
            .sum();
        assert_eq!(written, 61);
    });
}

/// CVE-2026-45890 and row 28: loops are bounded by the driver's limits, not by the guest's values.
#[test]
fn attack_28_endless_descriptor_loop() {
    over_each_format(|| {
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        // An endless chain of extra infos.
        let mut words = vec![tx_part(&rig, 0, 60, txf::EXTRA_INFO)];
        words.extend([[0x0101, 0, 0]; 100]);
        raw.send(&words);
        assert_eq!(
            rig.back.from_guest(64, &mut Vec::new()),
            Err(Fatal::EndlessPacket)
        );
        // Short invalid packets count against the budget.
        let mut rig = Rig::new(sizes());
        let raw = rig.raw_tx();
        let words: Vec<_> = (0..200).map(|n| tx_part(&rig, n, 0, 0)).collect();
        raw.send(&words);
        assert_eq!(rig.back.from_guest(10, &mut Vec::new()), Ok(0));
        assert_eq!(raw.rsp_prod(), 10);
        // The frontend also rejects such a packet.
        let mut rig = Rig::new(sizes());
        let back = rig.raw_rx_back();
        for n in 0..=FATAL_SLOTS {
            let RxRequest { id, offset, .. } = RxRequest::decode(back.request_at(n));
            back.answer(&[RxResponse {
                id,
                offset,
                flags: rxf::MORE_DATA,
                status: 60,
            }
            .encode()]);
        }
        assert_eq!(
            rig.front.receive(64, &mut Vec::new()),
            Err(Fatal::EndlessPacket)
        );
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    /// Row 29 and all others: the netback does not panic, whatever a guest writes.
    #[test]
    fn attack_29_any_frontend(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        hostile_frontend(&data);
    }

    #[test]
    fn attack_29_any_backend(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        hostile_backend(&data);
    }
}
