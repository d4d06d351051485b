//! The guest's main loop.

use crate::interface::pass::PassInput;
use crate::interface::{Interface, build};
use crate::report;
use abi::mailbox::MailboxRequest;
use config::domain::GuestConfig;
use runtime::idle::{Idle, IdleStep, POLL_BUDGET};
use runtime::ledger::{Hop, Ledger};
use runtime::mailbox::{DomainMailbox, RuntimeSettings};
use runtime::platform::{PendingWork, Platform, Wait, WakeSource};
use runtime::start::{StartError, Started, rejected_error};
use runtime::trace::Trace;
use rustix::thread::sched_yield;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

/// Polling interval of the other endpoints while the descriptor of one is ignored.
const POLL_INTERVAL_NS: u64 = 500_000;

/// The guest domain.
#[derive(Debug)]
pub struct GuestDomain<W> {
    interfaces: Vec<Interface>,
    ledger: Ledger,
    trace: Trace,
    waiter: W,
    mailbox: DomainMailbox,
    idle: Idle,
    switches: RuntimeSettings,
    /// An interface behind which packets are forwarded, if any.
    forwarding: Option<String>,
}

/// Runs the guest domain. Returns only if it cannot continue.
///
/// # Errors
/// Returns an error if a device, a connection or a hypercall was rejected at the start, or sleeping
/// failed.
pub fn run<W: Wait>(started: Started<GuestConfig, W>) -> Result<Infallible, StartError> {
    let (mut guest, platform) = assemble(started)?;
    platform
        .ready()
        .map_err(|why| rejected_error("ready", why))?;
    guest.interfaces.iter_mut().for_each(Interface::advance);
    guest.run_loop()
}

/// Runs a guest domain whose driver domain is a thread of this process: `join` connects its
/// interfaces, by [`Interface::join`].
///
/// # Errors
/// Returns the errors of [`run`] and of `join`.
pub fn run_joined<W: Wait>(
    started: Started<GuestConfig, W>,
    join: impl FnOnce(&mut [Interface]) -> Result<(), StartError>,
) -> Result<Infallible, StartError> {
    let (mut guest, _) = assemble(started)?;
    join(&mut guest.interfaces)?;
    guest.run_loop()
}

/// Creates a guest without connected interfaces, and returns it with its system.
fn assemble<W>(
    started: Started<GuestConfig, W>,
) -> Result<(GuestDomain<W>, Rc<dyn Platform>), StartError> {
    let Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let interfaces = build::interfaces(&domain_memory, &platform, &calls, &config)?;
    let guest = GuestDomain {
        interfaces,
        ledger: Ledger::new(config.ledger),
        trace: Trace::default(),
        waiter,
        mailbox: DomainMailbox::new(domain_memory.mailbox.span()),
        idle: Idle::new(config.spin_us)
            .yielding(config.yields)
            .adapting(config.adapts),
        switches: RuntimeSettings { lro: config.lro },
        forwarding: config
            .vifs
            .iter()
            .position(|vif| vif.forwards)
            .map(|number| format!("interface {number}")),
    };
    Ok((guest, platform))
}

impl<W: Wait> GuestDomain<W> {
    fn run_loop(mut self) -> Result<Infallible, StartError> {
        loop {
            self.turn().map_err(|why| rejected_error("epoll", why))?;
        }
    }

    fn turn(&mut self) -> std::io::Result<()> {
        self.ledger.begin_turn();
        self.waiter.heartbeat();
        self.serve_monitor();
        let now_ns = shmem::time::monotonic_ns();
        let before = self.ledger.enter(Hop::Idle);
        let mut moved = false;
        let mut pass = PassInput {
            now_ns,
            budget: POLL_BUDGET,
            ledger: &self.ledger,
            trace: &mut self.trace,
        };
        for interface in &mut self.interfaces {
            moved |= interface.serve(now_ns);
            moved |= interface.to_guest(&mut pass);
            moved |= interface.from_guest(&mut pass);
        }
        self.publish();
        self.ledger.checkpoint();
        let slept = match self.idle.step(moved, now_ns) {
            IdleStep::Again => Ok(()),
            IdleStep::Yield => {
                self.ledger.sleep(sched_yield);
                Ok(())
            }
            // The guest requests doorbells only when it has no more work.
            IdleStep::Sleep if moved && self.has_work() => Ok(()),
            IdleStep::Sleep => self.sleep(now_ns),
        };
        self.ledger.enter(before);
        slept
    }

    /// Returns whether an interface has work that needs no doorbell.
    fn has_work(&mut self) -> bool {
        self.interfaces.iter_mut().any(Interface::has_work)
    }

    /// Publishes ring changes to the driver, and wakes it if it sleeps.
    fn publish(&mut self) {
        let before = self.ledger.enter(Hop::Ring);
        let mut published = false;
        for interface in &mut self.interfaces {
            published |= interface.publish();
        }
        if published {
            // One fence for all rings, between publishing the indices and reading the peers' event
            // indices.
            fence(Ordering::SeqCst);
            self.interfaces.iter_mut().for_each(Interface::notify);
        }
        self.ledger.enter(before);
    }

    fn sleep(&mut self, now_ns: u64) -> std::io::Result<()> {
        self.waiter.arm();
        self.interfaces.iter_mut().for_each(Interface::arm);
        self.waiter.fence();
        if self.waiter.has_pending() || self.has_work() {
            self.wake();
            return Ok(());
        }
        let due = self
            .interfaces
            .iter()
            .filter_map(|interface| interface.next_due(now_ns))
            .min();
        // The turn itself took time.
        let now_ns = due.map_or(0, |_| shmem::time::monotonic_ns());
        let mut timeout = due.map(|due| due.saturating_sub(now_ns));
        let ignored = self.interfaces.iter().filter(|i| i.ignores_endpoint());
        let bell = match ignored.count() {
            0 => WakeSource::All,
            all if all == self.interfaces.len() => WakeSource::Doorbell,
            _ => {
                // All devices share one descriptor, which the guest cannot ignore for some devices
                // only. It therefore sleeps without this descriptor, and polls the other devices at
                // an interval.
                timeout = Some(timeout.map_or(POLL_INTERVAL_NS, |ns| ns.min(POLL_INTERVAL_NS)));
                WakeSource::Doorbell
            }
        };
        let Self {
            waiter,
            ledger,
            idle,
            ..
        } = self;
        idle.sleeps(shmem::time::monotonic_ns);
        let slept = ledger.sleep(|| waiter.sleep(bell, timeout));
        self.wake();
        slept
    }

    fn wake(&mut self) {
        self.waiter.disarm();
        self.interfaces.iter_mut().for_each(Interface::disarm);
    }

    /// Handles changed connections, and requests from the mailbox.
    fn serve_monitor(&mut self) {
        let pending = self.waiter.pending();
        if pending == PendingWork::NONE {
            return;
        }
        let before = self.ledger.enter(Hop::Control);
        if pending.connections {
            self.interfaces.iter_mut().for_each(Interface::advance);
        }
        if pending.requests {
            let mailbox = self.mailbox.clone();
            mailbox.serve(|request| self.answer(&request));
        }
        self.ledger.enter(before);
    }

    fn answer(&mut self, request: &MailboxRequest) -> Result<Value, String> {
        match request {
            MailboxRequest::Stat => Ok(report::stat(&self.ledger, &self.interfaces)),
            MailboxRequest::Trace => Ok(self.trace.request()),
            MailboxRequest::Attach { .. }
            | MailboxRequest::Detach { .. }
            | MailboxRequest::Change { .. } => {
                Err("a guest domain has no interfaces to attach".into())
            }
            MailboxRequest::Capture { .. } => {
                Err("only a driver domain captures packets".to_owned())
            }
            MailboxRequest::Flows { .. } => Err("only a driver domain has flows".to_owned()),
            MailboxRequest::Ports { .. } => Err("only a driver domain has ports".to_owned()),
            MailboxRequest::Set { key, value } => {
                self.switches.set(key, value, self.forwarding.as_deref())?;
                let lro = self.switches.lro;
                self.interfaces.iter_mut().for_each(|i| i.set_lro(&lro));
                Ok(json!({ "key": key, "value": value }))
            }
        }
    }
}
