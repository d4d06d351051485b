//! Idle policy: decides whether an idle domain polls again or sleeps.
//!
//! In the first stage an idle domain polls for work. In the second stage it arms the doorbells and
//! sleeps. It polls first, because in a VM a wake-up from another core costs the sender tens of
//! microseconds. If a peer runs on this domain's core, the first stage has length 0, because
//! spinning would prevent the peer from working. If other tasks may run on the core, the domain
//! offers them the CPU between two polls. This costs more than a poll and much less than a sleep
//! and a wake-up.
//!
//! If CPUs are not assigned, the domain learns the length of the first stage from its pauses
//! (`AdaptivePolling`).

use crate::adaptive_polling::AdaptivePolling;

/// Maximum number of frames to take from one side per turn: the burst of a NIC, and the share of a
/// guest of weight 1. It is low enough that the headers of a batch stay in the cache.
pub const POLL_BUDGET: usize = 64;

/// The idle policy and its state.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    spin_ns: u64,
    /// Whether the domain offers the CPU to other tasks after each unsuccessful poll.
    yields: bool,
    /// Determines the length of the first stage, if it is not fixed.
    adaptive: Option<AdaptivePolling>,
    since_ns: Option<u64>,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleStep {
    /// Poll again immediately.
    Again,
    /// Poll again after offering the CPU to other tasks.
    Yield,
    /// Sleep until a doorbell rings.
    Sleep,
}

impl Idle {
    /// Creates the policy that polls for `spin_us` microseconds before a sleep.
    #[must_use]
    pub fn new(spin_us: u32) -> Self {
        Self {
            spin_ns: u64::from(spin_us) * 1000,
            yields: false,
            adaptive: None,
            since_ns: None,
        }
    }

    /// Sets whether the domain offers the CPU to other tasks between two polls.
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

    /// Returns the next step after a turn that began at `now_ns`. `worked` states whether the turn
    /// found work.
    pub fn step(&mut self, worked: bool, now_ns: u64) -> IdleStep {
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.turn_began(now_ns);
            if worked && let Some(since) = self.since_ns {
                adaptive.record_pause(now_ns.saturating_sub(since));
            }
            self.spin_ns = adaptive.window_ns();
        }
        if worked {
            self.since_ns = None;
            // A sleep returns immediately if a device has more work. Polling first would delay a
            // peer on the same CPU.
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
                        adaptive.record_yield(now_ns);
                    }
                    IdleStep::Yield
                }
                false => IdleStep::Again,
            };
        }
        IdleStep::Sleep
    }

    /// Records that a sleep begins. The time until the next turn with work counts as a pause. Calls
    /// `now` only if needed.
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
    fn polling_precedes_sleep() {
        let mut idle = Idle::new(10);
        assert_eq!(idle.step(true, 0), IdleStep::Again);
        assert_eq!(idle.step(false, 1_000), IdleStep::Again);
        assert_eq!(idle.step(false, 10_999), IdleStep::Again);
        assert_eq!(idle.step(false, 11_000), IdleStep::Sleep);
        assert_eq!(idle.step(false, 200_000), IdleStep::Sleep);
    }

    #[test]
    fn work_restarts_polling() {
        let mut idle = Idle::new(10);
        idle.step(false, 0);
        idle.step(false, 10_000);
        idle.step(true, 20_000);
        assert_eq!(idle.step(false, 20_001), IdleStep::Again);
    }

    #[test]
    fn shared_core_is_offered_after_each_poll() {
        let mut idle = Idle::new(10).yielding(true);
        assert_eq!(idle.step(true, 0), IdleStep::Again);
        assert_eq!(idle.step(false, 1_000), IdleStep::Yield);
        assert_eq!(idle.step(true, 2_000), IdleStep::Again);
        assert_eq!(idle.step(false, 3_000), IdleStep::Yield);
        assert_eq!(idle.step(false, 13_000), IdleStep::Sleep);
    }

    #[test]
    fn a_domain_on_a_peers_core_sleeps_immediately() {
        assert_eq!(Idle::new(0).step(false, 7), IdleStep::Sleep);
        assert_eq!(Idle::new(0).step(true, 8), IdleStep::Sleep);
    }

    /// Simulates `pauses` pauses of `pause_ns` in a domain with adaptive polling. A poll takes 1
    /// µs, another task keeps an offered CPU for `away_ns`, and a wake-up takes no time. Returns
    /// the numbers of polls and sleeps.
    fn simulate(
        idle: &mut Idle,
        now: &mut u64,
        pauses: u32,
        pause_ns: u64,
        away_ns: u64,
    ) -> [u64; 2] {
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
    fn the_domain_spins_through_short_pauses() {
        let (mut idle, mut now) = (adapting(), 0);
        simulate(&mut idle, &mut now, 200, 5_000, 0);
        let [polls, sleeps] = simulate(&mut idle, &mut now, 1000, 5_000, 0);
        assert_eq!(sleeps, 0);
        assert!(polls >= 4_000, "{polls}");
    }

    #[test]
    fn the_domain_sleeps_through_long_pauses() {
        let (mut idle, mut now) = (adapting(), 0);
        simulate(&mut idle, &mut now, 1000, 5_000, 0);
        simulate(&mut idle, &mut now, 200, 1_000_000, 0);
        let [polls, sleeps] = simulate(&mut idle, &mut now, 1000, 1_000_000, 0);
        assert_eq!(sleeps, 1000);
        assert_eq!(polls, 0, "the domain does not spin in long pauses");
        simulate(&mut idle, &mut now, 200, 5_000, 0);
        let [_, sleeps] = simulate(&mut idle, &mut now, 1000, 5_000, 0);
        assert_eq!(sleeps, 0, "the domain spins again when pauses are short");
    }

    /// If pauses are slightly longer than the longest spin, few polls are unsuccessful.
    #[test]
    fn failed_spins_are_retried_less_and_less() {
        let (mut idle, mut now) = (adapting(), 0);
        simulate(&mut idle, &mut now, 2_000, 70_000, 0);
        let [polls, sleeps] = simulate(&mut idle, &mut now, 10_000, 70_000, 0);
        assert_eq!(sleeps, 10_000);
        assert!(polls > 0, "the domain tries to spin");
        assert!(polls < 3_000, "{polls}: 3 µs of 1 000, at the most");
    }

    /// If another task computes on the CPU, each offer costs a time slice. A sleeping domain then
    /// resumes earlier than a domain that has offered the CPU.
    #[test]
    fn the_domain_sleeps_on_a_contended_cpu() {
        let (mut idle, mut now) = (adapting(), 0);
        simulate(&mut idle, &mut now, 1000, 5_000, 0);
        simulate(&mut idle, &mut now, 1000, 5_000, 3_000_000);
        let [polls, sleeps] = simulate(&mut idle, &mut now, 10_000, 5_000, 3_000_000);
        assert!(polls < 100, "{polls}");
        assert!(sleeps > 9_900, "{sleeps}");
    }

    /// If a task needs the CPU only occasionally, the domain still sleeps, despite successful spins
    /// in between.
    #[test]
    fn it_sleeps_on_an_occasionally_contended_cpu() {
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
