//! A domain's life, and the deadlines in it. Pure: time and signs of life are passed in.

use abi::core::Stage;

/// A domain has to say that it is ready within this time after its start.
const START_NS: u64 = 5_000_000_000;
/// A domain's heartbeat is looked at this often.
const PING_NS: u64 = 1_000_000_000;
/// A domain that is pinged so often without a heartbeat is dead.
const PINGS: u32 = 5;

/// A domain's life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Where it stands.
    pub stage: Stage,
    /// Why it is over, once it is.
    why: String,
    /// When to look next; none: there is nothing to look at.
    pub look_ns: Option<u64>,
    /// Its signs of life when last looked at.
    heartbeat: u64,
    /// Looks without a heartbeat in a row.
    missed: u32,
}

/// What a look at the clock demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Nothing.
    Nothing,
    /// Ask the domain for a heartbeat.
    Ping,
    /// Kill it, for this reason.
    Kill(&'static str),
}

impl Life {
    /// Whether the domain has a process that is not about to end.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Running)
    }

    /// The state in words.
    #[must_use]
    pub fn text(&self) -> &str {
        match self.stage {
            Stage::Built | Stage::Starting => "starting",
            Stage::Running => "running",
            Stage::Ending | Stage::Gone => &self.why,
        }
    }

    /// Its process is there.
    pub fn started(&mut self, now_ns: u64) {
        if self.stage == Stage::Starting {
            let due_ns = now_ns.saturating_add(START_NS);
            self.look_ns.get_or_insert(due_ns);
        }
    }

    /// The domain has said that it is ready.
    pub fn ready(&mut self, now_ns: u64) {
        if self.stage == Stage::Starting {
            (self.stage, self.look_ns) = (Stage::Running, Some(now_ns));
        }
    }

    /// It was struck, or has ended.
    pub fn end(&mut self, why: &str) {
        (self.stage, self.look_ns) = (Stage::Ending, None);
        why.clone_into(&mut self.why);
    }

    /// What is to be done now. `signs`: what the domain counts up while it lives, read once; none
    /// while it waits for the monitor, which is alive enough.
    pub fn look(&mut self, signs: Option<u64>, now_ns: u64) -> Demand {
        if self.look_ns.is_none_or(|look_ns| now_ns < look_ns) {
            return Demand::Nothing;
        }
        if self.stage == Stage::Starting {
            return Demand::Kill("killed: it was not ready within 5 s");
        }
        // From now, not from the last time: if it is the monitor that was kept from running, no
        // domain shall die of it.
        self.look_ns = Some(now_ns.saturating_add(PING_NS));
        if signs != Some(self.heartbeat) {
            self.heartbeat = signs.unwrap_or(self.heartbeat);
            self.missed = 0;
            Demand::Nothing
        } else if self.missed >= PINGS {
            Demand::Kill("killed: no heartbeat for 5 s")
        } else {
            self.missed += 1;
            Demand::Ping
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn starting() -> Life {
        let stage = Stage::Starting;
        Life {
            stage,
            ..Life::default()
        }
    }

    #[test]
    fn a_domain_that_never_gets_ready_is_killed_after_five_seconds() {
        let mut life = starting();
        assert_eq!(life.look(Some(0), 60 * S), Demand::Nothing);
        assert_eq!(life.look_ns, None);
        life.started(S);
        life.started(2 * S);
        assert_eq!(life.look(Some(0), 6 * S - 1), Demand::Nothing);
        assert!(matches!(life.look(Some(0), 6 * S), Demand::Kill(_)));
        life.ready(6 * S);
        assert_eq!(life.text(), "running");
    }

    #[test]
    fn a_silent_domain_is_pinged_five_times_and_killed() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.look(Some(0), second * S), Demand::Ping);
            assert_eq!(life.look(Some(0), second * S + 1), Demand::Nothing);
        }
        assert!(matches!(life.look(Some(0), 5 * S), Demand::Kill(_)));
    }

    #[test]
    fn one_heartbeat_makes_up_for_all() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.look(Some(0), second * S), Demand::Ping);
        }
        assert_eq!(life.look(Some(1), 5 * S), Demand::Nothing);
        assert_eq!(life.look(Some(1), 6 * S), Demand::Ping);
    }

    #[test]
    fn who_waits_for_the_monitor_lives() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        for second in 0..30 {
            assert_eq!(life.look(None, second * S), Demand::Nothing);
        }
        for second in 30..35 {
            assert_eq!(life.look(Some(0), second * S), Demand::Ping);
        }
        assert!(matches!(life.look(Some(0), 35 * S), Demand::Kill(_)));
    }

    #[test]
    fn a_monitor_that_was_kept_from_running_kills_nobody() {
        let mut life = starting();
        life.started(0);
        life.ready(0);
        assert_eq!(life.look(Some(0), 0), Demand::Ping);
        assert_eq!(life.look(Some(0), 100 * S), Demand::Ping);
        assert_eq!(life.look(Some(0), 200 * S), Demand::Ping);
    }

    #[test]
    fn a_dead_domain_stays_dead() {
        let mut life = starting();
        life.started(0);
        life.end("exited");
        life.ready(0);
        assert_eq!(life.look(Some(0), 100 * S), Demand::Nothing);
        assert_eq!((life.text(), life.look_ns), ("exited", None));
    }
}
