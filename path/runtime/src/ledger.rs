//! The hop ledger: where this domain's cycles went.
//!
//! One stamp of the time stamp counter at each change of hop; the cycles since the last stamp are
//! charged to the hop that was left. So every cycle outside of [`Ledger::sleep`] is charged exactly
//! once, system calls included.
//!
//! A stamp costs some 25 cycles, which is much where a turn of the main loop moves thirty small frames. So
//! where stamps take more than about a thirtieth of the time, only some turns are stamped, drawn by lot:
//! what the others took is charged as a whole, and shared out at the end of a stretch as those were.
//!
//! A difference of stamps also contains time in which another process had the CPU. The thread's
//! own CPU clock is read at both ends of a stretch: what the stretch has too much was lost to
//! preemption, and since a preemption shows as one long charge, it is taken from the longest ones.
//! How much was corrected is reported, and so is the CPU time itself, so that a reader can close
//! the account.
//!
//! That clock is a system call and costs as much as thirty stamps, so it is not read about every
//! sleep: a stretch holds many, the time asleep is left out of it by the stamps about each, and what
//! falling asleep and waking up cost is known from those sleeps that end a stretch.

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use shmem::time::{tsc, tsc_hz};
use std::cell::Cell;

macro_rules! hops {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Where a packet, and so a cycle, can be.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Hop { $($(#[$doc])* $name,)* }

        impl Hop {
            /// Every hop, in the order of a packet towards a guest.
            pub const ALL: &[(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

hops! {
    /// The NIC's receive and transmit calls.
    Nic = "nic",
    /// Large receive offload.
    Lro = "lro",
    /// Forwarding decision, offloads done in software.
    Bridge = "bridge",
    /// Packets to slots and back, driver's side.
    Netback = "netback",
    /// Publishing indices and ringing doorbells.
    Ring = "ring",
    /// Making granted pages usable and giving them up again.
    Grant = "grant",
    /// Moving bytes between domains.
    Copy = "copy",
    /// Packets to slots and back, guest's side.
    Netfront = "netfront",
    /// What stands behind a netfront.
    Endpoint = "endpoint",
    /// Looking for work and finding none; falling asleep and waking up.
    Idle = "idle",
    /// Everything else that the domain does: connecting, answering the monitor.
    Control = "control",
}

/// How often a second stamps are compared with the CPU clock: so often that the preemptions in
/// between are among the [`LONG`] longest charges.
const CHECKPOINTS_PER_S: u64 = 500;
/// Longest charges that a stretch remembers.
const LONG: usize = 16;
/// Charges per second that are worth remembering: those above 10 µs.
const LONG_PER_S: u64 = 100_000;
/// A new sleep moves what sleeps are taken to cost by this part, as a shift.
const LEARN: u32 = 3;
const HOPS: usize = Hop::ALL.len();
/// Where the cycles of turns are that were not stamped, until they are shared out.
const WHOLE: usize = HOPS;
/// At least one turn of so many is stamped.
const EVERY_MAX: u32 = 8;
/// Stamps may take this part of the time, before fewer turns are stamped; and more are from this part of that on.
const DEAR: u64 = 32;
const CHEAP: u64 = 4;

/// The account of one thread.
#[derive(Debug)]
pub struct Ledger {
    enabled: bool,
    hz: u64,
    cycles: [Cell<u64>; HOPS + 1],
    /// How the cycles of stamped turns were shared out lately.
    shares: [Cell<u64>; HOPS],
    /// Whether this turn is stamped.
    stamped: Cell<bool>,
    /// One of so many turns is, a power of two.
    every: Cell<u32>,
    lot: Cell<u32>,
    /// Cycles that a stamp takes.
    price: u64,
    current: Cell<Hop>,
    last: Cell<u64>,
    stretch: Cell<Stretch>,
    /// The longest charges of this stretch, cycles and hop, in no order.
    long: [Cell<(u64, usize)>; LONG],
    /// Cycles of CPU that a sleep takes by itself.
    sleep_cost: Cell<u64>,
    corrected: Cell<u64>,
    stamps: Cell<u64>,
    clock_reads: Cell<u64>,
    turns: Cell<u64>,
}

/// What is known about the time since the CPU clock was last read.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    from_tsc: u64,
    from_cpu_ns: u64,
    from_stamps: u64,
    /// Cycles between the stamps about its sleeps.
    asleep: u64,
    sleeps: u64,
}

/// Nanoseconds of CPU that this thread has used.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

impl Ledger {
    /// An open account. One that is not `enabled` stamps nothing and reports CPU time alone.
    #[must_use]
    pub fn new(enabled: bool) -> Self {
        let ledger = Self {
            enabled,
            hz: tsc_hz(),
            cycles: [const { Cell::new(0) }; HOPS + 1],
            shares: [const { Cell::new(0) }; HOPS],
            stamped: Cell::new(enabled),
            every: Cell::new(1),
            lot: Cell::new(1),
            price: price(),
            current: Cell::new(Hop::Control),
            last: Cell::new(tsc()),
            stretch: Cell::new(Stretch::default()),
            long: [const { Cell::new((0, 0)) }; LONG],
            sleep_cost: Cell::new(0),
            corrected: Cell::new(0),
            stamps: Cell::new(0),
            clock_reads: Cell::new(0),
            turns: Cell::new(0),
        };
        ledger.begin(thread_cpu_ns());
        ledger
    }

    /// From here on cycles belong to `hop`; which one they belonged to before.
    #[inline]
    pub fn enter(&self, hop: Hop) -> Hop {
        let before = self.current.get();
        // Who goes on where it was needs no stamp.
        if before != hop {
            if self.stamped.get() {
                self.stamp_at(before as usize);
            }
            self.current.set(hop);
        }
        before
    }

    /// Charges the hop where the ledger is with what has passed since the last stamp; all hops, if this
    /// turn is not stamped.
    #[inline]
    fn stamp(&self) {
        if self.enabled {
            self.stamp_at(match self.stamped.get() {
                true => self.current.get() as usize,
                false => WHOLE,
            });
        }
    }

    /// Charges `hop` with what has passed since the last stamp.
    #[inline]
    fn stamp_at(&self, hop: usize) {
        let now = tsc();
        self.charge(hop, now.wrapping_sub(self.last.replace(now)));
    }

    /// Runs `work` at `hop` and returns to where the ledger was.
    #[inline]
    pub fn at<T>(&self, hop: Hop, work: impl FnOnce() -> T) -> T {
        let before = self.enter(hop);
        let result = work();
        self.enter(before);
        result
    }

    /// A turn of the main loop begins.
    #[inline]
    pub fn turn(&self) {
        self.turns.set(self.turns.get() + 1);
        if self.every.get() > 1 || self.stamped.get() != self.enabled {
            self.draw();
        }
    }

    /// Draws whether this turn is stamped.
    fn draw(&self) {
        // Marsaglia's xorshift: whatever a machine does every so many turns is met as often as it is there.
        let mut lot = self.lot.get();
        lot ^= lot << 13;
        lot ^= lot >> 17;
        lot ^= lot << 5;
        self.lot.set(lot);
        let stamped = self.enabled && lot & (self.every.get() - 1) == 0;
        if stamped != self.stamped.get() {
            self.stamp();
            self.stamped.set(stamped);
        }
    }

    /// Runs `sleep`, which may give up the CPU for any time: only the CPU time that it used
    /// itself is charged, to [`Hop::Idle`].
    pub fn sleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        let before = self.enter(Hop::Idle);
        // Also where it was idle before: the time asleep begins here.
        self.stamp();
        let result = if !self.enabled {
            sleep()
        } else if self.is_due() || self.sleep_cost.get() == 0 {
            let (result, cycles) = self.alone(sleep);
            self.learn(cycles);
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

    /// Runs a hypercall, during which the monitor works and this thread may sleep: only the CPU
    /// time that it used itself is charged, to the hop of the caller.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        if !self.enabled {
            return call();
        }
        self.stamp();
        self.alone(call).0
    }

    /// Closes the stretch if it has lasted long: under constant load a thread never sleeps.
    pub fn checkpoint(&self) {
        if self.enabled && self.is_due() {
            self.stamp();
            self.adapt();
            let now = self.settle();
            self.begin(now);
        }
    }

    /// Has fewer turns stamped if stamps have become dear, more if they have become cheap.
    fn adapt(&self) {
        let stretch = self.stretch.get();
        let awake = self.last.get().wrapping_sub(stretch.from_tsc);
        let awake = awake.saturating_sub(stretch.asleep);
        let stamps = self.stamps.get() - stretch.from_stamps;
        let parts = stamps.saturating_mul(self.price).saturating_mul(DEAR);
        let every = self.every.get();
        if parts > awake {
            self.every.set(EVERY_MAX.min(every * 2));
        } else if parts < awake / CHEAP {
            self.every.set(1.max(every / 2));
        }
        // What was long ago counts less and less.
        for share in &self.shares {
            share.set(share.get() / 2);
        }
    }

    fn is_due(&self) -> bool {
        let age = self.last.get().wrapping_sub(self.stretch.get().from_tsc);
        age > self.hz / CHECKPOINTS_PER_S
    }

    /// Runs what may give up the CPU between two readings of the CPU clock; the cycles that it
    /// used, which are charged to the hop where the ledger is.
    fn alone<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.settle();
        let result = work();
        let after = self.cpu_clock();
        let cycles = self.to_cycles(after.saturating_sub(before));
        self.cycles(self.current.get() as usize, cycles);
        self.begin(after);
        (result, cycles)
    }

    /// Moves what a sleep is taken to cost towards what one has cost.
    fn learn(&self, cycles: u64) {
        let known = self.sleep_cost.get();
        let next = match known {
            0 => cycles,
            _ => known - (known >> LEARN) + (cycles >> LEARN),
        };
        self.sleep_cost.set(next.max(1));
    }

    /// The account as JSON: cycles by hop, and what they are to be closed against.
    #[must_use]
    pub fn report(&self) -> Value {
        self.stamp();
        let cpu_ns = self.settle();
        self.begin(cpu_ns);
        let cost = Cost::measure();
        let hops: serde_json::Map<String, Value> = Hop::ALL
            .iter()
            .map(|&(hop, name)| {
                let cycles = self.cycles.get(hop as usize).map_or(0, Cell::get);
                (name.to_owned(), json!({ "cycles": cycles }))
            })
            .collect();
        json!({
            "enabled": self.enabled,
            "hops": hops,
            "cpu_ns": cpu_ns,
            "tsc_hz": self.hz,
            "corrected_cycles": self.corrected.get(),
            "stamps": self.stamps.get(),
            "clock_reads": self.clock_reads.get(),
            "turns": self.turns.get(),
            "cost_ns": { "stamp": cost.stamp_ns, "clock_read": cost.clock_ns },
        })
    }

    /// A stretch begins with the CPU clock at `from_cpu_ns`, which was read just now.
    fn begin(&self, from_cpu_ns: u64) {
        let from_tsc = tsc();
        self.last.set(from_tsc);
        self.stretch.set(Stretch {
            from_tsc,
            from_cpu_ns,
            from_stamps: self.stamps.get(),
            ..Stretch::default()
        });
        self.long.iter().for_each(|long| long.set((0, 0)));
    }

    /// Takes out of the stretch that ends now what the CPU clock does not confirm, and charges what
    /// its sleeps used; the CPU clock.
    fn settle(&self) -> u64 {
        let cpu_ns = self.cpu_clock();
        let stretch = self.stretch.get();
        let wall = self.last.get().wrapping_sub(stretch.from_tsc);
        let awake = wall.saturating_sub(stretch.asleep);
        let used = self.to_cycles(cpu_ns.saturating_sub(stretch.from_cpu_ns));
        let asleep = stretch.sleeps.saturating_mul(self.sleep_cost.get());
        let taken = self.correct(awake.saturating_add(asleep).saturating_sub(used));
        self.share_out();
        if stretch.sleeps > 0 {
            let rest = used.saturating_sub(awake.saturating_sub(taken));
            self.cycles(Hop::Idle as usize, rest);
        }
        cpu_ns
    }

    /// Takes `excess` cycles out of the longest charges; how many there were to take.
    fn correct(&self, excess: u64) -> u64 {
        if excess == 0 {
            return 0;
        }
        let mut long = self.long.each_ref().map(Cell::get);
        long.sort_unstable_by_key(|charge| std::cmp::Reverse(charge.0));
        let mut left = excess;
        for (cycles, hop) in long {
            let part = left.min(cycles);
            left -= part;
            for account in [&self.cycles[..], &self.shares] {
                if let Some(cell) = account.get(hop) {
                    cell.set(cell.get().saturating_sub(part));
                }
            }
        }
        let taken = excess - left;
        self.corrected.set(self.corrected.get() + taken);
        taken
    }

    /// Charges hops with the turns that were not stamped, as those that were.
    fn share_out(&self) {
        let whole = self.cycles.get(WHOLE).map_or(0, Cell::take);
        if whole == 0 {
            return;
        }
        let all: u64 = self.shares.iter().map(Cell::get).sum();
        let mut left = whole;
        for (hop, share) in self.shares.iter().enumerate() {
            let part = u128::from(whole) * u128::from(share.get()) / u128::from(all.max(1));
            left = left.saturating_sub(part as u64);
            self.cycles(hop, part as u64);
        }
        // What division leaves.
        self.cycles(self.current.get() as usize, left);
    }

    /// [`thread_cpu_ns`], counted: it costs many times what a stamp does.
    fn cpu_clock(&self) -> u64 {
        self.clock_reads.set(self.clock_reads.get() + 1);
        thread_cpu_ns()
    }

    fn charge(&self, hop: usize, cycles: u64) {
        self.cycles(hop, cycles);
        if let Some(share) = self.shares.get(hop) {
            share.set(share.get().wrapping_add(cycles));
        }
        self.stamps.set(self.stamps.get() + 1);
        if cycles > self.hz / LONG_PER_S {
            self.remember(hop, cycles);
        }
    }

    /// Keeps a charge if it is among the longest of this stretch.
    #[cold]
    fn remember(&self, hop: usize, cycles: u64) {
        let shortest = self.long.iter().min_by_key(|long| long.get().0);
        if let Some(shortest) = shortest.filter(|long| long.get().0 < cycles) {
            shortest.set((cycles, hop));
        }
    }

    fn cycles(&self, hop: usize, cycles: u64) {
        if let Some(cell) = self.cycles.get(hop) {
            cell.set(cell.get().wrapping_add(cycles));
        }
    }

    fn median_ns(&self, times: u32, work: impl Fn(u32)) -> f64 {
        median_cycles(times, work) * 1e9 / self.hz as f64
    }

    fn to_cycles(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.hz) / 1_000_000_000) as u64
    }
}

/// Cycles that `work` takes, of several runs of so many times the middle one.
fn median_cycles(times: u32, work: impl Fn(u32)) -> f64 {
    let mut runs = [0u64; 5];
    for run in &mut runs {
        let from = tsc();
        (0..times).for_each(&work);
        *run = tsc().wrapping_sub(from);
    }
    runs.sort_unstable();
    let [_, _, median, ..] = runs;
    median as f64 / f64::from(times)
}

/// Cycles that reading the time stamp counter takes, which is most of a stamp.
fn price() -> u64 {
    const READS: u32 = 8;
    let cycles = median_cycles(READS, |_| {
        std::hint::black_box(tsc());
    });
    (cycles as u64).max(1)
}

/// What the account itself costs on this machine, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    stamp_ns: f64,
    clock_ns: f64,
}

impl Cost {
    /// Of several short runs the middle one: some tens of microseconds in all.
    fn measure() -> Self {
        const STAMPS: u32 = 256;
        const READS: u32 = 8;
        let ledger = Ledger::new(true);
        Self {
            stamp_ns: ledger.median_ns(STAMPS, |n| {
                let hop = if n % 2 == 0 { Hop::Nic } else { Hop::Bridge };
                ledger.enter(std::hint::black_box(hop));
            }),
            clock_ns: ledger.median_ns(READS, |_| {
                std::hint::black_box(ledger.cpu_clock());
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burn(cycles: u64) {
        let from = tsc();
        while tsc().wrapping_sub(from) < cycles {
            std::hint::spin_loop();
        }
    }

    fn cycles(report: &Value, hop: &str) -> u64 {
        report["hops"][hop]["cycles"].as_u64().expect("a number")
    }

    #[test]
    fn cycles_go_to_the_hop_that_was_left() {
        let ledger = Ledger::new(true);
        ledger.enter(Hop::Bridge);
        ledger.at(Hop::Copy, || burn(3_000_000));
        burn(1_000_000);
        let report = ledger.report();
        assert!(cycles(&report, "copy") >= 2_000_000, "{report}");
        assert!(cycles(&report, "bridge") >= 500_000, "{report}");
        assert!(cycles(&report, "nic") == 0, "{report}");
    }

    #[test]
    fn sleep_is_not_charged() {
        let ledger = Ledger::new(true);
        ledger.sleep(|| std::thread::sleep(std::time::Duration::from_millis(50)));
        let report = ledger.report();
        assert!(cycles(&report, "idle") < ledger.hz / 100, "{report}");
        // Twice for the sleep, once for the report.
        assert_eq!(report["clock_reads"], 3, "{report}");
    }

    #[test]
    fn many_short_sleeps_need_few_looks_at_the_clock() {
        const SLEEPS: u64 = 2000;
        let ledger = Ledger::new(true);
        for _ in 0..SLEEPS {
            ledger.sleep(|| std::hint::black_box(()));
        }
        let report = ledger.report();
        let reads = report["clock_reads"].as_u64().expect("a number");
        assert!(reads < SLEEPS, "{report}");
    }

    #[test]
    fn preemption_is_told_from_sleep_in_the_same_stretch() {
        let long = || {
            let from = tsc();
            std::thread::sleep(std::time::Duration::from_millis(30));
            tsc().wrapping_sub(from)
        };
        let ledger = Ledger::new(true);
        // What a sleep costs is known from here on, and the stretch is a new one.
        ledger.sleep(|| ());
        ledger.enter(Hop::Copy);
        let asleep = ledger.sleep(long);
        // Stands for a preemption: the thread does not run, and the ledger is not told.
        let away = long();
        let report = ledger.report();
        assert!(cycles(&report, "copy") < ledger.hz / 100, "{report}");
        assert!(cycles(&report, "idle") < ledger.hz / 100, "{report}");
        let corrected = report["corrected_cycles"].as_u64().expect("a number");
        let expected = away / 2..away + asleep / 2;
        assert!(expected.contains(&corrected), "{expected:?} {report}");
    }

    #[test]
    fn where_stamps_are_dear_few_turns_are_stamped_and_the_others_shared_out() {
        const HOPS: u64 = 12;
        let ledger = Ledger::new(true);
        let end = ledger.last.get() + ledger.hz / 10;
        while ledger.last.get() < end {
            ledger.turn();
            for _ in 0..HOPS / 2 {
                ledger.at(Hop::Bridge, || burn(50));
                ledger.at(Hop::Copy, || burn(400));
            }
            ledger.checkpoint();
        }
        let report = ledger.report();
        let number = |key: &str| report[key].as_u64().expect("a number");
        let stamps = number("stamps");
        assert!(stamps < number("turns") * HOPS, "half of all: {report}");
        let (bridge, copy) = (cycles(&report, "bridge"), cycles(&report, "copy"));
        assert!(bridge > 0 && copy > 2 * bridge, "{report}");
        // Nothing is lost in the sharing.
        let hops = report["hops"].as_object().expect("hops");
        let charged: u64 = hops.values().filter_map(|hop| hop["cycles"].as_u64()).sum();
        let used = ledger.to_cycles(number("cpu_ns"));
        assert!(charged.abs_diff(used) < used / 4, "{used} {report}");
        // Dear no more.
        for _ in 0..64 {
            ledger.turn();
            ledger.at(Hop::Copy, || burn(ledger.hz / 1000));
            ledger.checkpoint();
        }
        assert_eq!((ledger.every.get(), ledger.stamped.get()), (1, true));
    }

    #[test]
    fn its_own_price_is_told() {
        let report = Ledger::new(true).report();
        for part in ["stamp", "clock_read"] {
            let ns = report["cost_ns"][part].as_f64().expect("a number");
            assert!(ns > 0.5, "{report}");
        }
    }

    #[test]
    fn time_without_the_cpu_is_taken_from_the_longest_hop() {
        let ledger = Ledger::new(true);
        ledger.enter(Hop::Nic);
        burn(100_000);
        ledger.enter(Hop::Copy);
        // Stands for a preemption: the thread does not run, and the ledger is not told.
        std::thread::sleep(std::time::Duration::from_millis(30));
        ledger.enter(Hop::Nic);
        let report = ledger.report();
        assert!(cycles(&report, "copy") < ledger.hz / 100, "{report}");
        assert!(report["corrected_cycles"].as_u64().expect("a number") > ledger.hz / 50);
    }

    #[test]
    fn the_account_closes_against_the_cpu_clock() {
        let before = thread_cpu_ns();
        let ledger = Ledger::new(true);
        for _ in 0..200 {
            ledger.at(Hop::Bridge, || burn(20_000));
            ledger.sleep(|| std::thread::sleep(std::time::Duration::from_micros(100)));
        }
        let report = ledger.report();
        let sum: u64 = Hop::ALL
            .iter()
            .map(|&(_, name)| cycles(&report, name))
            .sum();
        let cpu = report["cpu_ns"].as_u64().expect("a number") - before;
        let closure = sum as f64 / (cpu as f64 * ledger.hz as f64 / 1e9);
        assert!((0.8..1.2).contains(&closure), "{closure} {report}");
    }
}
