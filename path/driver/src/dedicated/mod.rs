//! Dedicated queues of AF_XDP wires: what comes by them is delivered in the guest's pages, where
//! the kernel has written it ([`queue`] has the queue itself).

pub mod queue;

use crate::in_place::{Buffers, Direct, InPlace};
use crate::nics::Seen;
use crate::numbered::Numbered;
use crate::ports::Ports;
use crate::switch::Switch;
use config::domain::Lro;
use nic::Frame;
use runtime::ledger::Hop;
use runtime::lro::Sums;
use serde_json::{Map, Value};
use vif::netback::ToGuest;
use vif::netif::MAX_SLOTS;

/// The receiving end of one guest's dedicated queue.
#[derive(Debug)]
pub struct DedicatedReceiver {
    /// The ports of the wire and of the guest.
    pub way: Direct,
    in_place: InPlace,
}

impl DedicatedReceiver {
    /// One for each guest of `ports` that has a queue.
    #[must_use]
    pub fn of(ports: &Ports, numbered: &Numbered<'_>, lro: &Lro) -> Vec<Self> {
        let with_queues = numbered.vifs().filter_map(|(guest, config)| {
            let (nic, _) = numbered.nic(config.queue?.nic)?;
            ports.vif(guest)?.queue.as_ref()?;
            Some(Self {
                way: Direct { nic, guest },
                in_place: InPlace::new(&bounded(lro)),
            })
        });
        with_queues.collect()
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, lro: &Lro) {
        self.in_place.set_lro(&bounded(lro));
    }

    /// Adds what large receive offload has counted.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.in_place.add_lro(sums);
    }

    /// Frames that lay in the guest's pages and that the bridge sent elsewhere.
    #[must_use]
    pub fn misdirected(&self) -> u64 {
        self.in_place.misdirected()
    }

    /// What it does and has done, as JSON.
    #[must_use]
    pub fn stat(&self) -> Map<String, Value> {
        self.in_place.stat()
    }

    /// Delivers what has come by the queue, after the shared queue of the wire, and lends the
    /// kernel what the guest has posted since. How many frames there were.
    pub fn serve(&mut self, switch: &mut Switch, now_ns: u64, budget: usize) -> usize {
        let Direct { nic, guest } = self.way;
        let Some((wire, vif)) = switch.ports.nic_and_vif(nic, guest) else {
            return 0;
        };
        if wire.seen() == Seen::Nothing {
            return 0;
        }
        let merging = self.in_place.merges_for(vif);
        let Some((queue, netback)) = vif.dedicated() else {
            return 0;
        };
        let frames = &mut self.in_place.frames;
        let taken = switch.ledger.at(Hop::Nic, || {
            let taken = queue.receive(budget, netback, frames);
            if taken == 0 {
                queue.lend(netback);
            }
            taken
        });
        if taken == 0 {
            // A ring that makes no sense may have been noticed.
            if netback.fatal().is_some() {
                vif.delivered(&ToGuest::default());
            }
            return 0;
        }
        let bytes: usize = frames.iter().map(Frame::len).sum();
        wire.traffic.in_packets += frames.len() as u64;
        wire.traffic.in_bytes += bytes as u64;
        if taken >= budget {
            wire.has_more();
        }
        // Netback's from here on, so that its own changes of hop cost no stamps.
        let before = switch.ledger.enter(Hop::Netback);
        let report = self
            .in_place
            .deliver(switch, self.way, Buffers::Lent, merging, now_ns);
        if let Some(vif) = switch.ports.vif_mut(guest) {
            if let Some((queue, netback)) = vif.dedicated() {
                queue.lend(netback);
            }
            vif.delivered(&report);
            switch.dirty.mark(guest);
        }
        switch.ledger.enter(before);
        taken
    }
}

/// No more packets in one than a guest takes slots.
fn bounded(lro: &Lro) -> Lro {
    Lro {
        segments: lro.segments.min(MAX_SLOTS.into()),
        ..*lro
    }
}
