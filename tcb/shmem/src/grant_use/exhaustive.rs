//! Tries every interleaving of the protocol's steps explicitly, because loom would take too long. A
//! user runs two batches over two entries while the monitor revokes both in one batch, each
//! refused, drained or forced, and then grants the revoked entries again. Memory is sequentially
//! consistent here, but a step of the monitor may occur between any two accesses of the user; loom
//! checks the order of single accesses.

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
    /// Checks the value read, and counts the use.
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
    Tell,
    Look(usize),
    /// Makes a refused entry valid again.
    Restore(usize),
    /// Unmaps the page.
    Take(usize),
    /// Maps another page into the slot, once the entry has left quarantine …
    Show(usize),
    /// … and the entry grants it.
    Grant(usize),
    /// Waits for uses that drain.
    Wait,
    Done,
}

/// The monitor's decision on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    /// Announced, or not checked yet.
    Open,
    Refused,
    Drains,
    /// Revoked. Contains whether uses may still be active.
    Leaves(bool),
    /// Grants another page, or the same as before.
    Decided,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum How {
    Refuse,
    Drain,
    Force,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    how: [How; ENTRIES],
    announcements: u64,
    translation: [u64; ENTRIES],
    status: [u32; ENTRIES],
    /// The granter's frame that the slot shows; 0: an access faults.
    slot: [u32; ENTRIES],
    quarantined: [bool; ENTRIES],
    user: User,
    /// The count of announcements when the batch began.
    before: u64,
    /// The entries as read.
    visited: [u64; ENTRIES],
    claimed: [bool; ENTRIES],
    held: [bool; ENTRIES],
    batch: u8,
    monitor: Monitor,
    fate: [Fate; ENTRIES],
    faults: u8,
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

/// Returns a reference to generation 1 of entry `n`, which shows frame `10 + n`.
fn gref(n: usize) -> GrantRef {
    GrantRef::new(n as u32, 1)
}

impl World {
    fn new(how: [How; ENTRIES]) -> Self {
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
            fate: [Fate::Open; ENTRIES],
            faults: 0,
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
            User::Compare if undisturbed(&count, self.before) => {
                next.held = self.claimed;
                User::Use(0)
            }
            User::Compare => User::Recheck(0),
            User::Recheck(n) => {
                next.held[n] =
                    next.claimed[n] && next.with(n, |w| holds(&w.translation, gref(n), true));
                after(n, User::Recheck, User::Use(0))
            }
            User::Use(n) => {
                if next.held[n] {
                    // N-8: an access of a held use reaches its own page or, after a forced
                    // revocation, nothing: never another page that was mapped into the slot.
                    assert!([10 + n as u32, 0].contains(&next.slot[n]), "{self:?}");
                    assert!(next.slot[n] != 0 || next.how[n] == How::Force, "{self:?}");
                    next.faults += u8::from(next.slot[n] == 0);
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
                if next.fate[n] != Fate::Decided {
                    let entry = Translation(next.translation[n]);
                    next.with(n, |w| announce(&w.translation, entry));
                    next.fate[n] = Fate::Open;
                }
                after(n, Monitor::Announce, Monitor::Tell)
            }
            Monitor::Tell => {
                let count = Cell::new(self.announcements);
                publish(&count);
                next.announcements = count.get();
                Monitor::Look(0)
            }
            Monitor::Look(n) => {
                if next.fate[n] == Fate::Open {
                    next.fate[n] = match (next.with(n, |w| idle(&w.status)), next.how[n]) {
                        (true, _) => Fate::Leaves(false),
                        (false, How::Force) => Fate::Leaves(true),
                        (false, How::Drain) => Fate::Drains,
                        (false, How::Refuse) => Fate::Refused,
                    };
                    if let Fate::Leaves(_) = next.fate[n] {
                        next.translation[n] = Translation::INVALID.0;
                    }
                }
                after(n, Monitor::Look, Monitor::Restore(0))
            }
            Monitor::Restore(n) => {
                if next.fate[n] == Fate::Refused {
                    next.translation[n] = Translation::valid(10 + n as u32, 1, false).0;
                    next.fate[n] = Fate::Decided;
                }
                after(n, Monitor::Restore, Monitor::Take(0))
            }
            Monitor::Take(n) => {
                if let Fate::Leaves(used) = next.fate[n] {
                    next.slot[n] = 0;
                    next.quarantined[n] = used;
                }
                after(n, Monitor::Take, Monitor::Show(0))
            }
            // Frame 20 + n, generation 2.
            Monitor::Show(n) => match next.fate[n] {
                Fate::Leaves(_) if next.quarantined[n] && next.status[n] != 0 => {
                    return self.user_can_go().then_some(next);
                }
                Fate::Leaves(_) => {
                    next.quarantined[n] = false;
                    next.slot[n] = 20 + n as u32;
                    Monitor::Grant(n)
                }
                _ => after(n, Monitor::Show, Monitor::Wait),
            },
            Monitor::Grant(n) => {
                next.translation[n] = Translation::valid(20 + n as u32, 2, false).0;
                next.fate[n] = Fate::Decided;
                after(n, Monitor::Show, Monitor::Wait)
            }
            Monitor::Wait => {
                let drains = |n: &usize| next.fate[*n] == Fate::Drains;
                let left: Vec<_> = (0..ENTRIES).filter(drains).collect();
                if left.is_empty() {
                    Monitor::Done
                } else if left.iter().any(|n| next.status[*n] == 0) {
                    Monitor::Announce(0)
                } else {
                    return self.user_can_go().then_some(next);
                }
            }
            Monitor::Done => return None,
        };
        Some(next)
    }

    fn user_can_go(&self) -> bool {
        self.user != User::Done
    }
}

/// Returns the same step for the next entry, or `then` after the last one.
fn after<T>(n: usize, step: fn(usize) -> T, then: T) -> T {
    if n + 1 < ENTRIES { step(n + 1) } else { then }
}

/// N-7 … N-12 in every interleaving.
#[test]
fn every_interleaving_keeps_the_clauses() {
    let each = [How::Refuse, How::Drain, How::Force];
    for how in each.into_iter().flat_map(|a| each.map(|b| [a, b])) {
        let mut visited = HashSet::new();
        let mut open = vec![World::new(how)];
        let (mut ends, mut faults, mut rechecks) = (0, 0, 0);
        while let Some(world) = open.pop() {
            if !visited.insert(world.clone()) {
                continue;
            }
            let steps = [world.user_step(), world.monitor_step()];
            if steps.iter().all(Option::is_none) {
                ends += 1;
                faults += u32::from(world.faults > 0);
                assert_eq!(world.user, User::Done, "a wait is endless: {world:?}");
                assert_eq!(world.monitor, Monitor::Done, "a revocation ends: {world:?}");
                assert_eq!(world.status, [0; ENTRIES], "every use ended: {world:?}");
                assert_eq!(world.quarantined, [false; ENTRIES]);
            }
            rechecks += u32::from(world.user == User::Recheck(0));
            open.extend(steps.into_iter().flatten());
        }
        let states = visited.len();
        assert!(states > 2000 && ends > 0, "{how:?}: {states} states");
        assert!(rechecks > 0, "{how:?}: no recheck");
        let forced = how.contains(&How::Force);
        assert_eq!(faults > 0, forced, "faults without force");
    }
}
