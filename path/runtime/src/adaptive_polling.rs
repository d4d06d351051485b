//! Adaptive polling: determines from past pauses how long a domain polls for work before it sleeps.
//!
//! It works like the kernel's `haltpoll`: in a pause a domain spins for up to twice the average
//! pause, and only while pauses are short enough. Two differences matter. A spinning domain may
//! take the CPU from the peer for which it waits, and pauses may become shorter only after all
//! peers spin. So after some unsuccessful spins the domain spins only occasionally, and half as
//! often after each further failure.
//!
//! If the domain offers its CPU and does not get it back soon, another task computes on it. The
//! scheduler prefers a waking sleeper to that task, but a domain that has offered the CPU waits
//! until the end of the task's time slice. One wait of this kind costs as much as a hundred sleeps,
//! so it outweighs any number of successful spins.

/// Divisor of the weight of a new pause in the average: an eighth.
const SHARE: u64 = 8;
/// Longer pauses than this multiple of the longest spin count as this multiple.
const PAUSE_MAX: u64 = 4;
/// Pauses up to this multiple of the longest spin may become shorter than that spin when all peers
/// spin.
const SHRINKABLE: u64 = 2;
/// The shortest spin is the longest spin divided by this number. A minimum is needed, because
/// pauses vary and their average may be zero.
const SPIN_DIVISOR: u64 = 4;
/// Maximum number of unsuccessful spins that the domain tolerates after many successful spins.
const CREDIT_MAX: u8 = 8;
/// Number of unsuccessful spins before the domain stops spinning for some pauses.
const VAIN_SPINS_MAX: u8 = 2;
/// Number of pauses to sleep through before a retry, initially.
const REST_MIN: u32 = 16;
/// Maximum number of pauses to sleep through before a retry.
const REST_MAX: u32 = 1024;
/// If an offered CPU returns later than this, another task has computed on it.
const LATE_RETURN_NS: u64 = 200_000;
/// Number of pauses to sleep through after a late return of the CPU, initially.
const LATE_REST_MIN: u32 = 256;
/// Maximum number of pauses to sleep through after a late return of the CPU.
const LATE_REST_MAX: u32 = 16_384;
/// Number of consecutive prompt returns after which the domain assumes that no other task computes
/// on the CPU.
const PROMPT_RETURNS: u32 = 1024;

/// The state of adaptive polling in one domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptivePolling {
    /// The longest spin.
    most_ns: u64,
    /// The average pause.
    usual_ns: u64,
    /// Number of unsuccessful spins that the domain still tolerates.
    credit: u8,
    /// Number of pauses that the domain must still sleep through.
    rest: u32,
    next_rest: u32,
    /// Number of pauses to sleep through after the next late return of the CPU.
    late_rest: u32,
    /// Number of consecutive offers after which the CPU returned promptly.
    prompt_returns: u32,
    /// Time at which the CPU was offered in this turn.
    offered_ns: Option<u64>,
}

impl AdaptivePolling {
    /// Creates the state for spins of up to `most_ns`. The domain does not spin before its first
    /// pause.
    pub(crate) fn new(most_ns: u64) -> Self {
        Self {
            most_ns,
            usual_ns: PAUSE_MAX * most_ns,
            credit: VAIN_SPINS_MAX,
            rest: 0,
            next_rest: REST_MIN,
            late_rest: LATE_REST_MIN,
            prompt_returns: 0,
            offered_ns: None,
        }
    }

    /// Returns the maximum time in nanoseconds to spin in the next pause.
    pub(crate) fn window_ns(&self) -> u64 {
        match self.rest > 0 || self.usual_ns > SHRINKABLE * self.most_ns {
            true => 0,
            false => (2 * self.usual_ns).clamp(self.most_ns / SPIN_DIVISOR, self.most_ns),
        }
    }

    /// Records a pause of `ns` nanoseconds.
    pub(crate) fn record_pause(&mut self, ns: u64) {
        let window_ns = self.window_ns();
        self.usual_ns -= self.usual_ns / SHARE;
        self.usual_ns += ns.min(PAUSE_MAX * self.most_ns) / SHARE;
        if self.rest > 0 {
            self.rest -= 1;
        } else if window_ns > 0 && ns >= window_ns {
            self.spin_failed();
        } else if window_ns > 0 {
            self.credit = (self.credit + 1).min(CREDIT_MAX);
            if self.credit == CREDIT_MAX {
                self.next_rest = REST_MIN;
            }
        }
    }

    fn spin_failed(&mut self) {
        self.credit = self.credit.saturating_sub(1);
        if self.credit == 0 {
            self.begin_rest();
        }
    }

    fn begin_rest(&mut self) {
        self.rest = self.next_rest;
        self.next_rest = (2 * self.next_rest).min(REST_MAX);
        self.credit = VAIN_SPINS_MAX;
    }

    /// Records that the CPU is offered to other tasks.
    pub(crate) fn record_yield(&mut self, now_ns: u64) {
        self.offered_ns = Some(now_ns);
    }

    /// Records that a turn began at `now_ns`.
    pub(crate) fn turn_began(&mut self, now_ns: u64) {
        let Some(offered_ns) = self.offered_ns.take() else {
            return;
        };
        if now_ns.saturating_sub(offered_ns) > LATE_RETURN_NS {
            self.rest = self.late_rest;
            self.late_rest = (4 * self.late_rest).min(LATE_REST_MAX);
            self.credit = VAIN_SPINS_MAX;
            self.prompt_returns = 0;
            return;
        }
        self.prompt_returns += 1;
        if self.prompt_returns == PROMPT_RETURNS {
            self.late_rest = LATE_REST_MIN;
            self.prompt_returns = 0;
        }
    }
}
