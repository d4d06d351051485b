//! Which guest has which queue of a NIC. Guests that get the most frames by the shared queue get
//! the queues; a guest loses its queue to another one that needs it much more.

use crate::nics::{NicPort, Seen};
use crate::ports::Ports;
use config::domain::{FRAME_EXTRA_BYTES, GSO_BYTES, NicConfig, NicKind, VifConfig};
use config::rule::{self, Firewall, Rule};
use nic::Caps;
use nic::vmq::{QueueId, VmqError};
use serde_json::{Value, json};

/// How often a queue that drains is polled when there is nothing else to do.
const DRAIN_NS: u64 = 1_000_000;
/// How often free queues are given out if no guest loses one to another.
const ALLOC_NS: u64 = 100_000_000;
/// A guest gets another's queue if it has more than twice as many frames, and these more.
const SWAP_FRAMES: u64 = 32;
/// How long a new queue waits at the most for older frames of the shared one: it would overflow.
const JOIN_NS: u64 = 5_000_000;

/// The queues of one NIC, and the guests that have them.
#[derive(Debug)]
pub struct Assignment {
    /// The port of the NIC.
    nic: usize,
    held: Vec<Held>,
    /// By port.
    guests: Vec<Demand>,
    /// Whether the NIC has rules for what comes by it.
    has_rules: bool,
    /// Room that a frame needs.
    frame_bytes: usize,
    /// How often guests may lose queues to others; 0: never.
    rebalance_ns: u64,
    next_ns: u64,
    given: u64,
    taken_back: u64,
    trouble: String,
}

/// How frames of a NIC get into the pages of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Arrival {
    /// Whole: there are no rules.
    Whole,
    /// Their headers last, when the rules have been asked.
    HeaderLast,
    /// Not at all: by the shared queue, copied when the rules have been asked.
    #[default]
    Copied,
}

impl Arrival {
    /// How frames get to a guest from a NIC that has rules for them, or none. To one that has a
    /// limit they are copied: only what is not in its pages yet can be dropped.
    fn of(has_rules: bool, vif: &VifConfig) -> Self {
        match vif.firewall {
            _ if vif.to_guest.is_some() => Self::Copied,
            _ if !has_rules && !asks(&vif.rules, rule::Way::Out) => Self::Whole,
            Firewall::Split => Self::HeaderLast,
            Firewall::Shared => Self::Copied,
        }
    }
}

/// Whether any rule is for what passes a port this way.
fn asks(rules: &[Rule], way: rule::Way) -> bool {
    rules.iter().any(|rule| rule.is_for(way))
}

/// What is known of a port that may want a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    arrival: Arrival,
    /// Frames since queues were given out last.
    now: u64,
    /// Frames of late.
    usual: u64,
}

/// A queue that a guest has.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The queue.
    pub queue: QueueId,
    /// The port of the guest; none: it has gone or lost the queue, or was another driver domain's.
    pub port: Option<usize>,
    /// How far its way from guest to guest it is.
    pub phase: Phase,
    /// Whether headers come last.
    pub split: bool,
    given_ns: u64,
}

/// How far its way from guest to guest a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Older frames of its guest may be in the shared queue.
    Joining,
    /// It is its guest's.
    Active,
    /// It drains.
    Leaving,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Active => "active",
            Self::Leaving => "leaving",
        }
    }
}

impl Assignment {
    /// The queues of the NIC at port `nic`, of which no guest is known; none: it has no queues.
    #[must_use]
    pub fn new(nic: usize, config: &NicConfig) -> Option<Self> {
        let vmq = config.vmq?;
        Some(Self {
            nic,
            held: Vec::new(),
            guests: Vec::new(),
            has_rules: asks(&config.rules, rule::Way::In),
            frame_bytes: frame_bytes(config),
            rebalance_ns: u64::from(vmq.rebalance_ms) * 1_000_000,
            next_ns: 0,
            given: 0,
            taken_back: 0,
            trouble: String::new(),
        })
    }

    /// A guest has come to `port`: it may get a queue.
    pub fn welcome(&mut self, port: usize, vif: &VifConfig) {
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

    /// The guest at `port` has other rules or limits. It gets another queue if its frames have to
    /// come otherwise.
    pub fn change(&mut self, ports: &mut Ports, port: usize, vif: &VifConfig) {
        let arrival = Arrival::of(self.has_rules, vif);
        match self.guests.get_mut(port) {
            Some(guest) if guest.arrival != arrival => guest.arrival = arrival,
            _ => return,
        }
        self.take_back_from(ports, port);
    }

    /// The guest at `port` goes: what is left in its queue goes on as if it had come by the shared
    /// one.
    pub fn part_with(&mut self, ports: &mut Ports, port: usize) {
        if let Some(guest) = self.guests.get_mut(port) {
            *guest = Demand::default();
        }
        self.take_back_from(ports, port);
    }

    /// Room that a frame needs.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// How many queues guests have.
    #[must_use]
    pub fn held_queues(&self) -> usize {
        self.held.len()
    }

    /// One of the queues that guests have.
    #[must_use]
    pub fn held(&self, at: usize) -> Option<Held> {
        self.held.get(at).copied()
    }

    /// Begins with no frame in any queue: what a driver domain before this one has left there goes
    /// on as if it had come by the shared queue.
    pub fn recover(&mut self, ports: &mut Ports) {
        let nic = ports.nic_mut(self.nic);
        let Some((vmq, _)) = nic.and_then(NicPort::vmq) else {
            return;
        };
        let queues = vmq.avail_queues() as u32;
        self.held.extend((0..queues).map(|queue| Held {
            queue: QueueId(queue),
            port: None,
            phase: Phase::Leaving,
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

    /// When a queue wants to be polled although no frame may come.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let leaving = self.held.iter().any(|held| held.phase == Phase::Leaving);
        leaving.then(|| now_ns.saturating_add(DRAIN_NS))
    }

    /// Which guest has which queue, as JSON.
    #[must_use]
    pub fn stat(&self, ports: &Ports) -> Value {
        let held = self.held.iter().map(|held| {
            json!({
                "queue": held.queue.0,
                "guest": held.port.and_then(|port| ports.name(port)).unwrap_or(""),
                "phase": held.phase.name(),
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

    /// A queue that joins is active when the shared queue has no older frames for its guest: `seen`
    /// is what was seen of that one. It does not wait for ever.
    pub fn activate(&mut self, at: usize, seen: Seen, now_ns: u64) {
        if let Some(held) = self.held.get_mut(at) {
            let late = now_ns.saturating_sub(held.given_ns) > JOIN_NS;
            if held.phase == Phase::Joining && (seen == Seen::All || late) {
                held.phase = Phase::Active;
            }
        }
    }

    /// Gives free queues out, and takes those back that others need more or that their guests
    /// cannot use any more, if it is time to.
    pub fn rebalance(&mut self, ports: &mut Ports, now_ns: u64, budget: usize) {
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
        // Who cannot use theirs go first: MACs may be others' by now.
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
                // A queue that is to be taken back may have frames to it.
                Err(VmqError::MacTaken) => {}
                Err(error) => return self.report_trouble(ports, error),
            }
        }
        // The least busy first.
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

    /// The queues that are not given back yet.
    fn holders(&self) -> Vec<Held> {
        let held = self.held.iter();
        held.filter(|held| held.phase != Phase::Leaving)
            .copied()
            .collect()
    }

    /// Whether [`Assignment::rebalance`] is due.
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// A queue that has drained is free, and can be another guest's.
    pub fn free_if_drained(&mut self, ports: &mut Ports, at: usize) {
        if let Some(&Held { queue, .. }) = self.held.get(at)
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

    /// Whether frames can be written straight to the pages of the guest at `port`.
    fn is_able(&self, ports: &Ports, port: usize, caps: Caps) -> bool {
        let can_post = || {
            let vif = ports.vif(port);
            vif.is_some_and(|vif| vif.can_post(self.frame_bytes, caps))
        };
        self.arrival(port) != Arrival::Copied && can_post()
    }

    /// Ports of guests that have no queue and could have one, the busiest first.
    fn candidates(&self, ports: &Ports, caps: Caps) -> Vec<usize> {
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
        ports: &mut Ports,
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
            Ok(()) => Phase::Joining,
            // Whether the guest's frames come by it is not known.
            Err(_) if vmq.is_draining(queue) => Phase::Leaving,
            Err(_) => {
                vmq.free_queue(queue)?;
                return given;
            }
        };
        self.given += u64::from(given.is_ok());
        self.held.push(Held {
            queue,
            port: Some(port),
            phase,
            split,
            given_ns: now_ns,
        });
        given
    }

    /// The guest at `port` has no queue from now on: what comes by that is read into buffers of
    /// ours. Where it cannot be taken back now, it is when the next queues are given out.
    fn take_back_from(&mut self, ports: &mut Ports, port: usize) {
        let mut queue = None;
        for held in self.held.iter_mut().filter(|held| held.port == Some(port)) {
            held.port = None;
            queue = queue.or((held.phase != Phase::Leaving).then_some(held.queue));
        }
        if let Some(queue) = queue
            && let Err(error) = self.take_back(ports, queue)
        {
            self.report_trouble(ports, error);
        }
    }

    fn take_back(&mut self, ports: &mut Ports, queue: QueueId) -> Result<(), VmqError> {
        if let Some(nic) = ports.nic_mut(self.nic)
            && let Some((vmq, _)) = nic.vmq()
        {
            vmq.disable_queue(queue)?;
        }
        self.taken_back += 1;
        for held in self.held.iter_mut().filter(|held| held.queue == queue) {
            held.phase = Phase::Leaving;
        }
        Ok(())
    }

    /// Reports once what is wrong; it is tried again at the next time.
    fn report_trouble(&mut self, ports: &Ports, error: VmqError) {
        let trouble = error.to_string();
        if trouble != self.trouble {
            let nic = ports.name(self.nic).unwrap_or("");
            runtime::start::print_line(format_args!(
                "{nic}: a queue for a single guest: {trouble}"
            ));
            self.trouble = trouble;
        }
    }
}

/// Room that a frame of a NIC needs.
fn frame_bytes(config: &NicConfig) -> usize {
    let ip = match config.kind {
        NicKind::Tap { tso: true, .. } => config.mtu.max(GSO_BYTES),
        _ => config.mtu,
    };
    (ip + FRAME_EXTRA_BYTES) as usize
}

#[cfg(test)]
mod tests;
