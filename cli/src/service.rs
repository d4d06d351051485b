//! Reports the state of a machine in the foreground to the service manager (sd_notify(3)): that it
//! is ready, how many domains run, that it is stopping, and, as often as the unit requires, that it
//! still answers.
//!
//! `grantway up` sends these reports, because the core handles neither text nor environment
//! variables. Moreover, an answer of the machine involves both the manager and the core, and thus
//! proves more than the fact that one process runs. Without `NOTIFY_SOCKET` this module does
//! nothing.

use crate::output;
use abi::machine::Status;
use client::{Error, Instance};
use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// Requests per watchdog period. Two of them may remain unanswered.
const REQUESTS_PER_PERIOD: u32 = 3;

/// The machine as a service.
pub(crate) struct Service {
    /// The interval between requests to the machine and the time of the next request, or `None` if
    /// the watchdog is off.
    watch: Option<(Duration, Instant)>,
}

impl Service {
    /// Reports that the machine is ready.
    pub(crate) fn ready(instance: &Instance) -> Self {
        let text = format!("{} is up", instance.name());
        notify(&[NotifyState::Ready, NotifyState::Status(&text)]);
        let period = sd_notify::watchdog_enabled();
        let pause = period.map(|period| period / REQUESTS_PER_PERIOD);
        Self {
            watch: pause.map(|pause| (pause, Instant::now())),
        }
    }

    /// Queries the machine if a request is due, and reports its answer.
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
                notify(&[NotifyState::Watchdog, NotifyState::Status(&text)]);
            }
            // The machine is already stopping, which the caller detects next.
            Err(Error::Io { .. }) => {}
            Err(error) => output::warn(&format!("the machine does not answer: {error}")),
        }
    }

    /// Reports that the machine is stopping.
    pub(crate) fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }
}

/// Sends states. The machine continues if the service manager is unreachable.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        output::warn(&format!("cannot notify systemd: {error}"));
    }
}

/// Formats `office: 3 of 3 domains run, 2 restarts`.
fn in_a_line(status: &Status) -> String {
    let alive = status.domains.iter().filter(|domain| domain.alive).count();
    let restarts = status.domains.iter().filter_map(|d| d.restarts.as_ref());
    let restarts: u64 = restarts.map(|restarts| restarts.count).sum();
    let (name, all) = (&status.name, status.domains.len());
    format!("{name}: {alive} of {all} domains run, {restarts} restarts")
}
