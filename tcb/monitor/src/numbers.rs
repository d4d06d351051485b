//! Numbers that are given out, come back, and are given out again.

use std::collections::VecDeque;

/// Numbers below a limit. The one that has been out of use for longest is given out next.
#[derive(Debug)]
pub(crate) struct Numbers {
    limit: u32,
    /// From here on none was ever given out.
    fresh: u32,
    /// Those that came back, in that order.
    free: VecDeque<u32>,
}

impl Numbers {
    /// All numbers below `limit`.
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit,
            fresh: 0,
            free: VecDeque::new(),
        }
    }

    /// A number that nothing names; none: there is no such number.
    pub(crate) fn take(&mut self, is_named: impl Fn(u32) -> bool) -> Option<u32> {
        if self.fresh < self.limit {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        let at = self.free.iter().position(|&number| !is_named(number))?;
        self.free.remove(at)
    }

    /// A number is not in use any more.
    pub(crate) fn give_back(&mut self, number: u32) {
        self.free.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_nothing_names_is_next() {
        let mut numbers = Numbers::new(4);
        let free = |_| false;
        assert_eq!(
            [(); 5].map(|()| numbers.take(free)),
            [Some(0), Some(1), Some(2), Some(3), None]
        );
        for number in [2, 0, 3] {
            numbers.give_back(number);
        }
        assert_eq!(numbers.take(|number| number == 2), Some(0));
        assert_eq!(numbers.take(|_| true), None);
        assert_eq!(numbers.take(free), Some(2));
        numbers.give_back(2);
        assert_eq!(
            [(); 3].map(|()| numbers.take(free)),
            [Some(3), Some(2), None]
        );
    }
}
