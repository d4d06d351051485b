//! Unreclaimed receive chunks of a domain that has ended. Some were held by the domain, the others
//! by the kernel; only the rings show which, and with a delay.
//!
//! A chunk that the kernel has is listed in the fill ring; a chunk with a packet, in the receive
//! ring. But the kernel reports only occasionally how far it has emptied the fill ring, and a chunk
//! may be in transit between the two. So a chunk has no owner, and returns to the supply, if it was
//! in neither ring at two checks, [`APART_NS`] apart; that is a hundred times the time in which the
//! kernel handles the packets of one interrupt. A chunk that returns with a packet is known.
//!
//! The entries that the kernel has not reported as taken may list a chunk twice: it returned and
//! was lent again, or the previous domain forged an entry. If this domain lent the chunk again, the
//! kernel could write to it while this domain owns it. So the chunk is *withheld* until the kernel
//! has passed all those entries.

/// Interval between checks while a chunk is missing.
const APART_NS: u64 = 10_000_000;
/// Interval between checks otherwise: a chunk may still turn out to be missing without a packet.
const RARELY_NS: u64 = 200_000_000;

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// Its location is known.
    Known,
    /// The kernel may have it.
    Open,
    /// It was in neither ring at the last check.
    Missed,
}

/// State of the chunks, by index.
#[derive(Debug)]
pub(super) struct Unreclaimed {
    chunks: Vec<Chunk>,
    open: usize,
    /// By chunk, its number of entries in the remains of the fill ring.
    listed: Vec<u32>,
    /// Index of the first entry behind those remains; `None`: the kernel has passed it.
    end: Option<u32>,
    /// Time of the next check; `None`: before the first call.
    due_ns: Option<u64>,
}

impl Unreclaimed {
    /// Creates the state for `chunks` chunks of a socket. `left` are the chunks that its fill ring
    /// lists, up to entry `end`.
    pub(super) fn new(chunks: usize, left: impl Iterator<Item = u64>, end: u32) -> Self {
        let mut listed = vec![0; chunks];
        for chunk in left {
            if let Some(times) = place(&mut listed, chunk) {
                *times += 1;
            }
        }
        Self {
            chunks: vec![Chunk::Known; chunks],
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

    /// Records that the kernel may have this chunk.
    pub(super) fn mark_posted(&mut self, chunk: usize) {
        if let Some(known @ Chunk::Known) = self.chunks.get_mut(chunk) {
            *known = Chunk::Open;
            self.open += 1;
        }
    }

    /// Records that this chunk has returned.
    pub(super) fn mark_returned(&mut self, chunk: usize) {
        if let Some(open @ (Chunk::Open | Chunk::Missed)) = self.chunks.get_mut(chunk) {
            *open = Chunk::Known;
            self.open -= 1;
        }
    }

    /// Returns whether this chunk must not be lent yet.
    pub(super) fn must_not_post(&self, chunk: usize) -> bool {
        self.end.is_some() && self.listed.get(chunk).is_some_and(|times| *times > 1)
    }

    /// Records that the kernel has passed all entries before `taken`; returns whether these include
    /// all remains.
    pub(super) fn kernel_passed(&mut self, taken: u32) -> bool {
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

    /// Checks the chunks against `there`, the chunks in both rings. Returns those without an owner.
    pub(super) fn look(&mut self, now_ns: u64, there: impl Iterator<Item = u64>) -> Vec<usize> {
        let mut is_there = vec![false; self.chunks.len()];
        for chunk in there {
            if let Some(is_there) = place(&mut is_there, chunk) {
                *is_there = true;
            }
        }
        let mut ownerless = Vec::new();
        for (number, (chunk, is_there)) in self.chunks.iter_mut().zip(is_there).enumerate() {
            *chunk = match (*chunk, is_there) {
                (Chunk::Known, _) => continue,
                (_, true) => Chunk::Open,
                (Chunk::Open, false) => Chunk::Missed,
                (Chunk::Missed, false) => {
                    ownerless.push(number);
                    Chunk::Known
                }
            };
        }
        self.open -= ownerless.len();
        let apart_ns = match self.chunks.contains(&Chunk::Missed) {
            true => APART_NS,
            false => RARELY_NS,
        };
        self.due_ns = Some(now_ns.saturating_add(apart_ns));
        ownerless
    }

    /// Returns whether every chunk is known.
    pub(super) fn is_complete(&self) -> bool {
        self.due_ns.is_some() && self.open == 0 && self.end.is_none()
    }
}

/// Returns the element at an index that a ring supplied and that may be any number.
fn place<T>(all: &mut [T], number: u64) -> Option<&mut T> {
    all.get_mut(usize::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreclaimed(chunks: usize, left: &[u64]) -> Unreclaimed {
        let mut unreclaimed = Unreclaimed::new(chunks, left.iter().copied(), 10);
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
        assert!(unreclaimed.kernel_passed(10));
        (1..5).for_each(|chunk| unreclaimed.mark_posted(chunk));
        assert!(unreclaimed.is_due(5));
        // 1 and 2 are in the rings, 3 and 4 are not; entries may be invalid or repeated.
        let nonsense = [u64::MAX, 1, 6, 0];
        assert_eq!(unreclaimed.look(5, [1, 2].into_iter().chain(nonsense)), []);
        assert!(!unreclaimed.is_due(6) && unreclaimed.is_due(5 + APART_NS));
        // 3 was in transit between the rings.
        unreclaimed.mark_returned(3);
        unreclaimed.mark_returned(0);
        assert_eq!(unreclaimed.look(20, [2].into_iter()), [4]);
        // 2 and 1 were seen in the meantime.
        assert_eq!(unreclaimed.look(30, [1].into_iter()), []);
        assert!(!unreclaimed.is_complete());
        unreclaimed.mark_returned(1);
        assert_eq!(unreclaimed.look(40, [].into_iter()), [2]);
        assert!(unreclaimed.is_complete());
        assert_eq!(unreclaimed.look(50, [].into_iter()), []);
    }

    /// An idle driver domain wakes rarely for checks.
    #[test]
    fn while_nothing_is_missed_it_looks_rarely() {
        let mut unreclaimed = unreclaimed(2, &[0, 1]);
        (0..2).for_each(|chunk| unreclaimed.mark_posted(chunk));
        assert_eq!(unreclaimed.look(5, [0, 1].into_iter()), []);
        assert_eq!(unreclaimed.due_ns(6), 5 + RARELY_NS);
        assert_eq!(unreclaimed.look(6, [0].into_iter()), []);
        assert_eq!(unreclaimed.due_ns(7), 6 + APART_NS);
    }

    #[test]
    fn doubly_listed_chunk_is_withheld() {
        let mut unreclaimed = unreclaimed(4, &[1, 2, 1, 9, u64::MAX]);
        (0..4).for_each(|chunk| unreclaimed.mark_posted(chunk));
        let withheld =
            |unreclaimed: &Unreclaimed| [0, 1, 2, 9].map(|chunk| unreclaimed.must_not_post(chunk));
        assert_eq!(withheld(&unreclaimed), [false, true, false, false]);
        (0..4).for_each(|chunk| unreclaimed.mark_returned(chunk));
        assert!(!unreclaimed.kernel_passed(9) && !unreclaimed.is_complete());
        assert!(withheld(&unreclaimed)[1]);
        assert!(
            unreclaimed.kernel_passed(10)
                && !unreclaimed.kernel_passed(10)
                && unreclaimed.is_complete()
        );
        assert!(!withheld(&unreclaimed)[1]);
    }

    #[test]
    fn entries_are_counted_around() {
        let mut unreclaimed = Unreclaimed::new(1, [].into_iter(), 2);
        assert!(!unreclaimed.kernel_passed(u32::MAX - 3) && unreclaimed.kernel_passed(3));
    }
}
