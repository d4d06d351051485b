//! A domain's life and its deadlines. Pure: time and signs of life are arguments.

use abi::core::Stage;

/// How long after its start a domain may take to report that it is ready.
const START_NS: u64 = 5_000_000_000;
/// The interval of heartbeat checks.
const PING_NS: u64 = 1_000_000_000;
/// The number of pings without a heartbeat after which a domain counts as dead.
const PINGS: u32 = 5;

/// A domain's life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// The current stage.
    pub stage: Stage,
    /// The reason of its end, once it has ended.
    why: String,
    /// When to check next; `None`: no check is due.
    pub look_ns: Option<u64>,
    /// Its signs of life at the last check.
    heartbeat: u64,
    /// Consecutive checks without a heartbeat.
    missed: u32,
}

/// The action that a check requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredAction {
    /// Nothing.
    Nothing,
    /// Ask the domain for a heartbeat.
    Ping,
    /// Kill it, for this reason.
    Kill(&'static str),
}

impl Liveness {
    /// Returns whether the domain has a process that is not about to end.
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
            Stage::Ending | Stage::Gone => &self.why,
        }
    }

    /// Records that the process exists.
    pub fn started(&mut self, now_ns: u64) {
        if self.stage == Stage::Starting {
            let due_ns = now_ns.saturating_add(START_NS);
            self.look_ns.get_or_insert(due_ns);
        }
    }

    /// Records that the domain is ready.
    pub fn ready(&mut self, now_ns: u64) {
        if self.stage == Stage::Starting {
            (self.stage, self.look_ns) = (Stage::Running, Some(now_ns));
        }
    }

    /// Records that the domain was killed or has ended.
    pub fn end(&mut self, why: &str) {
        (self.stage, self.look_ns) = (Stage::Ending, None);
        why.clone_into(&mut self.why);
    }

    /// Returns what to do now. `signs` is a value that changes while the domain lives, read once;
    /// `None` while the domain waits for the monitor, which counts as a sign of life.
    pub fn look(&mut self, signs: Option<u64>, now_ns: u64) -> RequiredAction {
        if self.look_ns.is_none_or(|look_ns| now_ns < look_ns) {
            return RequiredAction::Nothing;
        }
        if self.stage == Stage::Starting {
            return RequiredAction::Kill("killed: it was not ready within 5 s");
        }
        // Count from now, not from the last check, so that no domain dies because the monitor
        // itself did not run.
        self.look_ns = Some(now_ns.saturating_add(PING_NS));
        if signs != Some(self.heartbeat) {
            self.heartbeat = signs.unwrap_or(self.heartbeat);
            self.missed = 0;
            RequiredAction::Nothing
        } else if self.missed >= PINGS {
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
        assert_eq!(life.look(Some(0), 60 * S), RequiredAction::Nothing);
        assert_eq!(life.look_ns, None);
        life.started(S);
        life.started(2 * S);
        assert_eq!(life.look(Some(0), 6 * S - 1), RequiredAction::Nothing);
        assert!(matches!(life.look(Some(0), 6 * S), RequiredAction::Kill(_)));
        life.ready(6 * S);
        assert_eq!(life.text(), "running");
    }

    #[test]
    fn a_silent_domain_is_pinged_five_times_and_killed() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.look(Some(0), second * S), RequiredAction::Ping);
            assert_eq!(life.look(Some(0), second * S + 1), RequiredAction::Nothing);
        }
        assert!(matches!(life.look(Some(0), 5 * S), RequiredAction::Kill(_)));
    }

    #[test]
    fn one_heartbeat_resets_the_count() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.look(Some(0), second * S), RequiredAction::Ping);
        }
        assert_eq!(life.look(Some(1), 5 * S), RequiredAction::Nothing);
        assert_eq!(life.look(Some(1), 6 * S), RequiredAction::Ping);
    }

    #[test]
    fn waiting_for_the_monitor_counts_as_alive() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..30 {
            assert_eq!(life.look(None, second * S), RequiredAction::Nothing);
        }
        for second in 30..35 {
            assert_eq!(life.look(Some(0), second * S), RequiredAction::Ping);
        }
        assert!(matches!(
            life.look(Some(0), 35 * S),
            RequiredAction::Kill(_)
        ));
    }

    #[test]
    fn a_stalled_monitor_kills_no_domain() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        assert_eq!(life.look(Some(0), 0), RequiredAction::Ping);
        assert_eq!(life.look(Some(0), 100 * S), RequiredAction::Ping);
        assert_eq!(life.look(Some(0), 200 * S), RequiredAction::Ping);
    }

    #[test]
    fn a_dead_domain_stays_dead() {
        let mut life = starting();
        life.started(0);
        life.end("exited");
        life.ready(0);
        assert_eq!(life.look(Some(0), 100 * S), RequiredAction::Nothing);
        assert_eq!((life.text(), life.look_ns), ("exited", None));
    }
}
