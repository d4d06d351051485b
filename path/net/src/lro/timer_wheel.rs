//! Due times of held aggregates: a timer wheel.

use super::lists::SlotLists;

/// Number of ticks of the wheel: the number of bits in a word.
const TICKS: u64 = 64;

/// Slots by the tick in which they are due. A slot is never late, and is early by less than a tick,
/// which is 1/62 of the longest wait.
#[derive(Clone, Debug)]
pub(super) struct TimerWheel {
    tick_ns: u64,
    /// The last processed tick.
    tick: u64,
    /// Bitmap of the ticks, modulo [`TICKS`], that have slots.
    busy: u64,
    lists: SlotLists,
    /// The tick, modulo [`TICKS`], of each slot.
    at: Vec<u8>,
}

impl TimerWheel {
    /// Creates a wheel for waits of up to `longest_ns`.
    pub(super) fn new(longest_ns: u64) -> Self {
        Self {
            tick_ns: longest_ns / (TICKS - 2) + 1,
            tick: 0,
            busy: 0,
            lists: SlotLists::new(TICKS as u32),
            at: Vec::new(),
        }
    }

    /// Returns how early a slot may be due, in nanoseconds.
    pub(super) fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Advances the time. Moves the slots of the ticks that have begun since the last call to
    /// `due`.
    pub(super) fn advance(&mut self, now_ns: u64, due: &mut Vec<u32>) {
        let now = now_ns / self.tick_ns;
        let begun = now.saturating_sub(self.tick).min(TICKS);
        if self.busy != 0 {
            for tick in self.tick + 1..=self.tick + begun {
                let head = tick % TICKS;
                while let Some(slot) = self.lists.first(head as u32) {
                    self.lists.remove(slot);
                    due.push(slot);
                }
                self.busy &= !(1 << head);
            }
        }
        self.tick = self.tick.max(now);
    }

    /// Schedules a slot, at most the longest wait ahead of the wheel's time. Returns whether it is
    /// due in the future.
    pub(super) fn schedule(&mut self, slot: u32, due_ns: u64) -> bool {
        self.remove(slot);
        let tick = due_ns / self.tick_ns;
        if tick <= self.tick {
            return false;
        }
        let head = tick.min(self.tick + TICKS - 1) % TICKS;
        self.lists.push(head as u32, slot);
        self.busy |= 1 << head;
        if self.at.len() <= slot as usize {
            self.at.resize(slot as usize + 1, 0);
        }
        if let Some(at) = self.at.get_mut(slot as usize) {
            *at = head as u8;
        }
        true
    }

    /// Removes a slot, if it is scheduled.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(&head) = self.at.get(slot as usize) else {
            return;
        };
        self.lists.remove(slot);
        if self.lists.first(head.into()).is_none() {
            self.busy &= !(1 << head);
        }
    }

    /// Returns when the next slot is due, in nanoseconds.
    pub(super) fn next_due(&self) -> Option<u64> {
        if self.busy == 0 {
            return None;
        }
        let first = (self.tick + 1) % TICKS;
        let ahead = self.busy.rotate_right(first as u32).trailing_zeros();
        Some((self.tick + 1 + u64::from(ahead)) * self.tick_ns)
    }
}
