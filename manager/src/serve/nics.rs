//! NICs come and go: the workers of the driver domain are started again with those that there are
//! from now on. What comes is opened before, what goes is closed after that; a manager that finds
//! it half done goes on with it.

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

impl Server<'_> {
    /// Begins a step of a reload after which there are these NICs.
    pub(super) fn begin_nics(&mut self, step: &NicsStep, now: u64) -> Result<(), String> {
        let mut config = live_config(&mut self.config, self.world.shape())?.clone();
        config.set_nics(&step.nics)?;
        let [there, back] = self.world.shape().refits(&config, step);
        self.world.change(there);
        let opened = match self.keep() {
            Ok(()) => self.open_refitted(),
            Err(Refusal { why, .. }) => Err(format!("the core cannot keep what there is: {why}")),
        };
        if let Err(why) = opened {
            self.take_back_nics(back);
            return Err(why);
        }
        self.config = Some(config);
        let starts = self.restart_workers();
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Refitting(Refit {
                starts,
                began_ns: now,
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

    /// Nothing comes of it: what was opened is closed. No worker has been told.
    fn take_back_nics(&mut self, back: ShapeChange) {
        let refitting = self.refitting();
        for device in refitting.opens {
            build::close(self.core, device);
        }
        self.world.change(back);
        self.world.change(ShapeChange::HasRefitted);
    }

    /// Has each worker end and start again; how often each had been started before.
    fn restart_workers(&mut self) -> Vec<(usize, u64)> {
        let workers = self.world.shape().workers();
        let mut starts = Vec::new();
        self.kept.look_again();
        for restart in &mut self.restarts {
            let place = restart.place();
            if !workers.contains(&place) {
                continue;
            }
            restart.ask();
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
        let find = |restarts: &[Restart], place| -> Option<(bool, u64)> {
            let restart = restarts.iter().find(|restart| restart.place() == place)?;
            Some((restart.is_up(), restart.known().count))
        };
        let is_back = |(place, before): &(usize, u64)| {
            let found = find(&self.restarts, *place);
            found.is_none_or(|(is_up, count)| is_up && count > *before)
        };
        if refit.starts.iter().all(is_back) {
            self.close_refitted();
            self.log
                .line(Level::Info, "grantwayd", "driver: it has other NICs");
            return Some(Ok(()));
        }
        if now >= refit.began_ns.saturating_add(UP_NS) {
            let workers = refit.starts.iter().map(|(place, _)| *place);
            let trouble: Vec<&str> = workers
                .filter_map(|place| self.restarts.iter().find(|r| r.place() == place))
                .map(Restart::trouble)
                .collect();
            let why = format!(
                "the driver domain was not back within 20 s {}",
                trouble.join(" ")
            );
            self.close_refitted();
            return Some(Err(why.trim_end().to_owned()));
        }
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Refitting(refit);
        }
        None
    }

    /// Closes what goes: no worker has it any more.
    fn close_refitted(&mut self) {
        let refitting = self.refitting();
        for device in refitting.closes {
            build::close(self.core, device);
        }
        self.world.change(ShapeChange::HasRefitted);
    }

    /// Goes on with what another manager has left half done.
    pub(super) fn finish_nics(&mut self) {
        if self.world.shape().refitting().is_none() {
            return;
        }
        // What is open already is refused, and is what was wanted.
        if let Err(why) = self.open_refitted() {
            let line = format!("driver: its NICs: {why}");
            self.log.line(Level::Warning, "grantwayd", &line);
        }
        self.restart_workers();
        self.close_refitted();
    }
}
