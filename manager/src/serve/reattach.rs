//! Attaches the guests of the previous machine again, after an exit of the core.

use super::edits::{EditKind, EditOrigin};
use super::{Deadline, ManagerServer};
use crate::edit::Edit;
use crate::spec::SpecChange;
use abi::journal::Level::{Info, Warning};
use config::live::state::{self, AttachedGuest};

/// Maximum number of guests that are attached concurrently.
const CONCURRENT_MAX: usize = 16;
/// Maximum number of attempts for a guest. Each attempt waits for busy interfaces.
const ATTEMPTS_MAX: u32 = 5;
/// Interval of attempts.
const RETRY_NS: u64 = 300_000_000;

impl ManagerServer<'_> {
    /// Reads the state file of the previous machine.
    pub(super) fn read_state_file(&mut self) {
        let left = self.state.spec().live().map(|live| &live.start.left);
        let Some(left) = left.filter(|left| !left.is_empty()) else {
            return;
        };
        let guests = state::read(&self.state.name, left).unwrap_or_else(|why| {
            let line = format!("the state file of the previous machine is ignored: {why}");
            self.log_line(Warning, line);
            Vec::new()
        });
        self.state.change(SpecChange::SetSaved(guests));
    }

    /// Returns the next guest to attach, or `None` if none can be attached now.
    pub(super) fn next_to_reattach(&self) -> Option<&AttachedGuest> {
        let spec = self.state.spec();
        // A guest cannot be connected without a driver domain.
        let mut workers = spec.workers().into_iter();
        let has_driver =
            spec.pending_nic_change().is_none() && workers.all(|place| self.is_running(place));
        let edits = self.edits.values();
        let attaching = edits.filter(|edit| matches!(edit.kind, EditKind::Attach(_)));
        let can = has_driver && self.can_restart() && attaching.count() < CONCURRENT_MAX;
        let pauses = |name: &str| self.deadlines.has(&Deadline::Reattach(name.to_owned()));
        let waits = |name: &str| !spec.is_changing(name) && !pauses(name);
        let is_next = |saved: &&AttachedGuest| can && saved.name().is_some_and(waits);
        spec.saved_guests().iter().find(is_next)
    }

    /// Begins to attach the guests that can be attached now.
    pub(super) fn reattach_saved_guests(&mut self, now: u64) {
        while let Some(next) = self.next_to_reattach().cloned() {
            let name = next.name().unwrap_or_default().to_owned();
            if next.origin.user.is_none() && self.state.place(&name).is_some() {
                // The files of this machine describe the guest.
                self.remove_saved_guest(&name);
                continue;
            }
            *self.begun.entry(name.clone()).or_default() += 1;
            let edit = Edit::Attach(next.guest, next.origin.user);
            if let Err(why) = self.carry_out(EditOrigin::PreviousMachine, edit, now) {
                self.attempt_failed(&name, &why, now);
            }
        }
    }

    /// Removes a guest that was attached again, or cannot be attached.
    pub(super) fn remove_saved_guest(&mut self, name: &str) {
        self.begun.remove(name);
        if self.state.spec().saved_guest(name).is_none() {
            return;
        }
        self.state.change(SpecChange::RemoveSaved(name.to_owned()));
        if self.state.spec().saved_guests().is_empty() {
            let line = "every guest of the previous machine is reattached or given up";
            self.log_line(Info, line);
        }
    }

    /// Records that an attempt has failed, and schedules the next attempt.
    pub(super) fn attempt_failed(&mut self, name: &str, why: &str, now: u64) {
        match self.begun.get(name) {
            Some(tried) if *tried < ATTEMPTS_MAX => {
                let again_ns = now.saturating_add(RETRY_NS);
                self.deadlines
                    .set(Deadline::Reattach(name.to_owned()), again_ns);
            }
            _ => self.give_up_reattach(name, why),
        }
    }

    /// Gives up the reattachment of a guest, and logs why.
    pub(super) fn give_up_reattach(&mut self, name: &str, why: &str) {
        let line = format!("{name}: was attached before, and is not reattached: {why}");
        self.log_line(Warning, line);
        self.remove_saved_guest(name);
    }
}
