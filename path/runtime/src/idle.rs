//! Idle policy: poll again, or sleep.
//!
//! An idle domain first polls for work for a while, and then arms the doorbells and sleeps, because
//! in a VM a wake-up from another core costs its sender tens of microseconds. If a peer runs on
//! this domain's core, the first stage has length 0, because spinning would keep the peer from
//! working. If other tasks may run there, the domain offers them the CPU between two polls, which
//! costs more than a poll and far less than a sleep and a wake-up.
//!
//! If CPUs are not assigned, the domain learns the length of the first stage from its pauses
//! (`AdaptivePolling`).

use crate::adaptive_polling::AdaptivePolling;

/// Maximum number of frames to take from one side per turn: a NIC's burst, and a turn of a guest of
/// weight 1. Low enough that the headers of a batch stay in the cache.
pub const POLL_BUDGET: usize = 64;

/// The idle policy and its state.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    spin_ns: u64,
    /// Whether the CPU is offered to other tasks after each vain poll.
    yields: bool,
    /// Determines the length of the first stage, if it is not fixed.
    adaptive: Option<AdaptivePolling>,
    since_ns: Option<u64>,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleStep {
    /// Poll again at once.
    Again,
    /// Poll again after offering the CPU to other tasks.
    Yield,
    /// Sleep until a doorbell rings.
    Sleep,
}

impl Idle {
    /// Creates the policy of polling for `spin_us` before a sleep.
    #[must_use]
    pub fn new(spin_us: u32) -> Self {
        Self {
            spin_ns: u64::from(spin_us) * 1000,
            yields: false,
            adaptive: None,
            since_ns: None,
        }
    }

    /// Sets whether the CPU is offered to other tasks between two polls.
    #[must_use]
    pub fn yielding(self, yields: bool) -> Self {
        Self { yields, ..self }
    }

    /// Sets whether the polling time adapts to recent pauses, up to the configured time.
    #[must_use]
    pub fn adapting(self, adapts: bool) -> Self {
        match adapts {
            true => Self {
                spin_ns: 0,
                adaptive: Some(AdaptivePolling::new(self.spin_ns)),
                ..self
            },
            false => self,
        }
    }

    /// Ends a turn that began at `now_ns`, and returns the next step. `worked` states whether the
    /// turn found work.
    pub fn step(&mut self, worked: bool, now_ns: u64) -> IdleStep {
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.turn_began(now_ns);
            if worked && let Some(since) = self.since_ns {
                adaptive.pause(now_ns.saturating_sub(since));
            }
            self.spin_ns = adaptive.window_ns();
        }
        if worked {
            self.since_ns = None;
            // A sleep on devices ends at once if there is more work. Polling first would make a
            // peer on the same CPU wait.
            return if self.spin_ns == 0 {
                IdleStep::Sleep
            } else {
                IdleStep::Again
            };
        }
        let since = *self.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) < self.spin_ns {
            return match self.yields {
                true => {
                    if let Some(adaptive) = &mut self.adaptive {
                        adaptive.offers(now_ns);
                    }
                    IdleStep::Yield
                }
                false => IdleStep::Again,
            };
        }
        IdleStep::Sleep
    }

    /// Records that a sleep begins: the time until the next turn with work is a pause. Calls `now`
    /// only if needed.
    pub fn sleeps(&mut self, now: impl FnOnce() -> u64) {
        if self.adaptive.is_some() && self.since_ns.is_none() {
            self.since_ns = Some(now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_follow_each_other() {
        let mut idle = Idle::new(10);
        assert_eq!(idle.step(true, 0), IdleStep::Again);
        assert_eq!(idle.step(false, 1_000), IdleStep::Again);
        assert_eq!(idle.step(false, 10_999), IdleStep::Again);
        assert_eq!(idle.step(false, 11_000), IdleStep::Sleep);
        assert_eq!(idle.step(false, 200_000), IdleStep::Sleep);
    }

    #[test]
    fn work_starts_it_over() {
        let mut idle = Idle::new(10);
        idle.step(false, 0);
        idle.step(false, 10_000);
        idle.step(true, 20_000);
        assert_eq!(idle.step(false, 20_001), IdleStep::Again);
    }

    #[test]
    fn shared_core_is_offered_after_each_vain_poll() {
        let mut idle = Idle::new(10).yielding(true);
        assert_eq!(idle.step(true, 0), IdleStep::Again);
        assert_eq!(idle.step(false, 1_000), IdleStep::Yield);
        assert_eq!(idle.step(true, 2_000), IdleStep::Again);
        assert_eq!(idle.step(false, 3_000), IdleStep::Yield);
        assert_eq!(idle.step(false, 13_000), IdleStep::Sleep);
    }

    #[test]
    fn on_a_peers_core_it_sleeps_at_once() {
        assert_eq!(Idle::new(0).step(false, 7), IdleStep::Sleep);
        assert_eq!(Idle::new(0).step(true, 8), IdleStep::Sleep);
    }

    /// Simulates a domain with adaptive polling through `pauses` pauses of `pause_ns`. A poll takes
    /// 1 µs, another task's share `away_ns`, and a wake-up no time. Returns the numbers of polls
    /// and sleeps.
    fn spend(idle: &mut Idle, now: &mut u64, pauses: u32, pause_ns: u64, away_ns: u64) -> [u64; 2] {
        let mut counts = [0; 2];
        for _ in 0..pauses {
            let mut step = idle.step(true, *now);
            *now += 1_000;
            let next = *now + pause_ns;
            while *now < next {
                match step {
                    IdleStep::Sleep => {
                        idle.sleeps(|| *now);
                        counts[1] += 1;
                        *now = next;
                        break;
                    }
                    IdleStep::Again => {}
                    IdleStep::Yield => *now += away_ns,
                }
                counts[0] += 1;
                step = idle.step(false, *now);
                *now += 1_000;
            }
        }
        counts
    }

    fn adapting() -> Idle {
        Idle::new(50).yielding(true).adapting(true)
    }

    #[test]
    fn short_pauses_are_spun_through() {
        let (mut idle, mut now) = (adapting(), 0);
        spend(&mut idle, &mut now, 200, 5_000, 0);
        let [looks, sleeps] = spend(&mut idle, &mut now, 1000, 5_000, 0);
        assert_eq!(sleeps, 0);
        assert!(looks >= 4_000, "{looks}");
    }

    #[test]
    fn long_pauses_are_slept_through() {
        let (mut idle, mut now) = (adapting(), 0);
        spend(&mut idle, &mut now, 1000, 5_000, 0);
        spend(&mut idle, &mut now, 200, 1_000_000, 0);
        let [looks, sleeps] = spend(&mut idle, &mut now, 1000, 1_000_000, 0);
        assert_eq!(sleeps, 1000);
        assert_eq!(looks, 0, "spinning is not tried through long pauses");
        spend(&mut idle, &mut now, 200, 5_000, 0);
        let [_, sleeps] = spend(&mut idle, &mut now, 1000, 5_000, 0);
        assert_eq!(sleeps, 0, "it spins again once pauses are short");
    }

    /// If pauses are just longer than the longest spin, vain polls are few.
    #[test]
    fn vain_spins_are_retried_ever_more_rarely() {
        let (mut idle, mut now) = (adapting(), 0);
        spend(&mut idle, &mut now, 2_000, 70_000, 0);
        let [looks, sleeps] = spend(&mut idle, &mut now, 10_000, 70_000, 0);
        assert_eq!(sleeps, 10_000);
        assert!(looks > 0, "spinning is tried");
        assert!(looks < 3_000, "{looks}: 3 µs of 1 000, at the most");
    }

    /// If another task computes on the CPU, each offer costs a time slice, and a sleeping domain
    /// resumes earlier than one that has offered the CPU.
    #[test]
    fn contended_cpu_is_yielded() {
        let (mut idle, mut now) = (adapting(), 0);
        spend(&mut idle, &mut now, 1000, 5_000, 0);
        spend(&mut idle, &mut now, 1000, 5_000, 3_000_000);
        let [looks, sleeps] = spend(&mut idle, &mut now, 10_000, 5_000, 3_000_000);
        assert!(looks < 100, "{looks}");
        assert!(sleeps > 9_900, "{sleeps}");
    }

    /// If a task needs the CPU only occasionally, successful spins in between do not outweigh that.
    #[test]
    fn occasionally_contended_cpu_is_yielded() {
        let (mut idle, mut now) = (adapting(), 0);
        let mut offers = 0u32;
        let mut waits = 0;
        for _ in 0..50_000 {
            let mut step = idle.step(true, now);
            now += 1_000;
            let next = now + 5_000;
            while now < next {
                match step {
                    IdleStep::Sleep => {
                        idle.sleeps(|| now);
                        now = next;
                        break;
                    }
                    IdleStep::Again => {}
                    IdleStep::Yield => {
                        offers += 1;
                        if offers.is_multiple_of(20) {
                            waits += 1;
                            now += 3_000_000;
                        }
                    }
                }
                step = idle.step(false, now);
                now += 1_000;
            }
        }
        assert!(waits > 0 && waits < 15, "{waits} time slices waited for");
    }

    #[test]
    fn fixed_polling_reads_no_clock() {
        let mut idle = Idle::new(10);
        idle.sleeps(|| panic!("the clock was read"));
        assert_eq!(idle.step(true, 0), IdleStep::Again);
    }
}
