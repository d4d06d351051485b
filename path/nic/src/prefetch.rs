//! Prefetches the cache lines of a batch.

/// Prefetch distance in bytes of frames. Loading a line that another core wrote last takes some
/// hundred cycles; prefetching overlaps these waits.
const PREFETCH_BYTES: usize = 2048;

/// Returns the prefetch distance in frames of `size` bytes; at least one.
#[must_use]
pub fn frames_ahead(size: usize) -> usize {
    (PREFETCH_BYTES / size.max(1)).max(1)
}

/// Calls `fetch` for the frame `ahead` positions after frame `at` of a batch. At the first frame,
/// also calls it for all frames before that one.
#[inline]
pub fn fetch_ahead<T>(frames: &[T], at: usize, ahead: usize, fetch: impl Fn(&T)) {
    if at == 0 {
        frames.iter().take(ahead).for_each(&fetch);
    }
    if let Some(frame) = frames.get(at + ahead) {
        fetch(frame);
    }
}
