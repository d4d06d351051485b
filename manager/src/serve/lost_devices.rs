//! Devices that netd reports as lost, because their network namespace or their interface was
//! removed. The next start of the domain, or a reload, creates the interface again.

use super::ManagerServer;
use crate::edit::Edit;
use crate::reload::ReloadRequest;
use abi::journal::Level::Warning;
use abi::reload::{StepKind, StepReason};
use shmem::time::monotonic_ns;

impl ManagerServer<'_> {
    /// Records that a device is lost. `device` is the place of its domain and its number within the
    /// domain.
    pub(super) fn record_loss(&mut self, device: (usize, usize), is_removed: bool) {
        let Some(name) = self.state.domain(device.0).map(|d| d.name.clone()) else {
            return;
        };
        if !is_removed {
            let line = format!("{name}: the network namespace of an interface was removed");
            self.log_line(Warning, line);
            if self.is_attached(&name) && self.can_restart() {
                self.begin_detach(&name, "its network namespace was removed");
            }
            return;
        }
        if self.state.spec().is_lost(device) {
            // An earlier manager has recorded the loss.
            return;
        }
        self.state.mark_lost(device, true);
        self.try_store_state(monotonic_ns());
        let interface = self.state.interface(device).unwrap_or_default();
        let line = format!(
            "{name}: interface {interface} was removed; `grantway restart {name}` or \
             `grantway reload` creates it again"
        );
        self.log_line(Warning, line);
    }

    /// Returns the steps of a reload that restart domains with removed interfaces, except domains
    /// that `steps` restart anyway.
    pub(super) fn interface_restarts(&self, steps: &[ReloadRequest]) -> Vec<ReloadRequest> {
        let spec = self.state.spec();
        let has_other_nics = steps.iter().any(|step| step.public.step == StepKind::Nics);
        let mut interface_restarts = Vec::new();
        for life in self.lives.values().filter(|life| life.restarts()) {
            let place = life.place;
            let lost = self.state.lost_interfaces(place);
            let domain = self.state.domain(place).filter(|_| !lost.is_empty());
            let Some(domain) = domain else { continue };
            let is_worker = spec.workers().contains(&place);
            let is_in_steps = steps.iter().any(|step| step.public.domain == domain.name);
            let restarts = is_in_steps || is_worker && has_other_nics;
            if !restarts {
                let changes = lost.iter().map(|name| format!("{name} was removed"));
                let reason = "killed: its interface is created again";
                let edit = Edit::Restart(domain.name.clone(), reason);
                let (name, why) = (&domain.name, StepReason::Changed);
                interface_restarts.push(ReloadRequest::new(edit, name, why, changes.collect()));
            }
        }
        interface_restarts
    }
}
