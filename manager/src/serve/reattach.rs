//! Attaches the guests of the previous machine again, after an end of the core.

use super::edits::{EditKind, EditOrigin};
use super::{Deadline, ManagerServer};
use crate::spec::SpecChange;
use abi::journal::Level::{Info, Warning};
use config::live::state::{self, SavedGuest};

/// Guests that are attached at a time.
const AT_ONCE: usize = 16;
/// Attempts for a guest. An attempt waits for a busy interface by itself.
const TRIES: u32 = 5;
/// Pause between two attempts.
const PAUSE_NS: u64 = 300_000_000;

impl ManagerServer<'_> {
    /// Takes over the state file of the previous machine.
    pub(super) fn inherit(&mut self) {
        let live = self.state.spec().live();
        let Some(live) = live.filter(|live| !live.left.is_empty()) else {
            return;
        };
        let guests = state::read(&self.state.name, &live.left).unwrap_or_else(|why| {
            let line = format!("the state file of the machine before is ignored: {why}");
            self.log.line(Warning, "grantwayd", &line);
            Vec::new()
        });
        self.state.change(SpecChange::SetSaved(guests));
    }

    /// Returns the next guest to attach, if one can be attached now.
    pub(super) fn next_to_reattach(&self) -> Option<&SavedGuest> {
        let spec = self.state.spec();
        // A guest cannot be connected without a driver domain.
        let mut workers = spec.workers().into_iter();
        let has_driver =
            spec.pending_nic_change().is_none() && workers.all(|place| self.runs(place));
        let edits = self.edits.values();
        let attaching = edits.filter(|edit| matches!(edit.kind, EditKind::Attach(_)));
        let can = has_driver && self.restarts_now() && attaching.count() < AT_ONCE;
        let pauses = |name: &str| self.deadlines.has(&Deadline::Reattach(name.to_owned()));
        let waits = |name: &str| !spec.is_changing(name) && !pauses(name);
        let is_next = |saved: &&SavedGuest| can && saved.name().is_some_and(waits);
        spec.saved_guests().iter().find(is_next)
    }

    /// Begins to attach the next guests.
    pub(super) fn reattach_saved_guests(&mut self, now: u64) {
        while let Some(next) = self.next_to_reattach().cloned() {
            let name = next.name().unwrap_or_default().to_owned();
            if next.origin.user.is_none() && self.state.place(&name).is_some() {
                // The files of this machine describe the guest.
                self.forget_saved_guest(&name);
                continue;
            }
            *self.begun.entry(name.clone()).or_default() += 1;
            if let Err(why) = self.begin_attach(EditOrigin::Before, &next.guest, now) {
                self.has_failed(&name, &why, now);
            }
        }
    }

    /// Records that a guest was attached again, or cannot be.
    pub(super) fn forget_saved_guest(&mut self, name: &str) {
        self.begun.remove(name);
        if self.state.spec().saved_guest(name).is_none() {
            return;
        }
        self.state.change(SpecChange::RemoveSaved(name.to_owned()));
        if self.state.spec().saved_guests().is_empty() {
            let line = "every guest of the machine before has returned or is left out";
            self.log.line(Info, "grantwayd", line);
        }
    }

    /// Records that an attempt has failed.
    pub(super) fn has_failed(&mut self, name: &str, why: &str, now: u64) {
        match self.begun.get(name) {
            Some(tried) if *tried < TRIES => {
                let again_ns = now.saturating_add(PAUSE_NS);
                self.deadlines
                    .set(Deadline::Reattach(name.to_owned()), again_ns);
            }
            _ => self.give_up_reattach(name, why),
        }
    }

    /// Gives up on a guest.
    pub(super) fn give_up_reattach(&mut self, name: &str, why: &str) {
        let line = format!("{name}: was attached before, and is not attached again: {why}");
        self.log.line(Warning, "grantwayd", &line);
        self.forget_saved_guest(name);
    }
}
