//! The hop ledger, which accounts for this domain's cycles.
//!
//! The ledger reads the time stamp counter at each change of hop (a *stamp*), and charges the
//! cycles since the last stamp to the previous hop. So every cycle outside [`Ledger::sleep`],
//! including those of system calls, is charged exactly once.
//!
//! A stamp costs about 25 cycles, which is significant in a turn of the main loop that moves thirty
//! small frames. If stamps take more than about a thirtieth of the time, the ledger stamps only a
//! random sample of turns (`sampling`). It charges each turn outside the sample as a whole. At the
//! end of a stretch it distributes these charges among the hops in the ratio of the stamped turns
//! (`accounts`).
//!
//! The difference of two stamps also contains time in which another process had the CPU. The ledger
//! therefore reads the thread's CPU clock at both ends of a *stretch*. The cycles that the stamps
//! show in excess of the CPU clock were lost to preemption. A preemption results in one long
//! charge, so the ledger subtracts the excess from the longest charges (`interval`). It reports the
//! correction and the CPU time, so that a reader can check the sum.
//!
//! A read of that clock is a system call and costs as much as thirty stamps, so the ledger does not
//! read the clock around every sleep. A stretch spans many sleeps, and the stamps around each sleep
//! exclude the time asleep. The sleep at the end of a stretch shows the cost of a sleep and a
//! wake-up.

mod accounts;
mod cost;
mod hop;
mod interval;
mod sampling;
#[cfg(test)]
mod tests;

pub use hop::Hop;

use accounts::{HopAccounts, UNSTAMPED};
use cost::Cost;
use interval::{LongestCharges, MeasuredInterval};
use rustix::time::{ClockId, clock_gettime};
use sampling::Sampling;
use serde_json::{Map, Value, json};
use shmem::time::{tsc, tsc_hz};
use std::cell::Cell;

/// Number of comparisons of stamps with the CPU clock per second. It is high enough that the
/// preemptions of a stretch are among the longest charges that the stretch records.
const CHECKPOINTS_PER_S: u64 = 500;
/// A stretch records charges that are longer than one second divided by this number: 10 µs.
const LONG_PER_S: u64 = 100_000;
/// Weight of a new sleep in the average cost of sleeps, as a shift.
const SLEEP_SHIFT: u32 = 3;

/// The account of one thread.
#[derive(Debug)]
pub struct Ledger {
    enabled: bool,
    hz: u64,
    accounts: HopAccounts,
    /// Whether the ledger stamps this turn.
    stamped: Cell<bool>,
    sampling: Sampling,
    current: Cell<Hop>,
    /// The last stamp.
    last: Cell<u64>,
    stretch: Cell<MeasuredInterval>,
    longest: LongestCharges,
    /// Average CPU cycles of a sleep.
    sleep_cost: Cell<u64>,
    corrected: Cell<u64>,
    stamps: Cell<u64>,
    clock_reads: Cell<u64>,
    turns: Cell<u64>,
}

/// Returns the CPU time of this thread in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

impl Ledger {
    /// Creates an account. If it is not `enabled`, it makes no stamps and reports only CPU time.
    #[must_use]
    pub fn new(enabled: bool) -> Self {
        let ledger = Self {
            enabled,
            hz: tsc_hz(),
            accounts: HopAccounts::new(),
            stamped: Cell::new(enabled),
            sampling: Sampling::new(),
            current: Cell::new(Hop::Control),
            last: Cell::new(tsc()),
            stretch: Cell::new(MeasuredInterval::default()),
            longest: LongestCharges::new(),
            sleep_cost: Cell::new(0),
            corrected: Cell::new(0),
            stamps: Cell::new(0),
            clock_reads: Cell::new(0),
            turns: Cell::new(0),
        };
        ledger.begin_stretch(thread_cpu_ns());
        ledger
    }

    /// Charges later cycles to `hop`, and returns the previous hop.
    #[inline]
    pub fn enter(&self, hop: Hop) -> Hop {
        let before = self.current.get();
        // A stamp is needed only if the hop changes.
        if before != hop {
            if self.stamped.get() {
                self.stamp_at(before.index());
            }
            self.current.set(hop);
        }
        before
    }

    /// Charges the time since the last stamp to the current hop, or to all hops if this turn is not
    /// stamped.
    #[inline]
    fn stamp(&self) {
        if self.enabled {
            self.stamp_at(match self.stamped.get() {
                true => self.current.get().index(),
                false => UNSTAMPED,
            });
        }
    }

    /// Charges the time since the last stamp to `place`.
    #[inline]
    fn stamp_at(&self, place: usize) {
        let now = tsc();
        let cycles = now.wrapping_sub(self.last.replace(now));
        self.accounts.charge(place, cycles);
        self.stamps.set(self.stamps.get() + 1);
        if cycles > self.hz / LONG_PER_S {
            self.longest.remember(place, cycles);
        }
    }

    /// Runs `work` at `hop` and restores the previous hop.
    #[inline]
    pub fn charge_to<T>(&self, hop: Hop, work: impl FnOnce() -> T) -> T {
        let before = self.enter(hop);
        let result = work();
        self.enter(before);
        result
    }

    /// Begins a turn of the main loop.
    #[inline]
    pub fn begin_turn(&self) {
        self.turns.set(self.turns.get() + 1);
        if self.sampling.every() > 1 || self.stamped.get() != self.enabled {
            self.select_turn();
        }
    }

    /// Selects at random whether to stamp this turn.
    fn select_turn(&self) {
        let stamped = self.sampling.select_turn() && self.enabled;
        if stamped != self.stamped.get() {
            self.stamp();
            self.stamped.set(stamped);
        }
    }

    /// Runs `sleep`, which may yield the CPU for any time. Charges only its CPU time, to
    /// [`Hop::Idle`].
    pub fn sleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        let before = self.enter(Hop::Idle);
        // This stamp is needed even if the hop is already idle, because the time asleep begins
        // here.
        self.stamp();
        let result = if !self.enabled {
            sleep()
        } else if self.is_due() || self.sleep_cost.get() == 0 {
            let (result, cycles) = self.between_stretches(sleep);
            self.learn_sleep_cost(cycles);
            result
        } else {
            let from = self.last.get();
            let result = sleep();
            let now = tsc();
            self.last.set(now);
            let mut stretch = self.stretch.get();
            stretch.asleep = stretch.asleep.wrapping_add(now.wrapping_sub(from));
            stretch.sleeps += 1;
            self.stretch.set(stretch);
            result
        };
        self.enter(before);
        result
    }

    /// Runs a hypercall, during which the monitor works and this thread may sleep. Charges only its
    /// CPU time, to the caller's hop.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        if !self.enabled {
            return call();
        }
        self.stamp();
        self.between_stretches(call).0
    }

    /// Ends the stretch if it is long enough. The caller needs this under constant load, when a
    /// thread never sleeps.
    pub fn checkpoint(&self) {
        if self.enabled && self.is_due() {
            self.stamp();
            let stretch = self.stretch.get();
            let stamps = self.stamps.get() - stretch.from_stamps;
            self.sampling.adapt(stamps, stretch.awake(self.last.get()));
            self.accounts.age();
            let now = self.end_stretch();
            self.begin_stretch(now);
        }
    }

    /// Returns whether the stretch is long enough to end.
    fn is_due(&self) -> bool {
        self.stretch.get().age(self.last.get()) > self.hz / CHECKPOINTS_PER_S
    }

    /// Runs `work`, which may yield the CPU, between two reads of the CPU clock. Charges its CPU
    /// cycles to the current hop, and returns them.
    fn between_stretches<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.end_stretch();
        let result = work();
        let after = self.cpu_clock();
        let cycles = self.to_cycles(after.saturating_sub(before));
        self.accounts.add(self.current.get().index(), cycles);
        self.begin_stretch(after);
        (result, cycles)
    }

    /// Updates the average cost of sleeps.
    fn learn_sleep_cost(&self, cycles: u64) {
        let known = self.sleep_cost.get();
        let next = match known {
            0 => cycles,
            _ => known - (known >> SLEEP_SHIFT) + (cycles >> SLEEP_SHIFT),
        };
        self.sleep_cost.set(next.max(1));
    }

    /// Begins a stretch. `from_cpu_ns` is the current value of the CPU clock.
    fn begin_stretch(&self, from_cpu_ns: u64) {
        let from_tsc = tsc();
        self.last.set(from_tsc);
        self.stretch.set(MeasuredInterval {
            from_tsc,
            from_cpu_ns,
            from_stamps: self.stamps.get(),
            ..MeasuredInterval::default()
        });
        self.longest.clear();
    }

    /// Ends the stretch: subtracts the cycles that the CPU clock does not confirm, and charges the
    /// cost of its sleeps. Returns the value of the CPU clock.
    fn end_stretch(&self) -> u64 {
        let cpu_ns = self.cpu_clock();
        let stretch = self.stretch.get();
        let awake = stretch.awake(self.last.get());
        let used = self.to_cycles(cpu_ns.saturating_sub(stretch.from_cpu_ns));
        let asleep = stretch.sleeps.saturating_mul(self.sleep_cost.get());
        let taken = self.correct(awake.saturating_add(asleep).saturating_sub(used));
        self.accounts.distribute(self.current.get());
        if stretch.sleeps > 0 {
            let rest = used.saturating_sub(awake.saturating_sub(taken));
            self.accounts.add(Hop::Idle.index(), rest);
        }
        cpu_ns
    }

    /// Subtracts up to `excess` cycles from the longest charges, and returns the number of
    /// subtracted cycles.
    fn correct(&self, excess: u64) -> u64 {
        if excess == 0 {
            return 0;
        }
        let mut left = excess;
        for (cycles, place) in self.longest.sorted() {
            let part = left.min(cycles);
            left -= part;
            self.accounts.take(place, part);
        }
        let taken = excess - left;
        self.corrected.set(self.corrected.get() + taken);
        taken
    }

    /// Reads the clock like [`thread_cpu_ns`], and counts the read, which costs as much as many
    /// stamps.
    fn cpu_clock(&self) -> u64 {
        self.clock_reads.set(self.clock_reads.get() + 1);
        thread_cpu_ns()
    }

    fn to_cycles(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.hz) / 1_000_000_000) as u64
    }

    /// Returns the account as JSON: cycles by hop, and the figures for checking their sum.
    #[must_use]
    pub fn report(&self) -> Value {
        self.stamp();
        let cpu_ns = self.end_stretch();
        self.begin_stretch(cpu_ns);
        let cost = self.cost();
        let cycles = |hop| json!({ "cycles": self.accounts.of(hop) });
        let hops = Hop::ALL.map(|hop| (hop.name().to_owned(), cycles(hop)));
        json!({
            "enabled": self.enabled,
            "hops": Map::from_iter(hops),
            "cpu_ns": cpu_ns,
            "tsc_hz": self.hz,
            "corrected_cycles": self.corrected.get(),
            "stamps": self.stamps.get(),
            "clock_reads": self.clock_reads.get(),
            "turns": self.turns.get(),
            "cost_ns": { "stamp": cost.stamp_ns, "clock_read": cost.clock_ns },
        })
    }

    /// Returns the cost of stamps and clock reads, measured with another ledger.
    fn cost(&self) -> Cost {
        let ledger = Self::new(true);
        let stamp = |n: u32| {
            let hop = if n.is_multiple_of(2) {
                Hop::Nic
            } else {
                Hop::Bridge
            };
            ledger.enter(std::hint::black_box(hop));
        };
        let read = |_| {
            std::hint::black_box(ledger.cpu_clock());
        };
        Cost::measure(self.hz, stamp, read)
    }
}
