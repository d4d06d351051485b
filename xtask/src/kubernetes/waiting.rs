//! Waiting for a condition.

use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// Deadline of an object that the control plane creates or reports.
pub(super) const READY: Duration = Duration::from_secs(90);

/// Maximum time that one attempt uses of a deadline. A longer attempt may mean that the machine was
/// paused.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);

/// The remaining time of a deadline.
pub(super) struct Leftovers {
    time: Duration,
    looked: Instant,
}

impl Leftovers {
    pub(super) fn new(deadline: Duration) -> Self {
        Self {
            time: deadline,
            looked: Instant::now(),
        }
    }

    /// Subtracts an attempt's time. Returns whether none remains.
    pub(super) fn ends(&mut self) -> bool {
        let now = Instant::now();
        self.take(now - self.looked);
        self.looked = now;
        self.time.is_zero()
    }

    fn take(&mut self, attempt: Duration) {
        self.time = self.time.saturating_sub(attempt.min(ATTEMPT_MAX));
    }
}

/// Waits until a condition holds. An error is not final: the next attempt may succeed. `holds` must
/// not wait itself, because the deadline counts a few seconds of each attempt.
///
/// # Errors
///
/// It does not hold by the deadline; `what` says so.
pub(super) fn wait(
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut left = Leftovers::new(deadline);
    loop {
        let held = holds();
        if matches!(held, Ok(true)) {
            return Ok(());
        }
        if left.ends() {
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
        let mut left = Leftovers::new(ATTEMPT_MAX * 2);
        left.take(Duration::from_secs(3600));
        assert_eq!(left.time, ATTEMPT_MAX);
        left.take(ATTEMPT_MAX);
        assert!(left.ends());
    }

    #[test]
    fn the_last_error_is_reported() {
        let error = wait("no page", Duration::ZERO, || bail!("refused")).unwrap_err();
        assert_eq!(format!("{error:#}"), "no page after 0 s: refused");
    }
}
