//! Which guest has which queue of a NIC. Guests that get the most frames by the shared queue get
//! the queues; a guest loses its queue to another one that needs it much more.

use crate::nics::Seen;
use crate::numbered::Numbered;
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
    /// How frames of `nic` get to a guest. To one that has a limit they are copied: only what is
    /// not in its pages yet can be dropped.
    fn of(nic: &NicConfig, vif: &VifConfig) -> Self {
        let asks = |rules: &[Rule], way| rules.iter().any(|rule| rule.is_for(way));
        match vif.firewall {
            _ if vif.to_guest.is_some() => Self::Copied,
            _ if !asks(&nic.rules, rule::Way::In) && !asks(&vif.rules, rule::Way::Out) => {
                Self::Whole
            }
            Firewall::Split => Self::HeaderLast,
            Firewall::Shared => Self::Copied,
        }
    }
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
    /// The port of the guest.
    pub port: usize,
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
    /// The queues of the NIC at port `nic`, which no guest has; none: it has no queues.
    #[must_use]
    pub fn new(nic: usize, config: &NicConfig, numbered: &Numbered<'_>) -> Option<Self> {
        let vmq = config.vmq?;
        let mut guests = Vec::new();
        for (port, vif) in numbered.vifs() {
            if guests.len() <= port {
                guests.resize(port + 1, Demand::default());
            }
            if let Some(guest) = guests.get_mut(port) {
                guest.arrival = Arrival::of(config, vif);
            }
        }
        Some(Self {
            nic,
            held: Vec::new(),
            guests,
            frame_bytes: frame_bytes(config),
            rebalance_ns: u64::from(vmq.rebalance_ms) * 1_000_000,
            next_ns: 0,
            given: 0,
            taken_back: 0,
            trouble: String::new(),
        })
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
        let vifs = ports.vifs().map(|(port, vif)| (port, vif.mac()));
        let (at, macs): (Vec<usize>, Vec<[u8; 6]>) = vifs.unzip();
        let (Some(nic), Some(&port)) = (ports.nic_mut(self.nic), at.first()) else {
            return;
        };
        let Some((vmq, _)) = nic.vmq() else {
            return;
        };
        // It is not known which guests had these queues: they are counted as the first guest's.
        let queues = vmq.avail_queues() as u32;
        self.held.extend((0..queues).map(|queue| Held {
            queue: QueueId(queue),
            port,
            phase: Phase::Leaving,
            split: false,
            given_ns: 0,
        }));
        if let Err(error) = vmq.recover(&macs) {
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
                "guest": ports.name(held.port).unwrap_or(""),
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
        let Some(nic) = ports.nic_mut(self.nic) else {
            return;
        };
        let mut free = nic.vmq().map_or(0, |(vmq, _)| vmq.avail_queues());
        let caps = nic.caps();
        let mut candidates = self.candidates(ports, caps).into_iter().peekable();
        while free > 0
            && let Some(port) = candidates.next()
        {
            free -= 1;
            if let Err(error) = self.assign(ports, port, now_ns, budget) {
                self.report_trouble(ports, error);
                return;
            }
        }
        // The least busy first.
        let mut holders = self.held.clone();
        holders.retain(|held| held.phase != Phase::Leaving);
        holders.sort_by_key(|held| self.usual(held.port));
        for held in holders {
            let able = self.is_able(ports, held.port, caps);
            let needed_more = |port: &usize| {
                self.rebalance_ns > 0 && self.usual(*port) > 2 * self.usual(held.port) + SWAP_FRAMES
            };
            if able && candidates.next_if(needed_more).is_none() {
                continue;
            }
            if let Err(error) = self.take_back(ports, held.queue) {
                self.report_trouble(ports, error);
                return;
            }
        }
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

    fn usual(&self, port: usize) -> u64 {
        self.guests.get(port).map_or(0, |guest| guest.usual)
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
        let without = |port: usize| self.held.iter().all(|held| held.port != port);
        let guests = ports.vifs().map(|(port, _)| port);
        let mut found: Vec<usize> = guests
            .filter(|&port| self.is_able(ports, port, caps) && without(port))
            .collect();
        found.sort_by_key(|&port| std::cmp::Reverse(self.usual(port)));
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
            port,
            phase,
            split,
            given_ns: now_ns,
        });
        given
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
