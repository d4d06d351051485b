//! Assigns a NIC's dedicated queues to the guests with the most frames in the shared queue. A guest
//! loses its queue to another guest that needs it much more.

use crate::nics::{NicPort, PollResult};
use crate::ports::BridgePorts;
use config::domain::{FRAME_EXTRA_BYTES, GSO_BYTES, NicConfig, NicKindConfig, VifConfig};
use config::rule::{self, FirewallPlace, FirewallRule};
use nic::Caps;
use nic::vmq::{QueueId, VmqError};
use serde::Serialize;
use serde_json::{Value, json};

/// Polling interval of a draining queue without other work.
const DRAIN_NS: u64 = 1_000_000;
/// Interval of assigning free queues if queues are never taken back for other guests.
const ALLOC_NS: u64 = 100_000_000;
/// A guest gets another's queue if it has more than twice as many frames as the other, plus this
/// number.
const SWAP_FRAMES: u64 = 32;
/// Longest wait of a new queue for older frames in the shared queue, before the new queue would
/// overflow.
const JOIN_NS: u64 = 5_000_000;

/// The queues of one NIC, and their guests.
#[derive(Debug)]
pub struct Assignment {
    /// The port of the NIC.
    nic: usize,
    held: Vec<AssignedQueue>,
    /// By port.
    guests: Vec<Demand>,
    /// Whether the NIC has rules for arriving frames.
    has_rules: bool,
    /// Bytes of buffers that a frame needs.
    frame_bytes: usize,
    /// Interval of reassigning queues; 0: never.
    rebalance_ns: u64,
    next_ns: u64,
    given: u64,
    taken_back: u64,
    trouble: String,
}

/// How frames from a NIC reach the pages of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Arrival {
    /// Directly and whole, because no rules apply.
    Whole,
    /// Directly, but their headers last, after the rules are evaluated.
    HeaderLast,
    /// By the shared queue and a copy, after the rules are evaluated.
    #[default]
    Copied,
}

impl Arrival {
    /// Returns how frames reach a guest from a NIC with or without rules. Frames for a guest with a
    /// rate limit are copied, because only frames outside its pages can be dropped.
    fn of(has_rules: bool, vif: &VifConfig) -> Self {
        match vif.firewall {
            _ if vif.to_guest.is_some() => Self::Copied,
            _ if !has_rules && !asks(&vif.rules, rule::RuleDirection::Out) => Self::Whole,
            FirewallPlace::Split => Self::HeaderLast,
            FirewallPlace::Shared => Self::Copied,
        }
    }
}

/// Returns whether any rule applies to frames that pass a port this way.
fn asks(rules: &[FirewallRule], way: rule::RuleDirection) -> bool {
    rules.iter().any(|rule| rule.is_for(way))
}

/// The demand of a port that may get a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    arrival: Arrival,
    /// Frames since the last assignment.
    now: u64,
    /// Smoothed number of frames.
    usual: u64,
}

/// An assigned queue.
#[derive(Clone, Copy, Debug)]
pub struct AssignedQueue {
    /// The queue.
    pub queue: QueueId,
    /// Port of the guest; `None`: it was removed or lost the queue, or belonged to another driver
    /// domain.
    pub port: Option<usize>,
    /// Phase of the queue's reassignment.
    pub phase: AssignmentPhase,
    /// Whether headers are written last.
    pub split: bool,
    given_ns: u64,
}

/// Phase of a queue's reassignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AssignmentPhase {
    /// Older frames for its guest may be in the shared queue.
    Joining,
    /// In use by its guest.
    Active,
    /// Draining.
    Leaving,
}

impl Assignment {
    /// Creates the assignment for the NIC at port `nic`, without guests; `None` if it has no
    /// queues.
    #[must_use]
    pub fn new(nic: usize, config: &NicConfig) -> Option<Self> {
        let vmq = config.vmq?;
        Some(Self {
            nic,
            held: Vec::new(),
            guests: Vec::new(),
            has_rules: asks(&config.rules, rule::RuleDirection::In),
            frame_bytes: frame_bytes(config),
            rebalance_ns: u64::from(vmq.rebalance_ms) * 1_000_000,
            next_ns: 0,
            given: 0,
            taken_back: 0,
            trouble: String::new(),
        })
    }

    /// Adds the guest at `port`, which may get a queue.
    pub fn add_guest(&mut self, port: usize, vif: &VifConfig) {
        if self.guests.len() <= port {
            self.guests.resize(port + 1, Demand::default());
        }
        if let Some(guest) = self.guests.get_mut(port) {
            *guest = Demand {
                arrival: Arrival::of(self.has_rules, vif),
                ..Demand::default()
            };
        }
    }

    /// Updates the rules or limits of the guest at `port`. If its frames must now arrive
    /// differently, takes its queue back, so that it gets a new one.
    pub fn change(&mut self, ports: &mut BridgePorts, port: usize, vif: &VifConfig) {
        let arrival = Arrival::of(self.has_rules, vif);
        match self.guests.get_mut(port) {
            Some(guest) if guest.arrival != arrival => guest.arrival = arrival,
            _ => return,
        }
        self.take_back_from(ports, port);
    }

    /// Removes the guest at `port`. The frames that remain in its queue are forwarded like frames
    /// of the shared queue.
    pub fn remove_guest(&mut self, ports: &mut BridgePorts, port: usize) {
        if let Some(guest) = self.guests.get_mut(port) {
            *guest = Demand::default();
        }
        self.take_back_from(ports, port);
    }

    /// Returns the bytes of buffers that a frame needs.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Returns the number of assigned queues.
    #[must_use]
    pub fn held_queues(&self) -> usize {
        self.held.len()
    }

    /// Returns one of the assigned queues.
    #[must_use]
    pub fn held(&self, at: usize) -> Option<AssignedQueue> {
        self.held.get(at).copied()
    }

    /// Takes over the queues of an earlier driver domain. Their frames are forwarded like frames of
    /// the shared queue.
    pub fn recover(&mut self, ports: &mut BridgePorts) {
        let nic = ports.nic_mut(self.nic);
        let Some((vmq, _)) = nic.and_then(NicPort::vmq) else {
            return;
        };
        let queues = vmq.avail_queues() as u32;
        self.held.extend((0..queues).map(|queue| AssignedQueue {
            queue: QueueId(queue),
            port: None,
            phase: AssignmentPhase::Leaving,
            split: false,
            given_ns: 0,
        }));
        if let Err(error) = vmq.recover() {
            self.report_trouble(ports, error);
        }
    }

    /// Counts frames for the guest at `port`.
    #[inline]
    pub fn count(&mut self, port: usize, frames: u64) {
        if let Some(guest) = self.guests.get_mut(port) {
            guest.now += frames;
        }
    }

    /// Returns the time at which a queue is due for a poll even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let leaving = self
            .held
            .iter()
            .any(|held| held.phase == AssignmentPhase::Leaving);
        leaving.then(|| now_ns.saturating_add(DRAIN_NS))
    }

    /// Returns the queues of the guests as JSON.
    #[must_use]
    pub fn stat(&self, ports: &BridgePorts) -> Value {
        let held = self.held.iter().map(|held| {
            json!({
                "queue": held.queue.0,
                "guest": held.port.and_then(|port| ports.name(port)).unwrap_or(""),
                "phase": held.phase,
                "split": held.split,
            })
        });
        json!({
            "queues": held.collect::<Vec<_>>(),
            "given": self.given,
            "taken_back": self.taken_back,
            "trouble": self.trouble,
        })
    }

    /// Activates a joining queue once the shared queue has no older frames for its guest, according
    /// to `poll_result`, or after a timeout.
    pub fn activate(&mut self, at: usize, poll_result: PollResult, now_ns: u64) {
        if let Some(held) = self.held.get_mut(at) {
            let late = now_ns.saturating_sub(held.given_ns) > JOIN_NS;
            if held.phase == AssignmentPhase::Joining && (poll_result == PollResult::All || late) {
                held.phase = AssignmentPhase::Active;
            }
        }
    }

    /// If due, assigns free queues, and takes back queues that other guests need more or that their
    /// guests can no longer use.
    pub fn rebalance(&mut self, ports: &mut BridgePorts, now_ns: u64, budget: usize) {
        let period_ns = match self.rebalance_ns {
            0 => ALLOC_NS,
            period => period,
        };
        self.next_ns = now_ns.saturating_add(period_ns);
        for guest in &mut self.guests {
            guest.usual = (guest.usual + std::mem::take(&mut guest.now)) / 2;
        }
        let Some(caps) = ports.nic(self.nic).map(NicPort::caps) else {
            return;
        };
        // Unusable queues first, because their MACs may belong to other guests by now.
        for held in self.holders() {
            let able = held
                .port
                .is_some_and(|port| self.is_able(ports, port, caps));
            if !able && let Err(error) = self.take_back(ports, held.queue) {
                self.report_trouble(ports, error);
            }
        }
        let vmq = ports.nic_mut(self.nic).and_then(NicPort::vmq);
        let mut free = vmq.map_or(0, |(vmq, _)| vmq.avail_queues());
        let mut candidates = self.candidates(ports, caps).into_iter().peekable();
        while free > 0
            && let Some(port) = candidates.next()
        {
            match self.assign(ports, port, now_ns, budget) {
                Ok(()) => free -= 1,
                // A queue that is being taken back may still receive frames for the MAC.
                Err(VmqError::MacTaken) => {}
                Err(error) => return self.report_trouble(ports, error),
            }
        }
        // The least busy holders first.
        let mut holders = self.holders();
        holders.retain(|held| held.port.is_some());
        holders.sort_by_key(|held| self.usual(held.port));
        for held in holders {
            let enough = 2 * self.usual(held.port) + SWAP_FRAMES;
            let needed_more =
                |port: &usize| self.rebalance_ns > 0 && self.usual(Some(*port)) > enough;
            if candidates.next_if(needed_more).is_some()
                && let Err(error) = self.take_back(ports, held.queue)
            {
                return self.report_trouble(ports, error);
            }
        }
    }

    /// Returns the queues that are not being taken back.
    fn holders(&self) -> Vec<AssignedQueue> {
        let held = self.held.iter();
        held.filter(|held| held.phase != AssignmentPhase::Leaving)
            .copied()
            .collect()
    }

    /// Returns whether [`Assignment::rebalance`] is due.
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Frees a drained queue, which another guest can then get.
    pub fn free_if_drained(&mut self, ports: &mut BridgePorts, at: usize) {
        if let Some(&AssignedQueue { queue, .. }) = self.held.get(at)
            && let Some(nic) = ports.nic_mut(self.nic)
            && let Some((vmq, _)) = nic.vmq()
            && vmq.free_queue(queue).is_ok()
        {
            self.held.remove(at);
            self.next_ns = 0;
        }
    }

    fn arrival(&self, port: usize) -> Arrival {
        self.guests
            .get(port)
            .map_or(Arrival::Copied, |guest| guest.arrival)
    }

    fn usual(&self, port: Option<usize>) -> u64 {
        let guest = port.and_then(|port| self.guests.get(port));
        guest.map_or(0, |guest| guest.usual)
    }

    /// Returns whether frames can be written directly into the pages of the guest at `port`.
    fn is_able(&self, ports: &BridgePorts, port: usize, caps: Caps) -> bool {
        let can_post = || {
            let vif = ports.vif(port);
            vif.is_some_and(|vif| vif.can_post(self.frame_bytes, caps))
        };
        self.arrival(port) != Arrival::Copied && can_post()
    }

    /// Returns the ports of eligible guests without a queue, the busiest first.
    fn candidates(&self, ports: &BridgePorts, caps: Caps) -> Vec<usize> {
        let without = |port: usize| self.held.iter().all(|held| held.port != Some(port));
        let guests = ports.vifs().map(|(port, _)| port);
        let mut found: Vec<usize> = guests
            .filter(|&port| self.is_able(ports, port, caps) && without(port))
            .collect();
        found.sort_by_key(|&port| std::cmp::Reverse(self.usual(Some(port))));
        found
    }

    fn assign(
        &mut self,
        ports: &mut BridgePorts,
        port: usize,
        now_ns: u64,
        budget: usize,
    ) -> Result<(), VmqError> {
        let Some((nic, vif)) = ports.nic_and_vif(self.nic, port) else {
            return Err(VmqError::NoQueue);
        };
        let (vmq, _) = nic.vmq().ok_or(VmqError::NoQueue)?;
        let queue = vmq.alloc_queue().ok_or(VmqError::NoQueue)?;
        let split = self.arrival(port) == Arrival::HeaderLast;
        let given = vmq
            .set_size(queue, budget)
            .and_then(|()| vmq.split_headers(queue, split))
            .and_then(|()| vmq.set_mac(queue, vif.mac()))
            .and_then(|()| vmq.enable_queue(queue));
        let phase = match given {
            Ok(()) => AssignmentPhase::Joining,
            // It is unknown whether the guest's frames use the queue.
            Err(_) if vmq.is_draining(queue) => AssignmentPhase::Leaving,
            Err(_) => {
                vmq.free_queue(queue)?;
                return given;
            }
        };
        self.given += u64::from(given.is_ok());
        self.held.push(AssignedQueue {
            queue,
            port: Some(port),
            phase,
            split,
            given_ns: now_ns,
        });
        given
    }

    /// Takes the queue from the guest at `port`. Its frames are then read into the driver's
    /// buffers. A failure is retried at the next assignment.
    fn take_back_from(&mut self, ports: &mut BridgePorts, port: usize) {
        let mut queue = None;
        for held in self.held.iter_mut().filter(|held| held.port == Some(port)) {
            held.port = None;
            queue = queue.or((held.phase != AssignmentPhase::Leaving).then_some(held.queue));
        }
        if let Some(queue) = queue
            && let Err(error) = self.take_back(ports, queue)
        {
            self.report_trouble(ports, error);
        }
    }

    fn take_back(&mut self, ports: &mut BridgePorts, queue: QueueId) -> Result<(), VmqError> {
        if let Some(nic) = ports.nic_mut(self.nic)
            && let Some((vmq, _)) = nic.vmq()
        {
            vmq.disable_queue(queue)?;
        }
        self.taken_back += 1;
        for held in self.held.iter_mut().filter(|held| held.queue == queue) {
            held.phase = AssignmentPhase::Leaving;
        }
        Ok(())
    }

    /// Reports an error once. The operation is retried at the next assignment.
    fn report_trouble(&mut self, ports: &BridgePorts, error: VmqError) {
        let trouble = error.to_string();
        if trouble != self.trouble {
            let nic = ports.name(self.nic).unwrap_or("");
            runtime::start::print_line(format_args!(
                "{nic}: dedicated queue of a guest: {trouble}"
            ));
            self.trouble = trouble;
        }
    }
}

/// Returns the bytes of buffers that a frame of a NIC needs.
fn frame_bytes(config: &NicConfig) -> usize {
    let ip = match config.kind {
        NicKindConfig::Tap { tso: true, .. } => config.mtu.max(GSO_BYTES),
        _ => config.mtu,
    };
    (ip + FRAME_EXTRA_BYTES) as usize
}

#[cfg(test)]
mod tests;
