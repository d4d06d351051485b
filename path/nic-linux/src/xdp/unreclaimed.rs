//! Reclaims the receive chunks of a domain that has exited. The domain held some chunks, and the
//! kernel held the others. Only the rings show which chunks the kernel holds, and they show it with
//! a delay.
//!
//! The fill ring lists the chunks that the kernel holds, and the receive ring lists the chunks with
//! packets. But the kernel reports only occasionally how many entries of the fill ring it has
//! taken, and a chunk may be in transit between the rings. A chunk that was in neither ring at two
//! checks with an interval of [`CHECK_INTERVAL_NS`] has no owner, and returns to the supply. This
//! interval is a hundred times as long as the kernel needs for the packets of one interrupt. A
//! chunk that returns with a packet is known.
//!
//! The entries that the kernel has not reported as taken may list a chunk twice, because it was
//! received and posted again, or because the previous domain forged an entry. If this domain posted
//! the chunk a third time, the kernel could write to it while this domain owns it. So the chunk is
//! *withheld* until the kernel has taken all those entries.

/// Interval between checks in nanoseconds while a chunk is missing.
const CHECK_INTERVAL_NS: u64 = 10_000_000;
/// Interval between checks in nanoseconds while no chunk is missing. Another chunk may be found
/// missing later.
const IDLE_CHECK_INTERVAL_NS: u64 = 200_000_000;

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// The chunk's location is known.
    Known,
    /// The kernel may hold the chunk.
    Open,
    /// The chunk was in neither ring at the last check.
    Missed,
}

/// State of the chunks, by index.
#[derive(Debug)]
pub(super) struct Unreclaimed {
    chunks: Vec<ChunkState>,
    open: usize,
    /// For each chunk, the number of its entries in the fill ring that remain from the previous
    /// domain.
    listed: Vec<u32>,
    /// Index after the last entry of the previous domain in the fill ring; `None` after the kernel
    /// has taken all of them.
    end: Option<u32>,
    /// Time of the next check; `None` before the first call.
    due_ns: Option<u64>,
}

impl Unreclaimed {
    /// Creates the state for a socket with `chunks` chunks. `listed_chunks` are the chunks that its
    /// fill ring lists before entry `end`.
    pub(super) fn new(chunks: usize, listed_chunks: impl Iterator<Item = u64>, end: u32) -> Self {
        let mut listed = vec![0; chunks];
        for chunk in listed_chunks {
            if let Some(times) = place(&mut listed, chunk) {
                *times += 1;
            }
        }
        Self {
            chunks: vec![ChunkState::Known; chunks],
            open: 0,
            listed,
            end: Some(end),
            due_ns: None,
        }
    }

    /// Returns whether this is the first call.
    pub(super) fn is_first_call(&mut self, now_ns: u64) -> bool {
        let is_first_call = self.due_ns.is_none();
        self.due_ns.get_or_insert(now_ns);
        is_first_call
    }

    /// Records that the kernel may hold this chunk.
    pub(super) fn mark_posted(&mut self, chunk: usize) {
        if let Some(known @ ChunkState::Known) = self.chunks.get_mut(chunk) {
            *known = ChunkState::Open;
            self.open += 1;
        }
    }

    /// Records that this chunk has returned.
    pub(super) fn mark_returned(&mut self, chunk: usize) {
        if let Some(open @ (ChunkState::Open | ChunkState::Missed)) = self.chunks.get_mut(chunk) {
            *open = ChunkState::Known;
            self.open -= 1;
        }
    }

    /// Returns whether this chunk must not be posted yet.
    pub(super) fn must_not_post(&self, chunk: usize) -> bool {
        self.end.is_some() && self.listed.get(chunk).is_some_and(|times| *times > 1)
    }

    /// Records that the kernel has taken all entries before `taken`. Returns true once, when these
    /// include all entries of the previous domain.
    pub(super) fn record_taken(&mut self, taken: u32) -> bool {
        let has_passed = |end: &u32| taken.wrapping_sub(*end) < 1 << 31;
        self.end.take_if(|end| has_passed(end)).is_some()
    }

    /// Returns whether a check is due.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns.is_some_and(|due_ns| now_ns >= due_ns)
    }

    /// Returns the time of the next check.
    pub(super) fn due_ns(&self, now_ns: u64) -> u64 {
        self.due_ns.unwrap_or(now_ns)
    }

    /// Checks which chunks are in `in_rings`, the chunks that both rings list. Returns the chunks
    /// without an owner.
    pub(super) fn check(&mut self, now_ns: u64, in_rings: impl Iterator<Item = u64>) -> Vec<usize> {
        let mut is_in_ring = vec![false; self.chunks.len()];
        for chunk in in_rings {
            if let Some(is_in_ring) = place(&mut is_in_ring, chunk) {
                *is_in_ring = true;
            }
        }
        let mut ownerless = Vec::new();
        for (number, (chunk, is_in_ring)) in self.chunks.iter_mut().zip(is_in_ring).enumerate() {
            *chunk = match (*chunk, is_in_ring) {
                (ChunkState::Known, _) => continue,
                (_, true) => ChunkState::Open,
                (ChunkState::Open, false) => ChunkState::Missed,
                (ChunkState::Missed, false) => {
                    ownerless.push(number);
                    ChunkState::Known
                }
            };
        }
        self.open -= ownerless.len();
        let interval_ns = match self.chunks.contains(&ChunkState::Missed) {
            true => CHECK_INTERVAL_NS,
            false => IDLE_CHECK_INTERVAL_NS,
        };
        self.due_ns = Some(now_ns.saturating_add(interval_ns));
        ownerless
    }

    /// Returns whether every chunk is known.
    pub(super) fn is_complete(&self) -> bool {
        self.due_ns.is_some() && self.open == 0 && self.end.is_none()
    }
}

/// Returns the element at an index from a ring, which may be any number, or `None` if it does not
/// exist.
fn place<T>(all: &mut [T], number: u64) -> Option<&mut T> {
    all.get_mut(usize::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreclaimed(chunks: usize, listed_chunks: &[u64]) -> Unreclaimed {
        let mut unreclaimed = Unreclaimed::new(chunks, listed_chunks.iter().copied(), 10);
        assert!(
            !unreclaimed.is_complete()
                && unreclaimed.is_first_call(5)
                && !unreclaimed.is_first_call(6)
        );
        unreclaimed
    }

    #[test]
    fn chunk_missed_twice_has_no_owner() {
        let mut unreclaimed = unreclaimed(6, &[]);
        assert!(unreclaimed.record_taken(10));
        (1..5).for_each(|chunk| unreclaimed.mark_posted(chunk));
        assert!(unreclaimed.is_due(5));
        // Chunks 1 and 2 are in the rings, 3 and 4 are not. Entries may be invalid or repeated.
        let other_entries = [u64::MAX, 1, 6, 0];
        assert_eq!(
            unreclaimed.check(5, [1, 2].into_iter().chain(other_entries)),
            []
        );
        assert!(!unreclaimed.is_due(6) && unreclaimed.is_due(5 + CHECK_INTERVAL_NS));
        // Chunk 3 was in transit between the rings.
        unreclaimed.mark_returned(3);
        unreclaimed.mark_returned(0);
        assert_eq!(unreclaimed.check(20, [2].into_iter()), [4]);
        // Chunks 2 and 1 were in a ring in the meantime.
        assert_eq!(unreclaimed.check(30, [1].into_iter()), []);
        assert!(!unreclaimed.is_complete());
        unreclaimed.mark_returned(1);
        assert_eq!(unreclaimed.check(40, [].into_iter()), [2]);
        assert!(unreclaimed.is_complete());
        assert_eq!(unreclaimed.check(50, [].into_iter()), []);
    }

    /// An idle driver domain wakes only rarely for checks.
    #[test]
    fn checks_are_rare_while_no_chunk_is_missing() {
        let mut unreclaimed = unreclaimed(2, &[0, 1]);
        (0..2).for_each(|chunk| unreclaimed.mark_posted(chunk));
        assert_eq!(unreclaimed.check(5, [0, 1].into_iter()), []);
        assert_eq!(unreclaimed.due_ns(6), 5 + IDLE_CHECK_INTERVAL_NS);
        assert_eq!(unreclaimed.check(6, [0].into_iter()), []);
        assert_eq!(unreclaimed.due_ns(7), 6 + CHECK_INTERVAL_NS);
    }

    #[test]
    fn doubly_listed_chunk_is_withheld() {
        let mut unreclaimed = unreclaimed(4, &[1, 2, 1, 9, u64::MAX]);
        (0..4).for_each(|chunk| unreclaimed.mark_posted(chunk));
        let withheld =
            |unreclaimed: &Unreclaimed| [0, 1, 2, 9].map(|chunk| unreclaimed.must_not_post(chunk));
        assert_eq!(withheld(&unreclaimed), [false, true, false, false]);
        (0..4).for_each(|chunk| unreclaimed.mark_returned(chunk));
        assert!(!unreclaimed.record_taken(9) && !unreclaimed.is_complete());
        assert!(withheld(&unreclaimed)[1]);
        assert!(
            unreclaimed.record_taken(10)
                && !unreclaimed.record_taken(10)
                && unreclaimed.is_complete()
        );
        assert!(!withheld(&unreclaimed)[1]);
    }

    #[test]
    fn entry_indices_wrap() {
        let mut unreclaimed = Unreclaimed::new(1, [].into_iter(), 2);
        assert!(!unreclaimed.record_taken(u32::MAX - 3) && unreclaimed.record_taken(3));
    }
}
