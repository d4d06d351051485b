//! Waiting for a condition.

use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// Deadline of an object that the control plane creates or reports.
pub(super) const READY: Duration = Duration::from_secs(90);

/// Attempts before a deadline counts: a system that was suspended has had no time for them.
const ATTEMPTS_MIN: u32 = 3;

/// Waits until a condition holds. An error is not final: the next attempt may succeed.
///
/// # Errors
///
/// It does not hold by the deadline; `what` says so.
pub(super) fn wait(
    what: &str,
    deadline: Duration,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + deadline;
    for attempt in 1.. {
        let held = holds();
        if matches!(held, Ok(true)) {
            return Ok(());
        }
        if Instant::now() > end && attempt >= ATTEMPTS_MIN {
            let after = format!("{what} after {} s", deadline.as_secs());
            held.context(after.clone())?;
            bail!(after);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
