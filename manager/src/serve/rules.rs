//! Changes the rules and rate limits of running guests, for a reload or a client.

use super::ManagerServer;
use super::attach::live_config;
use super::edits::{EditKind, EditOrigin, PendingEdit};
use crate::edit::Edit;
use crate::life::WorkerCall;
use abi::journal::Level;
use abi::machine::ConfigValue;
use abi::mailbox::MailboxRequest;
use abi::reload::RulesReply;
use config::live::reload::current_guest;

impl ManagerServer<'_> {
    /// Begins to replace the rules of an attached guest for a client.
    pub(super) fn rules_for(
        &mut self,
        id: u64,
        rules: &ConfigValue,
        now: u64,
    ) -> Result<(), String> {
        if self.reload.is_some() {
            return Err("a reload is in progress: try again later".into());
        }
        let spec = self.state.spec();
        let config = live_config(&mut self.config, spec)?;
        let live = spec
            .live()
            .ok_or("the machine was started without a file")?;
        let guest = config.with_rules(live, rules)?;
        // Registered first, because the change may complete immediately, and the answer ends the
        // wait.
        self.wait_for_change(EditOrigin::Client(id));
        self.carry_out(EditOrigin::Client(id), Edit::Change(guest), now)
    }

    /// Begins to change a guest's ports at all workers. A worker that restarts in the meantime
    /// reads the new rules and limits at its start. An error leaves the guest unchanged.
    pub(super) fn begin_change(
        &mut self,
        origin: Option<EditOrigin>,
        guest: &ConfigValue,
        now: u64,
    ) -> Result<(), String> {
        let changed = live_config(&mut self.config, self.state.spec())?
            .clone()
            .change(guest)?;
        let (name, vifs) = (changed.domain.name, changed.vifs);
        let ports = self.state.spec().changed_ports(&vifs);
        let calls = WorkerCall::of_ports(&ports, |vif| MailboxRequest::Change { vif })?;
        let place = self.state.place(&name);
        let life = place.and_then(|place| self.lives.get_mut(&place));
        let life = life.filter(|_| !self.edits.contains_key(&name));
        let busy = || format!("guest {name} is being attached, detached or changed: try again");
        let life = life.ok_or_else(busy)?;
        let edit = PendingEdit {
            place: life.place,
            began_ns: now,
            kind: EditKind::Change(changed.guest),
            origins: origin.map(|origin| (origin, None)).into_iter().collect(),
        };
        let is_done = calls.is_empty();
        life.calls = calls;
        self.state.edit_guest(&name, |guest| guest.ports = ports);
        self.begin_edit(name.clone(), edit);
        if is_done {
            self.finish_change(&name, Ok(()), now);
        }
        Ok(())
    }

    /// Records that the workers have changed a guest's ports, or have refused to.
    pub(super) fn finish_change(&mut self, name: &str, outcome: Result<(), String>, now: u64) {
        // Only a change of an attached guest has calls, and it is the guest's only edit.
        let Some(PendingEdit {
            kind: EditKind::Change(guest),
            place,
            began_ns,
            origins,
        }) = self.end_edit(name)
        else {
            return;
        };
        if let Some(life) = self.lives.get_mut(&place) {
            life.calls.clear();
        }
        let outcome = outcome.and_then(|()| self.set_section(guest));
        let is_client = |(origin, _): &(EditOrigin, _)| matches!(origin, EditOrigin::Client(_));
        if outcome.is_err() && origins.iter().any(is_client) {
            // A reload undoes its steps itself.
            self.restore_rules(name, now);
        }
        self.try_store_state(now);
        let changed = RulesReply {
            domain: name.to_owned(),
            took_ns: now.saturating_sub(began_ns),
            warning: (self.state_file).warning(&format!(
                "guest {name} is reattached with its previous rules"
            )),
        };
        for (origin, _) in origins {
            match outcome.clone() {
                Ok(()) => self.answer_change(origin, &changed, now),
                Err(why) => self.refuse(origin, why, now),
            }
        }
    }

    /// Restores a guest's rules and limits at all workers, because some workers may have carried
    /// out the failed change.
    fn restore_rules(&mut self, name: &str, now: u64) {
        let spec = self.state.spec();
        let config = live_config(&mut self.config, spec).ok();
        let present = config.and_then(|config| current_guest(spec.live()?, config, name));
        let back = present.map(|guest| self.begin_change(None, &guest, now));
        if let Some(Err(why)) = back {
            let line = format!("{name}: rules and rate limits are not restored: {why}");
            self.log_line(Level::Warning, line);
        }
    }

    /// Changes a guest's section in the specification, also for the next manager.
    fn set_section(&mut self, guest: ConfigValue) -> Result<(), String> {
        let changed = live_config(&mut self.config, self.state.spec())?.change(&guest)?;
        let name = changed.domain.name;
        let line = format!("{name}: rules and rate limits changed");
        self.log_line(Level::Info, line);
        self.state
            .edit_guest(&name, |entry| entry.section = Some(guest));
        Ok(())
    }
}
