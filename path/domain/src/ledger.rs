//! The hop ledger: where this domain's cycles went.
//!
//! One stamp of the time stamp counter at each change of hop; the cycles since the last stamp are
//! charged to the hop that was left. So every cycle outside of [`Ledger::sleep`] is charged exactly
//! once, system calls included.
//!
//! A difference of stamps also contains time in which another process had the CPU. The thread's
//! own CPU clock is read at both ends of such a stretch: what the stretch has too much was lost
//! to preemption, and since a preemption shows as one long hop, it is taken from the longest ones.
//! How much was corrected is reported, and so is the CPU time itself, so that a reader can close
//! the account.

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

/// How often a second a thread that never sleeps compares its stamps with its CPU clock: so often
/// that there is hardly more than one preemption in between.
const CHECKPOINTS_PER_S: u64 = 2000;
const HOPS: usize = Hop::ALL.len();

/// The account of one thread.
#[derive(Debug)]
pub struct Ledger {
    enabled: bool,
    hz: u64,
    cycles: [Cell<u64>; HOPS],
    current: Cell<Hop>,
    last: Cell<u64>,
    stretch: Cell<Stretch>,
    /// The longest single charge of each hop in this stretch.
    longest: [Cell<u64>; HOPS],
    corrected: Cell<u64>,
    stamps: Cell<u64>,
    turns: Cell<u64>,
}

/// What is known about the time since the thread last woke up.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    from_tsc: u64,
    from_cpu_ns: u64,
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
            cycles: [const { Cell::new(0) }; HOPS],
            current: Cell::new(Hop::Control),
            last: Cell::new(tsc()),
            stretch: Cell::new(Stretch::default()),
            longest: [const { Cell::new(0) }; HOPS],
            corrected: Cell::new(0),
            stamps: Cell::new(0),
            turns: Cell::new(0),
        };
        ledger.begin(thread_cpu_ns());
        ledger
    }

    /// From here on cycles belong to `hop`; which one they belonged to before.
    #[inline]
    pub fn enter(&self, hop: Hop) -> Hop {
        let before = self.current.replace(hop);
        if self.enabled {
            let now = tsc();
            self.charge(before, now.wrapping_sub(self.last.replace(now)));
        }
        before
    }

    /// Runs `work` at `hop` and returns to where the ledger was.
    #[inline]
    pub fn at<T>(&self, hop: Hop, work: impl FnOnce() -> T) -> T {
        let before = self.enter(hop);
        let result = work();
        self.enter(before);
        result
    }

    /// Counts a turn of the main loop.
    pub fn turn(&self) {
        self.turns.set(self.turns.get() + 1);
    }

    /// Runs `sleep`, which may give up the CPU for any time: only the CPU time that it used
    /// itself is charged, to [`Hop::Idle`].
    pub fn sleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        let before = self.enter(Hop::Idle);
        let result = self.call(sleep);
        self.enter(before);
        result
    }

    /// Runs a hypercall, during which the monitor works and this thread may sleep: only the CPU
    /// time that it used itself is charged, to the hop of the caller.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        if !self.enabled {
            return call();
        }
        let hop = self.enter(self.current.get());
        let before = self.settle();
        let result = call();
        let after = thread_cpu_ns();
        self.cycles(hop, self.to_cycles(after.saturating_sub(before)));
        self.begin(after);
        result
    }

    /// Closes the stretch if it has lasted long: under constant load a thread never sleeps.
    pub fn checkpoint(&self) {
        let stretch = self.stretch.get();
        if self.enabled
            && self.last.get().wrapping_sub(stretch.from_tsc) > self.hz / CHECKPOINTS_PER_S
        {
            self.enter(self.current.get());
            let now = self.settle();
            self.begin(now);
        }
    }

    /// The account as JSON: cycles by hop, and what they are to be closed against.
    #[must_use]
    pub fn report(&self) -> Value {
        self.enter(self.current.get());
        let cpu_ns = self.settle();
        self.begin(cpu_ns);
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
            "turns": self.turns.get(),
        })
    }

    /// A stretch begins with the CPU clock at `from_cpu_ns`, which was read just now: the clock is
    /// a system call, and a thread that sleeps often reads it twice per sleep as it is.
    fn begin(&self, from_cpu_ns: u64) {
        let from_tsc = tsc();
        self.last.set(from_tsc);
        self.stretch.set(Stretch {
            from_tsc,
            from_cpu_ns,
        });
        self.longest.iter().for_each(|longest| longest.set(0));
    }

    /// Takes out of the stretch that ends now what the CPU clock does not confirm; the CPU clock.
    fn settle(&self) -> u64 {
        let cpu_ns = thread_cpu_ns();
        let stretch = self.stretch.get();
        let wall = self.last.get().wrapping_sub(stretch.from_tsc);
        let used = self.to_cycles(cpu_ns.saturating_sub(stretch.from_cpu_ns));
        let mut excess = wall.saturating_sub(used);
        let mut longest = self.longest.each_ref().map(Cell::get);
        while excess > 0
            && let Some((hop, most)) = longest.iter_mut().enumerate().max_by_key(|hop| *hop.1)
            && *most > 0
        {
            let part = excess.min(std::mem::take(most));
            excess -= part;
            if let Some(cell) = self.cycles.get(hop) {
                cell.set(cell.get().saturating_sub(part));
            }
            self.corrected.set(self.corrected.get() + part);
        }
        cpu_ns
    }

    fn charge(&self, hop: Hop, cycles: u64) {
        self.cycles(hop, cycles);
        self.stamps.set(self.stamps.get() + 1);
        if let Some(longest) = self.longest.get(hop as usize)
            && cycles > longest.get()
        {
            longest.set(cycles);
        }
    }

    fn cycles(&self, hop: Hop, cycles: u64) {
        if let Some(cell) = self.cycles.get(hop as usize) {
            cell.set(cell.get().wrapping_add(cycles));
        }
    }

    fn to_cycles(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.hz) / 1_000_000_000) as u64
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
