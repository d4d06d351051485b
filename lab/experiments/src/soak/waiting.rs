//! Waiting for what must come.

use anyhow::bail;
use figures::interrupt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often the machine is asked.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// From one look at what is held to the next, until both are the same.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// What has not come back for so long will not.
pub(super) const LOST: Duration = Duration::from_secs(60);

/// Waits a moment; fails once nothing is to be waited for any more.
pub(super) fn wait(what: &str, began: Instant) -> anyhow::Result<()> {
    interrupt::check()?;
    if began.elapsed() > LOST {
        bail!("{what} after {} s", LOST.as_secs());
    }
    sleep(LOOK);
    Ok(())
}
