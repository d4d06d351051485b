//! NICs come and go: the workers of the driver domain are started again with those that there are
//! from now on. What comes is opened before, what goes is closed after that. Until all workers are
//! there again the way back is kept: they get the NICs that they had if they do not come back, or
//! if the next manager finds it half done.
//!
//! Where NICs go and others come, the workers start once: they end in the first step, and start in
//! the second. A reload is answered when they are connected to their guests again.

use super::Server;
use super::attach::live_config;
use super::changes::{Progress, Refit, UP_NS};
use crate::build;
use crate::core::Refusal;
use crate::restart::Restart;
use crate::shape::{Refitting, ShapeChange};
use abi::core::{Ask, Stage, Text};
use abi::journal::Level;
use config::live::NicsStep;
use shmem::time::monotonic_ns;

/// How long the answer waits for the workers' connections to guests.
const CONNECT_NS: u64 = 5_000_000_000;

impl Server<'_> {
    /// Begins a step of a reload after which there are these NICs.
    pub(super) fn begin_nics(&mut self, step: &NicsStep, now: u64) -> Result<(), String> {
        let mut config = live_config(&mut self.config, self.world.shape())?.clone();
        config.set_nics(&step.nics)?;
        let refits = self.world.shape().refits(&config, step)?;
        self.world.change(ShapeChange::Refits(refits));
        let opened = match self.keep() {
            Ok(()) => self.open_refitted(),
            Err(Refusal { why, .. }) => Err(format!("the core cannot keep what there is: {why}")),
        };
        if let Err(why) = opened {
            // No worker has been told.
            self.refitted(true);
            return Err(why);
        }
        self.config = Some(config);
        let next = self.reload.as_ref().and_then(|reload| reload.left.front());
        let is_held = next.is_some_and(|step| step.nics.is_some());
        let starts = self.restart_workers(is_held);
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Refitting(Refit {
                starts,
                began_ns: now,
                is_held,
            });
        }
        Ok(())
    }

    /// Devices that come and go.
    fn refitting(&self) -> Refitting {
        let refitting = self.world.shape().refitting();
        refitting.cloned().unwrap_or_default()
    }

    /// Opens what comes.
    fn open_refitted(&mut self) -> Result<(), String> {
        let refitting = self.refitting();
        let opened = build::open_some(self.core, &self.world, refitting.opens);
        let done = opened.and_then(|all| build::await_opened(self.core, &mut self.world, all));
        done.map_err(|refusal| refusal.why)
    }

    /// It is done; `back`: there are the NICs again that there were. Closes what goes by that.
    fn refitted(&mut self, back: bool) {
        self.world.change(ShapeChange::Refitted { back });
        if back {
            self.config = None;
        }
        // From here on the next manager does not turn back to what is closed now.
        self.note(monotonic_ns());
        self.close_refitted();
    }

    /// Has each worker end and start again, or only end if `is_held`. Returns how often each had
    /// been started before.
    fn restart_workers(&mut self, is_held: bool) -> Vec<(usize, u64)> {
        let workers = self.world.shape().workers();
        let mut starts = Vec::new();
        self.kept.look_again();
        for restart in &mut self.restarts {
            let place = restart.place();
            if !workers.contains(&place) {
                continue;
            }
            match is_held {
                true => restart.hold(),
                false => restart.ask(),
            }
            starts.push((place, restart.known().count));
            let id = self.world.id(place);
            let lives = |stage: Stage| !stage.is_over();
            if let Some(domain) = id.filter(|id| self.world.stage(*id).is_some_and(lives)) {
                let why = Text::cut("killed: it is started again with other NICs");
                // One that has just ended is started again all the same.
                let _ = self.core.ask(Ask::Kill { domain, why }, &[]);
            }
        }
        starts
    }

    /// Goes on with it; none: it takes longer.
    pub(super) fn refit_turn(&mut self, refit: Refit, now: u64) -> Option<Result<(), String>> {
        let find = |place| {
            self.restarts
                .iter()
                .find(|restart| restart.place() == place)
        };
        // Whether guests are connected again is theirs: none of them can turn it back.
        let runs = |place| {
            let id = self.world.id(place);
            id.is_some_and(|id| self.world.stage(id) == Some(Stage::Running))
        };
        let is_done = |(place, before): &(usize, u64)| {
            find(*place).is_none_or(|one| match refit.is_held {
                true => one.has_no_process(&self.world),
                false => runs(*place) && one.known().count > *before,
            })
        };
        if refit.starts.iter().all(is_done) {
            self.refitted(false);
            if refit.is_held {
                return Some(Ok(()));
            }
            self.log
                .line(Level::Info, "grantwayd", "driver: it has other NICs");
            return self.connect_turn(now.saturating_add(CONNECT_NS), now);
        }
        let mut workers = refit.starts.iter().filter_map(|(place, _)| find(*place));
        let failure = workers.find_map(Restart::failure);
        let late = || "was not back within 20 s".to_owned();
        let is_late = now >= refit.began_ns.saturating_add(UP_NS);
        if let Some(why) = failure.or_else(|| is_late.then(late)) {
            // Who has what goes is to be gone first.
            self.restart_workers(false);
            self.refitted(true);
            let why = format!("the driver domain {why}; it gets the NICs again that it had");
            return Some(Err(why));
        }
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Refitting(refit);
        }
        None
    }

    /// Returns `Some` when the workers are connected to their guests, or at `until`: guests that do
    /// not connect cannot hold the answer up.
    pub(super) fn connect_turn(&mut self, until: u64, now: u64) -> Option<Result<(), String>> {
        let workers = self.world.shape().workers();
        let mut restarts = self.restarts.iter();
        let is_up = restarts.all(|one| one.is_up() || !workers.contains(&one.place()));
        if is_up || now >= until {
            return Some(Ok(()));
        }
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Connecting(until);
        }
        None
    }

    /// Closes what goes: workers that have it have ended, or are told to.
    fn close_refitted(&mut self) {
        let refitting = self.refitting();
        for device in refitting.closes {
            build::close(self.core, device);
            self.world.regain(device);
        }
        self.world.change(ShapeChange::HasRefitted);
    }

    /// Takes back what another manager has left half done.
    pub(super) fn finish_nics(&mut self) {
        let Some(refitting) = self.world.shape().refitting() else {
            return;
        };
        if refitting.back.is_some() {
            self.world.change(ShapeChange::Refitted { back: true });
            let line = "driver: it gets the NICs again that it had: its manager has ended";
            self.log.line(Level::Warning, "grantwayd", line);
        }
        self.restart_workers(false);
        self.close_refitted();
    }
}
