//! Prefetching of the cache lines of a batch.

use nic::Piece;
use shmem::Span;

/// Prefetch distance in bytes of frames. A line that another core has written last takes some
/// hundred cycles; prefetching overlaps these waits.
const AHEAD: usize = 2048;

/// Returns the prefetch distance in frames of `size` bytes; at least one.
pub(super) fn frames_ahead(size: usize) -> usize {
    (AHEAD / size.max(1)).max(1)
}

/// Prefetches the frame that is `ahead` positions behind frame number `at` of a batch; at the first
/// frame, all frames up to that one.
#[inline]
pub(super) fn fetch_ahead(frames: &[Piece], at: usize, ahead: usize, fetch: impl Fn(Span)) {
    if at == 0 {
        frames
            .iter()
            .take(ahead)
            .for_each(|piece| fetch(piece.span));
    }
    if let Some(piece) = frames.get(at + ahead) {
        fetch(piece.span);
    }
}
