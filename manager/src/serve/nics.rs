//! Changes of NICs: netd opens the devices of new NICs ([`Goal::Refit`]), the driver domain's
//! workers restart with the new NICs, and netd closes the devices of removed NICs. The manager
//! restores the previous NICs if netd cannot open a device, if a worker exits in the meantime or
//! does not start, or if the manager itself restarts before all workers run.
//!
//! If a reload removes NICs and adds others, the workers restart once: they exit in the first step
//! and start in the second. The client receives the answer when the workers are connected to their
//! guests.

use super::attach::live_config;
use super::edits::{EDIT_TIMEOUT_NS, EditOrigin, RestartGoal, Restarting};
use super::{Deadline, ManagerServer};
use crate::build;
use crate::core::CoreError;
use crate::life::{Goal, Lifecycle};
use crate::spec::{PendingNicChange, SpecChange};
use abi::journal::Level;
use config::live::NicsStep;
use shmem::time::monotonic_ns;

const OTHER_NICS: &str = "killed: restarts with other NICs";

impl ManagerServer<'_> {
    /// Begins to replace all NICs for a requester, which receives the outcome.
    pub(super) fn begin_nics(
        &mut self,
        origin: EditOrigin,
        step: &NicsStep,
        now: u64,
    ) -> Result<(), String> {
        let mut config = live_config(&mut self.config, self.state.spec())?.clone();
        config.set_nics(&step.nics)?;
        let nic_change = self.state.spec().nic_change(&config, step)?;
        self.state.change(nic_change);
        let kept = self.store_state();
        if let Err(CoreError { why, .. }) = kept {
            self.finish_nic_change(true);
            return Err(format!("the core cannot store the state: {why}"));
        }
        self.config = Some(config);
        let opens = self.pending_nic_change().opens;
        let workers = self.state.spec().workers();
        for place in &workers {
            let own = opens.iter().filter(|(worker, _)| worker == place);
            if let Some(life) = self.lives.get_mut(place) {
                life.begin_refit(own.copied().collect());
                self.deadlines.set(Deadline::Domain(*place), 0);
            }
        }
        let refitting = Restarting {
            origin,
            starts: self.restart_counts(&workers),
            goal: RestartGoal::Opened,
        };
        self.await_restart(refitting, now.saturating_add(EDIT_TIMEOUT_NS));
        self.wait_for_change(origin);
        Ok(())
    }

    /// Restarts the workers with the changed NICs, whose devices netd has opened.
    pub(super) fn nics_opened(&mut self, origin: EditOrigin, now: u64) {
        let reload = self.reload.as_ref();
        let goal = match reload.is_some_and(|reload| reload.progress.changes_nics_next()) {
            true => RestartGoal::Ended,
            false => RestartGoal::NicsChanged,
        };
        self.end_refit();
        let workers = self.state.spec().workers();
        self.restart_for(origin, &workers, (goal, OTHER_NICS), now);
    }

    /// Restores the previous NICs, because netd has refused a device of the new NICs, or a worker
    /// has exited.
    pub(super) fn refuse_nics(&mut self, why: &str, now: u64) {
        let is_opening = |_: &u64, one: &mut Restarting| one.goal == RestartGoal::Opened;
        let opening: Vec<_> = self.restarting.extract_if(.., is_opening).collect();
        self.keep_nics();
        for (number, one) in opening {
            self.deadlines.set(Deadline::Restart(number), None);
            self.refuse(one.origin, why.to_owned(), now);
        }
    }

    /// Restores the previous NICs. No process has received the new NICs yet, so none is killed.
    pub(super) fn keep_nics(&mut self) {
        self.end_refit();
        self.finish_nic_change(true);
    }

    fn end_refit(&mut self) {
        let refitting = |life: &&mut Lifecycle| life.goal == Goal::Refit;
        for life in self.lives.values_mut().filter(refitting) {
            life.end_refit();
        }
    }

    /// Returns whether the domain at a place waits for the devices of its next process.
    pub(super) fn is_refitting(&self, place: usize) -> bool {
        let life = self.lives.get(&place);
        life.is_some_and(|life| life.goal == Goal::Refit)
    }

    /// Returns the devices that the change opens and closes.
    fn pending_nic_change(&self) -> PendingNicChange {
        let pending_nic_change = self.state.spec().pending_nic_change();
        pending_nic_change.cloned().unwrap_or_default()
    }

    /// Completes the change, or restores the previous NICs with `back`. Closes the devices that are
    /// no longer needed.
    pub(super) fn finish_nic_change(&mut self, back: bool) {
        let change = self.state.spec().end_nic_change(back);
        self.state.change(change);
        if back {
            self.config = None;
        }
        // Written before the devices are closed, so that the next manager does not restore them.
        self.try_store_state(monotonic_ns());
        self.close_removed_nics();
    }

    /// Restores the previous NICs. Returns the error for the client.
    pub(super) fn restore_nics(&mut self, why: String) -> String {
        let workers = self.state.spec().workers();
        self.restart_domains(&workers, (RestartGoal::Up, OTHER_NICS));
        self.finish_nic_change(true);
        format!("the driver domain {why}; its previous NICs are restored")
    }

    /// Closes the devices of removed NICs. The workers that had them are exiting or have exited.
    fn close_removed_nics(&mut self) {
        let pending_nic_change = self.pending_nic_change();
        for device in pending_nic_change.closes {
            build::close(self.core, device);
            self.state.mark_lost(device, false);
        }
        self.state.change(SpecChange::SetNics {
            nics: None,
            pending: None,
        });
    }

    /// Reverts or completes a change of NICs that an earlier manager did not complete.
    pub(super) fn resume_nic_change(&mut self) {
        let Some(pending_nic_change) = self.state.spec().pending_nic_change() else {
            return;
        };
        if pending_nic_change.back.is_some() {
            let change = self.state.spec().end_nic_change(true);
            self.state.change(change);
            let line = "driver: its previous NICs are restored: its manager has exited";
            self.log_line(Level::Warning, line);
        }
        let workers = self.state.spec().workers();
        self.restart_domains(&workers, (RestartGoal::Up, OTHER_NICS));
        self.close_removed_nics();
    }
}
