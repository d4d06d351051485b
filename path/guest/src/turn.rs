//! The guest's main loop.

use crate::interface::pass::Pass;
use crate::interface::{Interface, build};
use crate::report;
use abi::mailbox::Request;
use config::domain::GuestConfig;
use runtime::idle::{Idle, POLL_BUDGET, Step};
use runtime::ledger::{Hop, Ledger};
use runtime::mailbox::{Mailbox, Switches};
use runtime::platform::{Bell, Pending, Platform, Waiting};
use runtime::start::{StartError, Started, refused};
use runtime::trace::Trace;
use rustix::thread::sched_yield;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

/// How often the endpoints are looked at that are not ignored, beside one that is.
const BESIDE_NS: u64 = 500_000;

/// The guest domain.
#[derive(Debug)]
pub struct Guest<W> {
    interfaces: Vec<Interface>,
    ledger: Ledger,
    trace: Trace,
    waiter: W,
    mailbox: Mailbox,
    idle: Idle,
    switches: Switches,
    /// An interface behind which packets are forwarded, if there is one.
    forwarding: Option<String>,
}

/// Runs the guest domain. Returns only if it cannot go on.
///
/// # Errors
/// A device, a connection or a hypercall was refused at the start, or sleeping failed.
pub fn run<W: Waiting>(started: Started<GuestConfig, W>) -> Result<Infallible, StartError> {
    let (mut guest, platform) = assemble(started)?;
    platform.ready().map_err(|why| refused("ready", why))?;
    guest.interfaces.iter_mut().for_each(Interface::advance);
    guest.go_on()
}

/// Runs a guest domain whose driver domain is a thread of this process: `join` connects its
/// interfaces, by [`Interface::join`].
///
/// # Errors
/// As [`run`], and what `join` says.
pub fn run_joined<W: Waiting>(
    started: Started<GuestConfig, W>,
    join: impl FnOnce(&mut [Interface]) -> Result<(), StartError>,
) -> Result<Infallible, StartError> {
    let (mut guest, _) = assemble(started)?;
    join(&mut guest.interfaces)?;
    guest.go_on()
}

/// A guest none of whose interfaces is connected yet, and the system that it runs on.
fn assemble<W>(
    started: Started<GuestConfig, W>,
) -> Result<(Guest<W>, Rc<dyn Platform>), StartError> {
    let Started {
        home,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let interfaces = build::interfaces(&home, &platform, &calls, &config)?;
    let guest = Guest {
        interfaces,
        ledger: Ledger::new(config.ledger),
        trace: Trace::default(),
        waiter,
        mailbox: Mailbox::new(home.mailbox.span()),
        idle: Idle::new(config.spin_us)
            .yielding(config.yields)
            .adapting(config.adapts),
        switches: Switches { lro: config.lro },
        forwarding: config
            .vifs
            .iter()
            .position(|vif| vif.forwards)
            .map(|number| format!("interface {number}")),
    };
    Ok((guest, platform))
}

impl<W: Waiting> Guest<W> {
    fn go_on(mut self) -> Result<Infallible, StartError> {
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
        let mut moved = false;
        let mut pass = Pass {
            now_ns,
            budget: POLL_BUDGET,
            ledger: &self.ledger,
            trace: &mut self.trace,
        };
        for interface in &mut self.interfaces {
            moved |= interface.to_guest(&mut pass);
            moved |= interface.from_guest(&mut pass);
        }
        self.publish();
        self.ledger.checkpoint();
        let slept = match self.idle.step(moved, now_ns) {
            Step::Again => Ok(()),
            Step::Yield => {
                self.ledger.sleep(sched_yield);
                Ok(())
            }
            Step::Sleep => self.sleep(now_ns),
        };
        self.ledger.enter(before);
        slept
    }

    /// Shows the driver what was done, and wakes it if it sleeps.
    fn publish(&mut self) {
        let before = self.ledger.enter(Hop::Ring);
        let mut published = false;
        for interface in &mut self.interfaces {
            published |= interface.publish();
        }
        if published {
            // One for all rings: between publishing the indices and reading who wants to know.
            fence(Ordering::SeqCst);
            self.interfaces.iter_mut().for_each(Interface::notify);
        }
        self.ledger.enter(before);
    }

    fn sleep(&mut self, now_ns: u64) -> std::io::Result<()> {
        self.waiter.arm();
        self.interfaces.iter_mut().for_each(Interface::arm);
        self.waiter.fence();
        let pending = self.waiter.has_pending();
        if pending
            || self
                .interfaces
                .iter_mut()
                .any(|interface| interface.has_work())
        {
            self.wake();
            return Ok(());
        }
        let due = self
            .interfaces
            .iter()
            .filter_map(|interface| interface.next_due(now_ns))
            .min();
        // The turn itself has taken time.
        let now_ns = due.map_or(0, |_| shmem::time::monotonic_ns());
        let mut timeout = due.map(|due| due.saturating_sub(now_ns));
        let ignored = self.interfaces.iter().filter(|i| i.ignores_endpoint());
        let bell = match ignored.count() {
            0 => Bell::All,
            all if all == self.interfaces.len() => Bell::Doorbell,
            _ => {
                // One descriptor for all devices: who is not ignored is looked at by the clock.
                timeout = Some(timeout.map_or(BESIDE_NS, |ns| ns.min(BESIDE_NS)));
                Bell::Doorbell
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

    /// Connections that moved on, and requests from the mailbox.
    fn serve_monitor(&mut self) {
        let pending = self.waiter.pending();
        if pending == Pending::NONE {
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

    fn answer(&mut self, request: &Request) -> Result<Value, String> {
        match request {
            Request::Stat => Ok(report::stat(&self.ledger, &self.interfaces)),
            Request::Trace => Ok(self.trace.request()),
            Request::Attach { .. } | Request::Detach { .. } | Request::Change { .. } => {
                Err("a guest serves no interfaces".into())
            }
            Request::Capture { .. } => Err("the driver domain is asked for captures".to_owned()),
            Request::Set { key, value } => {
                self.switches.set(key, value, self.forwarding.as_deref())?;
                let lro = self.switches.lro;
                self.interfaces.iter_mut().for_each(|i| i.set_lro(&lro));
                Ok(json!({ "key": key, "value": value }))
            }
        }
    }
}
