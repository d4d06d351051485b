//! Detaches guests: the core kills the process, the workers release the guest's ports, and the core
//! forgets the guest once no other domain has one of its pages. The next manager can repeat each
//! step.

use super::attach::live_config;
use super::edits::{EDIT_TIMEOUT_NS, EditKind, EditOrigin, PendingEdit};
use super::{Deadline, ManagerServer};
use crate::build;
use abi::journal::Level;
use abi::machine::{BEING_DETACHED, DetachReply};
use shmem::time::monotonic_ns;

impl ManagerServer<'_> {
    /// Begins to detach a guest. The requester receives the answer when the guest has been removed
    /// completely.
    pub(super) fn detach_for(&mut self, origin: EditOrigin, name: &str) -> Result<(), String> {
        if self.is_detached_for_another(name) {
            return Err(format!("guest {name} {BEING_DETACHED}"));
        }
        let is_saved = self.state.spec().saved_guest(name).is_some();
        self.remove_saved_guest(name);
        if is_saved && self.state.place(name).is_none() {
            let now = monotonic_ns();
            self.try_store_state(now);
            self.answer_change(origin, &self.detached(name, 0), now);
            return Ok(());
        }
        live_config(&mut self.config, self.state.spec())?.check_removable(name)?;
        match self.is_attaching(name) {
            true => self.fail_attach(name, "it was detached before it was up".into()),
            false => self.begin_detach(name, "detached"),
        }
        if let Some(edit) = self.edits.get_mut(name) {
            edit.origins.push((origin, None));
            let due_ns = edit.began_ns.saturating_add(EDIT_TIMEOUT_NS);
            self.deadlines.set(Deadline::Edit(name.to_owned()), due_ns);
        }
        self.wait_for_change(origin);
        Ok(())
    }

    /// Returns whether another requester waits for the detach of this guest.
    fn is_detached_for_another(&self, name: &str) -> bool {
        let edit = self.edits.get(name);
        let edit = edit.filter(|edit| matches!(edit.kind, EditKind::Detach));
        let waits = |origin: &EditOrigin| match origin {
            EditOrigin::Client(id) => self.clients.contains_key(id),
            EditOrigin::Reload => true,
            EditOrigin::PreviousMachine => false,
        };
        let asks = |(from, error): &(EditOrigin, Option<String>)| error.is_none() && waits(from);
        edit.is_some_and(|edit| edit.origins.iter().any(asks))
    }

    /// Returns the answer to a detach. It contains a warning if the state file still contains the
    /// guest.
    fn detached(&self, name: &str, took_ns: u64) -> DetachReply {
        DetachReply {
            domain: name.to_owned(),
            took_ns,
            warning: self
                .state_file
                .warning(&format!("guest {name} is reattached")),
        }
    }

    /// Removes the guests whose attach or detach an earlier manager did not complete.
    pub(super) fn remove_incomplete_guests(&mut self) {
        let spec = self.state.spec();
        let names: Vec<String> = spec.changing().cloned().collect();
        for name in names {
            self.begin_detach(&name, "its manager has exited");
        }
    }

    /// Begins to remove a guest. The requesters of its current edit wait for the removal.
    pub(super) fn begin_detach(&mut self, name: &str, why: &str) {
        let Some(place) = self.state.place(name) else {
            return;
        };
        if self.is_detaching(name) {
            return;
        }
        let now = monotonic_ns();
        let current = self.end_edit(name).into_iter();
        let origins = current.flat_map(|edit| edit.origins);
        let error = |error: Option<String>| error.or_else(|| Some(why.to_owned()));
        let origins = origins
            .map(|(origin, failed)| (origin, error(failed)))
            .collect();
        self.state
            .edit_guest(name, |guest| guest.is_changing = true);
        let calls = self.release_calls(name);
        if let Some(life) = self.lives.get_mut(&place) {
            life.remove(why, calls);
        }
        self.try_store_state(now);
        let edit = PendingEdit {
            place,
            began_ns: now,
            kind: EditKind::Detach,
            origins,
        };
        self.begin_edit(name.to_owned(), edit);
    }

    /// Records that the domain at a place is removed completely: its name, its place and its slots
    /// are free.
    pub(super) fn record_removal(&mut self, place: usize, now: u64) {
        let name = self.state.name_of(place).to_owned();
        // The devices are closed last, when only netd has the interfaces, so that their slow
        // removal delays only netd.
        build::close_all(self.core, &self.state, place);
        self.lives.remove(&place);
        self.state.clear_id(place);
        if let Some(mut console) = self.consoles.remove(place) {
            console.drain(&mut self.log, now);
        }
        let edit = self.end_edit(&name);
        self.forget(&name);
        self.try_store_state(now);
        self.log_line(Level::Info, format!("{name}: detached"));
        let Some(edit) = edit else { return };
        for (origin, error) in edit.origins {
            match error {
                Some(why) if origin == EditOrigin::PreviousMachine => {
                    self.attempt_failed(&name, &why, now)
                }
                Some(why) => self.refuse(origin, why, now),
                None => {
                    let took_ns = now.saturating_sub(edit.began_ns);
                    let detached = self.detached(&name, took_ns);
                    self.answer_change(origin, &detached, now);
                }
            }
        }
    }
}
