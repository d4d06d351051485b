//! Waiting for what has to come, without a guess how soon.

use std::time::{Duration, Instant};

/// How long something that has to come is waited for: no promise of anybody's, only the end of a
/// test that fails. A test's machine may be many times slower than ours.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Looks so often.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until there is something: what there is.
///
/// # Panics
/// Nothing comes: says what is missing.
#[track_caller]
pub fn wait_for<T>(missing: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        // What is late by the clock may be there all the same: it is looked for after the end, too.
        let is_over = Instant::now() >= end;
        if let Some(found) = look() {
            return found;
        }
        assert!(!is_over, "{missing}");
        std::thread::sleep(PAUSE);
    }
}

/// Looks until it is so.
///
/// # Panics
/// It never is: says what is wrong.
#[track_caller]
pub fn wait_until(wrong: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(wrong, || is_so().then_some(()));
}
