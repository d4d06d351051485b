//! The senders of a queue, in a table by number.

use super::packet::QueuedPacket;
use super::sender::SenderQueue;
use super::turns::Turns;

/// Number of senders whose state remains while they have no packets.
pub(super) const IDLE_SENDERS: usize = 8;

/// The queues of all senders.
#[derive(Debug)]
pub(super) struct Senders<P> {
    queues: Vec<SenderQueue<P>>,
    /// Memory that each sender's packets hold, at least 1; 0: it has none.
    weights: Vec<usize>,
    /// Place of each sender in these lists, plus 1, by number; 0: it has none.
    places: Vec<u32>,
    /// Senders with packets.
    active: usize,
    turns: Turns,
}

impl<P> Default for Senders<P> {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            weights: Vec::new(),
            places: Vec::new(),
            active: 0,
            turns: Turns::default(),
        }
    }
}

impl<P: QueuedPacket> Senders<P> {
    /// Returns the place of the sender with this number, which has a packet to push.
    pub(super) fn begin(&mut self, number: usize) -> usize {
        let place = self
            .places
            .get(number)
            .and_then(|place| place.checked_sub(1));
        let place = place.map_or_else(|| self.insert(number), |place| place as usize);
        self.turns.begin(place);
        place
    }

    fn insert(&mut self, number: usize) -> usize {
        self.trim();
        if self.places.len() <= number {
            self.places.resize(number + 1, 0);
        }
        self.queues.push(SenderQueue::default());
        self.weights.push(0);
        let place = self.queues.len();
        if let Some(at) = self.places.get_mut(number) {
            *at = place as u32;
        }
        place - 1
    }

    /// If more than [`IDLE_SENDERS`] senders without packets have state, removes their state.
    pub(super) fn trim(&mut self) {
        if self.queues.len() - self.active > IDLE_SENDERS {
            self.remove_idle();
        }
    }

    fn remove_idle(&mut self) {
        let mut next = 0;
        let kept: Vec<Option<usize>> = self
            .weights
            .iter()
            .map(|weight| {
                let place = (*weight > 0).then_some(next);
                next += usize::from(place.is_some());
                place
            })
            .collect();
        let kept = |place: usize| kept.get(place).copied().flatten();
        self.turns.renumber(kept);
        for place in &mut self.places {
            let before = place.checked_sub(1);
            let after = before.and_then(|place| kept(place as usize));
            *place = after.map_or(0, |place| place as u32 + 1);
        }
        self.queues.retain(|queue| !queue.is_empty());
        self.weights.retain(|weight| *weight > 0);
    }

    /// Returns the place of the sender that sends next.
    pub(super) fn next(&mut self) -> Option<usize> {
        let weights = &self.weights;
        let has_packets = |place| weights.get(place).is_some_and(|weight| *weight > 0);
        self.turns.next(has_packets)
    }

    /// Takes a sent packet's bytes from the deficit of the sender at `place`.
    pub(super) fn charge(&mut self, place: usize, bytes: u64) {
        self.turns.charge(place, bytes);
    }

    /// Returns the place of the sender whose packets hold the most memory.
    pub(super) fn longest(&self) -> Option<usize> {
        let all = self.weights.iter().enumerate();
        let longest = all
            .filter(|(_, weight)| **weight > 0)
            .max_by_key(|(_, weight)| **weight);
        longest.map(|(place, _)| place)
    }

    /// Calls `change` with the queue of the sender at `place`.
    pub(super) fn change<T>(
        &mut self,
        place: usize,
        change: impl FnOnce(&mut SenderQueue<P>) -> T,
    ) -> Option<T> {
        let (queue, weight) = (self.queues.get_mut(place)?, self.weights.get_mut(place)?);
        let result = change(queue);
        let had_packets = *weight > 0;
        *weight = match queue.is_empty() {
            true => 0,
            false => queue.units().max(1),
        };
        self.active += usize::from(*weight > 0);
        self.active -= usize::from(had_packets);
        Some(result)
    }

    /// Returns the number of senders that have state.
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Returns all queues.
    pub(super) fn queues(&self) -> impl Iterator<Item = &SenderQueue<P>> {
        self.queues.iter()
    }

    /// Returns all queues.
    pub(super) fn into_queues(self) -> impl Iterator<Item = SenderQueue<P>> {
        self.queues.into_iter()
    }
}
