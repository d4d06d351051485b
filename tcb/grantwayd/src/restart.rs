//! Domains that are started again when they have ended: when, and how long they were away.
//!
//! | state | until | what happens then |
//! |---|---|---|
//! | up | it ends | down |
//! | down | it has been cleared away, and the pause is over | another is built in its place: coming; while devices are busy: tried again; if it fails: down again |
//! | coming | it is ready, and all its connections are up | up; if it ends before: down again |
//!
//! A domain that was up for [`STEADY_NS`] is started again at once. One that keeps ending before is
//! started after a pause that doubles each time, up to its limit: whatever kills it, a frame of a
//! guest's say, cannot keep the processors busy with starts.

use crate::console::Console;
use crate::devices::{Devices, Refusal};
use crate::launch;
use abi::DomId;
use abi::machine::{Domain, DomainStatus, Restarts};
use monitor::{Hypervisor, Life};
use std::path::PathBuf;

/// A domain that was ready for so long has started well.
const STEADY_NS: u64 = 10_000_000_000;
/// The pause before the second start in a row.
const PAUSE_NS: u64 = 10_000_000;
/// The kernel may take so long to release devices that a domain before had …
const RELEASE_NS: u64 = 100_000_000;
/// … and is asked this often.
const LOOK_NS: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up {
        since_ns: u64,
    },
    Down {
        died_ns: u64,
        start_ns: u64,
        /// Until then devices may be busy.
        release_ns: u64,
    },
    Coming {
        died_ns: u64,
        /// When it said so.
        ready_ns: Option<u64>,
    },
}

/// One domain that is started again when it has ended.
pub(crate) struct Restart {
    id: DomId,
    /// The last one that had a process, and so a console.
    started: DomId,
    domain: Domain,
    devices: Devices,
    programs: PathBuf,
    pause_ns: u64,
    state: State,
    known: Restarts,
    /// Why the last start failed, if it did.
    trouble: String,
}

/// Something to be noted.
pub(crate) enum RestartEvent {
    /// For the log.
    Line(String),
    /// The domain has another id and another console.
    Replaced(DomId, DomId, Console),
}

impl Restart {
    /// `domain` has been started as `id`, and has `devices`.
    pub(crate) fn new(
        id: DomId,
        domain: Domain,
        (devices, programs): (Devices, PathBuf),
        pause_ms: u32,
    ) -> Self {
        Self {
            id,
            started: id,
            domain,
            devices,
            programs,
            pause_ns: u64::from(pause_ms) * 1_000_000,
            state: State::Up { since_ns: 0 },
            known: Restarts::default(),
            trouble: String::new(),
        }
    }

    /// When it wants to be looked at, if the domain's end and connections do not tell.
    pub(crate) fn due_ns(&self, hypervisor: &Hypervisor) -> Option<u64> {
        match self.state {
            State::Down { start_ns, .. } if self.has_no_process(hypervisor) => Some(start_ns),
            _ => None,
        }
    }

    /// Adds what it knows to the domain's status.
    pub(crate) fn tell(&self, status: &mut DomainStatus, now_ns: u64) {
        if status.id != self.id.0 {
            return;
        }
        if let State::Down { start_ns, .. } = self.state {
            let ms = start_ns.saturating_sub(now_ns) / 1_000_000;
            status.state = format!("{}; starts again in {ms} ms", status.state);
            if !self.trouble.is_empty() {
                status.state = format!("{}; did not start: {}", status.state, self.trouble);
            }
        }
        status.restarts = Some(self.known.clone());
    }

    fn has_no_process(&self, hypervisor: &Hypervisor) -> bool {
        let life = hypervisor.life(self.id);
        matches!(life, Some(Life::Gone(_) | Life::Built))
    }

    /// The domain, if it is one that could not be started: its end is no event.
    pub(crate) fn stillborn(&self) -> Option<DomId> {
        (!self.trouble.is_empty()).then_some(self.id)
    }

    /// Does what there is to do; never blocks but for what starting a process takes.
    pub(crate) fn turn(&mut self, hypervisor: &mut Hypervisor, now_ns: u64) -> Vec<RestartEvent> {
        let over = hypervisor.life(self.id).is_some_and(Life::is_over);
        match self.state {
            State::Up { since_ns } if over => self.ended(now_ns, Some(since_ns), now_ns),
            State::Coming { died_ns, ready_ns } if over => self.ended(died_ns, ready_ns, now_ns),
            State::Coming { died_ns, ready_ns } => {
                self.came(hypervisor, (died_ns, ready_ns), now_ns)
            }
            State::Down {
                died_ns,
                start_ns,
                release_ns,
            } if now_ns >= start_ns && self.has_no_process(hypervisor) => {
                self.start(hypervisor, (died_ns, release_ns), now_ns)
            }
            _ => Vec::new(),
        }
    }

    /// The domain has ended; it was ready at `ready_ns`, and away since `died_ns`.
    fn ended(&mut self, died_ns: u64, ready_ns: Option<u64>, now_ns: u64) -> Vec<RestartEvent> {
        let steady = |ready_ns| now_ns.saturating_sub(ready_ns) >= STEADY_NS;
        if ready_ns.is_some_and(steady) {
            self.known.in_a_row = 0;
        }
        (self.known.ready_ns, self.known.connected_ns) = (None, None);
        self.pause(died_ns, now_ns)
    }

    fn pause(&mut self, died_ns: u64, now_ns: u64) -> Vec<RestartEvent> {
        let pause_ns = pause_ns(self.known.in_a_row, self.pause_ns);
        self.known.in_a_row = self.known.in_a_row.saturating_add(1);
        let start_ns = now_ns.saturating_add(pause_ns);
        self.state = State::Down {
            died_ns,
            start_ns,
            release_ns: start_ns.saturating_add(RELEASE_NS),
        };
        if pause_ns == 0 {
            return Vec::new();
        }
        vec![self.line(&format!(
            "starts again in {} ms: start {} in a row",
            pause_ns / 1_000_000,
            self.known.in_a_row
        ))]
    }

    fn start(
        &mut self,
        hypervisor: &mut Hypervisor,
        (died_ns, release_ns): (u64, u64),
        now_ns: u64,
    ) -> Vec<RestartEvent> {
        match self.try_start(hypervisor) {
            Ok(console) => {
                self.trouble.clear();
                self.known.count += 1;
                self.state = State::Coming {
                    died_ns,
                    ready_ns: None,
                };
                let old = std::mem::replace(&mut self.started, self.id);
                vec![RestartEvent::Replaced(old, self.id, console)]
            }
            Err(Refusal { is_busy: true, .. }) if now_ns < release_ns => {
                self.state = State::Down {
                    died_ns,
                    start_ns: now_ns + LOOK_NS,
                    release_ns,
                };
                Vec::new()
            }
            Err(Refusal { why: trouble, .. }) => {
                hypervisor.give_up(self.id, &trouble);
                let mut events = Vec::new();
                if trouble != self.trouble {
                    events.push(self.line(&format!("did not start again: {trouble}")));
                    self.trouble = trouble;
                }
                events.extend(self.pause(died_ns, now_ns));
                events
            }
        }
    }

    fn try_start(&mut self, hypervisor: &mut Hypervisor) -> Result<Console, Refusal> {
        // One that was built waits for devices that were busy.
        if !matches!(hypervisor.life(self.id), Some(Life::Built)) {
            let replaced = hypervisor.replace(self.id, &self.domain);
            self.id = replaced.map_err(|error| error.to_string())?;
        }
        launch::equip(hypervisor, self.id, &self.devices, self.known.count + 1)?;
        let started = launch::start(hypervisor, self.id, &self.domain, &self.programs);
        started.map_err(Refusal::from)
    }

    /// A new process may have become ready, and its connections may be up.
    fn came(
        &mut self,
        hypervisor: &Hypervisor,
        (died_ns, mut ready_ns): (u64, Option<u64>),
        now_ns: u64,
    ) -> Vec<RestartEvent> {
        let mut events = Vec::new();
        let away_ns = now_ns.saturating_sub(died_ns);
        let ms = away_ns as f64 / 1e6;
        let runs = matches!(hypervisor.life(self.id), Some(Life::Running { .. }));
        if ready_ns.is_none() && runs {
            ready_ns = Some(now_ns);
            self.known.ready_ns = Some(away_ns);
            events.push(self.line(&format!(
                "started again (restart {}): ready after {ms:.1} ms",
                self.known.count
            )));
        }
        self.state = State::Coming { died_ns, ready_ns };
        if let Some(since_ns) = ready_ns
            && hypervisor.is_connected(self.id)
        {
            self.known.connected_ns = Some(away_ns);
            events.push(self.line(&format!("connected again after {ms:.1} ms")));
            self.state = State::Up { since_ns };
        }
        events
    }

    fn line(&self, text: &str) -> RestartEvent {
        RestartEvent::Line(format!("{}: {text}", self.domain.name))
    }
}

/// The pause before a start, after so many in a row.
fn pause_ns(in_a_row: u32, limit_ns: u64) -> u64 {
    match in_a_row {
        0 => 0,
        n => (PAUSE_NS << (n - 1).min(30)).min(limit_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        let ms = |in_a_row| pause_ns(in_a_row, 5_000_000_000) / 1_000_000;
        let all: Vec<u64> = (0..12).map(ms).collect();
        let expected = [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000];
        assert_eq!(all, expected);
        assert_eq!(ms(u32::MAX), 5000);
        assert_eq!(pause_ns(9, 0), 0);
    }
}
