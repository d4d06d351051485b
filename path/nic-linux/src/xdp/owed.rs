//! What a domain that has ended has left of a socket: chunks to receive into, of which it had some
//! itself. Which ones only the rings tell, and not at once.
//!
//! A chunk that the kernel has lies in the fill ring; one with a packet in the receive ring. But
//! the kernel says only now and then what it has taken out of the fill ring, and it may be between
//! the two with a packet. So a chunk has no owner, and goes back into the supply, when it was in
//! neither ring at two looks, [`APART_NS`] from each other; that is some hundred times as long as
//! the kernel handles the packets of one interrupt. A chunk that comes back with a packet is known.

/// From one look to the next.
pub(super) const APART_NS: u64 = 10_000_000;

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
    /// When to look next; none: it has not begun.
    due_ns: Option<u64>,
}

impl Owed {
    /// Of a socket with so many chunks.
    pub(super) fn new(chunks: usize) -> Self {
        Self {
            chunks: vec![Chunk::Known; chunks],
            open: 0,
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
        self.due_ns = Some(now_ns.saturating_add(APART_NS));
        let mut is_there = vec![false; self.chunks.len()];
        for chunk in there {
            let place = usize::try_from(chunk).ok();
            if let Some(place) = place.and_then(|place| is_there.get_mut(place)) {
                *place = true;
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
        ownerless
    }

    /// Whether everything is known.
    pub(super) fn is_complete(&self) -> bool {
        self.due_ns.is_some() && self.open == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_twice_has_no_owner() {
        let mut owed = Owed::new(6);
        assert!(!owed.is_complete() && owed.begins(5) && !owed.begins(6));
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
}
