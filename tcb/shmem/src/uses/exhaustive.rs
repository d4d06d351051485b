//! Every interleaving of the protocol's steps, walked through by hand: what loom does not reach in
//! time. A user makes two batches over two entries while the monitor revokes both, refused, drained or
//! forced, and grants one again. Memory is sequential here: the order of single accesses is loom's business.

use super::*;
use std::cell::Cell;
use std::collections::HashSet;

const ENTRIES: usize = 2;
const BATCHES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum User {
    Begin,
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
    Tell(usize),
    Look(usize),
    /// Takes the page away; whether uses may have been under way.
    Take(usize, bool),
    Settle(usize, bool),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum How {
    Refuse,
    Drain,
    Force,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    how: How,
    announced: u64,
    translation: [u64; ENTRIES],
    status: [u32; ENTRIES],
    /// Which of the granter's frames the slot shows; 0: it faults.
    slot: [u32; ENTRIES],
    quarantined: [bool; ENTRIES],
    user: User,
    /// What was announced when the batch began.
    before: u64,
    claimed: [bool; ENTRIES],
    held: [bool; ENTRIES],
    batch: u8,
    monitor: Monitor,
    faults: u8,
}

/// The functions under test, over one entry of a world.
struct Words {
    translation: Cell<u64>,
    status: Cell<u32>,
}

impl EntryWords for Words {
    fn translation(&self, _: Ordering) -> u64 {
        self.translation.get()
    }
    fn set_translation(&self, value: u64, _: Ordering) {
        self.translation.set(value);
    }
}

impl StatusWord for Words {
    fn status(&self, _: Ordering) -> u32 {
        self.status.get()
    }
    fn set_status(&self, value: u32, _: Ordering) {
        self.status.set(value);
    }
}

impl Announcements for Cell<u64> {
    fn announcements(&self, _: Ordering) -> u64 {
        self.get()
    }
    fn set_announcements(&self, value: u64, _: Ordering) {
        self.set(value);
    }
}

/// Generation 1 of entry `n` shows frame `10 + n`.
fn gref(n: usize) -> GrantRef {
    GrantRef::new(n as u32, 1)
}

impl World {
    fn new(how: How) -> Self {
        let entry = |n: usize| Translation::valid(10 + n as u32, 1, false).0;
        Self {
            how,
            announced: 0,
            translation: [entry(0), entry(1)],
            status: [0; ENTRIES],
            slot: [10, 11],
            quarantined: [false; ENTRIES],
            user: User::Begin,
            before: 0,
            claimed: [false; ENTRIES],
            held: [false; ENTRIES],
            batch: 0,
            monitor: Monitor::Announce(0),
            faults: 0,
        }
    }

    fn with<T>(&mut self, n: usize, act: impl FnOnce(&Words) -> T) -> T {
        let words = Words {
            translation: Cell::new(self.translation[n]),
            status: Cell::new(self.status[n]),
        };
        let result = act(&words);
        (self.translation[n], self.status[n]) = (words.translation.get(), words.status.get());
        result
    }

    fn user_step(&self) -> Option<Self> {
        let mut next = self.clone();
        let after = |n: usize, step: fn(usize) -> User, then: User| {
            if n + 1 < ENTRIES { step(n + 1) } else { then }
        };
        let count = Cell::new(self.announced);
        next.user = match self.user {
            User::Begin => {
                next.before = announced(&count);
                User::Claim(0)
            }
            User::Claim(n) => {
                next.claimed[n] = next.with(n, |w| claim(w, gref(n), true));
                after(n, User::Claim, User::Compare)
            }
            User::Compare if undisturbed(&count, self.before) => {
                next.held = self.claimed;
                User::Use(0)
            }
            User::Compare => User::Recheck(0),
            User::Recheck(n) => {
                next.held[n] = next.claimed[n] && next.with(n, |w| holds(w, gref(n), true));
                after(n, User::Recheck, User::Use(0))
            }
            User::Use(n) => {
                if next.held[n] {
                    // N-8: what a held use touches is its own page, or, forced away, nothing at
                    // all: never another page that took the slot.
                    assert!([10 + n as u32, 0].contains(&next.slot[n]), "{self:?}");
                    assert!(next.slot[n] != 0 || next.how == How::Force, "{self:?}");
                    next.faults += u8::from(next.slot[n] == 0);
                }
                after(n, User::Use, User::Release(0))
            }
            User::Release(n) => {
                if next.claimed[n] {
                    next.with(n, release);
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
                let entry = Translation(next.translation[n]);
                next.with(n, |w| announce(w, entry));
                Monitor::Tell(n)
            }
            Monitor::Tell(n) => {
                let count = Cell::new(self.announced);
                tell(&count);
                next.announced = count.get();
                Monitor::Look(n)
            }
            Monitor::Look(n) => match (next.with(n, idle), self.how) {
                (true, _) => Monitor::Take(n, false),
                (false, How::Force) => Monitor::Take(n, true),
                // Looks again later: a step of the user's is between.
                (false, How::Drain) => return self.user_can_go().then_some(next),
                (false, How::Refuse) => {
                    next.translation[n] = Translation::valid(10 + n as u32, 1, false).0;
                    Self::following(n)
                }
            },
            Monitor::Take(n, used) => {
                next.translation[n] = 0;
                next.slot[n] = 0;
                next.quarantined[n] = used;
                Monitor::Settle(n, used)
            }
            // The slot gets another page (frame 20 + n, generation 2) once it is out of quarantine.
            Monitor::Settle(n, used) => {
                if used && next.status[n] != 0 {
                    return self.user_can_go().then_some(next);
                }
                next.quarantined[n] = false;
                next.slot[n] = 20 + n as u32;
                next.translation[n] = Translation::valid(20 + n as u32, 2, false).0;
                Self::following(n)
            }
            Monitor::Done => return None,
        };
        Some(next)
    }

    fn following(n: usize) -> Monitor {
        if n + 1 < ENTRIES {
            Monitor::Announce(n + 1)
        } else {
            Monitor::Done
        }
    }

    fn user_can_go(&self) -> bool {
        self.user != User::Done
    }
}

/// N-7 … N-12 in every interleaving.
#[test]
fn every_interleaving_keeps_the_clauses() {
    for how in [How::Refuse, How::Drain, How::Force] {
        let mut seen = HashSet::new();
        let mut open = vec![World::new(how)];
        let (mut ends, mut faults) = (0, 0);
        while let Some(world) = open.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            let steps = [world.user_step(), world.monitor_step()];
            if steps.iter().all(Option::is_none) {
                ends += 1;
                faults += u32::from(world.faults > 0);
                assert_eq!(world.user, User::Done, "nobody waits for ever: {world:?}");
                assert_eq!(world.monitor, Monitor::Done, "a revocation ends: {world:?}");
                assert_eq!(world.status, [0; ENTRIES], "every use ended: {world:?}");
                assert_eq!(world.quarantined, [false; ENTRIES]);
            }
            open.extend(steps.into_iter().flatten());
        }
        assert!(
            seen.len() > 200 && ends > 0,
            "{how:?}: {} states",
            seen.len()
        );
        assert_eq!(faults > 0, how == How::Force, "only force makes faults");
    }
}
