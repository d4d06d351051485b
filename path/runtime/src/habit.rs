//! How long a domain looks for work before it sleeps, learnt from its pauses.
//!
//! As the kernel's `haltpoll` does for halts: a pause is spun through only while pauses are short
//! enough to be, for twice as long as they usually are. What haltpoll need not do: a domain that
//! spins may take the CPU from the very peer it waits for, and pauses may get shorter only when all
//! peers spin. So spins that were in vain count against it, and after some it is tried again only
//! now and then, twice as rarely each time. If a CPU that was offered does not come back soon, a
//! task that computes has it. The scheduler puts a sleeper that wakes before such a task; a domain
//! that has offered the CPU waits for the end of its time slice. One such wait is as dear as a
//! hundred sleeps, so it counts for more than any number of spins that paid.

/// Pauses that the usual one follows: an eighth of each is taken over.
const SHARE: u64 = 8;
/// Pauses of so many of the longest spins are all alike: much too long.
const LONG: u64 = 4;
/// Usual pauses of up to so many of the longest spins may come down to one when all peers spin.
const HOPE: u64 = 2;
/// The shortest spin is this part of the longest: pauses differ, and the usual one may be nothing.
const LEAST: u64 = 4;
/// How much a spin that was not in vain counts at the most.
const TRUST_MAX: u8 = 8;
/// Spins in vain after which there is a rest.
const TRIES: u8 = 2;
/// Pauses that are slept through before it is tried again: at first, and at the most.
const REST_MIN: u32 = 16;
const REST_MAX: u32 = 1024;
/// If a CPU that was offered comes back later than this, a task that computes wants it.
const AWAY_NS: u64 = 200_000;
/// Pauses that are slept through after that: at first, and at the most.
const AWAY_REST_MIN: u32 = 256;
const AWAY_REST_MAX: u32 = 16_384;
/// After so many offers in a row that came back soon no task computes there any more.
const CALM: u32 = 1024;

/// One domain's habit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habit {
    /// The longest spin.
    most_ns: u64,
    /// The usual pause.
    usual_ns: u64,
    /// How many spins in vain are put up with.
    trust: u8,
    /// Pauses still to be slept through.
    rest: u32,
    next_rest: u32,
    /// Pauses to be slept through when the CPU stays away once more.
    away_rest: u32,
    /// Offers in a row that came back soon.
    calm: u32,
    /// When the CPU was offered to others in this turn.
    offered_ns: Option<u64>,
}

impl Habit {
    /// Spins of at most `most_ns`, and none before pauses are known.
    pub(crate) fn new(most_ns: u64) -> Self {
        Self {
            most_ns,
            usual_ns: LONG * most_ns,
            trust: TRIES,
            rest: 0,
            next_rest: REST_MIN,
            away_rest: AWAY_REST_MIN,
            calm: 0,
            offered_ns: None,
        }
    }

    /// How long to spin through the next pause.
    pub(crate) fn window_ns(&self) -> u64 {
        match self.rest > 0 || self.usual_ns > HOPE * self.most_ns {
            true => 0,
            false => (2 * self.usual_ns).clamp(self.most_ns / LEAST, self.most_ns),
        }
    }

    /// A pause of `ns` is over.
    pub(crate) fn pause(&mut self, ns: u64) {
        let window_ns = self.window_ns();
        self.usual_ns -= self.usual_ns / SHARE;
        self.usual_ns += ns.min(LONG * self.most_ns) / SHARE;
        if self.rest > 0 {
            self.rest -= 1;
        } else if window_ns > 0 && ns >= window_ns {
            self.in_vain();
        } else if window_ns > 0 {
            self.trust = (self.trust + 1).min(TRUST_MAX);
            if self.trust == TRUST_MAX {
                self.next_rest = REST_MIN;
            }
        }
    }

    fn in_vain(&mut self) {
        self.trust = self.trust.saturating_sub(1);
        if self.trust == 0 {
            self.begin_rest();
        }
    }

    fn begin_rest(&mut self) {
        self.rest = self.next_rest;
        self.next_rest = (2 * self.next_rest).min(REST_MAX);
        self.trust = TRIES;
    }

    /// The CPU is offered to others.
    pub(crate) fn offers(&mut self, now_ns: u64) {
        self.offered_ns = Some(now_ns);
    }

    /// A turn began at `now_ns`.
    pub(crate) fn look(&mut self, now_ns: u64) {
        let Some(offered_ns) = self.offered_ns.take() else {
            return;
        };
        if now_ns.saturating_sub(offered_ns) > AWAY_NS {
            self.rest = self.away_rest;
            self.away_rest = (4 * self.away_rest).min(AWAY_REST_MAX);
            self.trust = TRIES;
            self.calm = 0;
            return;
        }
        self.calm += 1;
        if self.calm == CALM {
            self.away_rest = AWAY_REST_MIN;
            self.calm = 0;
        }
    }
}
