//! Dedicated queues of a NIC. The driver reads their frames directly into pages that the guest has
//! posted (Ram's thesis, chapter 3).
//!
//! A queue is reassigned from one guest to another in four phases, which the guests do not notice:
//!
//! | phase | frames for the guest's MAC use | the driver reads the queue into |
//! |---|---|---|
//! | joining | the queue; older frames are in the shared queue | nothing: it reads the older frames
//! first | | active | the queue | the guest's posted pages, or its own buffers if the guest has
//! posted none | | leaving | the shared queue; older frames are in the queue | its own buffers, and
//! forwards the frames like frames of the shared queue |
//! | free | | |
//!
//! A queue becomes free, and can be assigned to another guest, when the NIC reports that it cannot
//! contain stale frames any more. The bridge gives a verdict on every frame in a guest's page,
//! based on the frame's snapshot; a frame for another destination is not delivered to this guest.
//! If firewall rules apply between the NIC and the guest, the driver writes a frame's header into
//! the guest's page only after the verdict, or assigns the guest no queue.

pub mod assignment;
pub mod posting;

use crate::in_place::{BufferLending, InPlace, InPlacePorts};
use crate::merge::{self, QueueLro};
use crate::nics::PollResult;
use crate::ports::BridgePorts;
use crate::switch::Switch;
use crate::vifs::VifPort;
use assignment::{AssignedQueue, Assignment, AssignmentPhase};
use config::domain::{LroConfig, NicConfig, VifConfig};
use net::bridge::Verdict;
use nic::Frame;
use posting::BatchPosting;
use runtime::ledger::Hop;
use runtime::lro::{LroStage, Sums};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The queues of one NIC.
#[derive(Debug)]
pub struct NicQueues {
    /// The port of the NIC.
    pub nic: usize,
    assignment: Assignment,
    /// Batch of frames in a guest's pages.
    in_place: InPlace,
    /// Settings of large receive offload.
    lro_config: LroConfig,
    /// Large receive offload of each guest that has had a queue, by port.
    lro: BTreeMap<usize, QueueLro>,
    /// Large receive offload without frames, for its settings.
    no_lro: LroStage,
    /// Batch of frames in the driver's buffers; empty between batches.
    bounced: Vec<Frame>,
    bounced_packets: u64,
}

impl NicQueues {
    /// Creates the queues of the NIC at port `nic`, without guests. Returns `None` if the NIC has
    /// none.
    #[must_use]
    pub fn new(nic: usize, config: &NicConfig, lro: &LroConfig) -> Option<Self> {
        Some(Self {
            nic,
            assignment: Assignment::new(nic, config)?,
            in_place: InPlace::default(),
            lro_config: *lro,
            lro: BTreeMap::new(),
            no_lro: merge::unused_stage(lro),
            bounced: Vec::new(),
            bounced_packets: 0,
        })
    }

    /// Takes over the queues of an earlier driver domain, which then drain. Their frames are
    /// forwarded like frames of the shared queue.
    pub fn recover(&mut self, ports: &mut BridgePorts) {
        self.assignment.recover(ports);
    }

    /// Adds the guest at `port`.
    pub fn add_guest(&mut self, port: usize, vif: &VifConfig) {
        self.assignment.add_guest(port, vif);
    }

    /// Updates the rules or limits of the guest at `port`. The caller has
    /// [flushed](NicQueues::flush) its held frames.
    pub fn change(&mut self, ports: &mut BridgePorts, port: usize, vif: &VifConfig) {
        self.assignment.change(ports, port, vif);
    }

    /// Removes the guest at `port`, and discards its held frames.
    pub fn remove_guest(&mut self, ports: &mut BridgePorts, port: usize, now_ns: u64) {
        self.assignment.remove_guest(ports, port);
        if let Some(lro) = self.lro.get_mut(&port) {
            lro.discard(now_ns);
        }
    }

    /// Changes the settings of large receive offload.
    pub fn set_lro(&mut self, lro: &LroConfig) {
        self.lro_config = *lro;
        self.no_lro = merge::unused_stage(lro);
        self.lro.values_mut().for_each(|of| of.set(lro));
    }

    /// Adds the counters of large receive offload to `sums`.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.lro.values().for_each(|lro| lro.add_to(sums));
    }

    /// Returns the number of frames in a guest's pages that the bridge assigned to other
    /// destinations.
    #[must_use]
    pub fn misdirected(&self) -> u64 {
        self.in_place.misdirected()
    }

    /// Delivers the frames that are held for the guest at `port`, because newer ones take another
    /// path, or its rules change.
    pub fn flush(&mut self, switch: &mut Switch, port: usize, now_ns: u64) {
        if let Some(lro) = self.lro.get_mut(&port) {
            let ports = InPlacePorts {
                nic: self.nic,
                guest: port,
            };
            self.in_place.flush_due(switch, ports, lro, false, now_ns);
        }
    }

    /// Delivers held frames that are due, also those for guests whose queues were revoked. Returns
    /// the number of delivered frames.
    fn flush_due(&mut self, switch: &mut Switch, now_ns: u64) -> usize {
        let Self {
            in_place,
            lro,
            assignment,
            ..
        } = self;
        let nic = self.nic;
        let flush = |(&guest, lro): (&usize, &mut QueueLro)| {
            let ports = InPlacePorts { nic, guest };
            let is_open = assignment.is_active(guest);
            in_place.flush_due(switch, ports, lro, is_open, now_ns)
        };
        let holding = lro.iter_mut().filter(|(_, lro)| lro.holds());
        holding.map(flush).sum()
    }

    /// Counts the frames of the shared queue by guest.
    pub fn count(&mut self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            if let Verdict::Unicast(port) = verdict {
                self.assignment.count(*port, 1);
            }
        }
    }

    /// Returns the time at which the driver must poll the queues even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let held = self.lro.values().filter_map(QueueLro::due_ns);
        held.chain(self.assignment.due_ns(now_ns)).min()
    }

    /// Returns state and counters as JSON.
    #[must_use]
    pub fn stat(&self, ports: &BridgePorts) -> Value {
        let mut stat = self.assignment.stat(ports);
        stat["copied_packets"] = json!(self.bounced_packets);
        if let Some(all) = stat.as_object_mut() {
            all.extend(self.in_place.stat());
            let stages = self.lro.values().map(QueueLro::stage);
            let lro = self.no_lro.stat_with(stages);
            all.insert("lro".to_owned(), lro);
        }
        stat
    }

    /// Delivers held frames that are due, and reads the remaining frames of revoked queues. All are
    /// older than the frames for the same guests in the shared queue. Returns the number of frames
    /// delivered or read.
    pub fn drain(&mut self, switch: &mut Switch, now_ns: u64, budget: usize) -> usize {
        let mut frames = self.flush_due(switch, now_ns);
        for at in (0..self.assignment.assigned_queues()).rev() {
            if let Some(assigned) = self.assignment.assigned(at)
                && assigned.phase == AssignmentPhase::Leaving
            {
                frames += self.poll(switch, assigned, now_ns, budget);
                self.assignment.free_if_drained(&mut switch.ports, at);
            }
        }
        frames
    }

    /// Reassigns queues if due, and reads the active queues. The caller must read the shared queue
    /// first. Returns the number of frames read.
    pub fn serve(&mut self, switch: &mut Switch, now_ns: u64, budget: usize) -> usize {
        let Self { assignment, .. } = self;
        if assignment.is_due(now_ns) {
            switch.ledger.charge_to(Hop::Control, || {
                assignment.rebalance(&mut switch.ports, now_ns, budget);
            });
        }
        let poll_result = match switch.ports.nic(self.nic) {
            Some(nic) if nic.poll_result() != PollResult::Nothing => nic.poll_result(),
            _ => return 0,
        };
        let mut frames = 0;
        for at in 0..self.assignment.assigned_queues() {
            self.assignment.activate(at, poll_result, now_ns);
            if let Some(assigned) = self.assignment.assigned(at)
                && assigned.phase == AssignmentPhase::Active
            {
                frames += self.poll(switch, assigned, now_ns, budget);
            }
        }
        frames
    }

    /// Reads one batch from a queue, and forwards it. Returns the number of frames read.
    fn poll(
        &mut self,
        switch: &mut Switch,
        assigned: AssignedQueue,
        now_ns: u64,
        budget: usize,
    ) -> usize {
        let AssignedQueue {
            queue,
            port,
            phase,
            split,
            ..
        } = assigned;
        // If the guest's egress queue has frames, new frames must not overtake them, so the driver
        // reads them into its buffers and queues them.
        let waits = |port: &usize| {
            switch
                .ports
                .vif(*port)
                .is_some_and(|vif| !vif.egress.is_empty())
        };
        let active = port.filter(|port| phase == AssignmentPhase::Active && !waits(port));
        if let Some(port) = port.filter(|_| active.is_none()) {
            self.flush(switch, port, now_ns);
        }
        let Some((nic, vif)) = switch.ports.nic_and_maybe_vif(self.nic, active) else {
            return 0;
        };
        let Some((vmq, pool)) = nic.vmq() else {
            return 0;
        };
        let takes_merged = vif.as_ref().is_some_and(|vif| vif.takes_merged());
        let guest_lro = active.filter(|_| takes_merged).map(|port| {
            let lro = self.lro.entry(port);
            lro.or_insert_with(|| QueueLro::new(&self.lro_config))
        });
        let lro = guest_lro.filter(|lro| lro.is_active());
        let mut netback = vif.and_then(VifPort::netback);
        if let Some(netback) = &mut netback {
            netback.expect_merged(lro.is_some());
        }
        let bytes = self.assignment.frame_bytes();
        let frames = &mut self.in_place.frames;
        let mut posting = BatchPosting::new(netback, pool, bytes, frames, &mut self.bounced);
        let polled = switch
            .ledger
            .charge_to(Hop::Nic, || vmq.poll(queue, now_ns, budget, &mut posting));
        let frames = polled.unwrap_or(0);
        let all = self.in_place.frames.iter().chain(&self.bounced);
        nic.traffic.in_bytes += all.map(|frame| frame.len() as u64).sum::<u64>();
        nic.traffic.in_packets += frames as u64;
        if frames >= budget {
            nic.has_more();
        }
        if let Some(port) = port {
            self.assignment.count(port, frames as u64);
        }
        self.bounced_packets += self.bounced.len() as u64;
        if let Some(guest) = active {
            let ports = InPlacePorts {
                nic: self.nic,
                guest,
            };
            let buffers = BufferLending::Posted { header_last: split };
            let report = self.in_place.deliver(switch, ports, buffers, lro, now_ns);
            if let Some(vif) = switch.ports.vif_mut(guest) {
                vif.delivered(&report);
                switch.dirty.mark(guest);
            }
        }
        self.forward_bounced(switch, port, now_ns);
        frames
    }

    /// Forwards the frames in the driver's buffers. They are newer than the frames that are held
    /// for the guest at `port`.
    fn forward_bounced(&mut self, switch: &mut Switch, port: Option<usize>, now_ns: u64) {
        if self.bounced.is_empty() {
            return;
        }
        if let Some(port) = port {
            self.flush(switch, port, now_ns);
        }
        switch.forward(self.nic, now_ns, &mut self.bounced);
        if let Some(nic) = switch.ports.nic_mut(self.nic) {
            nic.release_taken(&mut self.bounced, &switch.ledger);
        }
    }
}

#[cfg(test)]
mod tests;
