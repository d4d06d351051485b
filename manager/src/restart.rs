//! Domains that are started again when they have ended: when, and how long they were away.
//!
//! | state | until | what happens then |
//! |---|---|---|
//! | up | it ends | down |
//! | down | nothing is left, the pause is over | another is built in its place: coming |
//! | coming | it is ready, its connections are up | up; if it ends before: down again |
//!
//! A start that finds devices busy is tried again soon, and one that fails after another pause.
//!
//! A domain that was up for [`STEADY_NS`] is started again at once. One that keeps ending before is
//! started after a pause that doubles each time, up to its limit: whatever kills it, a frame of a
//! guest's say, cannot keep the processors busy with starts.

use crate::build;
use crate::core::{Core, Refusal};
use crate::world::World;
use abi::DomId;
use abi::core::{Ask, Stage, Text};
use abi::machine::{DomainStatus, Restarts};
use std::os::fd::OwnedFd;

/// A domain that was ready for so long has started well.
const STEADY_NS: u64 = 10_000_000_000;
/// So many starts that were in vain in a row are enough to know.
const STARTS: u32 = 3;
/// The pause before the second start in a row.
const PAUSE_NS: u64 = 10_000_000;
/// The kernel may take so long to release devices that a domain before had …
const RELEASE_NS: u64 = 1_000_000_000;
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
#[derive(Debug)]
pub(crate) struct Restart {
    /// Its place in the machine.
    place: usize,
    pause_ns: u64,
    state: State,
    known: Restarts,
    /// The next one, and how many devices it has been given already.
    built: Option<DomId>,
    given: usize,
    /// Why the last start failed, if it did.
    trouble: String,
    /// Whether the next start was asked for: it comes without a pause.
    is_asked: bool,
    /// Whether the next start waits for [`Restart::ask`].
    is_held: bool,
}

/// Something to be noted.
#[derive(Debug)]
pub(crate) enum RestartEvent {
    /// For the log.
    Line(String),
    /// The domain at this place of the machine has another console.
    Replaced(usize, OwnedFd),
}

impl Restart {
    /// Of the domain at a place of the machine, which runs; with what is known of it.
    pub(crate) fn new(place: usize, pause_ms: u32, known: Restarts) -> Self {
        Self {
            place,
            pause_ns: u64::from(pause_ms) * 1_000_000,
            state: State::Up { since_ns: 0 },
            known,
            built: None,
            given: 0,
            trouble: String::new(),
            is_asked: false,
            is_held: false,
        }
    }

    /// Its place in the machine.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// What the next manager has to know.
    pub(crate) fn known(&self) -> &Restarts {
        &self.known
    }

    /// Goes on where the manager before has ended: where the domain stands now.
    pub(crate) fn go_on(&mut self, stage: Option<Stage>, now_ns: u64) {
        self.state = match stage {
            Some(Stage::Starting) => State::Coming {
                died_ns: now_ns,
                ready_ns: None,
            },
            Some(Stage::Running) => State::Up { since_ns: now_ns },
            // Gone, or built and no more: it may have some of its devices, and is built anew.
            _ => State::Down {
                died_ns: now_ns,
                start_ns: now_ns,
                release_ns: now_ns.saturating_add(RELEASE_NS),
            },
        };
    }

    /// The domain shall be ended and started again, now.
    pub(crate) fn ask(&mut self) {
        self.is_asked = true;
        self.is_held = false;
        // One that waits for its devices may have been built of something else.
        self.built = None;
        self.known.in_a_row = 0;
        self.trouble.clear();
        if let State::Down { start_ns, .. } = &mut self.state {
            *start_ns = 0;
        }
    }

    /// As [`Restart::ask`] for an end, but the start waits for the next `ask`.
    pub(crate) fn hold(&mut self) {
        self.ask();
        self.is_held = true;
    }

    /// Whether its start waits for [`Restart::ask`].
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Why it will not be up soon, since it was asked for, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        let ended = self.known.in_a_row > STARTS;
        let ended = ended.then(|| format!("has ended {STARTS} times as soon as it was started"));
        let trouble = || format!("did not start: {}", self.trouble);
        (!self.trouble.is_empty()).then(trouble).or(ended)
    }

    /// Whether it is up, as far as its own start goes.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// When it wants to be looked at, if the domain's end and connections do not tell.
    pub(crate) fn due_ns(&self, world: &World) -> Option<u64> {
        match self.state {
            State::Down { start_ns, .. } if !self.is_held && self.has_no_process(world) => {
                Some(start_ns)
            }
            _ => None,
        }
    }

    /// Adds what it knows to the domain's status.
    pub(crate) fn tell(&self, world: &World, status: &mut DomainStatus, now_ns: u64) {
        if world.id(self.place) != Some(DomId(status.id)) {
            return;
        }
        if let State::Down { start_ns, .. } = self.state {
            let ms = start_ns.saturating_sub(now_ns) / 1_000_000;
            let state = &mut status.report.state;
            *state = format!("{state}; starts again in {ms} ms");
            if !self.trouble.is_empty() {
                *state = format!("{state}; did not start: {}", self.trouble);
            }
        }
        status.restarts = Some(self.known.clone());
    }

    fn stage(&self, world: &World) -> Option<Stage> {
        world.stage(world.id(self.place)?)
    }

    /// Whether nothing of its process is left.
    pub(crate) fn has_no_process(&self, world: &World) -> bool {
        matches!(self.stage(world), Some(Stage::Gone | Stage::Built))
    }

    /// The domain, if it is one that could not be started: its end is no event.
    pub(crate) fn stillborn(&self, world: &World) -> Option<DomId> {
        world.id(self.place).filter(|_| !self.trouble.is_empty())
    }

    /// Does what there is to do.
    pub(crate) fn turn(
        &mut self,
        core: &mut Core,
        world: &mut World,
        now_ns: u64,
    ) -> Vec<RestartEvent> {
        let over = self.stage(world).is_some_and(Stage::is_over);
        match self.state {
            State::Up { since_ns } if over => self.ended(world, now_ns, Some(since_ns), now_ns),
            State::Coming { died_ns, ready_ns } if over => {
                self.ended(world, died_ns, ready_ns, now_ns)
            }
            State::Coming { died_ns, ready_ns } => self.came(world, (died_ns, ready_ns), now_ns),
            State::Down {
                died_ns,
                start_ns,
                release_ns,
            } if !self.is_held && now_ns >= start_ns && self.has_no_process(world) => {
                self.start(core, world, (died_ns, release_ns), now_ns)
            }
            _ => Vec::new(),
        }
    }

    /// The domain has ended; it was ready at `ready_ns`, and away since `died_ns`.
    fn ended(
        &mut self,
        world: &World,
        died_ns: u64,
        ready_ns: Option<u64>,
        now_ns: u64,
    ) -> Vec<RestartEvent> {
        let steady = |ready_ns| now_ns.saturating_sub(ready_ns) >= STEADY_NS;
        if ready_ns.is_some_and(steady) {
            self.known.in_a_row = 0;
        }
        (self.known.ready_ns, self.known.connected_ns) = (None, None);
        self.pause(world, died_ns, now_ns)
    }

    fn pause(&mut self, world: &World, died_ns: u64, now_ns: u64) -> Vec<RestartEvent> {
        let pause_ns = match std::mem::take(&mut self.is_asked) {
            true => 0,
            false => pause_ns(self.known.in_a_row, self.pause_ns),
        };
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
        vec![self.line(
            world,
            &format!(
                "starts again in {} ms: start {} in a row",
                pause_ns / 1_000_000,
                self.known.in_a_row
            ),
        )]
    }

    fn start(
        &mut self,
        core: &mut Core,
        world: &mut World,
        (died_ns, release_ns): (u64, u64),
        now_ns: u64,
    ) -> Vec<RestartEvent> {
        let mut events = Vec::new();
        match self.try_start(core, world, now_ns < release_ns, &mut events) {
            Ok(console) => {
                self.trouble.clear();
                self.known.count += 1;
                self.state = State::Coming {
                    died_ns,
                    ready_ns: None,
                };
                events.push(RestartEvent::Replaced(self.place, console));
                events
            }
            Err(Refusal { is_busy: true, .. }) if now_ns < release_ns => {
                self.state = State::Down {
                    died_ns,
                    start_ns: now_ns + LOOK_NS,
                    release_ns,
                };
                events
            }
            Err(Refusal { why: trouble, .. }) => {
                self.give_up(core, world, &trouble);
                if trouble != self.trouble {
                    let line = format!("did not start again: {trouble}");
                    events.push(self.line(world, &line));
                    self.trouble = trouble;
                }
                events.extend(self.pause(world, died_ns, now_ns));
                events
            }
        }
    }

    fn give_up(&self, core: &mut Core, world: &World, why: &str) {
        if let Some(domain) = world.id(self.place) {
            let why = Text::cut(why);
            // Refused if the domain was not even built: then there is nothing to clear away.
            let _ = core.ask(Ask::GiveUp { domain, why }, &[]);
        }
    }

    fn try_start(
        &mut self,
        core: &mut Core,
        world: &mut World,
        may_wait: bool,
        events: &mut Vec<RestartEvent>,
    ) -> Result<OwnedFd, Refusal> {
        let before = world.id(self.place);
        let is_built = self.stage(world) == Some(Stage::Built);
        // A domain that this manager has built waits for devices that were busy. If an earlier
        // manager has built it, it is not known which devices it has: it is built anew.
        if !is_built || self.built != before {
            if is_built {
                self.give_up(core, world, "its manager has ended");
                // Its devices may take their time to end.
                let why = "the one before is being cleared away".to_owned();
                return Err(Refusal { why, is_busy: true });
            }
            for line in build::reopen(core, world, self.place, may_wait)? {
                events.push(self.line(world, &line));
            }
            let id = build::create(core, world, self.place, before)?;
            world.live(id, Stage::Built, "starting");
            (self.built, self.given) = (Some(id), 0);
        }
        let life = self.known.count + 1;
        build::give(core, world, self.place, life, &mut self.given)?;
        build::start(core, world, self.place)
    }

    /// A new process may have become ready, and its connections may be up.
    fn came(
        &mut self,
        world: &World,
        (died_ns, mut ready_ns): (u64, Option<u64>),
        now_ns: u64,
    ) -> Vec<RestartEvent> {
        let mut events = Vec::new();
        let away_ns = now_ns.saturating_sub(died_ns);
        let ms = away_ns as f64 / 1e6;
        let runs = self.stage(world) == Some(Stage::Running);
        if ready_ns.is_none() && runs {
            ready_ns = Some(now_ns);
            self.known.ready_ns = Some(away_ns);
            events.push(self.line(
                world,
                &format!(
                    "started again (restart {}): ready after {ms:.1} ms",
                    self.known.count
                ),
            ));
        }
        self.state = State::Coming { died_ns, ready_ns };
        if let Some(since_ns) = ready_ns
            && world
                .id(self.place)
                .is_some_and(|id| world.is_connected(id))
        {
            self.known.connected_ns = Some(away_ns);
            note_outage(&mut self.known, away_ns);
            let line = format!("connected again after {ms:.1} ms");
            events.push(self.line(world, &line));
            self.state = State::Up { since_ns };
        }
        events
    }

    fn line(&self, world: &World, text: &str) -> RestartEvent {
        let domain = world.domain(self.place);
        let name = domain.map_or("", |domain| domain.name.as_str());
        RestartEvent::Line(format!("{name}: {text}"))
    }
}

/// Counts an outage in its class.
fn note_outage(known: &mut Restarts, took_ns: u64) {
    let ms = took_ns.div_ceil(1_000_000).max(1);
    let class = ms
        .checked_next_power_of_two()
        .map_or(u32::BITS, u64::trailing_zeros);
    let class = (class as usize).min(known.outages.len() - 1);
    if let Some(count) = known.outages.get_mut(class) {
        *count = count.saturating_add(1);
    }
    known.outages_ns = known.outages_ns.saturating_add(took_ns);
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
    fn an_outage_counts_where_it_is_not_longer_than_the_bound() {
        let class = |took_ns| {
            let mut known = Restarts::default();
            note_outage(&mut known, took_ns);
            assert_eq!(known.outages_ns, took_ns);
            known.outages.iter().position(|count| *count == 1)
        };
        for (ns, expected) in [
            (0, 0),
            (1_000_000, 0),
            (1_000_001, 1),
            (2_000_000, 1),
            (10_600_000, 4),
            (16_384_000_000, 14),
            (16_384_000_001, 15),
            (u64::MAX, 15),
        ] {
            assert_eq!(class(ns), Some(expected), "{ns}");
        }
    }

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
