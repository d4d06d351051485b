//! Sleeping on a word that processes share.

use core::sync::atomic::AtomicU32;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use std::time::Duration;

/// Sleeps while `word` holds `expected`, at most for `timeout` (without one: for ever). Why it
/// returned is seen by a look at the word; false: its page is not there, so that sleeping on it
/// makes no sense any more.
///
/// The word may lie in memory shared with other processes; who changes it calls [`wake`].
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    // What is too long for the kernel is for ever.
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    // The kernel reads the word, and survives its absence.
    let woken = futex::wait(word, Flags::empty(), expected, timeout.as_ref());
    matches!(
        woken,
        Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR)
    )
}

/// Wakes at most `n` of those who sleep on `word`.
pub fn wake(word: &AtomicU32, n: u32) {
    // Nothing can be done about a failure: the page is gone, and so is every sleeper.
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
    fn nobody_wakes_in_time() {
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
    fn a_word_that_is_gone_is_said_to_be_gone() {
        let region = crate::Region::create("gone", abi::PAGE).unwrap();
        let word = region.span().u32(0).unwrap();
        drop(region);
        assert!(!wait(word, 0, Some(Duration::from_millis(1))));
        wake(word, 1);
    }
}
