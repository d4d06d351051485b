//! Ctrl-C: a flag that every wait of this crate looks at, so that a run ends by unwinding its
//! guards (loads, namespaces, the machine) instead of leaving them behind.

use crate::Failure;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static ASKED: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();

/// Turns SIGINT, SIGTERM and SIGHUP into [`Failure::Interrupted`] from here on, also where a
/// shell that runs this program in the background had SIGINT ignored: there SIGTERM still comes.
pub fn watch() {
    HANDLER.call_once(|| {
        if let Err(error) = ctrlc::set_handler(|| ASKED.store(true, Ordering::Relaxed)) {
            eprintln!("Ctrl-C will not clean up: {error}");
        }
    });
}

/// Fails if the user asked to stop.
///
/// # Errors
/// [`Failure::Interrupted`].
pub fn check() -> Result<(), Failure> {
    if ASKED.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    Ok(())
}

/// Sleeps, but not past a signal.
///
/// # Errors
/// [`Failure::Interrupted`].
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
