//! Outcomes of edits and restarts: when they are done, late or failed, and the answers.

use super::Server;
use super::edits::{EDIT_NS, EditKind, EditOrigin, RestartGoal, Restarting};
use super::requests::refusal;
use crate::build;
use crate::client::ClientWait;
use crate::life::Goal;
use abi::core::Stage;
use abi::journal::Level;
use abi::machine::Restarted;
use serde::Serialize;

/// How long the answer to a change of NICs waits for the workers' connections to guests.
const CONNECT_NS: u64 = 5_000_000_000;

impl Server<'_> {
    /// Has domains end, and start again unless `goal` is [`RestartGoal::Ended`]. Returns the
    /// number of restarts before, by place.
    pub(super) fn restart_domains(
        &mut self,
        places: &[usize],
        (goal, why): (RestartGoal, &str),
    ) -> Vec<(usize, u64)> {
        let starts = self.restarts_of(places);
        self.kept.look_again();
        for (place, _) in &starts {
            let Some(life) = self.lives.get_mut(place) else {
                continue;
            };
            life.restart(why);
            if goal == RestartGoal::Ended {
                life.goal = Goal::Held;
            }
            // At once, before devices that the process has are closed.
            let stage = self.state.stage_at(*place);
            if matches!(stage, Some(Stage::Starting | Stage::Running)) {
                life.end = None;
                build::end(self.core, &self.state, *place, why);
            }
        }
        starts
    }

    /// Returns the number of restarts of those of the domains that restart, by place.
    pub(super) fn restarts_of(&self, places: &[usize]) -> Vec<(usize, u64)> {
        let lives = places.iter().filter_map(|place| self.lives.get(place));
        let restarting = lives.filter(|life| life.restarts());
        restarting
            .map(|life| (life.place, life.known.count))
            .collect()
    }

    /// Has domains restart for an asker, who gets an answer when they have reached the goal.
    pub(super) fn restart_for(
        &mut self,
        asker: EditOrigin,
        places: &[usize],
        goal: (RestartGoal, &str),
        now: u64,
    ) {
        let starts = self.restart_domains(places, goal);
        self.restarting.push(Restarting {
            asker,
            starts,
            goal: goal.0,
            due_ns: now.saturating_add(EDIT_NS),
        });
        self.wait_for_change(asker);
    }

    /// Answers the requests whose domains have restarted, or are late.
    pub(super) fn answer_restarted(&mut self, now: u64) {
        let mut all = std::mem::take(&mut self.restarting);
        while let Some(mut one) = all.pop() {
            let has_reached = |(place, before): &(usize, u64)| {
                let Some(life) = self.lives.get(place) else {
                    return true;
                };
                match one.goal {
                    RestartGoal::Up => life.is_up() && life.known.count > *before,
                    RestartGoal::Ended => self.has_no_process(*place),
                    // Guests do not hold the workers up.
                    RestartGoal::NicsChanged => self.runs(*place) && life.known.count > *before,
                    RestartGoal::Connected => life.is_up(),
                }
            };
            let is_done = one.starts.iter().all(has_reached);
            let mut lives = one.starts.iter().map(|(place, _)| self.lives.get(place));
            let failure = lives.find_map(|life| life?.failure());
            let is_late = now >= one.due_ns;
            match one.goal {
                RestartGoal::Up if is_done => self.restarted(&one, now),
                RestartGoal::Up if is_late => {
                    let why = failure.map_or_else(String::new, |why| format!(": it {why}"));
                    let why = format!("it was not back within 20 s{why}");
                    self.refuse(one.asker, why, now);
                }
                RestartGoal::Ended if is_done => {
                    self.finish_nic_change(false);
                    self.changed(one.asker, &(), now);
                }
                RestartGoal::NicsChanged if is_done => {
                    self.finish_nic_change(false);
                    let line = "driver: runs with the changed NICs";
                    self.log.line(Level::Info, "grantwayd", line);
                    one.goal = RestartGoal::Connected;
                    one.due_ns = now.saturating_add(CONNECT_NS);
                    // They may be connected already, and report nothing more.
                    all.push(one);
                }
                RestartGoal::Ended | RestartGoal::NicsChanged if failure.is_some() || is_late => {
                    let late = || "was not back within 20 s".to_owned();
                    let why = self.turn_back(failure.unwrap_or_else(late));
                    self.refuse(one.asker, why, now);
                }
                RestartGoal::Connected if is_done || is_late => self.changed(one.asker, &(), now),
                _ => self.restarting.push(one),
            }
        }
    }

    fn restarted(&mut self, one: &Restarting, now: u64) {
        let life = one.starts.first().map(|(place, _)| self.lives.get(place));
        let Some(life) = life.flatten() else {
            return self.refuse(one.asker, "it does not restart".to_owned(), now);
        };
        let domain = self.state.domain(life.place);
        let restarted = Restarted {
            domain: domain.map_or_else(String::new, |domain| domain.name.clone()),
            id: self.state.id(life.place).map_or(0, |id| id.0),
            ready_ns: life.known.ready_ns.unwrap_or_default(),
            connected_ns: life.known.connected_ns.unwrap_or_default(),
        };
        self.changed(one.asker, &restarted, now);
    }

    /// Whether a guest is being detached.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        let kind = self.edits.get(name).map(|edit| &edit.kind);
        matches!(kind, Some(EditKind::Detach))
    }

    /// Whether a guest is being attached.
    pub(super) fn is_coming(&self, name: &str) -> bool {
        let kind = self.edits.get(name).map(|edit| &edit.kind);
        matches!(kind, Some(EditKind::Attach(_)))
    }

    /// Fails the edits that are late.
    pub(super) fn fail_late_edits(&mut self, now: u64) {
        let edits = self.edits.iter();
        let late = edits.filter(|(_, edit)| edit.due_ns().is_some_and(|at| now >= at));
        let late: Vec<String> = late.map(|(name, _)| name.clone()).collect();
        for name in late {
            let Some(edit) = self.edits.get_mut(&name) else {
                continue;
            };
            match edit.kind {
                EditKind::Attach(_) => self.fail(&name, "it was not up within 20 s".into()),
                EditKind::Change(_) => {
                    let why = "the driver domain did not answer within 20 s";
                    self.is_changed(&name, Err(why.into()), now);
                }
                EditKind::Detach => {
                    let askers = std::mem::take(&mut edit.askers);
                    let why = format!("{name}: something of it is still in use after 20 s");
                    for (asker, _) in askers {
                        self.refuse(asker, why.clone(), now);
                    }
                }
            }
        }
    }

    /// Has a client wait for the edit that it has asked for.
    pub(super) fn wait_for_change(&mut self, asker: EditOrigin) {
        if let EditOrigin::Client(client) = asker {
            self.wait_for(client, ClientWait::Change);
        }
    }

    /// Answers that an edit is carried out.
    pub(super) fn changed(&mut self, asker: EditOrigin, answer: &impl Serialize, now: u64) {
        match asker {
            EditOrigin::Client(client) => self.answer(client, answer, now),
            EditOrigin::Reload => self.reload_step_over(Ok(())),
            EditOrigin::Before => {}
        }
    }

    /// Answers that an edit has failed.
    pub(super) fn refuse(&mut self, asker: EditOrigin, why: String, now: u64) {
        match asker {
            EditOrigin::Client(client) => self.answer(client, &refusal(why), now),
            EditOrigin::Reload => self.reload_step_over(Err(why)),
            EditOrigin::Before => {}
        }
    }
}
