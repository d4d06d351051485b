//! What to do when there was nothing to do: look again, or sleep.
//!
//! Two stages (a wake-up from another core costs its sender tens of microseconds in a VM): look for
//! work again for a while; then arm the doorbells and sleep. Where a peer runs on this domain's own
//! core the first stage has length 0: spinning would keep it from working. Where others may want to
//! run there that are no peers, the CPU is offered to them between two looks: that is dearer than a
//! look, and far cheaper than to sleep and be woken.
//!
//! Where nothing says which CPU is whose, the length is learnt from the pauses themselves
//! (`Habit`).

use crate::habit::Habit;

/// Frames taken from one side before another has its turn: a NIC's burst, and what a guest of
/// weight 1 may send in its turn. Few enough that the headers of a batch stay in the cache.
pub const POLL_BUDGET: usize = 64;

/// The policy, and where it stands.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    spin_ns: u64,
    /// Whether the CPU is offered to others after each look that found nothing.
    yields: bool,
    /// What the length of the first stage follows from, if it is not fixed.
    habit: Option<Habit>,
    since_ns: Option<u64>,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again at once.
    Again,
    /// Look again when others that want the CPU have had it.
    Yield,
    /// Sleep until somebody rings.
    Sleep,
}

impl Idle {
    /// `spin_us` of looking, then sleep.
    #[must_use]
    pub fn new(spin_us: u32) -> Self {
        Self {
            spin_ns: u64::from(spin_us) * 1000,
            yields: false,
            habit: None,
            since_ns: None,
        }
    }

    /// The same, but the CPU is offered to others between two looks if it `yields`.
    #[must_use]
    pub fn yielding(self, yields: bool) -> Self {
        Self { yields, ..self }
    }

    /// The same, but if it `adapts` it looks as long as has been worth it of late, and never longer
    /// than it was told.
    #[must_use]
    pub fn adapting(self, adapts: bool) -> Self {
        match adapts {
            true => Self {
                spin_ns: 0,
                habit: Some(Habit::new(self.spin_ns)),
                ..self
            },
            false => self,
        }
    }

    /// A turn is over that began at `now_ns`; did it find work?
    pub fn step(&mut self, worked: bool, now_ns: u64) -> Step {
        if let Some(habit) = &mut self.habit {
            habit.look(now_ns);
            if worked && let Some(since) = self.since_ns {
                habit.pause(now_ns.saturating_sub(since));
            }
            self.spin_ns = habit.window_ns();
        }
        if worked {
            self.since_ns = None;
            // A sleep on devices ends at once if there is more. Looking again first would keep
            // the peer on the same CPU waiting.
            return if self.spin_ns == 0 {
                Step::Sleep
            } else {
                Step::Again
            };
        }
        let since = *self.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) < self.spin_ns {
            return match self.yields {
                true => {
                    if let Some(habit) = &mut self.habit {
                        habit.offers(now_ns);
                    }
                    Step::Yield
                }
                false => Step::Again,
            };
        }
        Step::Sleep
    }

    /// Sleep begins: what happens until the next turn that finds work is a pause. `now` is asked
    /// for the time only if that is of interest.
    pub fn sleeps(&mut self, now: impl FnOnce() -> u64) {
        if self.habit.is_some() && self.since_ns.is_none() {
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
        assert_eq!(idle.step(true, 0), Step::Again);
        assert_eq!(idle.step(false, 1_000), Step::Again);
        assert_eq!(idle.step(false, 10_999), Step::Again);
        assert_eq!(idle.step(false, 11_000), Step::Sleep);
        assert_eq!(idle.step(false, 200_000), Step::Sleep);
    }

    #[test]
    fn work_starts_it_over() {
        let mut idle = Idle::new(10);
        idle.step(false, 0);
        idle.step(false, 10_000);
        idle.step(true, 20_000);
        assert_eq!(idle.step(false, 20_001), Step::Again);
    }

    #[test]
    fn who_shares_a_core_offers_it_after_every_look_that_found_nothing() {
        let mut idle = Idle::new(10).yielding(true);
        assert_eq!(idle.step(true, 0), Step::Again);
        assert_eq!(idle.step(false, 1_000), Step::Yield);
        assert_eq!(idle.step(true, 2_000), Step::Again);
        assert_eq!(idle.step(false, 3_000), Step::Yield);
        assert_eq!(idle.step(false, 13_000), Step::Sleep);
    }

    #[test]
    fn on_a_peers_core_it_sleeps_at_once() {
        assert_eq!(Idle::new(0).step(false, 7), Step::Sleep);
        assert_eq!(Idle::new(0).step(true, 8), Step::Sleep);
    }

    /// A domain that adapts, on a CPU of which a look takes 1 µs, another's share `away_ns`, and a
    /// wake-up nothing: how it spends `pauses` of `pause_ns`, as (looks, sleeps).
    fn spend(idle: &mut Idle, now: &mut u64, pauses: u32, pause_ns: u64, away_ns: u64) -> [u64; 2] {
        let mut counts = [0; 2];
        for _ in 0..pauses {
            let mut step = idle.step(true, *now);
            *now += 1_000;
            let next = *now + pause_ns;
            while *now < next {
                match step {
                    Step::Sleep => {
                        idle.sleeps(|| *now);
                        counts[1] += 1;
                        *now = next;
                        break;
                    }
                    Step::Again => {}
                    Step::Yield => *now += away_ns,
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
        assert_eq!(looks, 0, "nothing is tried of which nothing is to be hoped");
        spend(&mut idle, &mut now, 200, 5_000, 0);
        let [_, sleeps] = spend(&mut idle, &mut now, 1000, 5_000, 0);
        assert_eq!(sleeps, 0, "it changes its habit again");
    }

    /// A pause just longer than the longest spin: looks that find nothing are few.
    #[test]
    fn what_was_not_worth_it_is_tried_more_and_more_rarely() {
        let (mut idle, mut now) = (adapting(), 0);
        spend(&mut idle, &mut now, 2_000, 70_000, 0);
        let [looks, sleeps] = spend(&mut idle, &mut now, 10_000, 70_000, 0);
        assert_eq!(sleeps, 10_000);
        assert!(looks > 0, "it is tried");
        assert!(looks < 3_000, "{looks}: 3 µs of 1 000, at the most");
    }

    /// Somebody else computes on the CPU: each offer takes a time slice, and a domain that sleeps
    /// is back earlier than one that has offered the CPU.
    #[test]
    fn a_cpu_that_others_want_is_left_to_them() {
        let (mut idle, mut now) = (adapting(), 0);
        spend(&mut idle, &mut now, 1000, 5_000, 0);
        spend(&mut idle, &mut now, 1000, 5_000, 3_000_000);
        let [looks, sleeps] = spend(&mut idle, &mut now, 10_000, 5_000, 3_000_000);
        assert!(looks < 100, "{looks}");
        assert!(sleeps > 9_900, "{sleeps}");
    }

    /// It is wanted now and then only: the spins between that pay make up for none of it.
    #[test]
    fn a_cpu_that_others_want_at_times_is_left_to_them() {
        let (mut idle, mut now) = (adapting(), 0);
        let mut offers = 0u32;
        let mut waits = 0;
        for _ in 0..50_000 {
            let mut step = idle.step(true, now);
            now += 1_000;
            let next = now + 5_000;
            while now < next {
                match step {
                    Step::Sleep => {
                        idle.sleeps(|| now);
                        now = next;
                        break;
                    }
                    Step::Again => {}
                    Step::Yield => {
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
    fn who_does_not_adapt_asks_for_no_time() {
        let mut idle = Idle::new(10);
        idle.sleeps(|| panic!("it is asked"));
        assert_eq!(idle.step(true, 0), Step::Again);
    }
}
