//! Guests that were attached to the machine before this one come back.

use super::Server;
use super::changes::{AskedBy, Tried};
use crate::shape::ShapeChange;
use abi::core::Stage;
use abi::journal::Level::{Info, Warning};
use config::live::state::{self, Returning};

/// Guests on their way in at a time.
const AT_ONCE: usize = 16;
/// How often it is tried …
const TRIES: u32 = 5;
/// … but for what is busy, which does not count for so long: what the processes of the machine
/// before have had is, while the kernel clears them away, and so is a netd that is started again.
const BUSY_NS: u64 = 20_000_000_000;
/// Between two tries.
const PAUSE_NS: u64 = 300_000_000;

impl Server<'_> {
    /// Takes over what the machine before has left.
    pub(super) fn inherit(&mut self) {
        let live = self.world.shape().live();
        let Some(live) = live.filter(|live| !live.left.is_empty()) else {
            return;
        };
        let guests = state::read(&self.world.name, &live.left).unwrap_or_else(|why| {
            let line = format!("what the machine before has left is not taken up: {why}");
            self.log.line(Warning, "grantwayd", &line);
            Vec::new()
        });
        self.world.change(ShapeChange::Return { guests });
    }

    /// The guest that is attached next, if one can be now.
    pub(super) fn next_to_come_back(&self, now: u64) -> Option<&Returning> {
        let shape = self.world.shape();
        // Without a driver domain nobody can be connected.
        let runs = |place: &usize| {
            let id = self.world.id(*place);
            id.is_some_and(|id| self.world.stage(id) == Some(Stage::Running))
        };
        let has_driver = shape.refitting().is_none() && shape.workers().iter().all(runs);
        let can = has_driver && self.restarts_now() && self.attaches.len() < AT_ONCE;
        let is_due = |name: &str| {
            let tried = self.begun.get(name);
            tried.is_none_or(|tried| tried.again_ns.is_some_and(|at| now >= at))
        };
        let waits = |name: &str| is_due(name) && !shape.is_changing(name);
        let is_next = |returning: &&Returning| can && returning.name().is_some_and(waits);
        shape.all_returning().iter().find(is_next)
    }

    /// Begins to attach the next ones.
    pub(super) fn come_back(&mut self, now: u64) {
        while let Some(next) = self.next_to_come_back(now).cloned() {
            let name = next.name().unwrap_or_default().to_owned();
            if next.origin.user.is_none() && self.world.place(&name).is_some() {
                // A file that was read later had it, and this machine's own has it, too.
                self.returns_no_more(&name);
                continue;
            }
            let first = Tried {
                since_ns: now,
                ..Tried::default()
            };
            let tried = self.begun.entry(name.clone()).or_insert(first);
            tried.times += 1;
            tried.again_ns = None;
            if let Err(why) = self.begin_attach(AskedBy::Before, &next.guest, now) {
                self.has_failed(&name, &why, now);
            }
        }
    }

    /// What a guest is to have is busy: if it is one of the machine before, this try may not count.
    pub(super) fn is_busy(&mut self, name: &str, now: u64) {
        if let Some(tried) = self.begun.get_mut(name)
            && now < tried.since_ns.saturating_add(BUSY_NS)
        {
            tried.times = tried.times.saturating_sub(1);
        }
    }

    /// A guest of the machine before is there again, or does not come back.
    pub(super) fn returns_no_more(&mut self, name: &str) {
        self.begun.remove(name);
        if self.world.shape().returning(name).is_none() {
            return;
        }
        let name = name.to_owned();
        self.world.change(ShapeChange::Returned { name });
        if self.world.shape().all_returning().is_empty() {
            let line = "what was attached to the machine before is there again, or left out";
            self.log.line(Info, "grantwayd", line);
        }
    }

    /// A guest of the machine before could not be attached.
    pub(super) fn has_failed(&mut self, name: &str, why: &str, now: u64) {
        match self.begun.get_mut(name) {
            Some(tried) if tried.times < TRIES => {
                tried.again_ns = Some(now.saturating_add(PAUSE_NS));
            }
            _ => self.is_left_out(name, why),
        }
    }

    /// A guest of the machine before does not come back.
    pub(super) fn is_left_out(&mut self, name: &str, why: &str) {
        let line = format!("{name}: was attached before, and is not attached again: {why}");
        self.log.line(Warning, "grantwayd", &line);
        self.returns_no_more(name);
    }
}
