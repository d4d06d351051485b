//! The rate of a guest's small frames.

/// Window of the rate, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000;
/// Frames in recent windows above which the load is high.
const MANY: usize = 128;

/// Recent small frames of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmallFrameRate {
    since_ns: u64,
    /// Frames of this window, half of those of the window before, and so on.
    frames: usize,
}

/// The load that a sender causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderLoad {
    Low,
    High,
}

impl SmallFrameRate {
    /// Counts a batch, and returns the load.
    #[inline]
    pub(super) fn add(&mut self, now_ns: u64, frames: usize) -> SenderLoad {
        let windows = now_ns.saturating_sub(self.since_ns) / WINDOW_NS;
        if windows > 0 {
            self.since_ns = now_ns;
            self.frames >>= windows.min(usize::BITS as u64 - 1);
        }
        self.frames = self.frames.saturating_add(frames);
        match self.frames > MANY {
            true => SenderLoad::High,
            false => SenderLoad::Low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_flood_is_high_in_every_window() {
        let mut rate = SmallFrameRate::default();
        rate.add(0, 300);
        for ms in 1..100 {
            assert_eq!(rate.add(ms * WINDOW_NS, 10), SenderLoad::High, "{ms}");
            rate.add(ms * WINDOW_NS, 290);
        }
    }

    #[test]
    fn a_pause_ends_it() {
        let mut rate = SmallFrameRate::default();
        assert_eq!(rate.add(0, 10_000), SenderLoad::High);
        assert_eq!(rate.add(20 * WINDOW_NS, 1), SenderLoad::Low);
    }

    #[test]
    fn thirty_frames_per_window_are_low() {
        let mut rate = SmallFrameRate::default();
        for ms in 0..100 {
            assert_eq!(rate.add(ms * WINDOW_NS, 30), SenderLoad::Low);
        }
    }
}
