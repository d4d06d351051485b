//! What to do when there was nothing to do: look again, or sleep.
//!
//! Two stages (a wake-up from another core costs its sender tens of microseconds in a VM): look for
//! work again for a while; then arm the doorbells and sleep. Where a peer runs on this domain's own
//! core the first stage has length 0: spinning would keep it from working. Where others may want to
//! run there that are no peers, the CPU is offered to them between two looks: that is dearer than a
//! look, and far cheaper than to sleep and be woken.

/// Frames taken from one side before another has its turn: a NIC's burst, and what a guest of
/// weight 1 may send in its turn. Few enough that the headers of a batch stay in the cache.
pub const POLL_BUDGET: usize = 64;

/// The policy, and where it stands.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    spin_ns: u64,
    /// Whether the CPU is offered to others after each look that found nothing.
    yields: bool,
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
            since_ns: None,
        }
    }

    /// The same, but the CPU is offered to others between two looks if it `yields`.
    #[must_use]
    pub fn yielding(self, yields: bool) -> Self {
        Self { yields, ..self }
    }

    /// A turn is over at `now_ns`; did it find work?
    pub fn step(&mut self, worked: bool, now_ns: u64) -> Step {
        if worked {
            self.since_ns = None;
            // Who sleeps on its devices is told at once if there is more; looking again to find
            // out would cost the peer on the same CPU its turn.
            return if self.spin_ns == 0 {
                Step::Sleep
            } else {
                Step::Again
            };
        }
        let since = *self.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) < self.spin_ns {
            return match self.yields {
                true => Step::Yield,
                false => Step::Again,
            };
        }
        Step::Sleep
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
}
