//! Allocation of numbers, and their reuse after release.

use std::collections::VecDeque;

/// The numbers below a limit. The number that was released first is reused first. The last
/// `held_back` released numbers are reused only when no other number is free.
#[derive(Debug)]
pub(crate) struct IdPool {
    limit: u32,
    /// The number of released numbers that are held back.
    held_back: usize,
    /// The smallest number that was never taken.
    fresh: u32,
    /// Released numbers, oldest first.
    free: VecDeque<u32>,
}

impl IdPool {
    /// Creates a pool of all numbers below `limit`.
    pub(crate) fn new(limit: u32, held_back: usize) -> Self {
        Self {
            limit,
            held_back,
            fresh: 0,
            free: VecDeque::new(),
        }
    }

    /// Takes a number for which `is_used` is false, or returns `None` if no number is free.
    pub(crate) fn take(&mut self, is_used: impl Fn(u32) -> bool) -> Option<u32> {
        if self.fresh < self.limit && self.free.len() <= self.held_back {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        let at = self.free.iter().position(|&number| !is_used(number))?;
        self.free.remove(at)
    }

    /// Releases a number that is no longer in use.
    pub(crate) fn release(&mut self, number: u32) {
        self.free.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unused_number_is_next() {
        let mut numbers = IdPool::new(4, 3);
        let free = |_| false;
        assert_eq!(
            [(); 5].map(|()| numbers.take(free)),
            [Some(0), Some(1), Some(2), Some(3), None]
        );
        for number in [2, 0, 3] {
            numbers.release(number);
        }
        assert_eq!(numbers.take(|number| number == 2), Some(0));
        assert_eq!(numbers.take(|_| true), None);
        assert_eq!(numbers.take(free), Some(2));
        numbers.release(2);
        assert_eq!(
            [(); 3].map(|()| numbers.take(free)),
            [Some(3), Some(2), None]
        );
    }

    #[test]
    fn endless_reuse_takes_few_numbers() {
        let mut numbers = IdPool::new(1000, 2);
        let lasting = numbers.take(|_| false);
        let used: Vec<u32> = (0..10)
            .map(|_| {
                let number = numbers.take(|_| false).unwrap();
                numbers.release(number);
                number
            })
            .collect();
        assert_eq!(lasting, Some(0));
        assert_eq!(used, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]);
    }
}
