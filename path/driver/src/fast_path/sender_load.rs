//! The rate at which a guest sends small frames.

/// Length of a measurement window, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000;
/// Number of frames in recent windows above which the load is high.
const HIGH_LOAD_FRAMES: usize = 128;

/// Number of small frames that a guest has sent recently.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmallFrameRate {
    since_ns: u64,
    /// Number of frames in this window, plus half of the number in the previous window, and so on.
    frames: usize,
}

/// The load that a guest's small frames cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderLoad {
    Low,
    High,
}

impl SmallFrameRate {
    /// Counts the frames of a batch, and returns the load.
    #[inline]
    pub(super) fn add(&mut self, now_ns: u64, frames: usize) -> SenderLoad {
        let windows = now_ns.saturating_sub(self.since_ns) / WINDOW_NS;
        if windows > 0 {
            self.since_ns = now_ns;
            self.frames >>= windows.min(usize::BITS as u64 - 1);
        }
        self.frames = self.frames.saturating_add(frames);
        match self.frames > HIGH_LOAD_FRAMES {
            true => SenderLoad::High,
            false => SenderLoad::Low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_flood_is_high_load_in_every_window() {
        let mut rate = SmallFrameRate::default();
        rate.add(0, 300);
        for ms in 1..100 {
            assert_eq!(rate.add(ms * WINDOW_NS, 10), SenderLoad::High, "{ms}");
            rate.add(ms * WINDOW_NS, 290);
        }
    }

    #[test]
    fn pause_ends_the_high_load() {
        let mut rate = SmallFrameRate::default();
        assert_eq!(rate.add(0, 10_000), SenderLoad::High);
        assert_eq!(rate.add(20 * WINDOW_NS, 1), SenderLoad::Low);
    }

    #[test]
    fn thirty_frames_per_window_are_low_load() {
        let mut rate = SmallFrameRate::default();
        for ms in 0..100 {
            assert_eq!(rate.add(ms * WINDOW_NS, 30), SenderLoad::Low);
        }
    }
}
