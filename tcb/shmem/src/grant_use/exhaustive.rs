//! Exhaustive search of all interleavings of the protocol's steps, for which loom would take too
//! long. A user runs two batches over two entries. Meanwhile the monitor revokes both entries in
//! one batch, in each combination of refusal, drain and force, and then grants the revoked entries
//! again. Memory is sequentially consistent here, but a step of the monitor may occur between any
//! two accesses of the user. Loom checks the order of single accesses.

use super::*;
use crate::sync::Ordering;
use abi::GrantRef;
use abi::counted::Translation;
use std::cell::Cell;
use std::collections::HashSet;

const ENTRIES: usize = 2;
const BATCHES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum User {
    Begin,
    /// Reads the entry.
    Read(usize),
    /// Checks the value that was read, and counts the use.
    Claim(usize),
    Compare,
    Recheck(usize),
    Use(usize),
    Release(usize),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Monitor {
    Announce(usize),
    Publish,
    Check(usize),
    /// Makes a refused entry valid again.
    Restore(usize),
    /// Unmaps the page of a revoked entry.
    Unmap(usize),
    /// Maps another page into the slot, once the entry is no longer in quarantine.
    Map(usize),
    /// Makes the entry grant the new page.
    Grant(usize),
    /// Waits for draining uses.
    Wait,
    Done,
}

/// The monitor's decision on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    /// Not checked yet.
    Open,
    Refused,
    Draining,
    /// Revoked. The value indicates whether uses may still be active.
    Revoked(bool),
    /// The entry grants a page again: a new one after a revocation, the same one after a refusal.
    Decided,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Treatment {
    Refuse,
    Drain,
    Force,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProtocolState {
    how: [Treatment; ENTRIES],
    announcements: u64,
    translation: [u64; ENTRIES],
    status: [u32; ENTRIES],
    /// The granter's frame that is mapped at the slot; 0 if an access faults.
    slot: [u32; ENTRIES],
    quarantined: [bool; ENTRIES],
    user: User,
    /// The count of announcements when the batch began.
    before: u64,
    /// The values of the entries as the user read them.
    visited: [u64; ENTRIES],
    claimed: [bool; ENTRIES],
    held: [bool; ENTRIES],
    batch: u8,
    monitor: Monitor,
    outcome: [Outcome; ENTRIES],
    fault_count: u8,
}

/// The words under test, for one entry.
struct ModelWords {
    translation: Cell<u64>,
    status: Cell<u32>,
}

impl<T: Copy> Word<T> for Cell<T> {
    fn load(&self, _: Ordering) -> T {
        self.get()
    }
    fn store(&self, value: T, _: Ordering) {
        self.set(value);
    }
}

/// Returns a reference to generation 1 of entry `n`, which grants frame `10 + n`.
fn gref(n: usize) -> GrantRef {
    GrantRef::new(n as u32, 1)
}

impl ProtocolState {
    fn new(how: [Treatment; ENTRIES]) -> Self {
        let entry = |n: usize| Translation::valid(10 + n as u32, 1, false).0;
        Self {
            how,
            announcements: 0,
            translation: [entry(0), entry(1)],
            status: [0; ENTRIES],
            slot: [10, 11],
            quarantined: [false; ENTRIES],
            user: User::Begin,
            before: 0,
            visited: [0; ENTRIES],
            claimed: [false; ENTRIES],
            held: [false; ENTRIES],
            batch: 0,
            monitor: Monitor::Announce(0),
            outcome: [Outcome::Open; ENTRIES],
            fault_count: 0,
        }
    }

    fn with<T>(&mut self, n: usize, act: impl FnOnce(&ModelWords) -> T) -> T {
        let words = ModelWords {
            translation: Cell::new(self.translation[n]),
            status: Cell::new(self.status[n]),
        };
        let result = act(&words);
        (self.translation[n], self.status[n]) = (words.translation.get(), words.status.get());
        result
    }

    fn user_step(&self) -> Option<Self> {
        let mut next = self.clone();
        let count = Cell::new(self.announcements);
        next.user = match self.user {
            User::Begin => {
                next.before = announced(&count);
                User::Read(0)
            }
            User::Read(n) => {
                next.visited[n] = next.translation[n];
                User::Claim(n)
            }
            User::Claim(n) => {
                let words = ModelWords {
                    translation: Cell::new(next.visited[n]),
                    status: Cell::new(next.status[n]),
                };
                next.claimed[n] = claim(&words.translation, &words.status, gref(n), true);
                next.status[n] = words.status.get();
                after(n, User::Read, User::Compare)
            }
            User::Compare if is_unchanged(&count, self.before) => {
                next.held = self.claimed;
                User::Use(0)
            }
            User::Compare => User::Recheck(0),
            User::Recheck(n) => {
                next.held[n] = next.claimed[n]
                    && next.with(n, |w| still_permits(&w.translation, gref(n), true));
                after(n, User::Recheck, User::Use(0))
            }
            User::Use(n) => {
                if next.held[n] {
                    // N-8: a held use accesses its own page or, after a forced revocation, faults.
                    // It never accesses another page that was mapped into the slot.
                    assert!([10 + n as u32, 0].contains(&next.slot[n]), "{self:?}");
                    assert!(
                        next.slot[n] != 0 || next.how[n] == Treatment::Force,
                        "{self:?}"
                    );
                    next.fault_count += u8::from(next.slot[n] == 0);
                }
                after(n, User::Use, User::Release(0))
            }
            User::Release(n) => {
                if next.claimed[n] {
                    next.with(n, |w| release(&w.status));
                }
                let end = if self.batch + 1 < BATCHES {
                    User::Begin
                } else {
                    User::Done
                };
                let step = after(n, User::Release, end);
                next.batch += u8::from(n + 1 == ENTRIES);
                step
            }
            User::Done => return None,
        };
        Some(next)
    }

    fn monitor_step(&self) -> Option<Self> {
        let mut next = self.clone();
        next.monitor = match self.monitor {
            Monitor::Announce(n) => {
                if next.outcome[n] != Outcome::Decided {
                    let entry = Translation(next.translation[n]);
                    next.with(n, |w| announce(&w.translation, entry));
                    next.outcome[n] = Outcome::Open;
                }
                after(n, Monitor::Announce, Monitor::Publish)
            }
            Monitor::Publish => {
                let count = Cell::new(self.announcements);
                publish(&count);
                next.announcements = count.get();
                Monitor::Check(0)
            }
            Monitor::Check(n) => {
                if next.outcome[n] == Outcome::Open {
                    next.outcome[n] = match (next.with(n, |w| is_unused(&w.status)), next.how[n]) {
                        (true, _) => Outcome::Revoked(false),
                        (false, Treatment::Force) => Outcome::Revoked(true),
                        (false, Treatment::Drain) => Outcome::Draining,
                        (false, Treatment::Refuse) => Outcome::Refused,
                    };
                    if let Outcome::Revoked(_) = next.outcome[n] {
                        next.translation[n] = Translation::INVALID.0;
                    }
                }
                after(n, Monitor::Check, Monitor::Restore(0))
            }
            Monitor::Restore(n) => {
                if next.outcome[n] == Outcome::Refused {
                    next.translation[n] = Translation::valid(10 + n as u32, 1, false).0;
                    next.outcome[n] = Outcome::Decided;
                }
                after(n, Monitor::Restore, Monitor::Unmap(0))
            }
            Monitor::Unmap(n) => {
                if let Outcome::Revoked(used) = next.outcome[n] {
                    next.slot[n] = 0;
                    next.quarantined[n] = used;
                }
                after(n, Monitor::Unmap, Monitor::Map(0))
            }
            // The new grant has frame 20 + n and generation 2.
            Monitor::Map(n) => match next.outcome[n] {
                Outcome::Revoked(_) if next.quarantined[n] && next.status[n] != 0 => {
                    return self.user_is_running().then_some(next);
                }
                Outcome::Revoked(_) => {
                    next.quarantined[n] = false;
                    next.slot[n] = 20 + n as u32;
                    Monitor::Grant(n)
                }
                _ => after(n, Monitor::Map, Monitor::Wait),
            },
            Monitor::Grant(n) => {
                next.translation[n] = Translation::valid(20 + n as u32, 2, false).0;
                next.outcome[n] = Outcome::Decided;
                after(n, Monitor::Map, Monitor::Wait)
            }
            Monitor::Wait => {
                let drains = |n: &usize| next.outcome[*n] == Outcome::Draining;
                let draining: Vec<_> = (0..ENTRIES).filter(drains).collect();
                if draining.is_empty() {
                    Monitor::Done
                } else if draining.iter().any(|n| next.status[*n] == 0) {
                    Monitor::Announce(0)
                } else {
                    return self.user_is_running().then_some(next);
                }
            }
            Monitor::Done => return None,
        };
        Some(next)
    }

    fn user_is_running(&self) -> bool {
        self.user != User::Done
    }
}

/// Returns `step` for the next entry, or `then` after the last one.
fn after<T>(n: usize, step: fn(usize) -> T, then: T) -> T {
    if n + 1 < ENTRIES { step(n + 1) } else { then }
}

/// N-7 … N-12 in every interleaving.
#[test]
fn every_interleaving_keeps_the_clauses() {
    let each = [Treatment::Refuse, Treatment::Drain, Treatment::Force];
    for how in each.into_iter().flat_map(|a| each.map(|b| [a, b])) {
        let mut visited = HashSet::new();
        let mut pending = vec![ProtocolState::new(how)];
        let (mut end_count, mut fault_count, mut rechecks) = (0, 0, 0);
        while let Some(state) = pending.pop() {
            if !visited.insert(state.clone()) {
                continue;
            }
            let steps = [state.user_step(), state.monitor_step()];
            if steps.iter().all(Option::is_none) {
                end_count += 1;
                fault_count += u32::from(state.fault_count > 0);
                assert_eq!(state.user, User::Done, "a wait is endless: {state:?}");
                assert_eq!(
                    state.monitor,
                    Monitor::Done,
                    "a revocation is endless: {state:?}"
                );
                assert_eq!(state.status, [0; ENTRIES], "a use has not ended: {state:?}");
                assert_eq!(state.quarantined, [false; ENTRIES]);
            }
            rechecks += u32::from(state.user == User::Recheck(0));
            pending.extend(steps.into_iter().flatten());
        }
        let state_count = visited.len();
        assert!(
            state_count > 2000 && end_count > 0,
            "{how:?}: {state_count} states"
        );
        assert!(rechecks > 0, "{how:?}: no recheck");
        let forced = how.contains(&Treatment::Force);
        assert_eq!(fault_count > 0, forced, "faults without force");
    }
}
