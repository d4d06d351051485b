//! Sleeping on a word that processes share.

use core::sync::atomic::AtomicU32;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use std::time::Duration;

/// Sleeps while `word` has the value `expected`, for at most `timeout` (unset: forever). May also
/// return early, so the caller checks the word. Returns false if the word's page is unmapped, so
/// that waiting again is pointless.
///
/// Other processes may share the word; a process that changes it calls [`wake`].
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    // A timeout that is too long for the kernel counts as unset.
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    // The kernel reads the word, and recovers if it is unmapped.
    let woken = futex::wait(word, Flags::empty(), expected, timeout.as_ref());
    matches!(
        woken,
        Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR)
    )
}

/// Wakes up to `n` threads that sleep on `word`.
pub fn wake(word: &AtomicU32, n: u32) {
    // A failure means that the page is unmapped, so no thread sleeps on it.
    let _ = futex::wake(word, Flags::empty(), n.min(i32::MAX as u32));
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn another_value_does_not_sleep() {
        assert!(wait(&AtomicU32::new(1), 0, None));
    }

    #[test]
    fn a_sleep_without_a_wake_times_out() {
        let timeout = Some(Duration::from_millis(1));
        assert!(wait(&AtomicU32::new(1), 1, timeout));
    }

    #[test]
    fn a_wake_ends_the_sleep() {
        let area = crate::Area::anonymous(abi::PAGE).unwrap();
        let word = area.span().u32(8).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    assert!(wait(word, 0, None));
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            word.store(1, Ordering::Release);
            wake(word, 1);
        });
    }

    #[test]
    fn an_unmapped_word_is_reported() {
        let region = crate::Region::create("gone", abi::PAGE).unwrap();
        let word = region.span().u32(0).unwrap();
        drop(region);
        assert!(!wait(word, 0, Some(Duration::from_millis(1))));
        wake(word, 1);
    }
}
