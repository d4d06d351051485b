//! Devices that netd reports as lost: their network namespace no longer exists, or their interface
//! was removed. The next start of the domain, or a reload, creates the interface again.

use super::ManagerServer;
use crate::reload::ReloadRequest;
use abi::journal::Level::Warning;
use abi::reload::{StepKind, StepReason};
use shmem::time::monotonic_ns;

impl ManagerServer<'_> {
    /// Records that a device, given by its domain's place and its number there, is lost.
    pub(super) fn lose(&mut self, device: (usize, usize), is_removed: bool) {
        let Some(name) = self.state.domain(device.0).map(|d| d.name.clone()) else {
            return;
        };
        if !is_removed {
            let line = format!("{name}: the network namespace of an interface was removed");
            self.log.line(Warning, "grantwayd", &line);
            if self.is_attached(&name) && self.restarts_now() {
                self.begin_detach(&name, "its network namespace was removed");
            }
            return;
        }
        if self.state.spec().is_lost(device) {
            // An earlier manager has recorded it.
            return;
        }
        self.state.mark_lost(device, true);
        self.note(monotonic_ns());
        let interface = self.state.interface(device).unwrap_or_default();
        let line = format!(
            "{name}: interface {interface} was removed; `grantway restart {name}` or \
             `grantway reload` creates it again"
        );
        self.log.line(Warning, "grantwayd", &line);
    }

    /// Returns steps of a reload that restart domains with removed interfaces, except those that
    /// `steps` restart anyway.
    pub(super) fn remaking(&self, steps: &[ReloadRequest]) -> Vec<ReloadRequest> {
        let spec = self.state.spec();
        let has_other_nics = steps.iter().any(|step| step.nics.is_some());
        let mut remaking = Vec::new();
        for life in self.lives.values().filter(|life| life.restarts()) {
            let place = life.place;
            let lost = self.state.lost(place);
            let domain = self.state.domain(place).filter(|_| !lost.is_empty());
            let Some(domain) = domain else { continue };
            let is_worker = spec.workers().contains(&place);
            let is_named = steps.iter().any(|step| step.public.domain == domain.name);
            let restarts = is_named || is_worker && has_other_nics;
            if !restarts {
                let changes = lost.iter().map(|name| format!("{name} was removed"));
                let (kind, why) = (StepKind::Restart, StepReason::Changed);
                remaking.push(ReloadRequest::new(
                    kind,
                    &domain.name,
                    why,
                    changes.collect(),
                ));
            }
        }
        remaking
    }
}
