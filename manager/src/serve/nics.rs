//! Changes of NICs: netd opens the devices of new NICs, the driver domain's workers restart with
//! the new NICs, and netd closes the devices of removed NICs. Each phase waits for the previous
//! one, without blocking the manager's loop. The manager restores the previous NICs if netd cannot
//! open a device, if a worker does not start, or if the manager itself restarts before all workers
//! run.
//!
//! If a reload removes NICs and adds others, the workers restart once: they exit in the first step
//! and start in the second. The client receives the answer when the workers are connected to their
//! guests.

use super::attach::live_config;
use super::edits::{EDIT_TIMEOUT_NS, EditOrigin, OpeningNics, RestartGoal};
use super::{Deadline, ManagerServer};
use crate::build;
use crate::core::CoreError;
use crate::spec::{PendingNicChange, SpecChange};
use abi::journal::Level;
use config::live::NicsStep;
use shmem::time::monotonic_ns;

const OTHER_NICS: &str = "killed: restarts with other NICs";

impl ManagerServer<'_> {
    /// Begins the step of a reload that replaces all NICs.
    pub(super) fn begin_nics(&mut self, step: &NicsStep, now: u64) -> Result<(), String> {
        let mut config = live_config(&mut self.config, self.state.spec())?.clone();
        config.set_nics(&step.nics)?;
        let nic_change = self.state.spec().nic_change(&config, step)?;
        self.state.change(nic_change);
        let kept = self
            .store_state()
            .map_err(|refusal| refusal.of("the core cannot store the state"));
        let opens = self.pending_nic_change().opens;
        let devices = kept.and_then(|()| build::open(self.core, &self.state, opens));
        let devices = devices.map_err(|CoreError { why, .. }| {
            // The workers still run with the previous NICs.
            self.finish_nic_change(true);
            why
        })?;
        self.config = Some(config);
        let starts = self.restart_counts(&self.state.spec().workers());
        self.opening_nics = Some(OpeningNics { starts, devices });
        let late_ns = now.saturating_add(EDIT_TIMEOUT_NS);
        self.deadlines.set(Deadline::Nics, late_ns);
        Ok(())
    }

    /// Restarts the workers when netd has opened the devices of new NICs.
    pub(super) fn nics_opened(&mut self, now: u64) {
        let Some(opening) = &mut self.opening_nics else {
            return;
        };
        let mut refused = build::take_opened(self.core, &mut self.state, &mut opening.devices);
        if let Some((_, CoreError { why, .. })) = refused.pop() {
            return self.refuse_nics(why, now);
        }
        if !opening.devices.is_empty() {
            return;
        }
        self.opening_nics = None;
        self.deadlines.set(Deadline::Nics, None);
        let reload = self.reload.as_ref();
        let goal = match reload.is_some_and(|reload| reload.progress.changes_nics_next()) {
            true => RestartGoal::Ended,
            false => RestartGoal::NicsChanged,
        };
        let workers = self.state.spec().workers();
        self.restart_for(EditOrigin::Reload, &workers, (goal, OTHER_NICS), now);
    }

    /// Restores the previous NICs, because netd has not opened all devices of the new NICs.
    pub(super) fn refuse_nics(&mut self, why: String, now: u64) {
        self.deadlines.set(Deadline::Nics, None);
        let Some(opening) = self.opening_nics.take() else {
            return;
        };
        let workers = self.state.spec().workers();
        // A worker that has restarted in the meantime may have the new NICs.
        let has_previous = self.restart_counts(&workers) == opening.starts
            && workers.iter().all(|place| self.is_running(*place));
        match has_previous {
            true => self.finish_nic_change(true),
            false => drop(self.restore_nics(String::new())),
        }
        self.refuse(EditOrigin::Reload, why, now);
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
            self.log.line(Level::Warning, "grantwayd", line);
        }
        let workers = self.state.spec().workers();
        self.restart_domains(&workers, (RestartGoal::Up, OTHER_NICS));
        self.close_removed_nics();
    }
}
