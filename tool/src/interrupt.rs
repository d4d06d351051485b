//! Ctrl-C: a flag that every wait of this crate checks, so that a run ends by dropping its guards
//! (loads, namespaces, the machine) instead of leaving these behind.

use crate::Failure;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();

/// Converts later SIGINT, SIGTERM and SIGHUP signals to [`Failure::Interrupted`]. SIGTERM works
/// even if a shell runs this program in the background with SIGINT ignored.
pub fn watch() {
    HANDLER.call_once(|| {
        if let Err(error) = ctrlc::set_handler(|| REQUESTED.store(true, Ordering::Relaxed)) {
            eprintln!("Ctrl-C will not clean up: {error}");
        }
    });
}

/// Returns an error if the user has requested a stop.
///
/// # Errors
///
/// Returns [`Failure::Interrupted`].
pub fn check() -> Result<(), Failure> {
    if REQUESTED.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    Ok(())
}

/// Sleeps for `time`, or until a signal arrives.
///
/// # Errors
///
/// Returns [`Failure::Interrupted`].
pub fn sleep(time: Duration) -> Result<(), Failure> {
    const STEP: Duration = Duration::from_millis(50);
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(STEP));
    }
}
