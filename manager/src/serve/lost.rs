//! Devices that are of no use any more, as netd finds: their network namespace is gone, or their
//! interface was removed. The next start of the domain, or a reload, makes such an interface again.

use super::Server;
use super::changes::{Progress, Refit, UP_NS};
use crate::reload::Step;
use abi::core::{Ask, Text};
use abi::journal::Level::Warning;
use shmem::time::monotonic_ns;

impl Server<'_> {
    /// A device, given by its domain's place and its number there, is of no use any more.
    pub(super) fn lose(&mut self, device: (usize, usize), is_removed: bool) {
        let Some(name) = self.world.domain(device.0).map(|d| d.name.clone()) else {
            return;
        };
        if !is_removed {
            let line = format!("{name}: the network namespace of one of its interfaces has gone");
            self.log.line(Warning, "grantwayd", &line);
            if self.is_attached(&name) && self.restarts_now() {
                self.begin_detach(&name, "its network namespace has gone");
            }
            return;
        }
        if self.world.shape().is_lost(device) {
            // The manager before has known it.
            return;
        }
        self.world.lose(device);
        self.note(monotonic_ns());
        let interface = self.world.interface(device).unwrap_or_default();
        let line = format!(
            "{name}: interface {interface} was removed; `grantway restart {name}` or \
             `grantway reload` makes it again"
        );
        self.log.line(Warning, "grantwayd", &line);
    }

    /// Returns the steps of a reload that start domains again because an interface was removed,
    /// for those that `steps` leave alone.
    pub(super) fn remaking(&self, steps: &[Step]) -> Vec<Step> {
        let shape = self.world.shape();
        let has_other_nics = steps.iter().any(|step| step.nics.is_some());
        let mut remaking = Vec::new();
        for restart in &self.restarts {
            let place = restart.place();
            let lost = self.world.lost(place);
            let domain = self.world.domain(place).filter(|_| !lost.is_empty());
            let Some(domain) = domain else { continue };
            let is_worker = shape.workers().contains(&place);
            let is_named = steps.iter().any(|step| step.told.domain == domain.name);
            let restarts = is_named || is_worker && has_other_nics;
            if !restarts {
                let changes = lost.iter().map(|name| format!("{name} was removed"));
                remaking.push(Step::restart(&domain.name, changes.collect()));
            }
        }
        remaking
    }

    /// Begins to start a domain again, as a step of a reload.
    pub(super) fn begin_remaking(&mut self, name: &str, now: u64) -> Result<(), String> {
        let place = self.world.place(name);
        let restart = self.restarts.iter_mut().find(|r| Some(r.place()) == place);
        let restart = restart.ok_or_else(|| format!("domain {name} is not started again"))?;
        restart.ask();
        self.kept.look_again();
        let starts = vec![(restart.place(), restart.known().count)];
        if let Some(domain) = self.world.find(name) {
            let why = Text::cut("killed: its interface is made again");
            // One that has just ended is started again all the same.
            let _ = self.core.ask(Ask::Kill { domain, why }, &[]);
        }
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Remaking(Refit {
                starts,
                began_ns: now,
                is_held: false,
            });
        }
        Ok(())
    }

    /// Goes on with it. Returns `None` while it takes longer.
    pub(super) fn remaking_turn(&mut self, refit: Refit, now: u64) -> Option<Result<(), String>> {
        let all = || self.restarts.iter();
        let find = |place| all().find(|restart| restart.place() == place);
        let is_back = |(place, before): &(usize, u64)| {
            find(*place).is_none_or(|one| one.is_up() && one.known().count > *before)
        };
        if refit.starts.iter().all(is_back) {
            return Some(Ok(()));
        }
        let failure = refit.starts.iter().find_map(|(place, _)| find(*place));
        let failure = failure.and_then(|restart| restart.failure());
        if now >= refit.began_ns.saturating_add(UP_NS) {
            let why = failure.map_or_else(String::new, |why| format!(": it {why}"));
            return Some(Err(format!("it was not back within 20 s{why}")));
        }
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Remaking(refit);
        }
        None
    }
}
