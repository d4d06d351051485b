//! The machine becomes what files say, one guest after another. What was done stays done, whatever
//! comes of the rest: the same files again go on from there.

use super::Server;
use super::attach::live_config;
use super::changes::{AskedBy, Change, Progress, Reload, UP_NS};
use super::tell::Telling;
use crate::client::Waits;
use crate::reload::{self, Step};
use crate::shape::ShapeChange;
use abi::journal::Level;
use abi::machine::Setting;
use abi::mailbox::Request;
use abi::reload::{Reloaded, SourceFile, StepKind};
use config::File;
use config::domain::VifConfig;
use config::live::reload::{Difference, difference};

impl Server<'_> {
    /// Begins to make the machine what files say, for a client that is answered when it is that. A
    /// dry run is answered now.
    pub(super) fn begin_reload(
        &mut self,
        client: u64,
        files: Vec<SourceFile>,
        is_dry: bool,
        now: u64,
    ) -> Result<(), String> {
        if self.reload.is_some() {
            return Err("another reload is under way: try again when it is done".into());
        }
        let (difference, steps) = self.plan(files)?;
        let answer = Reloaded {
            steps: steps.iter().map(|step| step.told.clone()).collect(),
            stays: difference.stays,
            ..Reloaded::default()
        };
        if is_dry {
            self.answer(client, &answer, now);
            return Ok(());
        }
        // Those that come are adopted when they do.
        let mut named = difference.named;
        let stay = |name: &String| difference.coming.iter().all(|coming| coming.name != *name);
        named.retain(stay);
        self.world.change(ShapeChange::Adopted {
            names: named.into_iter().collect(),
        });
        self.reload = Some(Reload {
            client,
            began_ns: now,
            answer,
            left: steps.into(),
            progress: Progress::Between,
        });
        self.wait_for(client, Waits::Change);
        Ok(())
    }

    /// What files change, and what is to be done for it.
    fn plan(&mut self, files: Vec<SourceFile>) -> Result<(Difference, Vec<Step>), String> {
        let file = |SourceFile { name, text }| File { name, text };
        let files: Vec<File> = files.into_iter().map(file).collect();
        let config = live_config(&mut self.config, self.world.shape())?.clone();
        let shape = self.world.shape();
        let live = shape.live();
        let live = live.ok_or("its guests are those that it was started with")?;
        let difference = difference(live, &config, &files)?;
        let mut concerned = difference.gone.iter().chain(&difference.named);
        if let Some(name) = concerned.find(|name| shape.is_changing(name)) {
            return Err(format!(
                "guest {name} comes or goes just now: try again when it has"
            ));
        }
        let mut steps = reload::steps(shape, &config, difference.clone())?;
        steps.extend(self.remaking(&steps));
        Ok((difference, steps))
    }

    /// The present step of a reload is over.
    pub(super) fn reload_step_over(&mut self, outcome: Result<(), String>) {
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Over(outcome);
        }
    }

    /// Goes on with a reload.
    pub(super) fn reload_turn(&mut self, now: u64) {
        while let Some(reload) = &mut self.reload {
            let outcome = match std::mem::replace(&mut reload.progress, Progress::UnderWay) {
                Progress::UnderWay => return,
                Progress::Between => None,
                Progress::Over(outcome) => Some(outcome),
                Progress::Telling(change) => match self.tell_change(change, now) {
                    None => return,
                    told => told,
                },
                Progress::Refitting(refit) => match self.refit_turn(refit, now) {
                    None => return,
                    done => done,
                },
                Progress::Remaking(refit) => match self.remaking_turn(refit, now) {
                    None => return,
                    done => done,
                },
                Progress::Connecting(until) => match self.connect_turn(until, now) {
                    None => return,
                    done => done,
                },
            };
            if let Some(Err(why)) = outcome {
                return self.end_reload(Some(why), now);
            }
            let Some(reload) = &mut self.reload else {
                return;
            };
            reload.answer.done += usize::from(outcome.is_some());
            let Some(step) = reload.left.pop_front() else {
                return self.end_reload(None, now);
            };
            if let Err(why) = self.begin_step(&step, now) {
                return self.end_reload(Some(why), now);
            }
        }
    }

    fn begin_step(&mut self, step: &Step, now: u64) -> Result<(), String> {
        if let Some(nics) = &step.nics {
            return self.begin_nics(nics, now);
        }
        if step.told.step == StepKind::Restart {
            return self.begin_remaking(&step.told.domain, now);
        }
        match &step.guest {
            None => self.detach_for(AskedBy::Reload, &step.told.domain),
            Some(guest) if step.told.step == StepKind::Change => self.begin_change(guest, now),
            Some(guest) => self.begin_attach(AskedBy::Reload, guest, now),
        }
    }

    /// Begins to tell the driver domain what becomes of a guest's interfaces; one that is started
    /// meanwhile knows it from its start.
    fn begin_change(&mut self, guest: &Setting, now: u64) -> Result<(), String> {
        let changed = live_config(&mut self.config, self.world.shape())?
            .clone()
            .change(guest)?;
        let vifs = changed.vifs;
        self.world
            .change(ShapeChange::Changes { vifs: vifs.clone() });
        let told = self.world.shape().told_of(&vifs);
        let telling = |(worker, vif): &(usize, VifConfig)| {
            let vif = serde_json::to_string(vif).map_err(|error| error.to_string())?;
            Telling::new(*worker, &Request::Change { vif })
        };
        let change = Change {
            guest: changed.guest,
            began_ns: now,
            tellings: told.iter().map(telling).collect::<Result<_, _>>()?,
        };
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Telling(change);
        }
        Ok(())
    }

    /// Goes on with that; none: it takes longer.
    fn tell_change(&mut self, mut change: Change, now: u64) -> Option<Result<(), String>> {
        for telling in &mut change.tellings {
            if let Err(why) = telling.turn(self.core, &self.world, now) {
                return Some(Err(why));
            }
        }
        if change.tellings.iter().all(Telling::is_done) {
            return Some(self.is_changed(change.guest));
        }
        if now >= change.began_ns.saturating_add(UP_NS) {
            return Some(Err("the driver domain was not told within 20 s".into()));
        }
        if let Some(reload) = &mut self.reload {
            reload.progress = Progress::Telling(change);
        }
        None
    }

    /// A guest is what it was to become, also for the next manager.
    fn is_changed(&mut self, guest: Setting) -> Result<(), String> {
        let changed = live_config(&mut self.config, self.world.shape())?.change(&guest)?;
        let name = changed.domain.name;
        let line = format!("{name}: its rules and rate limits are others");
        self.log.line(Level::Info, "grantwayd", &line);
        self.world.change(ShapeChange::Described { name, guest });
        Ok(())
    }

    /// Answers who has asked for a reload.
    fn end_reload(&mut self, failed: Option<String>, now: u64) {
        let Some(reload) = self.reload.take() else {
            return;
        };
        // The step that would have started them did not come about.
        for restart in self.restarts.iter_mut().filter(|restart| restart.is_held()) {
            restart.ask();
        }
        let mut answer = reload.answer;
        let (done, all) = (answer.done, answer.steps.len());
        let failed_step = answer.steps.get(done);
        answer.failed = failed.zip(failed_step).map(|(why, step)| {
            let what = match step.step {
                StepKind::Detach => "detach",
                StepKind::Attach => "attach",
                StepKind::Change => "change",
                StepKind::Nics => "NICs of",
                StepKind::Restart => "restart",
            };
            format!("{what} {}: {why}", step.domain)
        });
        answer.warning = self.state.warning("guests come back as they were before");
        answer.took_ns = now.saturating_sub(reload.began_ns);
        let (level, why) = match &answer.failed {
            None => (Level::Info, String::new()),
            Some(why) => (Level::Warning, format!("; {why}")),
        };
        let line = format!("reload: {done} of {all} steps done{why}");
        self.log.line(level, "grantwayd", &line);
        self.answer(reload.client, &answer, now);
    }
}
