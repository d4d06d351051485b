//! Attaches guests: a guest is added completely, or not at all.
//!
//! | step | written for the next manager | if it fails |
//! |---|---|---|
//! | the manager checks the section | the guest, as joining | the machine is unchanged |
//! | netd opens its devices; the core builds and connects the guest | | the guest is removed |
//! | the manager adds its ports to the workers' descriptions | the ports | the guest is removed |
//! | the core starts the guest's process, and the workers add the ports | | the guest is removed |
//! | the guest runs, and all its connections are up | the guest, as member | |
//!
//! The next manager removes guests that are still joining. As for any other domain, [`step()`]
//! determines every request.
//!
//! [`step()`]: crate::life::step()

use super::ManagerServer;
use super::edits::{EDIT_TIMEOUT_NS, EditKind, EditOrigin, PendingEdit};
use super::requests::refusal;
use crate::client::{Client, ClientWait};
use crate::core::CoreError;
use crate::edit::Edit;
use crate::spec::{AdmittedGuest, MachineSpec, SpecChange};
use abi::journal::Level;
use abi::machine::{AttachReply, ConfigValue};
use config::live::{LiveConfig, state};

impl ManagerServer<'_> {
    /// Returns whether a domain is a guest that was attached.
    pub(super) fn is_attached(&self, name: &str) -> bool {
        let live = self.state.spec().live();
        live.is_some_and(|live| live.attached.contains_key(name))
    }

    /// Begins to attach a guest for a client. If a guest of the same name is being detached, the
    /// attach waits for its removal: its namespace may have been deleted and created again.
    pub(super) fn attach_for(
        &mut self,
        id: u64,
        guest: ConfigValue,
        now: u64,
    ) -> Result<(), String> {
        let name = state::name_of(&guest).unwrap_or_default().to_owned();
        if self.is_detaching(&name) {
            let until_ns = Some(now.saturating_add(EDIT_TIMEOUT_NS));
            self.wait_until(id, ClientWait::Free(guest), until_ns);
            return Ok(());
        }
        if self.is_attaching(&name) {
            return Err(format!("guest {name} is being attached by another request"));
        }
        if self.is_attached(&name) && self.state.spec().saved_guest(&name).is_none() {
            return Err(format!(
                "guest {name} is attached already: detach it first (`grantway detach {name}`)"
            ));
        }
        let user = self.clients.get(&id).and_then(|client| client.user);
        self.carry_out(EditOrigin::Client(id), Edit::Attach(guest, user), now)
    }

    /// Attaches guests whose clients waited for the removal of a guest of the same name.
    pub(super) fn attach_freed(&mut self, now: u64) {
        let is_detaching =
            |guest: &ConfigValue| state::name_of(guest).is_some_and(|name| self.is_detaching(name));
        let is_due = |(&id, client): (&u64, &Client)| match &client.waits {
            ClientWait::Free(guest) if !is_detaching(guest) => Some((id, guest.clone())),
            _ => None,
        };
        let due: Vec<_> = self.clients.iter().filter_map(is_due).collect();
        for (id, guest) in due {
            if let Err(why) = self.attach_for(id, guest, now) {
                self.answer(id, &refusal(why), now);
            }
        }
    }

    /// Begins to attach a guest for a user, or for a file (`None`). The requester receives the
    /// answer when the guest is up.
    pub(super) fn begin_attach(
        &mut self,
        origin: EditOrigin,
        (guest, user): (&ConfigValue, Option<u32>),
        now: u64,
    ) -> Result<(), String> {
        let config = live_config(&mut self.config, self.state.spec())?;
        let admitted = self.state.admit(config, guest, user)?;
        let (name, place) = (admitted.name.clone(), admitted.place);
        if origin != EditOrigin::PreviousMachine {
            // This guest replaces the saved guest of the same name.
            self.remove_saved_guest(&name);
        }
        if let Err(CoreError { why, .. }) = self.store_state() {
            self.forget(&name);
            return Err(format!("the core cannot store the state: {why}"));
        }
        self.wait_for_change(origin);
        let edit = PendingEdit {
            place,
            began_ns: now,
            kind: EditKind::Attach(admitted),
            origins: vec![(origin, None)],
        };
        self.begin_edit(name, edit);
        self.begin_life(place, now);
        Ok(())
    }

    /// Removes a guest from the specification.
    pub(super) fn forget(&mut self, name: &str) {
        self.state.change(SpecChange::RemoveGuest(name.to_owned()));
        if let Some(config) = &mut self.config {
            config.remove(name);
        }
    }

    /// Continues reattachments, reloads and edits of waiting clients, and drives all domains.
    pub(super) fn continue_changes(&mut self, now: u64) {
        if !self.can_restart() {
            return self.advance_domains(now);
        }
        self.reattach_saved_guests(now);
        // The next step may begin: the reports about the previous step have been received.
        self.reload_turn(now);
        self.advance_domains(now);
        self.answer_restarted(now);
        self.attach_freed(now);
        self.try_store_state(now);
    }

    /// Records that a domain is up for the first time. An attached guest is then a member of the
    /// machine, also for the next manager.
    pub(super) fn record_up(&mut self, place: usize, name: &str, now: u64) {
        if !self.is_attaching(name) {
            return;
        }
        self.state
            .edit_guest(name, |guest| guest.is_changing = false);
        if let Err(CoreError { why, .. }) = self.store_state() {
            return self.fail_attach(name, format!("the core cannot store the state: {why}"));
        }
        let Some(edit) = self.end_edit(name) else {
            return;
        };
        let EditKind::Attach(AdmittedGuest { macs, warnings, .. }) = edit.kind else {
            return;
        };
        if edit.origins.contains(&(EditOrigin::PreviousMachine, None)) {
            self.remove_saved_guest(name);
        }
        self.log_line(Level::Info, format!("{name}: attached"));
        for warning in &warnings {
            self.log_line(Level::Warning, format!("{name}: {warning}"));
        }
        let warning_outcome = format!("guest {name} is not reattached");
        let warnings = warnings
            .into_iter()
            .chain(self.state_file.warning(&warning_outcome));
        let attached = AttachReply {
            domain: name.to_owned(),
            id: self.state.id(place).map_or(0, |id| id.0),
            macs,
            took_ns: now.saturating_sub(edit.began_ns),
            warnings: warnings.collect(),
        };
        for (origin, _) in edit.origins {
            self.answer_change(origin, &attached, now);
        }
    }

    /// Fails the attach of a guest: removes the guest, and answers the requesters afterwards.
    pub(super) fn fail_attach(&mut self, name: &str, why: String) {
        if let Some(edit) = self.edits.get_mut(name) {
            for (_, error) in &mut edit.origins {
                error.get_or_insert_with(|| why.clone());
            }
        }
        self.begin_detach(name, &why);
    }
}

/// Returns the current configuration. Parses it at the first call.
pub(super) fn live_config<'a>(
    known: &'a mut Option<LiveConfig>,
    spec: &MachineSpec,
) -> Result<&'a mut LiveConfig, String> {
    let config = match known.take() {
        Some(config) => config,
        None => spec.config()?,
    };
    Ok(known.insert(config))
}
