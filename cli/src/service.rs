//! What the service manager is told of a machine in the foreground (sd_notify(3)): that it is
//! ready, how it is, that it ends, and, as often as the unit wants it, that it still answers.
//!
//! `grantway up` tells it and not the core: the core knows no text and no environment, and an
//! answer of the machine's is worth more than a sign of life: it takes the manager and the core.
//! Without `NOTIFY_SOCKET` nothing is asked and nothing said.

use crate::output;
use abi::machine::Status;
use client::{Error, Instance};
use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// Questions in a period of the watchdog: two may go unanswered.
const ASKED_IN_A_PERIOD: u32 = 3;

/// The machine as a service.
pub(crate) struct Service {
    /// How often it is asked whether it answers, and when next; none: never.
    watch: Option<(Duration, Instant)>,
}

impl Service {
    /// It is ready.
    pub(crate) fn ready(instance: &Instance) -> Self {
        let text = format!("{} is up", instance.name());
        tell(&[NotifyState::Ready, NotifyState::Status(&text)]);
        let period = sd_notify::watchdog_enabled();
        let pause = period.map(|period| period / ASKED_IN_A_PERIOD);
        Self {
            watch: pause.map(|pause| (pause, Instant::now())),
        }
    }

    /// Asks the machine if it is time, and tells what it has answered.
    pub(crate) fn turn(&mut self, instance: &Instance, now: Instant) {
        let Some((pause, next)) = &mut self.watch else {
            return;
        };
        if now < *next {
            return;
        }
        *next = now + *pause;
        match instance.status() {
            Ok(status) => {
                let text = in_a_line(&status);
                tell(&[NotifyState::Watchdog, NotifyState::Status(&text)]);
            }
            // On its way out by itself: that is seen in a moment.
            Err(Error::Io { .. }) => {}
            Err(error) => output::warn(&format!("the machine does not answer: {error}")),
        }
    }

    /// It goes down.
    pub(crate) fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }
}

/// A service manager that cannot be reached is no reason to end.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        output::warn(&format!("systemd cannot be told: {error}"));
    }
}

/// `office: 3 of 3 domains run, 2 restarts`.
fn in_a_line(status: &Status) -> String {
    let alive = status.domains.iter().filter(|domain| domain.alive).count();
    let restarts = status.domains.iter().filter_map(|d| d.restarts.as_ref());
    let restarts: u64 = restarts.map(|restarts| restarts.count).sum();
    let (name, all) = (&status.name, status.domains.len());
    format!("{name}: {alive} of {all} domains run, {restarts} restarts")
}
