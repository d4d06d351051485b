//! How often a plan measures each column, and how long.

use super::adjustment::Adjustment;
use figures::Failure;
use serde::Deserialize;
use std::time::Duration;

/// Rounds of a run that gives results: nine cover 96 %.
const FULL_ROUNDS: usize = 9;
/// Seconds of its windows.
const FULL_WINDOW_S: f64 = 1.0;

/// How often, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// Rounds of every configuration, at least 3.
    pub rounds: usize,
    /// Seconds of load before a window.
    pub warm_up_s: f64,
    /// Seconds of a window.
    pub window_s: f64,
}

impl Rounds {
    /// Whether figures of so few or so short windows only show that everything works: fewer than
    /// nine rounds, or windows below a second.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.rounds < FULL_ROUNDS || self.window_s < FULL_WINDOW_S
    }

    /// As durations.
    #[must_use]
    pub fn times(&self) -> Times {
        Times {
            warm_up: Duration::from_secs_f64(self.warm_up_s),
            window: Duration::from_secs_f64(self.window_s),
        }
    }

    /// These, or the `quick` ones, as a command line changes them.
    ///
    /// # Errors
    /// [`Failure::Usage`] if what is left makes no run.
    pub fn adjusted(self, quick: Self, by: &Adjustment) -> Result<Self, Failure> {
        let rounds = self.changed(quick, by);
        rounds.check("rounds").map_err(Failure::Usage)?;
        Ok(rounds)
    }

    /// The same, unchecked.
    pub(super) fn changed(self, quick: Self, by: &Adjustment) -> Self {
        let mut rounds = if by.quick { quick } else { self };
        if let Some(count) = by.rounds {
            rounds.rounds = count;
        }
        if let Some(seconds) = by.seconds {
            rounds.window_s = seconds;
        }
        rounds
    }

    /// Says what is wrong.
    pub(super) fn check(self, name: &str) -> Result<(), String> {
        if self.rounds < 3 || !(0.0..=1.0e3).contains(&self.warm_up_s) {
            return Err(format!("{name}: at least 3 rounds, warm_up_s not negative"));
        }
        if !(0.05..=600.0).contains(&self.window_s) {
            return Err(format!("{name}: window_s from 0.05 to 600"));
        }
        Ok(())
    }
}

/// Lengths of a window and of what comes before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Load before the window opens.
    pub warm_up: Duration,
    /// The window.
    pub window: Duration,
}
