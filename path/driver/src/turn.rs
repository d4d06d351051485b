//! The driver's main loop.
//!
//! A turn takes a batch from every port in its place in the round, decides on each frame, hands
//! every port what goes out by it, publishes all rings, passes one full fence, and rings the
//! doorbells that need it. Only a turn that found nothing goes to sleep.

use crate::fairness::Fairness;
use crate::firewall::Firewall;
use crate::looks::Looks;
use crate::news::News;
use crate::outbox::Outbox;
use crate::own::OwnQueue;
use crate::picks::Picks;
use crate::port::Port;
use crate::short::Short;
use crate::vifs::VifPort;
use crate::vmq::Queues;
use crate::{nics, report};
use abi::XenbusState;
use abi::mailbox::Request;
use config::domain::DriverConfig;
use net::bridge::{Bridge, DropReason, Verdict};
use net::fair::QUANTUM_MIN;
use nic::Frame;
use nic::moderation::Wake;
use runtime::idle::{Idle, POLL_BUDGET, Step};
use runtime::ledger::{Hop, Ledger};
use runtime::mailbox::{Mailbox, Switches};
use runtime::platform::{Bell, Pending, Waiting};
use runtime::start::{StartError, Started, refused};
use runtime::trace::{Trace, dropped_by_bridge};
use runtime::wait::Waiter;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use vif::ring::Watch;

/// The driver domain.
#[derive(Debug)]
pub struct Driver {
    pub(crate) ports: Vec<Port>,
    pub(crate) bridge: Bridge,
    pub(crate) firewall: Firewall,
    pub(crate) outbox: Outbox,
    pub(crate) ledger: Rc<Ledger>,
    /// Of each NIC that has queues for single guests.
    pub(crate) queues: Vec<Queues>,
    /// Queues that are one guest's alone: the port of the wire, and of the guest.
    pub(crate) own: Vec<(usize, usize)>,
    pub(crate) trace: Trace,
    waiter: Waiter,
    mailbox: Mailbox,
    idle: Idle,
    pub(crate) switches: Switches,
    fairness: Fairness,
    /// While a NIC has more, guests are told of what came at most every so often.
    notify_ns: u64,
    /// When guests were last told.
    told_ns: u64,
    /// Whether every guest has been connected, at one moment since the start.
    all_came: bool,
    pub(crate) frames: Vec<Frame>,
    pub(crate) short: Short,
    pub(crate) verdicts: Vec<Verdict>,
    /// Which of `frames` go out by which port.
    pub(crate) picks: Picks,
    /// Per port, a look at whether a guest has sent something.
    watches: Vec<Watch>,
    /// Which guests are looked at in a round.
    looks: Looks,
    /// Guests that are to be shown what was done.
    pub(crate) news: News,
}

/// Runs the driver domain. Returns only if it cannot go on.
///
/// # Errors
/// A device, a connection or a hypercall was refused at the start, or sleeping failed.
pub fn run(started: Started<DriverConfig>) -> Result<Infallible, StartError> {
    super::build::build(started)?.go_on()
}

/// Runs a driver domain whose guests are threads of this process: `join` connects them to its
/// ports, by [`VifPort::join`].
///
/// # Errors
/// As [`run`], and what `join` says.
pub fn run_joined(
    started: Started<DriverConfig>,
    join: impl FnOnce(Vec<&mut VifPort>) -> Result<(), StartError>,
) -> Result<Infallible, StartError> {
    let (mut driver, _) = super::build::assemble(started)?;
    join(vifs(&mut driver.ports).collect())?;
    driver.go_on()
}

impl Driver {
    /// A driver with these ports, none of which has carried anything yet.
    pub(crate) fn new(
        mut ports: Vec<Port>,
        bridge: Bridge,
        ledger: Rc<Ledger>,
        waiter: Waiter,
        mailbox: Mailbox,
        config: &DriverConfig,
    ) -> Self {
        let mut queues = Queues::of(config);
        for queues in &mut queues {
            queues.recover(&mut ports);
        }
        let picks = Picks::new(ports.len());
        let watches = ports.iter().map(|_| Watch::NONE).collect();
        let fairness = Fairness::new(&config.vifs, config.nics.len(), POLL_BUDGET as u32);
        let own = ports
            .iter()
            .enumerate()
            .filter_map(|(number, port)| match port {
                Port::Vif(vif) => Some((vif.queue.as_ref()?.nic, number)),
                Port::Nic(_) => None,
            });
        let own = own.collect();
        Self {
            looks: Looks::new(ports.len()),
            ports,
            bridge,
            firewall: Firewall::of(config),
            outbox: Outbox::default(),
            ledger,
            queues,
            own,
            trace: Trace::default(),
            waiter,
            mailbox,
            idle: Idle::new(config.spin_us),
            switches: Switches {
                lro: config.lro,
                forwarding: config
                    .vifs
                    .iter()
                    .find(|vif| vif.forwards)
                    .map(|vif| vif.name.clone()),
            },
            fairness,
            notify_ns: u64::from(config.notify_us) * 1000,
            told_ns: 0,
            all_came: false,
            frames: Vec::new(),
            short: Short::default(),
            verdicts: Vec::new(),
            picks,
            watches,
            news: News::default(),
        }
    }

    fn go_on(mut self) -> Result<Infallible, StartError> {
        self.watch_all();
        loop {
            self.turn().map_err(|why| refused("epoll", why))?;
        }
    }

    fn turn(&mut self) -> std::io::Result<()> {
        self.ledger.turn();
        self.waiter.heartbeat();
        self.serve_monitor();
        let now_ns = shmem::time::monotonic_ns();
        let before = self.ledger.enter(Hop::Idle);
        let moved = self.round(now_ns);
        self.publish(now_ns);
        self.ledger.checkpoint();
        let slept = match self.idle.step(moved, now_ns) {
            // The driver domain spins on CPUs of its own alone.
            Step::Again | Step::Yield => Ok(()),
            Step::Sleep => self.sleep(now_ns),
        };
        self.ledger.enter(before);
        slept
    }

    /// One batch from every NIC, and a turn for every guest that has work; whether there was any.
    fn round(&mut self, now_ns: u64) -> bool {
        let budget = POLL_BUDGET;
        let mut moved = false;
        let mut guests = 0;
        self.fairness.begin();
        if !self.all_came {
            self.all_came = vifs(&mut self.ports).all(|vif| vif.state() == XenbusState::Connected);
        }
        let looked = self.looks.begin();
        for &index in &looked {
            // Of a guest that has sent nothing this is all that is touched.
            if self.watches.get(index).is_some_and(Watch::is_idle) {
                self.looks.found(index, false);
                continue;
            }
            match self.ports.get(index) {
                Some(Port::Nic(nic)) if nic.waits_for_guests && !self.all_came => {}
                Some(Port::Nic(_)) => {
                    moved |= self.drain_queues(index, now_ns) > 0;
                    moved |= self.serve(index, now_ns, budget).0 > 0;
                    moved |= self.serve_queues(index, now_ns) > 0;
                    moved |= self.serve_own(index, now_ns) > 0;
                }
                Some(Port::Vif(vif)) => {
                    let work = vif.has_work();
                    self.looks.found(index, work);
                    if work {
                        self.fairness.activate(index);
                        guests += 1;
                    }
                }
                None => {}
            }
        }
        for _ in 0..guests {
            let Some(share) = self.fairness.next(now_ns, budget) else {
                break;
            };
            let (packets, bytes) = self.serve(share.port, now_ns, share.packets);
            let more = match self.ports.get(share.port) {
                Some(Port::Vif(vif)) => {
                    if let Some(watch) = self.watches.get_mut(share.port) {
                        *watch = vif.watch();
                    }
                    vif.has_work()
                }
                _ => false,
            };
            self.fairness.served(share.port, packets, bytes, more);
            moved |= packets > 0;
        }
        self.looks.end(looked, moved, now_ns);
        moved
    }

    /// Looks anew at all guests: their connections may be others.
    fn watch_all(&mut self) {
        for (watch, port) in self.watches.iter_mut().zip(&self.ports) {
            if let Port::Vif(vif) = port {
                *watch = vif.watch();
            }
        }
    }

    /// One batch from one port: its frames, and the bytes that they count for. A frame that was
    /// cut in software counts for at least as many full frames as it became: the work is per
    /// frame, and who asks for tiny segments is to gain nothing by it.
    fn serve(&mut self, index: usize, now_ns: u64, budget: usize) -> (usize, u64) {
        let small_frames = self.serve_small_frames(index, now_ns, budget);
        if small_frames.requests > 0 && !(small_frames.more && small_frames.requests < budget) {
            return (small_frames.requests, small_frames.bytes);
        }
        let budget = budget - small_frames.requests;
        let mut frames = std::mem::take(&mut self.frames);
        let Some(port) = self.ports.get_mut(index) else {
            return (0, 0);
        };
        let taken = port.take(now_ns, budget, &mut frames, &self.ledger);
        let mut bytes = 0;
        // What large receive offload held may go on without anything new, and the other way round.
        if !frames.is_empty() {
            let segmented = self.outbox.segmented;
            bytes = frames.iter().map(|frame| frame.len() as u64).sum();
            self.forward(index, now_ns, &mut frames);
            let cut = self.outbox.segmented.saturating_sub(segmented);
            bytes = bytes.max(cut.saturating_mul(QUANTUM_MIN.into()));
        }
        if let Some(port) = self.ports.get_mut(index) {
            port.done(&mut frames, &self.ledger);
            self.news.mark(index);
        }
        self.frames = frames;
        (small_frames.requests + taken, small_frames.bytes + bytes)
    }

    /// Decides where each frame of a batch goes, one verdict for each.
    pub(crate) fn decide(
        &mut self,
        in_port: usize,
        now_ns: u64,
        frames: &mut [Frame],
        verdicts: &mut Vec<Verdict>,
    ) {
        if let Some(port) = self.ports.get(in_port) {
            let hop = port.hop();
            self.trace.begin(hop, port.name(), frames);
            if let (Hop::Nic, Some(gso)) = (hop, frames.first().and_then(|f| f.offload.gso)) {
                self.trace.step(Hop::Lro, || {
                    format!("merged of packets with {} bytes each", gso.size)
                });
            }
        }
        verdicts.clear();
        self.bridge.forward_batch(frames, in_port, now_ns, verdicts);
        if let (Some(verdict), Some(frame)) = (verdicts.first(), frames.first()) {
            let Self {
                trace,
                bridge,
                firewall,
                ports,
                ..
            } = self;
            trace.step(Hop::Bridge, || match verdict {
                Verdict::Drop(DropReason::Firewall) => {
                    firewall.denial(bridge, ports, frame.header(), in_port, now_ns)
                }
                _ => decision(verdict, ports),
            });
        }
    }

    /// Decides where each frame of a batch goes, and hands it over.
    pub(crate) fn forward(&mut self, in_port: usize, now_ns: u64, frames: &mut [Frame]) {
        let before = self.ledger.enter(Hop::Bridge);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        self.decide(in_port, now_ns, frames, &mut verdicts);
        if let Some(queues) = self.queues.iter_mut().find(|queues| queues.nic == in_port) {
            queues.count(&verdicts);
        }
        for (frame, verdict) in (0..).zip(&verdicts) {
            match verdict {
                Verdict::Unicast(port) => self.picks.add(*port, [frame]),
                Verdict::Many(set) => set.iter().for_each(|port| self.picks.add(port, [frame])),
                Verdict::Drop(_) => {}
            }
        }
        self.verdicts = verdicts;
        self.deliver(now_ns, frames);
        self.trace.end();
        self.ledger.enter(before);
    }

    fn deliver(&mut self, now_ns: u64, frames: &[Frame]) {
        let Self {
            ports,
            picks,
            outbox,
            ledger,
            trace,
            news,
            ..
        } = self;
        for (number, mut rest) in picks.all() {
            let Some(port) = ports.get_mut(number) else {
                continue;
            };
            news.mark(number);
            // The frame that is followed goes by itself, so that what is counted is what became of
            // it.
            if trace.is_running()
                && let Some((first @ [0], others)) = rest.split_at_checked(1)
            {
                rest = others;
                let before = port.fate().with(outbox.unfit.reasons());
                give(port, outbox, now_ns, frames, first, ledger);
                let after = port.fate().with(outbox.unfit.reasons());
                trace.step(port.hop(), || after.since(&before, port.name()));
            }
            give(port, outbox, now_ns, frames, rest, ledger);
        }
        picks.clear();
    }

    /// Shows the guests what was done, and wakes those that sleep.
    fn publish(&mut self, now_ns: u64) {
        let before = self.ledger.enter(Hop::Ring);
        let mut published = false;
        for &port in self.news.ports() {
            if let Some(Port::Vif(vif)) = self.ports.get_mut(port) {
                published |= vif.publish();
            }
        }
        // Who was shown something and is told later stays among the news.
        if !published {
            self.news.clear();
        } else if !self.may_wait(now_ns) {
            self.told_ns = now_ns;
            // One for all rings: between publishing the indices and reading who wants to know.
            fence(Ordering::SeqCst);
            for &port in self.news.ports() {
                if let Some(Port::Vif(vif)) = self.ports.get_mut(port) {
                    vif.notify();
                }
            }
            self.news.clear();
        }
        self.ledger.enter(before);
    }

    /// Whether guests may be told of what was published a little later, with what else a NIC has
    /// for them: interrupt moderation towards guests.
    fn may_wait(&mut self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.told_ns) < self.notify_ns
            && nics(&self.ports).any(|nic| nic.wake(now_ns) == Wake::Now)
            && !vifs(&mut self.ports).any(VifPort::is_short)
    }

    fn sleep(&mut self, now_ns: u64) -> std::io::Result<()> {
        let Some(rest) = self.rest(now_ns) else {
            return Ok(());
        };
        self.waiter.arm();
        vifs(&mut self.ports).for_each(VifPort::arm);
        self.waiter.fence();
        // Guests that wait for their rate limits have work all the time; the others may have got
        // some since they were looked at.
        let fairness = &self.fairness;
        let work = self.ports.iter().enumerate().any(|(number, port)| {
            matches!(port, Port::Vif(vif) if vif.has_work()) && !fairness.waits(number)
        });
        if work || self.waiter.has_pending() {
            self.wake();
            return Ok(());
        }
        // The turn itself has taken time.
        let now_ns = rest.until_ns.map_or(0, |_| shmem::time::monotonic_ns());
        let timeout = rest.until_ns.map(|until| until.saturating_sub(now_ns));
        let Self { waiter, ledger, .. } = self;
        let slept = ledger.sleep(|| waiter.sleep(rest.bell, timeout));
        self.wake();
        slept
    }

    /// How the driver may rest, if it may.
    fn rest(&self, now_ns: u64) -> Option<Rest> {
        let mut rest = Rest {
            bell: Bell::All,
            until_ns: self.fairness.due_ns(),
        };
        let queues = self
            .queues
            .iter()
            .filter_map(|queues| queues.due_ns(now_ns));
        let own = self.own_queues().filter_map(|queue| queue.due_ns(now_ns));
        rest.until_ns = queues.chain(own).chain(rest.until_ns).min();
        for nic in nics(&self.ports) {
            let until = match nic.wake(now_ns) {
                Wake::Now => return None,
                Wake::At(at) => {
                    // Its descriptor may be ready already, and is to be ignored until then.
                    rest.bell = Bell::Doorbell;
                    Some(at)
                }
                Wake::Event(due) => due,
            };
            rest.until_ns = rest.until_ns.into_iter().chain(until).min();
        }
        Some(rest)
    }

    fn own_queues(&self) -> impl Iterator<Item = &OwnQueue> {
        self.own
            .iter()
            .filter_map(|&(_, port)| match self.ports.get(port) {
                Some(Port::Vif(vif)) => vif.queue.as_ref(),
                _ => None,
            })
    }

    fn wake(&mut self) {
        self.waiter.disarm();
        vifs(&mut self.ports).for_each(VifPort::disarm);
    }

    /// Connections that moved on, and requests from the mailbox.
    fn serve_monitor(&mut self) {
        let pending = self.waiter.pending();
        if pending == Pending::NONE {
            return;
        }
        let before = self.ledger.enter(Hop::Control);
        if pending.connections {
            vifs(&mut self.ports).for_each(VifPort::advance);
            self.watch_all();
        }
        if pending.requests {
            let mailbox = self.mailbox.clone();
            mailbox.serve(|request| self.answer(&request));
        }
        self.ledger.enter(before);
    }

    fn answer(&mut self, request: &Request) -> Result<Value, String> {
        match request {
            Request::Stat => Ok(report::stat(self)),
            Request::Trace => Ok(self.trace.request()),
            Request::Set { key, value } => {
                self.switches.set(key, value)?;
                for port in &mut self.ports {
                    if let Port::Nic(nic) = port {
                        nic.set_lro(&self.switches.lro);
                    }
                }
                for queues in &mut self.queues {
                    queues.set_lro(&self.switches.lro);
                }
                let lro = self.switches.lro;
                for queue in vifs(&mut self.ports).filter_map(|vif| vif.queue.as_mut()) {
                    queue.set_lro(&lro);
                }
                Ok(json!({ "key": key, "value": value }))
            }
        }
    }
}

/// What a driver that has nothing to do waits for.
struct Rest {
    bell: Bell,
    until_ns: Option<u64>,
}

pub(crate) fn vifs(ports: &mut [Port]) -> impl Iterator<Item = &mut VifPort> {
    ports.iter_mut().filter_map(|port| match port {
        Port::Vif(vif) => Some(&mut **vif),
        Port::Nic(_) => None,
    })
}

fn nics(ports: &[Port]) -> impl Iterator<Item = &nics::NicPort> {
    ports.iter().filter_map(|port| match port {
        Port::Nic(nic) => Some(&**nic),
        Port::Vif(_) => None,
    })
}

/// Hands those of `frames` that are in `pick` to a port.
fn give(
    port: &mut Port,
    outbox: &mut Outbox,
    now_ns: u64,
    frames: &[Frame],
    pick: &[u32],
    ledger: &Ledger,
) {
    if pick.is_empty() {
        return;
    }
    match port.caps() {
        Some(caps) => outbox.deliver(frames, pick, caps, |frames, pick| {
            port.give(now_ns, frames, pick, ledger);
        }),
        // Who cannot take frames counts them.
        None => port.give(now_ns, frames, pick, ledger),
    }
}

/// What the bridge decided, in words.
fn decision(verdict: &Verdict, ports: &[Port]) -> String {
    let name = |port: usize| ports.get(port).map_or("?", Port::name);
    match verdict {
        Verdict::Unicast(port) => format!("goes to {}", name(*port)),
        Verdict::Many(set) => {
            let names: Vec<_> = set.iter().map(name).collect();
            format!("goes to {}", names.join(", "))
        }
        Verdict::Drop(reason) => dropped_by_bridge(*reason),
    }
}
