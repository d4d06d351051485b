//! The driver's main loop.
//!
//! In each turn, the driver takes a batch from every port of the poll set, passes it to the switch,
//! publishes all rings, executes one full fence, and rings the doorbells of the guests that must be
//! woken. The driver sleeps only after a turn without work. Between taking and returning a batch,
//! only the switch handles it.

mod attach;
mod members;

use crate::backpressure::Backpressure;
use crate::capture::CaptureRequest;
use crate::dedicated::DedicatedReceiver;
use crate::fairness::{Fairness, GuestShare};
use crate::fast_path::FastPath;
use crate::flow_memory::FlowMemory;
use crate::flow_report;
use crate::guests::Guests;
use crate::nics::NicPort;
use crate::notify::GuestNotifier;
use crate::offences;
use crate::poll_set::PollSet;
use crate::ports::BridgePort;
use crate::report::DriverReport;
use crate::switch::{BatchStats, Switch};
use crate::vifs::VifPort;
use crate::vmq::NicQueues;
use abi::ConnId;
use abi::mailbox::MailboxRequest;
use config::domain::DriverConfig;
use nic::moderation::Wake;
use runtime::idle::{Idle, IdleStep, POLL_BUDGET};
use runtime::ledger::Hop;
use runtime::mailbox::{DomainMailbox, RuntimeSettings};
use runtime::platform::{PendingWork, Platform, Wait, WakeSource};
use runtime::start::{StartError, rejected_error};
use rustix::thread::sched_yield;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::rc::Rc;

/// Time after the start during which the driver does not poll NICs, unless all guests connect
/// earlier. Most guests connect within a few milliseconds.
const GUEST_CONNECT_WAIT_NS: u64 = 10_000_000;

/// The driver domain.
#[derive(Debug)]
pub struct Driver<W> {
    switch: Switch,
    platform: Rc<dyn Platform>,
    pub(crate) guests: Box<dyn Guests>,
    pub(crate) flow_memory: FlowMemory,
    fast_path: FastPath,
    /// Dedicated queues of each NIC that has them.
    queues: Vec<NicQueues>,
    /// Each guest's dedicated queue of an AF_XDP wire.
    dedicated: Vec<DedicatedReceiver>,
    notifier: GuestNotifier,
    fairness: Fairness,
    backpressure: Backpressure,
    poll_set: PollSet,
    /// Whether all guests have been connected simultaneously at some time since the start.
    all_connected_once: bool,
    /// Time at which the driver begins to poll NICs even if guests are missing; the first turn sets
    /// it.
    nics_wait_until_ns: Option<u64>,
    /// Whether the driver may still have to announce a connected guest.
    may_announce: bool,
    /// Reason why a NIC has failed, if one has. The driver then exits, and the next driver domain
    /// gets another device.
    failure: Option<&'static str>,
    settings: RuntimeSettings,
    waiter: W,
    mailbox: DomainMailbox,
    idle: Idle,
}

impl<W: Wait> Driver<W> {
    /// Creates a driver on `platform` whose `switch` has no ports yet.
    pub(crate) fn without_ports(
        switch: Switch,
        waiter: W,
        mailbox: DomainMailbox,
        platform: Rc<dyn Platform>,
        guests: Box<dyn Guests>,
        config: &DriverConfig,
    ) -> Self {
        Self {
            flow_memory: FlowMemory::default(),
            fast_path: FastPath::default(),
            queues: Vec::new(),
            dedicated: Vec::new(),
            switch,
            platform,
            guests,
            notifier: GuestNotifier::new(u64::from(config.notify_us) * 1000),
            fairness: Fairness::new(POLL_BUDGET as u32),
            backpressure: Backpressure::default(),
            poll_set: PollSet::default(),
            all_connected_once: false,
            nics_wait_until_ns: None,
            may_announce: false,
            failure: None,
            settings: RuntimeSettings { lro: config.lro },
            waiter,
            mailbox,
            idle: Idle::new(config.driver.spin_us.unwrap_or(0))
                .yielding(config.yields)
                .adapting(config.adapts),
        }
    }

    /// Iterates over all guests.
    pub(crate) fn vifs_mut(&mut self) -> impl Iterator<Item = &mut VifPort> {
        self.switch.ports.vifs_mut()
    }

    /// Continues the handshakes with devices in other domains.
    pub(crate) fn devices_changed(&mut self) {
        let nics = self.switch.ports.nics_mut();
        nics.for_each(NicPort::connection_changed);
    }

    /// Runs turns until the driver cannot continue.
    pub(crate) fn run_loop(mut self) -> Result<Infallible, StartError> {
        self.watch_all();
        loop {
            self.turn().map_err(|why| rejected_error("epoll", why))?;
            if let Some(why) = self.failure {
                return Err(StartError::BadStartInfo(why));
            }
        }
    }

    fn turn(&mut self) -> std::io::Result<()> {
        self.switch.ledger.begin_turn();
        self.waiter.heartbeat();
        self.serve_monitor();
        let now_ns = shmem::time::monotonic_ns();
        let before = self.switch.ledger.enter(Hop::Idle);
        let moved = self.round(now_ns);
        self.notifier.publish(&mut self.switch, now_ns);
        if self.switch.bridge.has_new_offences() {
            let Switch { bridge, ports, .. } = &mut self.switch;
            offences::report(bridge, ports);
        }
        self.switch.ledger.checkpoint();
        let slept = match self.idle.step(moved, now_ns) {
            IdleStep::Again => Ok(()),
            IdleStep::Yield => {
                self.switch.ledger.sleep(sched_yield);
                Ok(())
            }
            IdleStep::Sleep => self.sleep(now_ns),
        };
        self.switch.ledger.enter(before);
        slept
    }

    /// Takes one batch from every NIC, and gives every guest with work a turn. Returns whether it
    /// found any work.
    fn round(&mut self, now_ns: u64) -> bool {
        let mut moved = false;
        let mut guests = 0;
        self.fairness.begin_round();
        self.backpressure.begin_round();
        if !self.all_connected_once {
            let mut vifs = self.switch.ports.vifs();
            self.all_connected_once = vifs.all(|(_, vif)| !vif.may_connect());
            drop(vifs);
            // Guests that connected late have missed the first announcement.
            self.may_announce |= self.all_connected_once;
            let until_ns = now_ns.saturating_add(GUEST_CONNECT_WAIT_NS);
            self.nics_wait_until_ns.get_or_insert(until_ns);
            self.announce(now_ns);
        }
        if !self.switch.queueing.is_empty() {
            moved |= self.switch.drain_queues(now_ns);
        }
        let nics_wait = self.nics_wait(now_ns).is_some();
        let polled = self.poll_set.begin_round();
        for &number in &polled {
            // This check is the only access to an idle guest's memory.
            if self.poll_set.is_idle(number) {
                continue;
            }
            match self.switch.ports.get(number) {
                Some(BridgePort::Nic(nic))
                    if nics_wait || nic.waits_for_guests && !self.all_connected_once => {}
                Some(BridgePort::Nic(_)) => moved |= self.serve_nic(number, now_ns),
                Some(BridgePort::Vif(vif)) => {
                    let work = vif.has_work();
                    self.poll_set.record_poll(number, work);
                    if work {
                        self.fairness.activate(number);
                        guests += 1;
                    }
                }
                None => {}
            }
        }
        for _ in 0..guests {
            let Some(share) = self.fairness.next(now_ns, POLL_BUDGET) else {
                break;
            };
            let most = self.packets_to_serve(&share, now_ns);
            if most == 0 {
                self.fairness.served(share.port, 0, 0, true);
                continue;
            }
            let BatchStats { packets, bytes } = self.serve_guest(share.port, now_ns, most);
            let more = match self.switch.ports.vif(share.port) {
                Some(vif) => {
                    self.poll_set.set_watch(share.port, vif.watch());
                    vif.has_work()
                }
                None => false,
            };
            self.fairness.served(share.port, packets, bytes, more);
            moved |= packets > 0;
        }
        if !self.switch.errors.is_empty() {
            moved |= self.switch.send_errors(now_ns);
        }
        self.poll_set.end_round(polled, moved, now_ns);
        moved
    }

    /// Returns the time until which the driver does not poll NICs, or `None` if it polls them now.
    /// Meanwhile frames that arrived before the driver domain started stay in the NIC until their
    /// guests have connected.
    fn nics_wait(&self, now_ns: u64) -> Option<u64> {
        let until_ns = self.nics_wait_until_ns.filter(|_| !self.all_connected_once);
        until_ns.filter(|&until_ns| now_ns < until_ns)
    }

    /// Returns the number of packets that a guest may send in its turn; 0: the guest waits. For GSO
    /// packets, the number is limited to those for which the destination has buffers.
    #[inline]
    fn packets_to_serve(&mut self, share: &GuestShare, now_ns: u64) -> usize {
        if !share.large {
            return share.packets;
        }
        let ports = &mut self.switch.ports;
        let to = ports
            .vif(share.port)
            .and_then(|vif| vif.sender.destination());
        let to = to.and_then(|to| ports.vif_mut(to));
        let room = to.map_or(share.packets, |to| to.room_for_segments(share.packets));
        let Some(vif) = ports.vif_mut(share.port) else {
            return share.packets;
        };
        let sender = (share.port, &mut vif.sender);
        match self.backpressure.must_wait(sender, room > 0, now_ns) {
            true => 0,
            // The guest must not wait, so its whole batch is sent although the destination lacks
            // buffers.
            false if room == 0 => share.packets,
            false => room,
        }
    }

    /// Takes one batch from a NIC and from each of its dedicated queues; returns whether any frames
    /// arrived or were delivered. Delivers due held frames first. Reads revoked queues before the
    /// shared queue, because they contain older frames, and assigned queues after the shared queue.
    fn serve_nic(&mut self, number: usize, now_ns: u64) -> bool {
        let Self {
            switch,
            queues,
            dedicated,
            failure,
            ..
        } = self;
        let budget = POLL_BUDGET;
        let mut queues = queues.iter_mut().find(|queues| queues.nic == number);
        let mut moved = false;
        if let Some(queues) = &mut queues {
            moved |= queues.drain(switch, now_ns, budget) > 0;
        }
        for receiver in dedicated.iter_mut().filter(|of| of.ports.nic == number) {
            moved |= receiver.flush_due(switch, now_ns) > 0;
        }
        moved |= switch.forward_from(number, now_ns, budget).packets > 0;
        if let Some(queues) = &mut queues {
            queues.count(switch.verdicts());
            moved |= queues.serve(switch, now_ns, budget) > 0;
        }
        for receiver in dedicated.iter_mut().filter(|of| of.ports.nic == number) {
            moved |= receiver.serve(switch, now_ns, budget) > 0;
        }
        if let Some(BridgePort::Nic(nic)) = switch.ports.get(number) {
            *failure = failure.or(nic.failure());
        }
        moved
    }

    /// Takes one batch from a guest: as much as possible on the fast path, then the rest.
    fn serve_guest(&mut self, number: usize, now_ns: u64, budget: usize) -> BatchStats {
        let Self {
            switch, fast_path, ..
        } = self;
        match fast_path.forward_from(switch, number, now_ns, budget) {
            Some(small) if small.more && small.stats.packets < budget => {
                let left = budget - small.stats.packets;
                let rest = switch.forward_from(number, now_ns, left);
                switch.note_destination(number);
                BatchStats {
                    packets: small.stats.packets + rest.packets,
                    bytes: small.stats.bytes + rest.bytes,
                }
            }
            Some(small) => small.stats,
            None => {
                let stats = switch.forward_from(number, now_ns, budget);
                switch.note_destination(number);
                stats
            }
        }
    }

    /// Renews the watches of all guests, because their connections may have changed.
    fn watch_all(&mut self) {
        for (number, vif) in self.switch.ports.vifs() {
            self.poll_set.set_watch(number, vif.watch());
        }
    }

    fn sleep(&mut self, now_ns: u64) -> std::io::Result<()> {
        let Some(conditions) = self.wake_conditions(now_ns) else {
            return Ok(());
        };
        self.waiter.arm();
        self.vifs_mut().for_each(VifPort::arm);
        let Self {
            switch,
            backpressure,
            ..
        } = self;
        for number in backpressure.awaited_destinations() {
            if let Some(vif) = switch.ports.vif_mut(number) {
                vif.arm_for_buffers();
            }
        }
        switch.queueing.arm(&mut switch.ports);
        self.waiter.fence();
        // The check skips guests that wait for their rate limits or for other guests, because these
        // always have work. The other guests may have sent something since the driver polled them.
        let Self {
            switch,
            backpressure,
            fairness,
            ..
        } = self;
        let waits = |number| fairness.is_rate_limited(number) || backpressure.is_waiting(number);
        let mut vifs = switch.ports.vifs();
        let work = vifs.any(|(number, vif)| vif.has_work() && !waits(number));
        drop(vifs);
        let work = work
            || backpressure.awaited_destinations().any(|number| {
                let vif = switch.ports.vif_mut(number);
                vif.is_none_or(|vif| vif.room_for_segments(1) > 0)
            });
        let work = work || switch.queueing.has_work(&mut switch.ports);
        if work || self.waiter.has_pending() {
            self.wake();
            return Ok(());
        }
        // The turn took time, so the timeout starts from the current time.
        let now_ns = conditions
            .until_ns
            .map_or(0, |_| shmem::time::monotonic_ns());
        let timeout = conditions
            .until_ns
            .map(|until| until.saturating_sub(now_ns));
        let Self {
            waiter,
            switch,
            idle,
            ..
        } = self;
        idle.sleeps(shmem::time::monotonic_ns);
        let slept = switch
            .ledger
            .sleep(|| waiter.sleep(conditions.source, timeout));
        self.wake();
        slept
    }

    /// Returns the conditions that wake the driver, or `None` if it must not sleep.
    fn wake_conditions(&self, now_ns: u64) -> Option<WakeConditions> {
        let ports = &self.switch.ports;
        let queues = self.queues.iter().filter_map(|of| of.due_ns(now_ns));
        let dedicated = ports.vifs().filter_map(|(_, vif)| vif.queue.as_ref());
        let dedicated = dedicated.filter_map(|queue| queue.due_ns(now_ns));
        let held = self.dedicated.iter().filter_map(DedicatedReceiver::due_ns);
        let due = queues.chain(dedicated).chain(held);
        let due = due.chain(self.fairness.due_ns());
        let due = due
            .chain(self.backpressure.due_ns())
            .chain(self.nics_wait(now_ns));
        let due = due.chain(self.switch.queueing.due_ns(ports, now_ns));
        let mut conditions = WakeConditions {
            source: WakeSource::All,
            until_ns: due.min(),
        };
        let wait = self.nics_wait(now_ns).map(Wake::At);
        for (_, nic) in ports.nics() {
            let until = match wait.unwrap_or_else(|| nic.wake(now_ns)) {
                Wake::Now => return None,
                Wake::At(at) => {
                    // The NIC's descriptor may be readable, but the driver ignores it until that
                    // time.
                    conditions.source = WakeSource::Doorbell;
                    Some(at)
                }
                Wake::Event(due) => due,
            };
            conditions.until_ns = conditions.until_ns.into_iter().chain(until).min();
        }
        Some(conditions)
    }

    fn wake(&mut self) {
        self.waiter.disarm();
        self.vifs_mut().for_each(VifPort::disarm);
    }

    /// Handles changed connections and requests from the mailbox.
    fn serve_monitor(&mut self) {
        let pending = self.waiter.pending();
        if pending == PendingWork::NONE {
            return;
        }
        let before = self.switch.ledger.enter(Hop::Control);
        if pending.connections {
            self.serve_changes();
            self.advance();
        }
        if pending.requests {
            let mailbox = self.mailbox.clone();
            mailbox.serve(|request| self.answer(&request));
        }
        self.switch.ledger.enter(before);
    }

    fn reported(&self) -> DriverReport<'_> {
        DriverReport {
            switch: &self.switch,
            queues: &self.queues,
            dedicated: &self.dedicated,
        }
    }

    pub(crate) fn answer(&mut self, request: &MailboxRequest) -> Result<Value, String> {
        match request {
            MailboxRequest::Stat => {
                let counts = self.platform.hypercall_counts();
                Ok(self.reported().stat(&counts))
            }
            MailboxRequest::Ports { first } => Ok(self.reported().ports(*first)),
            MailboxRequest::Trace => Ok(self.switch.trace.request()),
            MailboxRequest::Flows { of, first } => flow_report::flows(
                &self.switch.ports,
                &self.switch.bridge,
                of,
                *first,
                shmem::time::monotonic_ns(),
            ),
            MailboxRequest::Attach { vif } => self.attach(vif),
            MailboxRequest::Detach { conn } => self.detach(ConnId(*conn)),
            MailboxRequest::Change { vif } => self.change(vif),
            MailboxRequest::Capture { id, of, snaplen } => {
                let request = CaptureRequest {
                    id: *id,
                    of,
                    snaplen: *snaplen,
                };
                self.switch
                    .capture
                    .request(request, shmem::time::monotonic_ns())
            }
            MailboxRequest::Set { key, value } => {
                let forwarding = self.switch.ports.forwarding();
                self.settings.set(key, value, forwarding)?;
                let lro = &self.settings.lro;
                for nic in self.switch.ports.nics_mut() {
                    nic.set_lro(lro);
                }
                for queues in &mut self.queues {
                    queues.set_lro(lro);
                }
                for receiver in &mut self.dedicated {
                    receiver.lro.set(lro);
                }
                Ok(json!({ "key": key, "value": value }))
            }
        }
    }
}

/// Conditions that wake a sleeping driver.
struct WakeConditions {
    source: WakeSource,
    until_ns: Option<u64>,
}
