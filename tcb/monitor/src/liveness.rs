//! Stages and deadlines of a domain, as a pure function: time and the domain's activity are
//! arguments.

use abi::core::Stage;

/// Time after its start within which a domain must report that it is ready.
const START_TIMEOUT_NS: u64 = 5_000_000_000;
/// The interval of heartbeat checks.
const PING_INTERVAL_NS: u64 = 1_000_000_000;
/// The number of unanswered pings after which a domain is killed.
const PINGS_MAX: u32 = 5;

/// The stage and the deadlines of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// The current stage.
    pub stage: Stage,
    /// The reason of its exit, once it was killed or has exited.
    why: String,
    /// Time of the next check; `None` if no check is due.
    pub check_ns: Option<u64>,
    /// Its activity at the last check.
    last_activity: u64,
    /// Consecutive checks without activity.
    missed: u32,
}

/// Action that a check requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredAction {
    /// Nothing.
    Nothing,
    /// Request a heartbeat from the domain.
    Ping,
    /// Kill it, for this reason.
    Kill(&'static str),
}

impl Liveness {
    /// Returns whether the domain is starting or running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Running)
    }

    /// Returns a description of the state.
    #[must_use]
    pub fn text(&self) -> &str {
        match self.stage {
            Stage::Built | Stage::Starting => "starting",
            Stage::Running => "running",
            Stage::Ending | Stage::TornDown => &self.why,
        }
    }

    /// Records that the process exists.
    pub fn started(&mut self, now_ns: u64) {
        if self.stage == Stage::Starting {
            let due_ns = now_ns.saturating_add(START_TIMEOUT_NS);
            self.check_ns.get_or_insert(due_ns);
        }
    }

    /// Records that the domain is ready.
    pub fn ready(&mut self, now_ns: u64) {
        if self.stage == Stage::Starting {
            (self.stage, self.check_ns) = (Stage::Running, Some(now_ns));
        }
    }

    /// Records that the domain was killed or has exited.
    pub fn end(&mut self, why: &str) {
        (self.stage, self.check_ns) = (Stage::Ending, None);
        why.clone_into(&mut self.why);
    }

    /// Returns the action that is required now. `activity` is a number that changes while the
    /// domain works. `None` means that the domain waits for the monitor, which counts as activity.
    pub fn check(&mut self, activity: Option<u64>, now_ns: u64) -> RequiredAction {
        if self.check_ns.is_none_or(|check_ns| now_ns < check_ns) {
            return RequiredAction::Nothing;
        }
        if self.stage == Stage::Starting {
            return RequiredAction::Kill("killed: it was not ready within 5 s");
        }
        // Count from now, not from the last check, so that no domain is killed because the monitor
        // itself did not run.
        self.check_ns = Some(now_ns.saturating_add(PING_INTERVAL_NS));
        if activity != Some(self.last_activity) {
            self.last_activity = activity.unwrap_or(self.last_activity);
            self.missed = 0;
            RequiredAction::Nothing
        } else if self.missed >= PINGS_MAX {
            RequiredAction::Kill("killed: no heartbeat for 5 s")
        } else {
            self.missed += 1;
            RequiredAction::Ping
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn starting() -> Liveness {
        let stage = Stage::Starting;
        Liveness {
            stage,
            ..Liveness::default()
        }
    }

    #[test]
    fn a_domain_that_is_not_ready_in_5_s_is_killed() {
        let mut life = starting();
        assert_eq!(life.check(Some(0), 60 * S), RequiredAction::Nothing);
        assert_eq!(life.check_ns, None);
        life.started(S);
        life.started(2 * S);
        assert_eq!(life.check(Some(0), 6 * S - 1), RequiredAction::Nothing);
        assert!(matches!(
            life.check(Some(0), 6 * S),
            RequiredAction::Kill(_)
        ));
        life.ready(6 * S);
        assert_eq!(life.text(), "running");
    }

    #[test]
    fn a_silent_domain_is_pinged_five_times_and_killed() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.check(Some(0), second * S), RequiredAction::Ping);
            assert_eq!(life.check(Some(0), second * S + 1), RequiredAction::Nothing);
        }
        assert!(matches!(
            life.check(Some(0), 5 * S),
            RequiredAction::Kill(_)
        ));
    }

    #[test]
    fn one_heartbeat_resets_the_count() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.check(Some(0), second * S), RequiredAction::Ping);
        }
        assert_eq!(life.check(Some(1), 5 * S), RequiredAction::Nothing);
        assert_eq!(life.check(Some(1), 6 * S), RequiredAction::Ping);
    }

    #[test]
    fn waiting_for_the_monitor_counts_as_alive() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..30 {
            assert_eq!(life.check(None, second * S), RequiredAction::Nothing);
        }
        for second in 30..35 {
            assert_eq!(life.check(Some(0), second * S), RequiredAction::Ping);
        }
        assert!(matches!(
            life.check(Some(0), 35 * S),
            RequiredAction::Kill(_)
        ));
    }

    #[test]
    fn a_stalled_monitor_kills_no_domain() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        assert_eq!(life.check(Some(0), 0), RequiredAction::Ping);
        assert_eq!(life.check(Some(0), 100 * S), RequiredAction::Ping);
        assert_eq!(life.check(Some(0), 200 * S), RequiredAction::Ping);
    }

    #[test]
    fn a_dead_domain_stays_dead() {
        let mut life = starting();
        life.started(0);
        life.end("exited");
        life.ready(0);
        assert_eq!(life.check(Some(0), 100 * S), RequiredAction::Nothing);
        assert_eq!((life.text(), life.check_ns), ("exited", None));
    }
}
