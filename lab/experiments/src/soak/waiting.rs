//! Waiting with a timeout.

use anyhow::bail;
use figures::interrupt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval of queries to the machine.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// Interval of readings of resources, until two are equal.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// Timeout of every wait.
pub(super) const LOST: Duration = Duration::from_secs(60);

/// Sleeps briefly. Fails with `what` after the timeout.
pub(super) fn wait(what: &str, began: Instant) -> anyhow::Result<()> {
    interrupt::check()?;
    if began.elapsed() > LOST {
        bail!("{what} after {} s", LOST.as_secs());
    }
    sleep(LOOK);
    Ok(())
}
