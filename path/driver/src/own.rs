//! Queues of AF_XDP wires that are one guest's alone: the kernel writes what comes by one into pages
//! that the guest has posted (`specs/xdp.md`).
//!
//! Which guest has which is fixed. A queue lives as long as the guest's first connection:
//!
//! | state | frames to the guest's MAC come by | the guest's requests |
//! |---|---|---|
//! | waiting | the shared queue | are the netback's |
//! | open | the queue | most are with the kernel; some stay for frames that are copied |
//! | over | the shared queue | are the netback's again, until the driver domain is a new one |
//!
//! Posted chunks cannot be taken back from a fill ring. So a queue ends with its socket: the descriptor
//! is closed here, and the monitor leads frames elsewhere, waits until none is on its way, and takes the
//! rings away; only then the guest has its buffers back.

use crate::merge::QueueMerger;
use crate::nics::Seen;
use crate::port::Port;
use crate::turn::Driver;
use crate::xdp;
use abi::PAGE;
use abi::xdp::{Counter, Ring, XdpControl};
use config::domain::{DedicatedQueue as Config, FRAME_EXTRA_BYTES, Lro};
use net::bridge::{Count, Verdict};
use nic::{Buffer, BufferId, Frame};
use nic_linux::xdp::{QueueParts, XdpQueue};
use runtime::idle::POLL_BUDGET;
use runtime::ledger::Hop;
use runtime::lro::Sums;
use runtime::platform::Platform;
use runtime::start::StartError;
use serde_json::{Value, json};
use shmem::Span;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use vif::grants::Grants;
use vif::netback::{Loan, Netback, Returned, ToGuest};
use vif::netif::MAX_SLOTS;

#[cfg(test)]
mod tests;

/// Buffers of the guest's that stay in its ring for frames that are copied, of a pool that is large
/// enough.
const LEFT: usize = 64;
/// The kernel is lent so many at a time at least, but when it has none.
const BATCH: usize = 16;
/// While the kernel has none it is looked for new ones this often, and nobody tells of these.
const RETRY_NS: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Open,
    Over,
}

/// The queue of one guest.
#[derive(Debug)]
pub struct OwnQueue {
    /// The port of the wire.
    pub nic: usize,
    config: Config,
    platform: Rc<dyn Platform>,
    /// None: over.
    queue: Option<XdpQueue>,
    state: State,
    /// Room that a frame needs in one piece.
    frame_bytes: usize,
    /// Chunks that the kernel has at the most.
    most: usize,
    /// Requests that stay in the guest's ring.
    left: usize,
    merger: QueueMerger,
    direct: u64,
    misdirected: u64,
    /// Rules by which the kernel denies frames, and what it has denied in the end.
    denied: Vec<(u32, Count)>,
    /// Why the guest has it not, for people.
    trouble: String,
    // Room for the work of a turn; empty in between.
    loans: Vec<Loan>,
    frames: Vec<Frame>,
    failed: Vec<BufferId>,
}

impl OwnQueue {
    /// The queue of a device whose descriptor is `fd`.
    ///
    /// # Errors
    /// The monitor has mapped no rings, or other ones.
    pub fn new(
        config: Config,
        fd: OwnedFd,
        mtu: u32,
        lro: &Lro,
        platform: &Rc<dyn Platform>,
    ) -> Result<Self, StartError> {
        const RINGS: [Ring; 2] = [Ring::Receive, Ring::Fill];
        let what = "the rings of a guest's own queue";
        let layouts = xdp::layouts(what, config.device, RINGS, &**platform)?;
        let rings = xdp::rings(
            RINGS.len(),
            config.rings_slot,
            config.entries,
            platform.window(),
        );
        let chunks = config.frames as usize * PAGE / config.chunk_bytes.max(1) as usize;
        let parts = QueueParts {
            fd,
            rings: rings.unwrap_or(Span::EMPTY),
            layouts,
            entries: config.entries,
            chunk_bytes: config.chunk_bytes as usize,
            chunks,
        };
        let kernel = xdp::kernel_counters(
            config.device,
            platform,
            &[Counter::Dropped, Counter::RingFull, Counter::FillEmpty],
        );
        let queue = XdpQueue::new(parts, kernel).ok_or(StartError::Damaged(
            "the rings of a guest's own queue do not fit their place",
        ))?;
        Ok(Self {
            nic: config.nic as usize,
            config,
            platform: Rc::clone(platform),
            queue: Some(queue),
            state: State::Waiting,
            frame_bytes: (mtu + FRAME_EXTRA_BYTES) as usize,
            most: chunks - chunks / 4,
            left: LEFT.min(chunks / 4),
            merger: QueueMerger::new(&bounded(lro)),
            direct: 0,
            misdirected: 0,
            denied: Vec::new(),
            trouble: String::new(),
            loans: Vec::new(),
            frames: Vec::new(),
            failed: Vec::new(),
        })
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, lro: &Lro) {
        self.merger.set(&bounded(lro));
    }

    /// Adds what large receive offload has counted.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.merger.add_to(sums);
    }

    /// Frames that lay in the guest's pages and that the bridge sent elsewhere.
    #[must_use]
    pub fn misdirected(&self) -> u64 {
        self.misdirected
    }

    /// The rule of this number may deny frames in the kernel.
    pub fn count_denied(&mut self, rule: u32) {
        self.denied.push((rule, Count::default()));
    }

    /// What each of these rules has denied in the kernel, by its number.
    #[must_use]
    pub fn denied(&self) -> Vec<(u32, Count)> {
        match self.queue {
            Some(_) if !self.denied.is_empty() => self.ask_denied(),
            _ => self.denied.clone(),
        }
    }

    fn ask_denied(&self) -> Vec<(u32, Count)> {
        let rules = || self.denied.iter().map(|(rule, _)| *rule);
        let asked = |rule| {
            [
                XdpControl::DeniedFrames(rule),
                XdpControl::DeniedBytes(rule),
            ]
        };
        let asked: Vec<_> = rules().flat_map(asked).map(XdpControl::encode).collect();
        let device = self.config.device;
        let told = self.platform.tell_all(device, &asked);
        let mut told = told.into_iter().map(|count| count.unwrap_or(0));
        let mut next = || told.next().unwrap_or(0);
        let count = |rule| {
            let (frames, bytes) = (next(), next());
            (rule, Count { frames, bytes })
        };
        rules().map(count).collect()
    }

    /// What each rule has denied in the end: nobody can be asked later.
    fn count_last(&mut self) {
        if self.denied.is_empty() {
            return;
        }
        // When this is answered nothing is counted any more: from now on the bridge denies.
        let (device, asked) = (self.config.device, XdpControl::Stop.encode());
        if let Err(why) = self.platform.tell(device, asked) {
            self.trouble = format!("what rules deny to the end is not all counted: {why}");
        }
        self.denied = self.ask_denied();
    }

    /// When it wants to be looked at although no frame may come.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let starved = self.queue.as_ref().is_some_and(|queue| queue.lent() == 0);
        (self.state == State::Open && starved).then(|| now_ns.saturating_add(RETRY_NS))
    }

    /// What it does and has done, as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        let state = match self.state {
            State::Waiting => "waiting",
            State::Open => "open",
            State::Over => "over",
        };
        let counters = self.queue.as_ref().map(XdpQueue::counters);
        let counters: serde_json::Map<_, _> = counters
            .unwrap_or_default()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        json!({
            "state": state,
            "lent": self.queue.as_ref().map_or(0, XdpQueue::lent),
            "direct_packets": self.direct,
            "misdirected": self.misdirected,
            "trouble": self.trouble,
            "device": counters,
            "lro": self.merger.stat(),
        })
    }

    /// Lends the kernel what the guest has posted, and has frames come once it has some.
    pub fn lend<G: Grants>(&mut self, netback: &mut Netback<G>) {
        if self.state == State::Over || self.state == State::Waiting && !self.may_open(netback) {
            return;
        }
        let Some(queue) = &mut self.queue else { return };
        let room = self.most.saturating_sub(queue.lent()).min(queue.room());
        if room < BATCH && queue.lent() > 0 {
            return;
        }
        netback.lend(room, self.left, &mut self.loans);
        if self.loans.is_empty() {
            return;
        }
        for loan in self.loans.drain(..) {
            let Loan {
                id,
                frame,
                offset,
                span,
            } = loan;
            let offset = chunk(&self.config, frame, offset);
            if !offset.is_some_and(|offset| queue.lend(offset, Buffer { id, span })) {
                netback.give_back(id, Returned::Failed);
            }
        }
        queue.show();
        if self.state == State::Waiting {
            self.open();
        }
    }

    fn may_open<G: Grants>(&mut self, netback: &Netback<G>) -> bool {
        let may = netback.can_lend(self.frame_bytes);
        if !may && self.trouble.is_empty() {
            self.trouble = "its frontend wants its buffers back in the order in which it posted \
                            them, or no offsets: it uses the shared queue"
                .into();
            eprintln!(
                "queue of guest's own, device {}: {}",
                self.config.device, self.trouble
            );
        }
        may
    }

    fn open(&mut self) {
        let asked = XdpControl::Enable.encode();
        match self.platform.tell(self.config.device, asked) {
            Ok(_) => self.state = State::Open,
            Err(why) => self.trouble = format!("the monitor leads nothing to it: {why}"),
        }
    }

    /// Takes up to `budget` frames that have come into the guest's pages; how many entries there were.
    fn receive<G: Grants>(&mut self, budget: usize, netback: &mut Netback<G>) -> usize {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        let taken = queue.receive(budget, &mut self.frames, &mut self.failed);
        for id in self.failed.drain(..) {
            netback.give_back(id, Returned::Failed);
        }
        taken
    }

    /// Merges what has come, if the guest takes merged frames.
    fn merge<G: Grants>(&mut self, netback: &Netback<G>, now_ns: u64) {
        if self.frames.len() > 1 && netback.terms().to_guest.max_slots >= MAX_SLOTS {
            self.merger.merge_any(now_ns, &mut self.frames);
        }
    }

    /// Gives the guest what has come and is for it.
    fn deliver<G: Grants>(
        &mut self,
        netback: &mut Netback<G>,
        port: usize,
        verdicts: &[Verdict],
    ) -> ToGuest {
        let mut report = ToGuest::default();
        for (frame, verdict) in self.frames.iter().zip(verdicts) {
            match verdict {
                Verdict::Unicast(to) if *to == port => {
                    netback.deliver(frame, &mut report);
                    continue;
                }
                Verdict::Drop(_) => {}
                _ => self.misdirected += 1,
            }
            for piece in &frame.pieces {
                netback.give_back(piece.buffer, Returned::Failed);
            }
        }
        self.frames.clear();
        report
    }

    /// The end of it. When this returns the kernel writes nothing into the guest's pages any more.
    pub fn end(&mut self) {
        if self.queue.is_none() {
            return;
        }
        self.count_last();
        // The monitor looks whether the descriptor is gone.
        self.queue = None;
        self.state = State::Over;
        let ended = self.platform.end(self.config.device);
        if let Err(why) = ended {
            // Then the monitor takes the pages away from the kernel one by one.
            self.trouble = format!("it did not end: {why}");
        }
    }
}

/// Where the buffer at `offset` of a guest's frame begins in the memory of the queue, if it does.
fn chunk(config: &Config, frame: u32, offset: u16) -> Option<usize> {
    let page = frame.checked_sub(config.first_frame);
    let page = page.filter(|&page| page < config.frames)?;
    Some(page as usize * PAGE + usize::from(offset))
}

/// No more packets in one than a guest takes slots.
fn bounded(lro: &Lro) -> Lro {
    Lro {
        segments: lro.segments.min(MAX_SLOTS.into()),
        ..*lro
    }
}

impl Driver {
    /// Takes what has come into guests' pages by their own queues of a wire, after the shared queue.
    /// How many frames there were.
    pub(crate) fn serve_own(&mut self, nic: usize, now_ns: u64) -> usize {
        if !matches!(self.ports.get(nic), Some(Port::Nic(wire)) if wire.seen() != Seen::Nothing) {
            return 0;
        }
        let mut frames = 0;
        for at in 0..self.own.len() {
            if let Some(&(of, port)) = self.own.get(at)
                && of == nic
            {
                frames += self.serve_own_queue(nic, port, now_ns);
            }
        }
        frames
    }

    fn serve_own_queue(&mut self, nic: usize, port: usize, now_ns: u64) -> usize {
        let budget = POLL_BUDGET;
        let Ok([Port::Nic(wire), Port::Vif(vif)]) = self.ports.get_disjoint_mut([nic, port]) else {
            return 0;
        };
        let merging = vif.takes_merged();
        let Some((queue, netback)) = vif.own_queue() else {
            return 0;
        };
        let taken = self.ledger.at(Hop::Nic, || {
            let taken = queue.receive(budget, netback);
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
        let bytes: usize = queue.frames.iter().map(Frame::len).sum();
        wire.traffic.in_packets += queue.frames.len() as u64;
        wire.traffic.in_bytes += bytes as u64;
        queue.direct += queue.frames.len() as u64;
        if taken >= budget {
            wire.has_more();
        }
        if merging {
            self.ledger.at(Hop::Lro, || queue.merge(netback, now_ns));
        }
        let mut frames = std::mem::take(&mut queue.frames);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let before = self.ledger.enter(Hop::Bridge);
        self.decide(nic, now_ns, &mut frames, &mut verdicts);
        self.ledger.enter(Hop::Netback);
        let name = self.ports.get(port).map_or("", Port::name);
        self.trace
            .step(Hop::Netback, || format!("lies in a page of {name}"));
        if let Some(Port::Vif(vif)) = self.ports.get_mut(port)
            && let Some((queue, netback)) = vif.own_queue()
        {
            queue.frames = frames;
            let report = queue.deliver(netback, port, &verdicts);
            queue.lend(netback);
            vif.delivered(&report);
            self.news.mark(port);
        }
        self.trace.end();
        self.verdicts = verdicts;
        self.ledger.enter(before);
        taken
    }
}
