//! The event channel of one pair of domains: a page that the frontend grants, and a doorbell that
//! is rung only if the peer sleeps.
//!
//! ```text
//!   offset  word       set by    cleared by
//!        0  pending    frontend  backend      the frontend has notified the backend
//!       64  armed      backend   frontend     the backend sleeps or is about to
//!      128  pending    backend   frontend     the backend has notified the frontend
//!      192  armed      frontend  backend      the frontend sleeps or is about to
//! ```
//!
//! The rings' words follow in the same page (NETIF-25). Each word has a separate cache line. Each
//! side can write all four at any time. A hostile peer can make this side search for work in vain,
//! or lose notifications that are meant for the peer itself, and nothing else. Clauses RING-11 to
//! RING-13.

use shmem::Span;
use shmem::sync::fence;
use std::sync::atomic::Ordering;

/// The four words.
pub trait EventWords {
    /// Reads word `n` (0 … 3).
    fn load(&self, n: usize, order: Ordering) -> u32;
    /// Writes word `n`.
    fn store(&self, n: usize, value: u32, order: Ordering);
    /// Writes word `n` and returns the old value.
    fn swap(&self, n: usize, value: u32, order: Ordering) -> u32;
}

/// Rings that a notification concerns. Here one event channel serves both; on Xen each may have a
/// separate one (`feature-split-event-channels`), and a guest counts spurious events against the
/// backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifiedRings {
    /// Packets from the guest.
    pub tx: bool,
    /// Packets to the guest.
    pub rx: bool,
}

impl NotifiedRings {
    /// Both.
    pub const BOTH: Self = Self { tx: true, rx: true };
}

/// Bytes from one word to the next.
pub const WORD_STRIDE: usize = 64;

/// The words in a granted page. The page may be revoked at any moment; its words then read as 0.
#[derive(Clone, Copy, Debug)]
pub struct EventPage(Span);

impl EventPage {
    /// Opens the words in `page`; `None` if it is too short or misaligned.
    #[must_use]
    pub fn new(page: Span) -> Option<Self> {
        page.u32(3 * WORD_STRIDE).map(|_| Self(page))
    }
}

impl EventWords for EventPage {
    #[inline]
    fn load(&self, n: usize, _: Ordering) -> u32 {
        // The shared memory functions use acquire for loads, release for stores and both for swaps,
        // which satisfies every requested order.
        self.0.load_u32(n * WORD_STRIDE).unwrap_or(0)
    }

    #[inline]
    fn store(&self, n: usize, value: u32, _: Ordering) {
        let _ = self.0.store_u32(n * WORD_STRIDE, value);
    }

    #[inline]
    fn swap(&self, n: usize, value: u32, _: Ordering) -> u32 {
        self.0.swap_u32(n * WORD_STRIDE, value).unwrap_or(0)
    }
}

/// One end's handle.
#[derive(Debug)]
pub struct Events<W = EventPage> {
    words: W,
    /// Index of the word by which this end notifies. The next word is the peer's `armed`.
    ours: usize,
    /// Index of the word by which the peer notifies. The next word is this end's `armed`.
    theirs: usize,
}

impl<W: EventWords> Events<W> {
    /// Returns the frontend's end and clears the words.
    #[must_use]
    pub fn for_frontend(words: W) -> Self {
        for n in 0..4 {
            words.store(n, 0, Ordering::Relaxed);
        }
        Self {
            words,
            ours: 0,
            theirs: 2,
        }
    }

    /// Returns the backend's end.
    #[must_use]
    pub fn for_backend(words: W) -> Self {
        Self {
            words,
            ours: 2,
            theirs: 0,
        }
    }

    /// Notifies the peer; returns whether its doorbell must be rung.
    #[must_use]
    pub fn notify(&self) -> bool {
        self.words.store(self.ours, 1, Ordering::Release);
        // Pairs with the sleeper's fence between `arm` and its last check for work: either the
        // sleeper sees the notification, or this end sees that the sleeper is armed.
        fence(Ordering::SeqCst);
        self.words.load(self.ours + 1, Ordering::Relaxed) == 1
            && self.words.swap(self.ours + 1, 0, Ordering::Relaxed) == 1
    }

    /// Requests a doorbell before sleeping. A `fence(SeqCst)` must lie between this and the last
    /// check for work.
    #[inline]
    pub fn arm(&self) {
        self.words.store(self.theirs + 1, 1, Ordering::Relaxed);
    }

    /// Disables doorbells while this end is awake.
    #[inline]
    pub fn disarm(&self) {
        self.words.store(self.theirs + 1, 0, Ordering::Relaxed);
    }

    /// Returns whether the peer has notified since the last call, and clears the notification.
    #[inline]
    pub fn take_pending(&self) -> bool {
        self.is_pending() && self.words.swap(self.theirs, 0, Ordering::Acquire) != 0
    }

    /// Returns whether the peer has notified.
    #[must_use]
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.words.load(self.theirs, Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestMemory;

    fn words(page: Span) -> [u32; 4] {
        std::array::from_fn(|n| page.load_u32(n * 64).expect("own memory"))
    }

    #[test]
    fn ring_11_each_word_has_its_offset() {
        let memory = TestMemory::new(1);
        let page = memory.area().span();
        page.fill(0xff).expect("own memory");
        let front = Events::for_frontend(EventPage::new(page).expect("a page"));
        let back = Events::for_backend(EventPage::new(page).expect("a page"));
        assert_eq!(words(page), [0; 4]);
        back.arm();
        assert_eq!(words(page), [0, 1, 0, 0]);
        assert!(front.notify());
        assert_eq!(words(page), [1, 0, 0, 0], "the armed word is cleared");
        assert!(!front.notify(), "rung once");
        assert!(back.is_pending() && !front.is_pending());
        assert!(back.take_pending());
        assert!(!back.take_pending(), "taken once");
        assert!(!back.is_pending());
        front.arm();
        assert_eq!(words(page), [0, 0, 0, 1]);
        front.disarm();
        assert!(!back.notify(), "awake");
        assert_eq!(words(page), [0, 0, 1, 0]);
        assert!(front.take_pending());
        assert_eq!(words(page), [0; 4]);
    }

    #[test]
    fn ring_13_any_value() {
        let memory = TestMemory::new(1);
        let page = memory.area().span();
        let front = Events::for_frontend(EventPage::new(page).expect("a page"));
        for armed in [0, 2, u32::MAX] {
            page.store_u32(64, armed).expect("own memory");
            assert!(!front.notify(), "{armed}");
            assert_eq!(words(page)[1], armed, "only a 1 is cleared");
        }
        page.store_u32(128, 0xdead).expect("own memory");
        assert!(front.take_pending());
        assert!(!front.take_pending());
        assert!(EventPage::new(page.take(192)).is_none());
        assert!(EventPage::new(Span::EMPTY).is_none());
    }
}
