//! Carries out reloads, one step after another. If a step fails, the manager undoes the earlier
//! steps.

use super::attach::live_config;
use super::edits::{EditOrigin, Reload};
use super::{Deadline, ManagerServer};
use crate::client::ClientWait;
use crate::life::{Goal, Lifecycle};
use crate::reload::{self, ReloadProgress, ReloadRequest};
use abi::journal::Level;
use abi::reload::{ReloadReply, SourceFile};
use config::ConfigFile;
use config::live::reload::{Difference, difference};

impl ManagerServer<'_> {
    /// Begins a reload. The client receives the answer after all steps, or immediately for a dry
    /// run.
    pub(super) fn begin_reload(
        &mut self,
        client: u64,
        files: Vec<SourceFile>,
        is_dry: bool,
        now: u64,
    ) -> Result<(), String> {
        if self.reload.is_some() {
            return Err("another reload is in progress: try again later".into());
        }
        let (difference, steps) = self.plan(files)?;
        let answer = ReloadReply {
            steps: steps.iter().map(|step| step.public.clone()).collect(),
            stays: difference.kept,
            ..ReloadReply::default()
        };
        if is_dry {
            self.answer(client, &answer, now);
            return Ok(());
        }
        self.reload = Some(Reload {
            client,
            began_ns: now,
            answer,
            named: difference.named.into_iter().collect(),
            progress: ReloadProgress::new(steps),
        });
        self.wait_for(client, ClientWait::Change);
        Ok(())
    }

    /// Returns the differences between machine and files, and the steps.
    fn plan(&mut self, files: Vec<SourceFile>) -> Result<(Difference, Vec<ReloadRequest>), String> {
        let file = |SourceFile { name, text }| ConfigFile { name, text };
        let files: Vec<ConfigFile> = files.into_iter().map(file).collect();
        let config = live_config(&mut self.config, self.state.spec())?.clone();
        let spec = self.state.spec();
        let live = spec.live();
        let live =
            live.ok_or("the machine was started without a file, so its guests cannot change")?;
        let difference = difference(live, &config, &files)?;
        let mut concerned = difference.to_detach.iter().chain(&difference.named);
        if let Some(name) = concerned.find(|name| spec.is_changing(name)) {
            return Err(format!(
                "guest {name} is being attached or detached: try again later"
            ));
        }
        let mut steps = reload::steps(spec, &config, difference.clone())?;
        steps.extend(self.interface_restarts(&steps));
        Ok((difference, steps))
    }

    /// Records the outcome of the current step.
    pub(super) fn finish_reload_step(&mut self, outcome: Result<(), String>) {
        if let Some(reload) = &mut self.reload {
            reload.progress.complete_step(outcome);
            self.deadlines.set(Deadline::Reload, 0);
        }
    }

    /// Begins the next steps of a reload.
    pub(super) fn reload_turn(&mut self, now: u64) {
        while let Some(mut reload) = self.reload.take_if(|reload| reload.progress.is_due()) {
            let spec = self.state.spec();
            let config = live_config(&mut self.config, spec);
            let next = config.map(|config| reload.progress.next(spec, config));
            let Ok(Some(step)) = next else {
                return self.end_reload(reload, now);
            };
            self.reload = Some(reload);
            if let Err(why) = self.carry_out(EditOrigin::Reload, step.edit, now) {
                self.finish_reload_step(Err(why));
            }
        }
    }

    /// Answers the client of a reload.
    fn end_reload(&mut self, reload: Reload, now: u64) {
        // The step that would have started the held domains was not reached.
        let held = |life: &&mut Lifecycle| life.goal == Goal::Held;
        for life in self.lives.values_mut().filter(held) {
            life.restart("killed: it restarts");
        }
        let (progress, mut answer) = (reload.progress, reload.answer);
        if progress.failed.is_none() {
            // All guests in the files now count as guests of the files, including guests that
            // clients attached.
            for name in &reload.named {
                let mut origin = self.state.spec().origin(name).cloned();
                let user = origin.as_mut().and_then(|origin| origin.user.take());
                if user.is_some() {
                    self.state.edit_guest(name, |guest| guest.origin = origin);
                }
            }
        }
        let (done, all) = (progress.done, answer.steps.len());
        let not_undone = progress.not_undone.iter();
        let not_undone = not_undone.map(|why| format!("a step could not be undone: {why}"));
        let state_file = self
            .state_file
            .warning("guests are reattached as before the reload");
        let warnings: Vec<String> = not_undone.chain(state_file).collect();
        answer.warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        (answer.done, answer.failed) = (done, progress.failed);
        answer.took_ns = now.saturating_sub(reload.began_ns);
        let (level, why) = match &answer.failed {
            None => (Level::Info, String::new()),
            Some(why) => (Level::Warning, format!("; {why}")),
        };
        self.log_line(level, format!("reload: {done} of {all} steps done{why}"));
        for warning in warnings {
            self.log_line(Level::Warning, format!("reload: {warning}"));
        }
        self.answer(reload.client, &answer, now);
    }
}
