//! Waiting with a timeout.

use anyhow::bail;
use figures::interrupt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval of queries to the machine.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of readings of resources, until two are equal.
pub(super) const SETTLE_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of every wait.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Sleeps briefly. Fails with `what` after the timeout.
pub(super) fn wait(what: &str, began: Instant) -> anyhow::Result<()> {
    interrupt::check()?;
    if began.elapsed() > TIMEOUT {
        bail!("{what} after {} s", TIMEOUT.as_secs());
    }
    sleep(POLL_INTERVAL);
    Ok(())
}
