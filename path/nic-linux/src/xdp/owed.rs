//! What a domain that has ended has left of a socket: chunks to receive into, of which it had some
//! itself. Which ones only the rings tell, and not at once.
//!
//! A chunk that the kernel has lies in the fill ring; one with a packet in the receive ring. But
//! the kernel says only now and then what it has taken out of the fill ring, and it may be between
//! the two with a packet. So a chunk has no owner, and goes back into the supply, when it was in
//! neither ring at two looks, [`APART_NS`] from each other; that is some hundred times as long as
//! the kernel handles the packets of one interrupt. A chunk that comes back with a packet is known.
//!
//! In what the kernel has not said that it has taken a chunk may stand twice: it has come back and
//! was lent again, or somebody lied. Lent once more it could be written to while it is ours. It is
//! *withheld* until the kernel has passed all that was left there.

/// From one look to the next, if a chunk is missed.
const APART_NS: u64 = 10_000_000;
/// The same, if none is: some may still turn out to be missing, which no packet would tell.
const RARELY_NS: u64 = 200_000_000;

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// It is in its place, wherever that is.
    Known,
    /// The kernel may have it.
    Open,
    /// It was in neither ring when that was looked at.
    Missed,
}

/// By chunk, what is known.
#[derive(Debug)]
pub(super) struct Owed {
    chunks: Vec<Chunk>,
    open: usize,
    /// By chunk, how often it stood in what was left of the fill ring.
    listed: Vec<u32>,
    /// The number of the first entry behind that; none: the kernel has passed it.
    end: Option<u32>,
    /// When to look next; none: it has not begun.
    due_ns: Option<u64>,
}

impl Owed {
    /// Of a socket with so many chunks, in whose fill ring `left` stands, chunk by chunk, until
    /// entry `end`.
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

    /// Whether this is the first time.
    pub(super) fn begins(&mut self, now_ns: u64) -> bool {
        let begins = self.due_ns.is_none();
        self.due_ns.get_or_insert(now_ns);
        begins
    }

    /// The kernel may have this chunk.
    pub(super) fn lent(&mut self, chunk: usize) {
        if let Some(known @ Chunk::Known) = self.chunks.get_mut(chunk) {
            *known = Chunk::Open;
            self.open += 1;
        }
    }

    /// It came back.
    pub(super) fn came(&mut self, chunk: usize) {
        if let Some(open @ (Chunk::Open | Chunk::Missed)) = self.chunks.get_mut(chunk) {
            *open = Chunk::Known;
            self.open -= 1;
        }
    }

    /// Whether this chunk must not be lent yet.
    pub(super) fn withholds(&self, chunk: usize) -> bool {
        self.end.is_some() && self.listed.get(chunk).is_some_and(|times| *times > 1)
    }

    /// The kernel has passed all entries before `taken`: whether that is all that was left.
    pub(super) fn passes(&mut self, taken: u32) -> bool {
        let has_passed = |end: &u32| taken.wrapping_sub(*end) < 1 << 31;
        self.end.take_if(|end| has_passed(end)).is_some()
    }

    /// Whether it is time to look.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns.is_some_and(|due_ns| now_ns >= due_ns)
    }

    /// When it is.
    pub(super) fn due_ns(&self, now_ns: u64) -> u64 {
        self.due_ns.unwrap_or(now_ns)
    }

    /// A look at both rings, in which `there` are: the chunks that have no owner.
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

    /// Whether everything is known.
    pub(super) fn is_complete(&self) -> bool {
        self.due_ns.is_some() && self.open == 0 && self.end.is_none()
    }
}

/// What a number out of a ring, which may be any, is the place of.
fn place<T>(all: &mut [T], number: u64) -> Option<&mut T> {
    all.get_mut(usize::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owed(chunks: usize, left: &[u64]) -> Owed {
        let mut owed = Owed::new(chunks, left.iter().copied(), 10);
        assert!(!owed.is_complete() && owed.begins(5) && !owed.begins(6));
        owed
    }

    #[test]
    fn what_is_missed_twice_has_no_owner() {
        let mut owed = owed(6, &[]);
        assert!(owed.passes(10));
        (1..5).for_each(|chunk| owed.lent(chunk));
        assert!(owed.is_due(5));
        // 1 and 2 are in the rings, 3 and 4 are not; entries may be nonsense, or be there twice.
        let nonsense = [u64::MAX, 1, 6, 0];
        assert_eq!(owed.look(5, [1, 2].into_iter().chain(nonsense)), []);
        assert!(!owed.is_due(6) && owed.is_due(5 + APART_NS));
        // The kernel was between the rings with 3.
        owed.came(3);
        owed.came(0);
        assert_eq!(owed.look(20, [2].into_iter()), [4]);
        // 2 and 1 were seen in the meantime.
        assert_eq!(owed.look(30, [1].into_iter()), []);
        assert!(!owed.is_complete());
        owed.came(1);
        assert_eq!(owed.look(40, [].into_iter()), [2]);
        assert!(owed.is_complete());
        assert_eq!(owed.look(50, [].into_iter()), []);
    }

    /// A driver domain that has nothing to do wakes seldom for it.
    #[test]
    fn while_nothing_is_missed_it_looks_rarely() {
        let mut owed = owed(2, &[0, 1]);
        (0..2).for_each(|chunk| owed.lent(chunk));
        assert_eq!(owed.look(5, [0, 1].into_iter()), []);
        assert_eq!(owed.due_ns(6), 5 + RARELY_NS);
        assert_eq!(owed.look(6, [0].into_iter()), []);
        assert_eq!(owed.due_ns(7), 6 + APART_NS);
    }

    #[test]
    fn what_stands_there_twice_is_withheld_until_the_kernel_has_passed_it() {
        let mut owed = owed(4, &[1, 2, 1, 9, u64::MAX]);
        (0..4).for_each(|chunk| owed.lent(chunk));
        let withheld = |owed: &Owed| [0, 1, 2, 9].map(|chunk| owed.withholds(chunk));
        assert_eq!(withheld(&owed), [false, true, false, false]);
        (0..4).for_each(|chunk| owed.came(chunk));
        assert!(!owed.passes(9) && !owed.is_complete());
        assert!(withheld(&owed)[1]);
        assert!(owed.passes(10) && !owed.passes(10) && owed.is_complete());
        assert!(!withheld(&owed)[1]);
    }

    #[test]
    fn entries_are_counted_around() {
        let mut owed = Owed::new(1, [].into_iter(), 2);
        assert!(!owed.passes(u32::MAX - 3) && owed.passes(3));
    }
}
