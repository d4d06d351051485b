//! Sleeping on a word that processes share.

use core::sync::atomic::AtomicU32;
use std::io;
use std::time::Duration;

/// Why [`wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// We were woken, or woke by ourselves (spurious): look at the word.
    Woken,
    /// The word did not hold the expected value: there was no sleep.
    Changed,
    /// Nothing happened in time.
    TimedOut,
    /// A signal came in between.
    Interrupted,
    /// The word's page is not there: sleeping on it makes no sense any more.
    Gone,
}

/// Sleeps while `word` holds `expected`, at most for `timeout` (without one: for ever).
///
/// The word may lie in memory shared with other processes; who changes it calls [`wake`].
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wake {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout
        .as_ref()
        .map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the kernel reads the word (and survives its absence) and the timespec, which lives
    // until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            timeout,
        )
    };
    if result == 0 {
        return Wake::Woken;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Wake::Changed,
        Some(libc::ETIMEDOUT) => Wake::TimedOut,
        Some(libc::EINTR) => Wake::Interrupted,
        _ => Wake::Gone,
    }
}

/// Wakes at most `n` of those who sleep on `word`.
pub fn wake(word: &AtomicU32, n: u32) {
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    // SAFETY: the kernel uses the word's address only to find who sleeps on it. Nothing can be
    // done about a failure: the page is gone, and so is every sleeper.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn another_value_does_not_sleep() {
        assert_eq!(wait(&AtomicU32::new(1), 0, None), Wake::Changed);
    }

    #[test]
    fn nobody_wakes_in_time() {
        let timeout = Some(Duration::from_millis(1));
        assert_eq!(wait(&AtomicU32::new(1), 1, timeout), Wake::TimedOut);
    }

    #[test]
    fn a_wake_ends_the_sleep() {
        let area = crate::Area::anonymous(abi::PAGE).unwrap();
        let word = area.span().u32(8).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    let woken = wait(word, 0, Some(Duration::from_secs(100)));
                    assert!(matches!(woken, Wake::Woken | Wake::Changed), "{woken:?}");
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            word.store(1, Ordering::Release);
            wake(word, 1);
        });
    }

    #[test]
    fn a_word_that_is_gone_is_said_to_be_gone() {
        let region = crate::Region::create("gone", abi::PAGE).unwrap();
        let word = region.span().u32(0).unwrap();
        drop(region);
        assert_eq!(wait(word, 0, Some(Duration::from_millis(1))), Wake::Gone);
        wake(word, 1);
    }
}
