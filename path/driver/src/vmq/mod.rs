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
use serde_json::{Value, json};

/// The queues of one NIC.
#[derive(Debug)]
pub struct NicQueues {
    /// The port of the NIC.
    pub nic: usize,
    assignment: Assignment,
    /// Batch of frames in a guest's pages.
    pub in_place: InPlace,
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
            in_place: InPlace::new(lro),
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

    /// Updates the rules or limits of the guest at `port`.
    pub fn change(&mut self, ports: &mut BridgePorts, port: usize, vif: &VifConfig) {
        self.assignment.change(ports, port, vif);
    }

    /// Removes the guest at `port`.
    pub fn remove_guest(&mut self, ports: &mut BridgePorts, port: usize) {
        self.assignment.remove_guest(ports, port);
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
        self.assignment.due_ns(now_ns)
    }

    /// Returns state and counters as JSON.
    #[must_use]
    pub fn stat(&self, ports: &BridgePorts) -> Value {
        let mut stat = self.assignment.stat(ports);
        stat["copied_packets"] = json!(self.bounced_packets);
        if let Some(all) = stat.as_object_mut() {
            all.extend(self.in_place.stat());
        }
        stat
    }

    /// Reads the remaining frames of revoked queues, which are older than the frames for the same
    /// guests in the shared queue. Returns the number of frames read.
    pub fn drain(&mut self, switch: &mut Switch, now_ns: u64, budget: usize) -> usize {
        let mut frames = 0;
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
        let Some((nic, vif)) = switch.ports.nic_and_maybe_vif(self.nic, active) else {
            return 0;
        };
        let Some((vmq, pool)) = nic.vmq() else {
            return 0;
        };
        let merging = vif
            .as_ref()
            .is_some_and(|vif| self.in_place.merges_for(vif));
        let mut netback = vif.and_then(VifPort::netback);
        if let Some(netback) = &mut netback {
            netback.expect_merged(merging);
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
            let report = self
                .in_place
                .deliver(switch, ports, buffers, merging, now_ns);
            if let Some(vif) = switch.ports.vif_mut(guest) {
                vif.delivered(&report);
                switch.dirty.mark(guest);
            }
        }
        if !self.bounced.is_empty() {
            switch.forward(self.nic, now_ns, &mut self.bounced);
            if let Some(nic) = switch.ports.nic_mut(self.nic) {
                nic.release_taken(&mut self.bounced, &switch.ledger);
            }
        }
        frames
    }
}
