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
//! Whatever lies in a guest's page was decided on like any other frame, by the bridge and on its
//! snapshot; what the bridge does not send to this very guest is not delivered. Where firewall rules
//! stand between the NIC and the guest, a frame's header is put into the guest's page only when it
//! has been decided on, or the guest gets no queue: see `Arrival`.

use crate::merge::QueueMerger;
use crate::nics::Seen;
use crate::port::Port;
use crate::turn::Driver;
use config::domain::{DriverConfig, FRAME_EXTRA_BYTES, Lro, NicConfig, VifConfig};
use config::rule::{self, Firewall, Rule};
use net::bridge::Verdict;
use nic::vmq::{Backend, Freed, QueueId, VmqError};
use nic::{Buffer, BufferId, Buffers, Frame, Pool};
use runtime::idle::POLL_BUDGET;
use runtime::ledger::Hop;
use runtime::lro::Sums;
use serde_json::{Value, json};
use vif::grants::Grants;
use vif::netback::Netback;

/// Numbers of buffers that a guest has posted have this bit.
const POSTED: u32 = 1 << 31;
/// How often a queue that drains is looked at when there is nothing else to do.
const DRAIN_NS: u64 = 1_000_000;
/// How often free queues are given out where nobody loses one.
const GIVE_NS: u64 = 100_000_000;
/// A guest gets another's queue if it has more than twice as many frames, and these more.
const SWAP_FRAMES: u64 = 32;
/// How long a new queue waits at the most for older frames of the shared one: it would overflow.
const JOIN_NS: u64 = 5_000_000;

/// The queues of one NIC.
#[derive(Debug)]
pub struct Queues {
    /// The port of the NIC.
    pub nic: usize,
    /// Frames that lay in a guest's page and that the bridge sent elsewhere.
    pub misdirected: u64,
    held: Vec<Held>,
    /// By port, frames of late.
    loads: Vec<Load>,
    /// By port, how frames may get into a guest's pages.
    arrivals: Vec<Arrival>,
    /// Room that a frame needs in one piece.
    frame_bytes: usize,
    rebalance_ns: u64,
    next_ns: u64,
    /// Frames of a batch that lie in the guest's pages; empty between batches.
    direct: Vec<Frame>,
    /// Frames of a batch that lie in buffers of ours.
    own: Vec<Frame>,
    merger: QueueMerger,
    counts: Counts,
    trouble: String,
}

#[derive(Debug, Default)]
struct Counts {
    direct: u64,
    through: u64,
    given: u64,
    taken_back: u64,
}

/// How frames of a NIC get into the pages of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// Whole: there are no rules.
    Whole,
    /// Their headers last, when the rules have been asked.
    HeaderLast,
    /// Not at all: by the shared queue, copied when the rules have been asked.
    Copied,
}

impl Arrival {
    /// How frames of `nic` get to each port.
    fn of_ports(config: &DriverConfig, nic: &NicConfig) -> Vec<Self> {
        let asks = |rules: &[Rule], way| rules.iter().any(|rule| rule.is_for(way));
        let of_guest = |vif: &VifConfig| match vif.firewall {
            _ if !asks(&nic.rules, rule::Way::In) && !asks(&vif.rules, rule::Way::Out) => {
                Self::Whole
            }
            Firewall::Split => Self::HeaderLast,
            Firewall::Shared => Self::Copied,
        };
        let nics = config.nics.iter().map(|_| Self::Copied);
        nics.chain(config.vifs.iter().map(of_guest)).collect()
    }
}

/// A queue that a guest has.
#[derive(Clone, Copy, Debug)]
struct Held {
    queue: QueueId,
    /// The port of the guest.
    port: usize,
    phase: Phase,
    given_ns: u64,
    /// Whether headers come last.
    split: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Joining,
    Active,
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

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    now: u64,
    usual: u64,
}

impl Queues {
    /// The queues of all NICs that have some.
    #[must_use]
    pub fn of(config: &DriverConfig) -> Vec<Self> {
        let nics = config.nics.iter().enumerate();
        nics.filter_map(|(nic, config_of_nic)| {
            let vmq = config_of_nic.vmq?;
            Some(Self {
                nic,
                misdirected: 0,
                held: Vec::new(),
                loads: vec![Load::default(); config.nics.len() + config.vifs.len()],
                arrivals: Arrival::of_ports(config, config_of_nic),
                frame_bytes: (config_of_nic.mtu + FRAME_EXTRA_BYTES) as usize,
                rebalance_ns: u64::from(vmq.rebalance_ms) * 1_000_000,
                next_ns: 0,
                direct: Vec::new(),
                own: Vec::new(),
                merger: QueueMerger::new(&config.lro),
                counts: Counts::default(),
                trouble: String::new(),
            })
        })
        .collect()
    }

    /// Begins with no frame in any queue: what a driver domain before this one has left there goes on
    /// as if it had come by the shared queue.
    pub fn recover(&mut self, ports: &mut [Port]) {
        let vifs = ports.iter().enumerate();
        let vifs = vifs.filter_map(|(port, of)| match of {
            Port::Vif(vif) => Some((port, vif.mac())),
            Port::Nic(_) => None,
        });
        let (at, macs): (Vec<usize>, Vec<[u8; 6]>) = vifs.unzip();
        let (Some(Port::Nic(nic)), Some(&port)) = (ports.get_mut(self.nic), at.first()) else {
            return;
        };
        match nic.vmq().map_or(Ok(0), |(vmq, _)| vmq.recover(&macs)) {
            // Whose they were nobody knows: they stand in the first guest's name.
            Ok(queues) => self.held.extend((0..queues).map(|queue| Held {
                queue: QueueId(queue),
                port,
                phase: Phase::Leaving,
                given_ns: 0,
                split: false,
            })),
            Err(error) => self.complain(ports, error),
        }
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, lro: &Lro) {
        self.merger.set(lro);
    }

    /// Adds what large receive offload has counted.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.merger.add_to(sums);
    }

    /// Counts frames that the shared queue has brought.
    pub fn count(&mut self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            if let Verdict::Unicast(port) = verdict {
                self.note(*port, 1);
            }
        }
    }

    fn note(&mut self, port: usize, frames: u64) {
        if let Some(load) = self.loads.get_mut(port) {
            load.now += frames;
        }
    }

    /// When they want to be looked at although no frame may come.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let leaving = self.held.iter().any(|held| held.phase == Phase::Leaving);
        leaving.then(|| now_ns.saturating_add(DRAIN_NS))
    }

    /// What they do and have done, as JSON.
    pub(crate) fn stat(&self, ports: &[Port]) -> Value {
        let held = self.held.iter().map(|held| {
            json!({
                "queue": held.queue.0,
                "guest": ports.get(held.port).map_or("", Port::name),
                "phase": held.phase.name(),
                "split": held.split,
            })
        });
        json!({
            "queues": held.collect::<Vec<_>>(),
            "direct_packets": self.counts.direct,
            "copied_packets": self.counts.through,
            "misdirected": self.misdirected,
            "given": self.counts.given,
            "taken_back": self.counts.taken_back,
            "trouble": self.trouble,
            "lro": self.merger.stat(),
        })
    }

    fn arrival(&self, port: usize) -> Arrival {
        self.arrivals.get(port).copied().unwrap_or(Arrival::Copied)
    }

    fn usual(&self, port: usize) -> u64 {
        self.loads.get(port).map_or(0, |load| load.usual)
    }

    /// Whether frames can be written straight to the pages of the guest at `port`.
    fn is_able(&self, ports: &[Port], port: usize, caps: nic::Caps) -> bool {
        self.arrival(port) != Arrival::Copied
            && matches!(ports.get(port), Some(Port::Vif(vif)) if vif.can_post(self.frame_bytes, caps))
    }

    /// Ports of guests that have no queue and could have one, the busiest first.
    fn candidates(&self, ports: &[Port], caps: nic::Caps) -> Vec<usize> {
        let without = |port: usize| self.held.iter().all(|held| held.port != port);
        let mut found: Vec<usize> = (0..ports.len())
            .filter(|&port| self.is_able(ports, port, caps) && without(port))
            .collect();
        found.sort_by_key(|&port| std::cmp::Reverse(self.usual(port)));
        found
    }

    /// Gives free queues out, and takes those back that others need more or nobody can use.
    fn rebalance(&mut self, ports: &mut [Port], now_ns: u64, budget: usize) {
        let period_ns = match self.rebalance_ns {
            0 => GIVE_NS,
            period => period,
        };
        self.next_ns = now_ns.saturating_add(period_ns);
        for load in &mut self.loads {
            load.usual = (load.usual + std::mem::take(&mut load.now)) / 2;
        }
        let Some(Port::Nic(nic)) = ports.get_mut(self.nic) else {
            return;
        };
        let mut free = nic.vmq().map_or(0, |(vmq, _)| vmq.avail_queues());
        let caps = nic.caps();
        let mut candidates = self.candidates(ports, caps).into_iter().peekable();
        while free > 0
            && let Some(port) = candidates.next()
        {
            free -= 1;
            if let Err(error) = self.give(ports, port, now_ns, budget) {
                self.complain(ports, error);
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
                self.complain(ports, error);
                return;
            }
        }
    }

    fn give(
        &mut self,
        ports: &mut [Port],
        port: usize,
        now_ns: u64,
        budget: usize,
    ) -> Result<(), VmqError> {
        let Ok([Port::Nic(nic), Port::Vif(vif)]) = ports.get_disjoint_mut([self.nic, port]) else {
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
        if let Err(error) = given {
            vmq.free_queue(queue)?;
            return Err(error);
        }
        self.counts.given += 1;
        self.held.push(Held {
            queue,
            port,
            phase: Phase::Joining,
            given_ns: now_ns,
            split,
        });
        Ok(())
    }

    fn take_back(&mut self, ports: &mut [Port], queue: QueueId) -> Result<(), VmqError> {
        if let Some(Port::Nic(nic)) = ports.get_mut(self.nic)
            && let Some((vmq, _)) = nic.vmq()
        {
            vmq.disable_queue(queue)?;
        }
        self.counts.taken_back += 1;
        for held in self.held.iter_mut().filter(|held| held.queue == queue) {
            held.phase = Phase::Leaving;
        }
        Ok(())
    }

    /// Says once what is wrong; it is tried again at the next time.
    fn complain(&mut self, ports: &[Port], error: VmqError) {
        let trouble = error.to_string();
        if trouble != self.trouble {
            let nic = ports.get(self.nic).map_or("", Port::name);
            eprintln!("{nic}: a queue for a single guest: {trouble}");
            self.trouble = trouble;
        }
    }
}

impl Driver {
    /// Reads what is left in queues that were taken back: it is older than what the shared queue
    /// has for the same guests. How many frames there were.
    pub(crate) fn drain_queues(&mut self, nic: usize, now_ns: u64) -> usize {
        self.with_queues(nic, |driver, queues| {
            let leaving = |held: &Held| held.phase == Phase::Leaving;
            let mut frames = 0;
            for at in (0..queues.held.len()).rev() {
                if queues.held.get(at).is_some_and(leaving) {
                    frames += driver.poll_queue(queues, at, now_ns);
                    driver.settle(queues, at);
                }
            }
            frames
        })
    }

    /// Reads the queues of guests, and sees to it that the right ones have them; after the shared
    /// queue. How many frames there were.
    pub(crate) fn serve_queues(&mut self, nic: usize, now_ns: u64) -> usize {
        self.with_queues(nic, |driver, queues| {
            if now_ns >= queues.next_ns {
                let before = driver.ledger.enter(Hop::Control);
                queues.rebalance(&mut driver.ports, now_ns, POLL_BUDGET);
                driver.ledger.enter(before);
            }
            let seen = match driver.ports.get(nic) {
                Some(Port::Nic(port)) => port.seen(),
                _ => Seen::Nothing,
            };
            if seen == Seen::Nothing {
                return 0;
            }
            let mut frames = 0;
            for at in 0..queues.held.len() {
                let Some(held) = queues.held.get_mut(at) else {
                    break;
                };
                let late = now_ns.saturating_sub(held.given_ns) > JOIN_NS;
                if held.phase == Phase::Joining && (seen == Seen::All || late) {
                    held.phase = Phase::Active;
                }
                if held.phase == Phase::Active {
                    frames += driver.poll_queue(queues, at, now_ns);
                }
            }
            frames
        })
    }

    fn with_queues(
        &mut self,
        nic: usize,
        work: impl FnOnce(&mut Self, &mut Queues) -> usize,
    ) -> usize {
        if self.queues.iter().all(|queues| queues.nic != nic) {
            return 0;
        }
        let mut all = std::mem::take(&mut self.queues);
        let frames = match all.iter_mut().find(|queues| queues.nic == nic) {
            Some(queues) => work(self, queues),
            None => 0,
        };
        self.queues = all;
        frames
    }

    /// One batch from one queue.
    fn poll_queue(&mut self, queues: &mut Queues, at: usize, now_ns: u64) -> usize {
        let Some(&Held {
            queue,
            port,
            phase,
            split,
            ..
        }) = queues.held.get(at)
        else {
            return 0;
        };
        let budget = POLL_BUDGET;
        let Ok([Port::Nic(nic), Port::Vif(vif)]) = self.ports.get_disjoint_mut([queues.nic, port])
        else {
            return 0;
        };
        let Some((vmq, pool)) = nic.vmq() else {
            return 0;
        };
        let merging = queues.merger.is_active() && vif.takes_merged();
        let mut netback = (phase == Phase::Active).then(|| vif.posting()).flatten();
        if let Some(netback) = &mut netback {
            netback.expect_merged(merging);
        }
        let mut posting = Posting {
            netback,
            through: false,
            pool,
            bytes: queues.frame_bytes,
            direct: &mut queues.direct,
            own: &mut queues.own,
        };
        let polled = self
            .ledger
            .at(Hop::Nic, || vmq.poll(queue, now_ns, budget, &mut posting));
        let frames = polled.unwrap_or(0);
        let all = queues.direct.iter().chain(&queues.own);
        nic.traffic.in_bytes += all.map(|frame| frame.len() as u64).sum::<u64>();
        nic.traffic.in_packets += frames as u64;
        if frames >= budget {
            nic.has_more();
        }
        queues.note(port, frames as u64);
        queues.counts.direct += queues.direct.len() as u64;
        queues.counts.through += queues.own.len() as u64;
        if phase == Phase::Active {
            // Headers that come last are there only when the bridge has decided on each frame; else
            // a merged frame is decided on once.
            if split {
                self.judge(queues, port, split, now_ns);
            }
            if merging {
                self.merge(queues, port, now_ns);
            }
            if !split {
                self.judge(queues, port, split, now_ns);
            }
            self.hand_over(queues, port);
        }
        if !queues.own.is_empty() {
            self.forward(queues.nic, now_ns, &mut queues.own);
            if let Some(Port::Nic(nic)) = self.ports.get_mut(queues.nic) {
                nic.done(&mut queues.own, &self.ledger);
            }
        }
        frames
    }

    /// Merges frames that lie in a guest's pages.
    fn merge(&mut self, queues: &mut Queues, port: usize, now_ns: u64) {
        let Queues { merger, direct, .. } = queues;
        if direct.len() > 1
            && let Some(Port::Vif(vif)) = self.ports.get_mut(port)
            && let Some(netback) = vif.posting()
        {
            self.ledger
                .at(Hop::Lro, || merger.merge(netback, now_ns, direct));
        }
    }

    /// Decides on the frames that lie in a guest's pages: those stay that are for the guest, with
    /// their headers where they belong.
    fn judge(&mut self, queues: &mut Queues, port: usize, split: bool, now_ns: u64) {
        if queues.direct.is_empty() {
            return;
        }
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let before = self.ledger.enter(Hop::Bridge);
        self.decide(queues.nic, now_ns, &mut queues.direct, &mut verdicts);
        self.ledger.enter(Hop::Netback);
        let is_for_it = |verdict: &Verdict| matches!(verdict, Verdict::Unicast(to) if *to == port);
        if verdicts.first().is_some_and(is_for_it) {
            let name = self.ports.get(port).map_or("", Port::name);
            self.trace
                .step(Hop::Netback, || format!("lies in a page of {name}"));
        }
        if let Some(Port::Vif(vif)) = self.ports.get_mut(port)
            && let Some(netback) = vif.posting()
        {
            let mut each = verdicts.iter();
            queues.direct.retain_mut(|frame| {
                match each.next() {
                    Some(verdict) if is_for_it(verdict) => {
                        return !split || netback.put_header(frame);
                    }
                    Some(Verdict::Drop(_)) => {}
                    _ => queues.misdirected += 1,
                }
                for piece in &frame.pieces {
                    netback.refuse(piece.buffer);
                }
                false
            });
        }
        self.ledger.enter(before);
        self.trace.end();
        self.verdicts = verdicts;
    }

    /// Gives the guest the frames that lie in its pages, and answers its requests.
    fn hand_over(&mut self, queues: &mut Queues, port: usize) {
        if let Some(Port::Vif(vif)) = self.ports.get_mut(port) {
            if let Some(netback) = vif.posting() {
                let before = self.ledger.enter(Hop::Netback);
                for frame in &queues.direct {
                    netback.accept(frame);
                }
                self.ledger.enter(before);
            }
            vif.posted(&self.ledger);
            self.news.mark(port);
        }
        queues.direct.clear();
    }

    /// A queue that has drained is free.
    fn settle(&mut self, queues: &mut Queues, at: usize) {
        let Some(&Held { queue, .. }) = queues.held.get(at) else {
            return;
        };
        if let Some(Port::Nic(nic)) = self.ports.get_mut(queues.nic)
            && let Some((vmq, _)) = nic.vmq()
            && vmq.free_queue(queue).is_ok()
        {
            queues.held.remove(at);
            queues.next_ns = 0;
        }
    }
}

/// Where a queue's frames go: into what the guest has posted, and into buffers of ours if it has
/// posted nothing (more), or must not be written to. Once a batch has used one of ours it uses no
/// more of the guest's: frames keep their order.
struct Posting<'a> {
    netback: Option<&'a mut Netback<Box<dyn Grants>>>,
    /// Whether one of ours was used.
    through: bool,
    pool: &'a mut Pool,
    bytes: usize,
    direct: &'a mut Vec<Frame>,
    own: &'a mut Vec<Frame>,
}

impl Backend for Posting<'_> {
    fn alloc(&mut self) -> Option<Buffer> {
        let posted = match &mut self.netback {
            Some(netback) if !self.through => netback.post(self.bytes),
            _ => None,
        };
        match posted {
            Some(Buffer { id, span }) => Some(Buffer {
                id: BufferId(id.0 | POSTED),
                span,
            }),
            None => {
                self.through = true;
                self.pool.take()
            }
        }
    }

    fn free(&mut self, buffer: BufferId, why: Freed) {
        if buffer.0 & POSTED == 0 {
            self.pool.put(buffer);
        } else if let Some(netback) = &mut self.netback {
            netback.put_back(BufferId(buffer.0 & !POSTED), why == Freed::Fault);
        }
    }

    fn netif_rx(&mut self, mut frame: Frame) {
        let posted = frame
            .pieces
            .iter()
            .any(|piece| piece.buffer.0 & POSTED != 0);
        if posted {
            for piece in &mut frame.pieces {
                piece.buffer.0 &= !POSTED;
            }
            self.direct.push(frame);
        } else {
            self.own.push(frame);
        }
    }
}
