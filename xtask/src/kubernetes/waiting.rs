//! Waiting for a condition.

use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// Timeout for an object that the control plane creates or reports.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(90);

/// Maximum time that one attempt counts against a deadline. During a longer attempt, the machine
/// may have been paused.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);

/// The time that remains before a deadline.
pub(super) struct RemainingTime {
    time: Duration,
    last_call: Instant,
}

impl RemainingTime {
    pub(super) fn new(deadline: Duration) -> Self {
        Self {
            time: deadline,
            last_call: Instant::now(),
        }
    }

    /// Subtracts the time since the last call. Returns whether no time remains.
    pub(super) fn has_expired(&mut self) -> bool {
        let now = Instant::now();
        self.take(now - self.last_call);
        self.last_call = now;
        self.time.is_zero()
    }

    fn take(&mut self, attempt: Duration) {
        self.time = self.time.saturating_sub(attempt.min(ATTEMPT_MAX));
    }
}

/// Waits until a condition holds. An error is not final: the next attempt may succeed. `holds` must
/// not wait itself, because only a few seconds of each attempt count against the deadline.
///
/// # Errors
///
/// Returns an error if the condition does not hold by the deadline. `what` describes the failure.
pub(super) fn wait(
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut left = RemainingTime::new(deadline);
    loop {
        let held = holds();
        if matches!(held, Ok(true)) {
            return Ok(());
        }
        if left.has_expired() {
            let after = format!("{what} after {} s", deadline.as_secs());
            held.context(after.clone())?;
            bail!(after);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_machine_misses_no_deadline() {
        let mut left = RemainingTime::new(ATTEMPT_MAX * 2);
        left.take(Duration::from_secs(3600));
        assert_eq!(left.time, ATTEMPT_MAX);
        left.take(ATTEMPT_MAX);
        assert!(left.has_expired());
    }

    #[test]
    fn the_last_error_is_reported() {
        let error = wait("no page", Duration::ZERO, || bail!("refused")).unwrap_err();
        assert_eq!(format!("{error:#}"), "no page after 0 s: refused");
    }
}
