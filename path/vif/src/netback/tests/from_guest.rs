//! Packets from the guest: `ring2pkt`, `txpkt2rsp`, `txpkt2gnttab`.

mod ring2pkt;
mod txpkt2gnttab;
mod txpkt2rsp;

use crate::VifDrop;
use crate::netif::{
    ExtraInfo, Features, GsoInfo, MAX_SLOTS, TxRequest, TxResponse, extra, rsp, txf,
};
use crate::testing::{Rig, ipv4_tcp, over_each_format, packet, sizes};
use nic::{Checksum, Gso, GsoKind, Offload};

/// A rig with a hand-written guest end. Pattern `n` fills the guest's transmit page `n`.
struct FromGuestRig {
    rig: Rig,
    tx_from: u32,
}

fn hand() -> FromGuestRig {
    hand_with(Features::ALL, Features::ALL)
}

fn hand_with(front: Features, back: Features) -> FromGuestRig {
    let rig = Rig::with(sizes(), front, back);
    for n in 0..rig.layout.sizes().tx_small_pages {
        let page = rig
            .memory()
            .area()
            .page(rig.layout.tx_small().start + n)
            .unwrap();
        page.write(&packet(abi::PAGE, u64::from(n))).unwrap();
    }
    FromGuestRig { rig, tx_from: 0 }
}

/// Returns the contents of transmit page `page` at `offset`.
fn bytes_at(page: u32, offset: usize, len: usize) -> Vec<u8> {
    packet(abi::PAGE, u64::from(page))[offset..offset + len].to_vec()
}

impl FromGuestRig {
    /// Returns the grant of transmit page `n`.
    fn gref(&self, n: u32) -> u32 {
        self.rig.layout.tx_small().start + n + 1
    }

    /// Returns a request for the first `size` bytes of transmit page `page`; its id is 100 + page.
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
        self.rig.take_from_guest(64)
    }

    /// Returns the responses since the last call: (id, status).
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

    fn drops(&self, reason: VifDrop) -> u64 {
        self.rig.back.counters().from_guest_drops.get(reason)
    }
}

fn gso_slot(info: ExtraInfo) -> [u32; 3] {
    let [one, two] = info.encode();
    [one, two, 0]
}
