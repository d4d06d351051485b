//! Number and length of a plan's rounds.

use super::adjustment::Adjustment;
use figures::Failure;
use serde::Deserialize;
use std::time::Duration;

/// Minimum number of rounds of a full run. The interval of nine rounds covers 96 %.
const FULL_ROUNDS: usize = 9;
/// Minimum window length of a full run, seconds.
const FULL_WINDOW_S: f64 = 1.0;

/// Number and length of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// Number of rounds per configuration, at least 3.
    pub rounds: usize,
    /// Duration of the load before each window, seconds.
    pub warm_up_s: f64,
    /// Window length, seconds.
    pub window_s: f64,
}

impl Rounds {
    /// Returns whether the run is too short for results: fewer than nine rounds, or windows shorter
    /// than a second.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.rounds < FULL_ROUNDS || self.window_s < FULL_WINDOW_S
    }

    /// Returns the lengths as durations.
    #[must_use]
    pub fn times(&self) -> Times {
        Times {
            warm_up: Duration::from_secs_f64(self.warm_up_s),
            window: Duration::from_secs_f64(self.window_s),
        }
    }

    /// Returns these rounds, or the `quick` ones, with command-line options applied.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the result is not valid.
    pub fn adjusted(self, quick: Self, by: &Adjustment) -> Result<Self, Failure> {
        let rounds = self.changed(quick, by);
        rounds.check("rounds").map_err(Failure::Usage)?;
        Ok(rounds)
    }

    /// Returns the same rounds as `adjusted`, without validation.
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

    /// Validates the rounds. Returns a description of the first error.
    pub(super) fn check(self, name: &str) -> Result<(), String> {
        if self.rounds < 3 || !(0.0..=1.0e3).contains(&self.warm_up_s) {
            return Err(format!(
                "{name}: at least 3 rounds; warm_up_s must not be negative"
            ));
        }
        if !(0.05..=600.0).contains(&self.window_s) {
            return Err(format!("{name}: window_s from 0.05 to 600"));
        }
        Ok(())
    }
}

/// Length of a window and of the load before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Duration of the load before the window opens.
    pub warm_up: Duration,
    /// Window length.
    pub window: Duration,
}
