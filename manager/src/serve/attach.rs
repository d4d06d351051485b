//! Attaches guests: a guest is added completely, or not at all.
//!
//! | step | kept for the next manager | if it fails |
//! |---|---|---|
//! | the section is checked; the guest gets a place | the guest, as joining | nothing was done |
//! | netd opens its devices; the core builds and connects it | | the guest is removed |
//! | its ports get slots in the workers' windows and enter their descriptions | the ports | the guest is removed |
//! | its process is started, and the workers add the ports | | the guest is removed |
//! | it runs, and all its connections are up | that it is a member | |
//!
//! The next manager removes guests that it finds joining. Every step is [`step()`]'s, as for any
//! other domain.
//!
//! [`step()`]: crate::life::step()

use super::ManagerServer;
use super::edits::{EDIT_NS, Edit, EditKind, EditOrigin};
use super::requests::refusal;
use crate::client::{Client, ClientWait};
use crate::core::CoreError;
use crate::life::{Life, WorkerCall};
use crate::spec::{AdmittedGuest, MachineSpec, SpecChange};
use abi::core::CoreRequest;
use abi::journal::Level;
use abi::machine::{Attached, Setting};
use abi::mailbox::Request;
use config::domain::VifConfig;
use config::live::{LiveConfig, state};

impl ManagerServer<'_> {
    /// Whether a domain is a guest that was attached.
    pub(super) fn is_attached(&self, name: &str) -> bool {
        let live = self.state.spec().live();
        live.is_some_and(|live| live.attached.contains_key(name))
    }

    /// Begins to attach a guest for a client. If a guest of the same name is being detached, the
    /// attach waits until it is removed: its namespace may have been deleted and created again.
    pub(super) fn attach_for(&mut self, id: u64, guest: Setting, now: u64) -> Result<(), String> {
        let name = state::name_of(&guest).unwrap_or_default().to_owned();
        if self.is_leaving(&name) {
            let until_ns = Some(now.saturating_add(EDIT_NS));
            self.wait_until(id, ClientWait::Free(guest), until_ns);
            return Ok(());
        }
        if self.is_coming(&name) {
            return Err(format!("guest {name} is being attached by another request"));
        }
        if self.is_attached(&name) && self.state.spec().saved_guest(&name).is_none() {
            return Err(format!(
                "guest {name} is attached already: detach it first (`grantway detach {name}`)"
            ));
        }
        self.begin_attach(EditOrigin::Client(id), &guest, now)
    }

    /// Attaches guests whose clients waited for the removal of a guest of the same name.
    pub(super) fn attach_freed(&mut self, now: u64) {
        let is_leaving =
            |guest: &Setting| state::name_of(guest).is_some_and(|name| self.is_leaving(name));
        let is_due = |(&id, client): (&u64, &Client)| match &client.waits {
            ClientWait::Free(guest) if !is_leaving(guest) => Some((id, guest.clone())),
            _ => None,
        };
        let due: Vec<_> = self.clients.iter().filter_map(is_due).collect();
        for (id, guest) in due {
            if let Err(why) = self.attach_for(id, guest, now) {
                self.answer(id, &refusal(why), now);
            }
        }
    }

    /// Begins to attach a guest. The requester gets its answer when the guest is up.
    pub(super) fn begin_attach(
        &mut self,
        origin: EditOrigin,
        guest: &Setting,
        now: u64,
    ) -> Result<(), String> {
        let user = self.user_of(origin, state::name_of(guest).unwrap_or_default());
        let config = live_config(&mut self.config, self.state.spec())?;
        let admitted = self.state.admit(config, guest, user)?;
        let (name, place) = (admitted.name.clone(), admitted.place);
        if origin != EditOrigin::Before {
            // This guest takes the place of the one that was to return.
            self.forget_saved_guest(&name);
        }
        if let Err(CoreError { why, .. }) = self.keep() {
            self.forget(&name);
            return Err(format!("the core cannot keep the state: {why}"));
        }
        self.wait_for_change(origin);
        let edit = Edit {
            place,
            began_ns: now,
            kind: EditKind::Attach(admitted),
            origins: vec![(origin, None)],
        };
        self.begin_edit(name, edit);
        let domain = self.state.domain(place);
        let pause_ms = domain.and_then(|domain| domain.restart_pause_ms);
        self.lives.insert(place, Life::new(place, pause_ms, now));
        Ok(())
    }

    /// Returns the user who has asked for a guest; `None` if files name it.
    fn user_of(&self, origin: EditOrigin, name: &str) -> Option<u32> {
        match origin {
            EditOrigin::Client(id) => self.clients.get(&id)?.user,
            EditOrigin::Reload => self.reload.as_ref()?.course.user(),
            EditOrigin::Before => self.state.spec().saved_guest(name)?.origin.user,
        }
    }

    /// Removes a guest from the specification.
    pub(super) fn forget(&mut self, name: &str) {
        self.state.change(SpecChange::RemoveGuest(name.to_owned()));
        if let Some(config) = &mut self.config {
            config.remove(name);
        }
    }

    /// Connects a new guest to the workers. Returns the calls that have them add its ports.
    pub(super) fn connect_guest(
        &mut self,
        place: usize,
        vifs: &[VifConfig],
    ) -> Result<Vec<WorkerCall>, CoreError> {
        let mut vifs = self.state.spec().ports(vifs)?;
        let frontend = self.state.id(place);
        let frontend = frontend.ok_or("the domain was not built".to_owned())?;
        let domain = self.state.domain(place);
        let name = domain.map_or_else(String::new, |domain| domain.name.clone());
        let returns = self.state.spec().saved_guest(&name).is_some();
        let handles = vifs.values().map(Vec::len).max().unwrap_or_default();
        // The guest numbers its connections in this order.
        for handle in 0..handles {
            for (&worker, vifs) in &mut vifs {
                let backend = self.state.id(worker);
                let connect = CoreRequest::Connect {
                    backend: backend.ok_or("there is no driver domain".to_owned())?,
                    frontend,
                    handle: handle as u16,
                };
                let done = self.core.ask(connect, &[])?;
                if let Some(vif) = vifs.get_mut(handle) {
                    vif.conn = (done.value >> 32) as u32;
                    // Other stations may have sent queries for its addresses while it was absent.
                    vif.announces |= returns;
                }
            }
        }
        let calls = WorkerCall::of_ports(&vifs, |vif| Request::Attach { vif })?;
        self.state.edit_guest(&name, |guest| guest.ports = vifs);
        Ok(calls)
    }

    /// Carries on with returns, reloads and waiting clients, and drives all domains.
    pub(super) fn change(&mut self, now: u64) {
        if !self.restarts_now() {
            return self.drive(now);
        }
        self.reattach_saved_guests(now);
        // The reports of the previous step were taken after it ended.
        self.reload_turn(now);
        self.nics_opened(now);
        self.drive(now);
        self.answer_restarted(now);
        self.attach_freed(now);
        self.note(now);
    }

    /// Records that a domain is up for the first time: an attached guest is a member of the machine
    /// from now on, also for the next manager.
    pub(super) fn is_up(&mut self, place: usize, name: &str, now: u64) {
        if !self.is_coming(name) {
            return;
        }
        self.state
            .edit_guest(name, |guest| guest.is_changing = false);
        self.kept.look_again();
        if let Err(CoreError { why, .. }) = self.keep() {
            return self.fail(name, format!("the core cannot keep the state: {why}"));
        }
        let Some(edit) = self.end_edit(name) else {
            return;
        };
        let EditKind::Attach(AdmittedGuest { macs, warnings, .. }) = edit.kind else {
            return;
        };
        if edit.origins.contains(&(EditOrigin::Before, None)) {
            self.forget_saved_guest(name);
        }
        let line = format!("{name}: attached");
        self.log.line(Level::Info, "grantwayd", &line);
        for warning in &warnings {
            let line = format!("{name}: {warning}");
            self.log.line(Level::Warning, "grantwayd", &line);
        }
        let returns = format!("guest {name} does not come back");
        let warnings = warnings
            .into_iter()
            .chain(self.state_file.warning(&returns));
        let attached = Attached {
            domain: name.to_owned(),
            id: self.state.id(place).map_or(0, |id| id.0),
            macs,
            took_ns: now.saturating_sub(edit.began_ns),
            warnings: warnings.collect(),
        };
        for (origin, _) in edit.origins {
            self.changed(origin, &attached, now);
        }
    }

    /// Fails the attach of a guest: removes it, and answers why when that is done.
    pub(super) fn fail(&mut self, name: &str, why: String) {
        if let Some(edit) = self.edits.get_mut(name) {
            for (_, error) in &mut edit.origins {
                error.get_or_insert_with(|| why.clone());
            }
        }
        self.begin_detach(name, &why);
    }
}

/// Returns the present configuration, which is parsed when it is first asked for.
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
