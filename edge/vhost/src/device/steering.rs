//! Assignment of queue pairs to the queues of the interface.
//!
//! An interface has a queue for each worker of the driver domain; a virtual machine has any number
//! of queue pairs. Pair `p` sends to queue `p % queues`. The pairs `q`, `q + queues`, … receive the
//! frames of queue `q`, each flow by one pair. If the driver uses fewer pairs than the interface
//! has queues, pair `q % pairs` receives them.

/// Returns the number of a pair's receive queue.
pub(super) const fn rx_ring(pair: usize) -> usize {
    2 * pair
}

/// Returns the number of a pair's transmit queue.
pub(super) const fn tx_ring(pair: usize) -> usize {
    2 * pair + 1
}

/// A queue of the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSteering {
    pub(super) number: usize,
    queues: usize,
    /// Number of pairs whose transmit queues this queue reads.
    pair_count: usize,
}

impl QueueSteering {
    /// Returns queue `number` of `queues`, with `pairs` queue pairs.
    pub(super) const fn new(number: usize, queues: usize, pairs: usize) -> Self {
        let pair_count = pairs.saturating_sub(number).div_ceil(queues);
        Self {
            number,
            queues,
            pair_count,
        }
    }

    /// Returns the pairs whose transmit queues this queue reads. The first pair changes with each
    /// turn.
    pub(super) fn own_pairs(self, turn: usize) -> impl Iterator<Item = usize> {
        let Self {
            number,
            queues,
            pair_count,
        } = self;
        (0..pair_count).map(move |n| number + (turn + n) % pair_count * queues)
    }

    /// Returns the pair, of the `in_use` pairs, that receives the first of `frames`, and the number
    /// of consecutive frames that it receives. `flow` returns the hash of a frame's flow.
    #[inline]
    pub(super) fn run_of<T>(
        self,
        frames: &[T],
        flow: impl Fn(&T) -> u32,
        in_use: u16,
    ) -> (usize, usize) {
        let in_use = usize::from(in_use.max(1));
        let behind = in_use.saturating_sub(self.number);
        let pairs = behind.div_ceil(self.queues);
        if pairs <= 1 {
            return (self.number % in_use, frames.len());
        }
        let pair = |frame: &T| self.number + flow(frame) as usize % pairs * self.queues;
        let first = frames.first().map_or(self.number, pair);
        let run = frames.iter().take_while(|frame| pair(frame) == first);
        (first, run.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_sends_to_one_queue() {
        for (queues, pairs) in [(1, 1), (1, 8), (2, 5), (4, 2), (3, 3)] {
            let queues_of = (0..queues).map(|number| QueueSteering::new(number, queues, pairs));
            let mut owned: Vec<usize> = queues_of.flat_map(|queue| queue.own_pairs(7)).collect();
            owned.sort_unstable();
            assert_eq!(owned, (0..pairs).collect::<Vec<_>>(), "{queues} queues");
        }
    }

    #[test]
    fn a_turn_begins_with_another_pair() {
        let queue = QueueSteering::new(1, 2, 8);
        let firsts: Vec<usize> = (0..5)
            .flat_map(|turn| queue.own_pairs(turn).next())
            .collect();
        assert_eq!(firsts, [1, 3, 5, 7, 1]);
    }

    #[test]
    fn frames_are_received_by_pairs_in_use() {
        for (queues, in_use) in [(1, 1), (4, 2), (2, 5), (1, 8), (8, 1)] {
            for number in 0..queues {
                let queue = QueueSteering::new(number, queues, 8);
                let (pair, count) = queue.run_of(&[3, 4], |_| 9, in_use);
                assert!(pair < in_use.into(), "{queues} {in_use}");
                assert_eq!(count, 2, "frames of one flow");
            }
        }
    }
}
