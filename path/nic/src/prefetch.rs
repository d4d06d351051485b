//! Prefetching of the cache lines of a batch.

/// Prefetch distance in bytes of frames. A line that another core has written last takes some
/// hundred cycles; prefetching overlaps these waits.
const AHEAD: usize = 2048;

/// Returns the prefetch distance in frames of `size` bytes; at least one.
#[must_use]
pub fn frames_ahead(size: usize) -> usize {
    (AHEAD / size.max(1)).max(1)
}

/// Calls `fetch` for the frame that is `ahead` positions behind frame number `at` of a batch; at
/// the first frame, for all frames up to that one.
#[inline]
pub fn fetch_ahead<T>(frames: &[T], at: usize, ahead: usize, fetch: impl Fn(&T)) {
    if at == 0 {
        frames.iter().take(ahead).for_each(&fetch);
    }
    if let Some(frame) = frames.get(at + ahead) {
        fetch(frame);
    }
}
