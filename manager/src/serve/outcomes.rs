//! Outcomes of edits and restarts: completion, timeout or failure, and the answers.

use super::edits::{EDIT_TIMEOUT_NS, EditKind, EditOrigin, PendingEdit, RestartGoal, Restarting};
use super::requests::refusal;
use super::{Deadline, ManagerServer};
use crate::build;
use crate::client::ClientWait;
use crate::life::Goal;
use abi::core::Stage;
use abi::journal::Level;
use abi::machine::RestartReply;
use serde::Serialize;

/// Maximum time that the answer to a change of NICs waits for the workers' connections to guests.
const CONNECT_TIMEOUT_NS: u64 = 5_000_000_000;

impl ManagerServer<'_> {
    /// Kills domains, which start again unless `goal` is [`RestartGoal::Ended`]. Returns their
    /// places, with the previous numbers of restarts.
    pub(super) fn restart_domains(
        &mut self,
        places: &[usize],
        (goal, why): (RestartGoal, &str),
    ) -> Vec<(usize, u64)> {
        let starts = self.restart_counts(places);
        for (place, _) in &starts {
            let Some(life) = self.lives.get_mut(place) else {
                continue;
            };
            life.restart(why);
            self.deadlines.set(Deadline::Domain(*place), 0);
            if goal == RestartGoal::Ended {
                life.goal = Goal::Held;
            }
            // The process is killed immediately, before its devices are closed.
            let stage = self.state.stage(*place);
            if matches!(stage, Some(Stage::Starting | Stage::Running)) {
                life.end = None;
                build::end(self.core, &self.state, *place, why);
            }
        }
        starts
    }

    /// Returns the places of the given domains that restart, with their numbers of restarts.
    pub(super) fn restart_counts(&self, places: &[usize]) -> Vec<(usize, u64)> {
        let lives = places.iter().filter_map(|place| self.lives.get(place));
        let restarting = lives.filter(|life| life.restarts());
        restarting
            .map(|life| (life.place, life.known.count))
            .collect()
    }

    /// Restarts domains for a requester, which receives the answer when they have reached the goal.
    pub(super) fn restart_for(
        &mut self,
        origin: EditOrigin,
        places: &[usize],
        goal: (RestartGoal, &str),
        now: u64,
    ) {
        let starts = self.restart_domains(places, goal);
        let restarting = Restarting {
            origin,
            starts,
            goal: goal.0,
        };
        self.await_restart(restarting, now.saturating_add(EDIT_TIMEOUT_NS));
        self.wait_for_change(origin);
    }

    /// Adds a request that waits for restarting domains until a time.
    pub(super) fn await_restart(&mut self, restarting: Restarting, until_ns: u64) {
        let number = self.next_restart;
        self.next_restart += 1;
        self.restarting.insert(number, restarting);
        self.deadlines.set(Deadline::Restart(number), until_ns);
    }

    fn has_reached(&self, one: &Restarting) -> bool {
        one.starts.iter().all(|(place, before)| {
            let Some(life) = self.lives.get(place) else {
                return true;
            };
            match one.goal {
                RestartGoal::Up => life.is_up() && life.known.count > *before,
                RestartGoal::Opened => life.has_opened(),
                RestartGoal::Ended => self.has_no_process(*place),
                // The workers need not wait for guests.
                RestartGoal::NicsChanged => self.is_running(*place) && life.known.count > *before,
                RestartGoal::Connected => life.is_up(),
            }
        })
    }

    /// Returns why a requested restart will not succeed soon, or `None` if it may.
    fn failure_of(&self, one: &Restarting) -> Option<String> {
        let mut lives = one.starts.iter().map(|(place, _)| self.lives.get(place));
        lives.find_map(|life| life?.failure())
    }

    /// Answers the requests whose domains have restarted or failed to restart.
    pub(super) fn answer_restarted(&mut self, now: u64) {
        while let Some(one) = self.next_restarted() {
            match one.goal {
                _ if !self.has_reached(&one) => self.fail_restart(&one, now),
                RestartGoal::Up => self.restarted(&one, now),
                RestartGoal::Opened => self.nics_opened(one.origin, now),
                RestartGoal::Ended => {
                    self.finish_nic_change(false);
                    self.answer_change(one.origin, &(), now);
                }
                RestartGoal::NicsChanged => {
                    self.finish_nic_change(false);
                    self.log_line(Level::Info, "driver: runs with the changed NICs");
                    let connecting = Restarting {
                        goal: RestartGoal::Connected,
                        ..one
                    };
                    self.await_restart(connecting, now.saturating_add(CONNECT_TIMEOUT_NS));
                }
                RestartGoal::Connected => self.answer_change(one.origin, &(), now),
            }
        }
    }

    /// Removes and returns a request whose domains have restarted, or have failed to change NICs.
    fn next_restarted(&mut self) -> Option<Restarting> {
        let mut all = self.restarting.iter();
        let (&number, _) = all.find(|(_, one)| {
            let may_fail = matches!(one.goal, RestartGoal::Ended | RestartGoal::NicsChanged);
            self.has_reached(one) || may_fail && self.failure_of(one).is_some()
        })?;
        self.deadlines.set(Deadline::Restart(number), None);
        self.restarting.remove(&number)
    }

    /// Fails a request whose domains have not restarted in time.
    pub(super) fn time_out_restart(&mut self, number: u64, now: u64) {
        if let Some(one) = self.restarting.remove(&number) {
            self.fail_restart(&one, now);
        }
    }

    /// Answers a request whose domains restart too late or not at all.
    fn fail_restart(&mut self, one: &Restarting, now: u64) {
        let failure = self.failure_of(one);
        let why = match one.goal {
            RestartGoal::Connected => return self.answer_change(one.origin, &(), now),
            RestartGoal::Up => {
                let why = failure.map_or_else(String::new, |why| format!(": it {why}"));
                format!("it did not restart within 20 s{why}")
            }
            RestartGoal::Opened => {
                self.keep_nics();
                "netd did not answer within 20 s".to_owned()
            }
            RestartGoal::Ended | RestartGoal::NicsChanged => {
                let late = || "did not restart within 20 s".to_owned();
                self.restore_nics(failure.unwrap_or_else(late))
            }
        };
        self.refuse(one.origin, why, now);
    }

    fn restarted(&mut self, one: &Restarting, now: u64) {
        let life = one.starts.first().map(|(place, _)| self.lives.get(place));
        let Some(life) = life.flatten() else {
            return self.refuse(one.origin, "it does not restart".to_owned(), now);
        };
        let restarted = RestartReply {
            domain: self.state.name_of(life.place).to_owned(),
            id: self.state.id(life.place).map_or(0, |id| id.0),
            ready_ns: life.known.ready_ns.unwrap_or_default(),
            connected_ns: life.known.connected_ns.unwrap_or_default(),
        };
        self.answer_change(one.origin, &restarted, now);
    }

    /// Returns whether a guest is being detached.
    pub(super) fn is_detaching(&self, name: &str) -> bool {
        let kind = self.edits.get(name).map(|edit| &edit.kind);
        matches!(kind, Some(EditKind::Detach))
    }

    /// Returns whether a guest is being attached.
    pub(super) fn is_attaching(&self, name: &str) -> bool {
        let kind = self.edits.get(name).map(|edit| &edit.kind);
        matches!(kind, Some(EditKind::Attach(_)))
    }

    /// Begins an edit of a guest. The edit has a deadline if a requester waits for it.
    pub(super) fn begin_edit(&mut self, name: String, edit: PendingEdit) {
        let due_ns = edit.began_ns.saturating_add(EDIT_TIMEOUT_NS);
        let due_ns = (!edit.origins.is_empty()).then_some(due_ns);
        self.deadlines.set(Deadline::Edit(name.clone()), due_ns);
        self.deadlines.set(Deadline::Domain(edit.place), 0);
        self.edits.insert(name, edit);
    }

    /// Ends an edit of a guest, and returns it.
    pub(super) fn end_edit(&mut self, name: &str) -> Option<PendingEdit> {
        self.deadlines.set(Deadline::Edit(name.to_owned()), None);
        self.edits.remove(name)
    }

    /// Fails an edit that is late.
    pub(super) fn time_out_edit(&mut self, name: &str, now: u64) {
        let Some(edit) = self.edits.get_mut(name) else {
            return;
        };
        match edit.kind {
            EditKind::Attach(_) => self.fail_attach(name, "it was not up within 20 s".into()),
            EditKind::Change(_) => {
                let why = "the driver domain did not answer within 20 s";
                self.finish_change(name, Err(why.into()), now);
            }
            EditKind::Detach => {
                let origins = std::mem::take(&mut edit.origins);
                let why = format!("{name}: another domain still uses its resources after 20 s");
                for (origin, _) in origins {
                    self.refuse(origin, why.clone(), now);
                }
            }
        }
    }

    /// Lets a client wait for the edit that it requested.
    pub(super) fn wait_for_change(&mut self, origin: EditOrigin) {
        if let EditOrigin::Client(client) = origin {
            self.wait_for(client, ClientWait::Change);
        }
    }

    /// Answers that an edit was carried out.
    pub(super) fn answer_change(&mut self, origin: EditOrigin, answer: &impl Serialize, now: u64) {
        match origin {
            EditOrigin::Client(client) => self.answer(client, answer, now),
            EditOrigin::Reload => self.finish_reload_step(Ok(())),
            EditOrigin::PreviousMachine => {}
        }
    }

    /// Answers that an edit has failed.
    pub(super) fn refuse(&mut self, origin: EditOrigin, why: String, now: u64) {
        match origin {
            EditOrigin::Client(client) => self.answer(client, &refusal(why), now),
            EditOrigin::Reload => self.finish_reload_step(Err(why)),
            EditOrigin::PreviousMachine => {}
        }
    }
}
