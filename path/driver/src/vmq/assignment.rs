//! Assigns a NIC's dedicated queues to the guests with the most frames in the shared queue. Revokes
//! a guest's queue if another guest has many more frames.

use crate::nics::{NicPort, PollResult};
use crate::ports::BridgePorts;
use config::domain::{FRAME_EXTRA_BYTES, GSO_BYTES, NicConfig, NicKindConfig, VifConfig};
use config::rule::{self, FirewallPlace, FirewallRule};
use nic::Caps;
use nic::vmq::{QueueId, VmqError};
use serde::Serialize;
use serde_json::{Value, json};

/// Polling interval of a draining queue when the driver has no other work.
const DRAIN_POLL_INTERVAL_NS: u64 = 1_000_000;
/// Interval of assigning free queues if queues are never revoked for other guests.
const FREE_QUEUE_INTERVAL_NS: u64 = 100_000_000;
/// A guest with more than `2 * n` frames plus this number takes the queue of a guest with `n`
/// frames.
const SWAP_FRAMES: u64 = 32;
/// Maximum time that a new queue waits for older frames in the shared queue. It is short enough
/// that the new queue does not overflow meanwhile.
const JOIN_TIMEOUT_NS: u64 = 5_000_000;

/// The assignment of one NIC's queues to guests.
#[derive(Debug)]
pub struct Assignment {
    /// The port of the NIC.
    nic: usize,
    assigned: Vec<AssignedQueue>,
    /// Demand of each guest, by port.
    guests: Vec<Demand>,
    /// Whether the NIC has rules for received frames.
    has_rules: bool,
    /// Number of buffer bytes that a frame needs.
    frame_bytes: usize,
    /// Interval of reassigning queues; 0: never reassign.
    rebalance_ns: u64,
    next_ns: u64,
    given: u64,
    taken_back: u64,
    last_error: String,
}

/// The way in which frames from a NIC reach a guest's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Arrival {
    /// The NIC writes whole frames, because no rules apply.
    Whole,
    /// The NIC writes the payload; the driver writes the header after it has applied the rules.
    HeaderLast,
    /// The driver copies frames from the shared queue after it has applied the rules.
    #[default]
    Copied,
}

impl Arrival {
    /// Returns the way in which frames from a NIC, with or without rules, reach a guest. Frames for
    /// a guest with a rate limit are copied, because the driver can drop only frames outside the
    /// guest's pages.
    fn of(has_rules: bool, vif: &VifConfig) -> Self {
        match vif.settings.firewall {
            _ if vif.to_guest.is_some() => Self::Copied,
            _ if !has_rules && !has_rule_for(&vif.settings.rules, rule::RuleDirection::Out) => {
                Self::Whole
            }
            FirewallPlace::Split => Self::HeaderLast,
            FirewallPlace::Shared => Self::Copied,
        }
    }
}

/// Returns whether any rule applies to frames in this direction.
fn has_rule_for(rules: &[FirewallRule], direction: rule::RuleDirection) -> bool {
    rules.iter().any(|rule| rule.applies_to(direction))
}

/// The demand of a guest that may get a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    arrival: Arrival,
    /// Number of frames since the last assignment.
    current: u64,
    /// Smoothed number of frames.
    average: u64,
}

/// An assigned queue.
#[derive(Clone, Copy, Debug)]
pub struct AssignedQueue {
    /// The queue.
    pub queue: QueueId,
    /// Port of the guest. `None` if the guest was removed, if its queue was revoked because its
    /// rules changed, or if an earlier driver domain assigned the queue.
    pub port: Option<usize>,
    /// Phase of the queue's reassignment.
    pub phase: AssignmentPhase,
    /// Whether the driver writes headers last.
    pub split: bool,
    given_ns: u64,
}

/// Phase of a queue's reassignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AssignmentPhase {
    /// Older frames for the guest may be in the shared queue.
    Joining,
    /// The guest uses the queue.
    Active,
    /// The queue is revoked and drains.
    Leaving,
}

impl Assignment {
    /// Creates the assignment of the NIC at port `nic`, without guests. Returns `None` if the NIC
    /// has no queues.
    #[must_use]
    pub fn new(nic: usize, config: &NicConfig) -> Option<Self> {
        let vmq = config.settings.vmq?;
        Some(Self {
            nic,
            assigned: Vec::new(),
            guests: Vec::new(),
            has_rules: has_rule_for(&config.settings.rules, rule::RuleDirection::In),
            frame_bytes: frame_bytes(config),
            rebalance_ns: u64::from(vmq.rebalance_ms) * 1_000_000,
            next_ns: 0,
            given: 0,
            taken_back: 0,
            last_error: String::new(),
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

    /// Updates the rules or limits of the guest at `port`. If the guest's frames must now reach it
    /// in another way, revokes its queue, so that the guest can get a new queue.
    pub fn change(&mut self, ports: &mut BridgePorts, port: usize, vif: &VifConfig) {
        let arrival = Arrival::of(self.has_rules, vif);
        match self.guests.get_mut(port) {
            Some(guest) if guest.arrival != arrival => guest.arrival = arrival,
            _ => return,
        }
        self.revoke_queue_of(ports, port);
    }

    /// Removes the guest at `port` and revokes its queue. Frames that remain in the queue are
    /// forwarded like frames of the shared queue.
    pub fn remove_guest(&mut self, ports: &mut BridgePorts, port: usize) {
        if let Some(guest) = self.guests.get_mut(port) {
            *guest = Demand::default();
        }
        self.revoke_queue_of(ports, port);
    }

    /// Returns the number of buffer bytes that a frame needs.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Returns the number of assigned queues, including those that drain.
    #[must_use]
    pub fn assigned_queues(&self) -> usize {
        self.assigned.len()
    }

    /// Returns assigned queue number `at`.
    #[must_use]
    pub fn assigned(&self, at: usize) -> Option<AssignedQueue> {
        self.assigned.get(at).copied()
    }

    /// Takes over the queues of an earlier driver domain, which then drain. Their frames are
    /// forwarded like frames of the shared queue.
    pub fn recover(&mut self, ports: &mut BridgePorts) {
        let nic = ports.nic_mut(self.nic);
        let Some((vmq, _)) = nic.and_then(NicPort::vmq) else {
            return;
        };
        let queues = vmq.avail_queues() as u32;
        self.assigned.extend((0..queues).map(|queue| AssignedQueue {
            queue: QueueId(queue),
            port: None,
            phase: AssignmentPhase::Leaving,
            split: false,
            given_ns: 0,
        }));
        if let Err(error) = vmq.recover() {
            self.report_error(ports, error);
        }
    }

    /// Returns whether the guest at `port` uses a queue.
    #[must_use]
    pub fn is_active(&self, port: usize) -> bool {
        self.assigned.iter().any(|assigned| {
            assigned.port == Some(port) && assigned.phase == AssignmentPhase::Active
        })
    }

    /// Counts frames for the guest at `port`.
    #[inline]
    pub fn count(&mut self, port: usize, frames: u64) {
        if let Some(guest) = self.guests.get_mut(port) {
            guest.current += frames;
        }
    }

    /// Returns the time at which the driver must poll a queue even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let leaving = self
            .assigned
            .iter()
            .any(|assigned| assigned.phase == AssignmentPhase::Leaving);
        leaving.then(|| now_ns.saturating_add(DRAIN_POLL_INTERVAL_NS))
    }

    /// Returns the assignment and its counters as JSON.
    #[must_use]
    pub fn stat(&self, ports: &BridgePorts) -> Value {
        let assigned = self.assigned.iter().map(|assigned| {
            json!({
                "queue": assigned.queue.0,
                "guest": assigned.port.and_then(|port| ports.name(port)).unwrap_or(""),
                "phase": assigned.phase,
                "split": assigned.split,
            })
        });
        json!({
            "queues": assigned.collect::<Vec<_>>(),
            "given": self.given,
            "taken_back": self.taken_back,
            "trouble": self.last_error,
        })
    }

    /// Activates a joining queue if `poll_result` shows that the shared queue has no older frames
    /// for its guest, or after a timeout.
    pub fn activate(&mut self, at: usize, poll_result: PollResult, now_ns: u64) {
        if let Some(assigned) = self.assigned.get_mut(at) {
            let late = now_ns.saturating_sub(assigned.given_ns) > JOIN_TIMEOUT_NS;
            if assigned.phase == AssignmentPhase::Joining
                && (poll_result == PollResult::All || late)
            {
                assigned.phase = AssignmentPhase::Active;
            }
        }
    }

    /// Assigns free queues, and revokes queues that other guests need more or that their guests can
    /// no longer use.
    pub fn rebalance(&mut self, ports: &mut BridgePorts, now_ns: u64, budget: usize) {
        let period_ns = match self.rebalance_ns {
            0 => FREE_QUEUE_INTERVAL_NS,
            period => period,
        };
        self.next_ns = now_ns.saturating_add(period_ns);
        for guest in &mut self.guests {
            guest.average = (guest.average + std::mem::take(&mut guest.current)) / 2;
        }
        let Some(caps) = ports.nic(self.nic).map(NicPort::caps) else {
            return;
        };
        // Unusable queues are revoked first, because their MACs may belong to other guests now.
        for assigned in self.not_revoked() {
            let is_usable = assigned
                .port
                .is_some_and(|port| self.can_have_queue(ports, port, caps));
            if !is_usable && let Err(error) = self.revoke(ports, assigned.queue) {
                self.report_error(ports, error);
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
                // A queue that drains may still receive frames for the MAC.
                Err(VmqError::MacTaken) => {}
                Err(error) => return self.report_error(ports, error),
            }
        }
        // The guest with the fewest frames loses its queue first.
        let mut active = self.not_revoked();
        active.retain(|assigned| assigned.port.is_some());
        active.sort_by_key(|assigned| self.average(assigned.port));
        for assigned in active {
            let enough = 2 * self.average(assigned.port) + SWAP_FRAMES;
            let needed_more =
                |port: &usize| self.rebalance_ns > 0 && self.average(Some(*port)) > enough;
            if candidates.next_if(needed_more).is_some()
                && let Err(error) = self.revoke(ports, assigned.queue)
            {
                return self.report_error(ports, error);
            }
        }
    }

    /// Returns the queues that are not revoked.
    fn not_revoked(&self) -> Vec<AssignedQueue> {
        let assigned = self.assigned.iter();
        assigned
            .filter(|assigned| assigned.phase != AssignmentPhase::Leaving)
            .copied()
            .collect()
    }

    /// Returns whether [`Assignment::rebalance`] is due.
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Frees queue number `at` if it has drained. Another guest can then get it.
    pub fn free_if_drained(&mut self, ports: &mut BridgePorts, at: usize) {
        if let Some(&AssignedQueue { queue, .. }) = self.assigned.get(at)
            && let Some(nic) = ports.nic_mut(self.nic)
            && let Some((vmq, _)) = nic.vmq()
            && vmq.free_queue(queue).is_ok()
        {
            self.assigned.remove(at);
            self.next_ns = 0;
        }
    }

    fn arrival(&self, port: usize) -> Arrival {
        self.guests
            .get(port)
            .map_or(Arrival::Copied, |guest| guest.arrival)
    }

    fn average(&self, port: Option<usize>) -> u64 {
        let guest = port.and_then(|port| self.guests.get(port));
        guest.map_or(0, |guest| guest.average)
    }

    /// Returns whether the NIC can write frames directly into the pages of the guest at `port`.
    fn can_have_queue(&self, ports: &BridgePorts, port: usize, caps: Caps) -> bool {
        let can_post = || {
            let vif = ports.vif(port);
            vif.is_some_and(|vif| vif.can_post(self.frame_bytes, caps))
        };
        self.arrival(port) != Arrival::Copied && can_post()
    }

    /// Returns the ports of eligible guests without a queue, in descending order of their frames.
    fn candidates(&self, ports: &BridgePorts, caps: Caps) -> Vec<usize> {
        let without = |port: usize| {
            self.assigned
                .iter()
                .all(|assigned| assigned.port != Some(port))
        };
        let guests = ports.vifs().map(|(port, _)| port);
        let mut found: Vec<usize> = guests
            .filter(|&port| self.can_have_queue(ports, port, caps) && without(port))
            .collect();
        found.sort_by_key(|&port| std::cmp::Reverse(self.average(Some(port))));
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
            // The NIC may already steer the guest's frames to this queue.
            Err(_) if vmq.is_draining(queue) => AssignmentPhase::Leaving,
            Err(_) => {
                vmq.free_queue(queue)?;
                return given;
            }
        };
        self.given += u64::from(given.is_ok());
        self.assigned.push(AssignedQueue {
            queue,
            port: Some(port),
            phase,
            split,
            given_ns: now_ns,
        });
        given
    }

    /// Revokes the queue of the guest at `port`. The driver then reads the frames of the queue into
    /// its own buffers. After a failure, the next assignment retries.
    fn revoke_queue_of(&mut self, ports: &mut BridgePorts, port: usize) {
        let mut queue = None;
        for assigned in self
            .assigned
            .iter_mut()
            .filter(|assigned| assigned.port == Some(port))
        {
            assigned.port = None;
            queue =
                queue.or((assigned.phase != AssignmentPhase::Leaving).then_some(assigned.queue));
        }
        if let Some(queue) = queue
            && let Err(error) = self.revoke(ports, queue)
        {
            self.report_error(ports, error);
        }
    }

    fn revoke(&mut self, ports: &mut BridgePorts, queue: QueueId) -> Result<(), VmqError> {
        if let Some(nic) = ports.nic_mut(self.nic)
            && let Some((vmq, _)) = nic.vmq()
        {
            vmq.disable_queue(queue)?;
        }
        self.taken_back += 1;
        for assigned in self
            .assigned
            .iter_mut()
            .filter(|assigned| assigned.queue == queue)
        {
            assigned.phase = AssignmentPhase::Leaving;
        }
        Ok(())
    }

    /// Logs an error, unless it is the same as the last one. The next assignment retries the
    /// operation.
    fn report_error(&mut self, ports: &BridgePorts, error: VmqError) {
        let text = error.to_string();
        if text != self.last_error {
            let nic = ports.name(self.nic).unwrap_or("");
            runtime::start::print_line(format_args!("{nic}: dedicated queue of a guest: {text}"));
            self.last_error = text;
        }
    }
}

/// Returns the number of buffer bytes that a frame of this NIC needs.
fn frame_bytes(config: &NicConfig) -> usize {
    let ip = match config.kind {
        NicKindConfig::Tap { tso: true, .. } => config.settings.mtu.max(GSO_BYTES),
        _ => config.settings.mtu,
    };
    (ip + FRAME_EXTRA_BYTES) as usize
}

#[cfg(test)]
mod tests;
