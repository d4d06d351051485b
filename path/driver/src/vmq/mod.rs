//! Queues of a NIC for single guests: what such a queue receives is read straight into pages that
//! its guest has posted (Ram's thesis, chapter 3).
//!
//! A queue passes from guest to guest in four steps, none of which the guests notice:
//!
//! | phase | frames to the guest's MAC go to | the queue is read into |
//! |---|---|---|
//! | joining | the queue; older ones are in the shared queue | nothing: the older ones go first |
//! | active | the queue | the guest's posted pages; into buffers of ours when it has posted none |
//! | leaving | the shared queue; older ones are in the queue | buffers of ours: they go on as if they had come by the shared queue |
//! | free | | |
//!
//! A queue is free, and can be another guest's, when the NIC says that no frame can be left in it.
//! Every frame in a guest's page is decided on like any other frame, by the bridge and on its
//! snapshot; a frame that the bridge does not send to this very guest is not delivered. Where
//! firewall rules stand between the NIC and the guest, a frame's header is put into the guest's
//! page only when it has been decided on, or the guest gets no queue.

pub mod assignment;
pub mod posting;

use crate::in_place::{Buffers, Direct, InPlace};
use crate::nics::Seen;
use crate::numbered::Numbered;
use crate::ports::Ports;
use crate::switch::Switch;
use crate::vifs::VifPort;
use assignment::{Assignment, Held, Phase};
use config::domain::{Lro, VifConfig};
use net::bridge::Verdict;
use nic::Frame;
use posting::Posting;
use runtime::ledger::Hop;
use runtime::lro::Sums;
use serde_json::{Value, json};

/// The queues of one NIC.
#[derive(Debug)]
pub struct Queues {
    /// The port of the NIC.
    pub nic: usize,
    assignment: Assignment,
    /// Frames in the guest's pages.
    in_place: InPlace,
    /// Frames of a batch that lie in buffers of ours; empty between batches.
    bounced: Vec<Frame>,
    bounced_packets: u64,
}

impl Queues {
    /// The queues of all NICs that have some.
    #[must_use]
    pub fn of(numbered: &Numbered<'_>, lro: &Lro) -> Vec<Self> {
        let with_queues = numbered.nics().filter_map(|(nic, config)| {
            let mut assignment = Assignment::new(nic, config)?;
            for (port, vif) in numbered.vifs() {
                assignment.welcome(port, vif);
            }
            Some(Self {
                nic,
                assignment,
                in_place: InPlace::new(lro),
                bounced: Vec::new(),
                bounced_packets: 0,
            })
        });
        with_queues.collect()
    }

    /// Begins with no frame in any queue: what a driver domain before this one has left there goes
    /// on as if it had come by the shared queue.
    pub fn recover(&mut self, ports: &mut Ports) {
        self.assignment.recover(ports);
    }

    /// A guest has come to `port`.
    pub fn welcome(&mut self, port: usize, vif: &VifConfig) {
        self.assignment.welcome(port, vif);
    }

    /// The guest at `port` has other rules or limits.
    pub fn change(&mut self, ports: &mut Ports, port: usize, vif: &VifConfig) {
        self.assignment.change(ports, port, vif);
    }

    /// The guest at `port` goes.
    pub fn part_with(&mut self, ports: &mut Ports, port: usize) {
        self.assignment.part_with(ports, port);
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, lro: &Lro) {
        self.in_place.set_lro(lro);
    }

    /// Adds what large receive offload has counted.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.in_place.add_lro(sums);
    }

    /// Frames that lay in a guest's page and that the bridge sent elsewhere.
    #[must_use]
    pub fn misdirected(&self) -> u64 {
        self.in_place.misdirected()
    }

    /// Counts frames that the shared queue has brought.
    pub fn count(&mut self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            if let Verdict::Unicast(port) = verdict {
                self.assignment.count(*port, 1);
            }
        }
    }

    /// When they want to be polled although no frame may come.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        self.assignment.due_ns(now_ns)
    }

    /// What they do and have done, as JSON.
    #[must_use]
    pub fn stat(&self, ports: &Ports) -> Value {
        let mut stat = self.assignment.stat(ports);
        stat["copied_packets"] = json!(self.bounced_packets);
        if let Some(all) = stat.as_object_mut() {
            all.extend(self.in_place.stat());
        }
        stat
    }

    /// Reads what is left in queues that were taken back: it is older than what the shared queue
    /// has for the same guests. How many frames there were.
    pub fn drain(&mut self, switch: &mut Switch, now_ns: u64, budget: usize) -> usize {
        let mut frames = 0;
        for at in (0..self.assignment.held_queues()).rev() {
            if let Some(held) = self.assignment.held(at)
                && held.phase == Phase::Leaving
            {
                frames += self.poll(switch, held, now_ns, budget);
                self.assignment.free_if_drained(&mut switch.ports, at);
            }
        }
        frames
    }

    /// Reads the queues of guests, and sees to it that the right ones have them; after the shared
    /// queue. How many frames there were.
    pub fn serve(&mut self, switch: &mut Switch, now_ns: u64, budget: usize) -> usize {
        let Self { assignment, .. } = self;
        if assignment.is_due(now_ns) {
            switch.ledger.at(Hop::Control, || {
                assignment.rebalance(&mut switch.ports, now_ns, budget);
            });
        }
        let seen = match switch.ports.nic(self.nic) {
            Some(nic) if nic.seen() != Seen::Nothing => nic.seen(),
            _ => return 0,
        };
        let mut frames = 0;
        for at in 0..self.assignment.held_queues() {
            self.assignment.activate(at, seen, now_ns);
            if let Some(held) = self.assignment.held(at)
                && held.phase == Phase::Active
            {
                frames += self.poll(switch, held, now_ns, budget);
            }
        }
        frames
    }

    /// One batch from one queue.
    fn poll(&mut self, switch: &mut Switch, held: Held, now_ns: u64, budget: usize) -> usize {
        let Held {
            queue,
            port,
            phase,
            split,
            ..
        } = held;
        // Frames must not pass older ones that wait: they join them.
        let waits = |port: &usize| {
            switch
                .ports
                .vif(*port)
                .is_some_and(|vif| !vif.egress.is_empty())
        };
        let active = port.filter(|port| phase == Phase::Active && !waits(port));
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
        let mut posting = Posting::new(netback, pool, bytes, frames, &mut self.bounced);
        let polled = switch
            .ledger
            .at(Hop::Nic, || vmq.poll(queue, now_ns, budget, &mut posting));
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
            let way = Direct {
                nic: self.nic,
                guest,
            };
            let buffers = Buffers::Posted { header_last: split };
            let report = self.in_place.deliver(switch, way, buffers, merging, now_ns);
            if let Some(vif) = switch.ports.vif_mut(guest) {
                vif.delivered(&report);
                switch.dirty.mark(guest);
            }
        }
        if !self.bounced.is_empty() {
            switch.forward(self.nic, now_ns, &mut self.bounced);
            if let Some(nic) = switch.ports.nic_mut(self.nic) {
                nic.done(&mut self.bounced, &switch.ledger);
            }
        }
        frames
    }
}
