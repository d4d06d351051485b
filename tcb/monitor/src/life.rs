//! A domain's life, and the deadlines in it. Pure: time and signs of life are passed in.

/// A domain has to say that it is ready within this time after its start.
const START_NS: u64 = 5_000_000_000;
/// A domain's heartbeat is looked at this often.
const PING_NS: u64 = 1_000_000_000;
/// A domain that is pinged so often without a heartbeat is dead.
const PINGS: u32 = 5;

/// Where a domain stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It has memory and connections, but no process yet.
    Built,
    /// Its process is being started.
    Starting {
        /// When it was there; none: it is not there yet.
        since_ns: Option<u64>,
    },
    /// It has said that it is ready.
    Running {
        /// Its signs of life when last looked at.
        heartbeat: u64,
        /// Looks without a heartbeat in a row.
        missed: u32,
        /// When to look next.
        look_ns: u64,
    },
    /// It was struck, or has ended; its worker clears it away. Says why.
    Ending(String),
    /// Nothing is left of it. Says why.
    Gone(String),
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
        matches!(self, Self::Starting { .. } | Self::Running { .. })
    }

    /// Whether it is on its way down, or has gone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Ending(_) | Self::Gone(_))
    }

    /// The state in words.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Built | Self::Starting { .. } => "starting",
            Self::Running { .. } => "running",
            Self::Ending(why) | Self::Gone(why) => why,
        }
    }

    /// Its process is there.
    pub fn started(&mut self, now_ns: u64) {
        if let Self::Starting { since_ns } = self {
            since_ns.get_or_insert(now_ns);
        }
    }

    /// The domain has said that it is ready.
    pub fn ready(&mut self, now_ns: u64) {
        if matches!(self, Self::Starting { .. }) {
            *self = Self::Running {
                heartbeat: 0,
                missed: 0,
                look_ns: now_ns,
            };
        }
    }

    /// What is to be done now. `signs`: what the domain counts up while it lives, read once; none
    /// while it waits for the monitor, which is alive enough.
    pub fn look(&mut self, signs: Option<u64>, now_ns: u64) -> Demand {
        match self {
            Self::Starting {
                since_ns: Some(since_ns),
            } if now_ns >= since_ns.saturating_add(START_NS) => {
                Demand::Kill("killed: it was not ready within 5 s")
            }
            Self::Running {
                heartbeat: last,
                missed,
                look_ns,
            } if now_ns >= *look_ns => {
                // From now, not from the last time: if it is the monitor that was kept from
                // running, no domain shall die of it.
                *look_ns = now_ns.saturating_add(PING_NS);
                if signs != Some(*last) {
                    *last = signs.unwrap_or(*last);
                    *missed = 0;
                    Demand::Nothing
                } else if *missed >= PINGS {
                    Demand::Kill("killed: no heartbeat for 5 s")
                } else {
                    *missed += 1;
                    Demand::Ping
                }
            }
            _ => Demand::Nothing,
        }
    }

    /// When to look next, if ever.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        match self {
            Self::Starting { since_ns } => Some((*since_ns)?.saturating_add(START_NS)),
            Self::Running { look_ns, .. } => Some(*look_ns),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_domain_that_never_gets_ready_is_killed_after_five_seconds() {
        let mut life = Life::Starting { since_ns: None };
        assert_eq!(life.look(Some(0), 60 * S), Demand::Nothing);
        assert_eq!(life.deadline_ns(), None);
        life.started(S);
        life.started(2 * S);
        assert_eq!(life.look(Some(0), 6 * S - 1), Demand::Nothing);
        assert!(matches!(life.look(Some(0), 6 * S), Demand::Kill(_)));
        life.ready(6 * S);
        assert_eq!(life.text(), "running");
    }

    #[test]
    fn a_silent_domain_is_pinged_five_times_and_killed() {
        let mut life = Life::Starting { since_ns: Some(0) };
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.look(Some(0), second * S), Demand::Ping);
            assert_eq!(life.look(Some(0), second * S + 1), Demand::Nothing);
        }
        assert!(matches!(life.look(Some(0), 5 * S), Demand::Kill(_)));
    }

    #[test]
    fn one_heartbeat_makes_up_for_all() {
        let mut life = Life::Starting { since_ns: Some(0) };
        life.ready(0);
        for second in 0..5 {
            assert_eq!(life.look(Some(0), second * S), Demand::Ping);
        }
        assert_eq!(life.look(Some(1), 5 * S), Demand::Nothing);
        assert_eq!(life.look(Some(1), 6 * S), Demand::Ping);
    }

    #[test]
    fn who_waits_for_the_monitor_lives() {
        let mut life = Life::Starting { since_ns: Some(0) };
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
        let mut life = Life::Starting { since_ns: Some(0) };
        life.ready(0);
        assert_eq!(life.look(Some(0), 0), Demand::Ping);
        assert_eq!(life.look(Some(0), 100 * S), Demand::Ping);
        assert_eq!(life.look(Some(0), 200 * S), Demand::Ping);
    }

    #[test]
    fn a_dead_domain_stays_dead() {
        let mut life = Life::Ending("exited".into());
        life.ready(0);
        assert_eq!(life.look(Some(0), 100 * S), Demand::Nothing);
        assert_eq!((life.text(), life.deadline_ns()), ("exited", None));
    }
}
