//! Interrupt moderation: when a NIC is polled for the frames that it has received.
//!
//! The names are the thesis's and the drivers': a NIC that moderates holds its interrupt back so
//! that one serves many frames. Here the "interrupt" is the moment at which a poll begins, and the
//! policy is decided beside the NIC, so that every NIC has it.

/// When to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All the time; never sleep.
    Spin,
    /// At most once in this time, and only if something has arrived.
    Tick {
        /// Microseconds from one look to the next.
        us: u32,
    },
    /// As soon as the device says that something has arrived.
    #[default]
    Event,
}

/// What to wait for before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// For nothing: look again at once.
    Now,
    /// For this moment; until then the device's descriptor is to be ignored.
    At(u64),
    /// For the device's descriptor, or for this moment if there is one.
    Event(Option<u64>),
}

/// The state of one NIC's (or queue's) moderation. Times are monotonic nanoseconds.
#[derive(Clone, Debug)]
pub struct Moderator {
    policy: Policy,
    /// No look before this.
    not_before_ns: u64,
    /// The last look used its whole budget: there is more, and waiting would only add delay.
    backlog: bool,
}

impl Moderator {
    /// A NIC that was never looked at.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            not_before_ns: 0,
            backlog: false,
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Changes the policy, from the next look on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.not_before_ns = 0;
    }

    /// Whether it is time to look.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> bool {
        self.backlog || now_ns >= self.not_before_ns
    }

    /// A look has taken `taken` frames of the `budget` that it was given.
    pub fn looked(&mut self, now_ns: u64, taken: usize, budget: usize) {
        // A look that continues a backlog belongs to the tick that began it. One that found nothing
        // (another device was the reason for it) was no interrupt: the next frame need not wait.
        if let Policy::Tick { us } = self.policy
            && taken > 0
            && now_ns >= self.not_before_ns
        {
            self.not_before_ns = now_ns.saturating_add(u64::from(us) * 1000);
        }
        self.backlog = budget > 0 && taken >= budget;
    }

    /// There is more than the last look has taken.
    pub fn has_more(&mut self) {
        self.backlog = true;
    }

    /// What to wait for; `device_due_ns` is [`crate::Nic::next_due`].
    #[must_use]
    pub fn wake(&self, now_ns: u64, device_due_ns: Option<u64>) -> Wake {
        if self.policy == Policy::Spin || self.backlog {
            return Wake::Now;
        }
        if now_ns < self.not_before_ns {
            return Wake::At(self.not_before_ns);
        }
        match device_due_ns {
            Some(due) if due <= now_ns => Wake::Now,
            due => Wake::Event(due),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Policy = Policy::Tick { us: 50 };

    #[test]
    fn spin_is_always_due_and_never_waits() {
        let mut m = Moderator::new(Policy::Spin);
        assert!(m.due(0));
        m.looked(0, 0, 64);
        assert!(m.due(0));
        assert_eq!(m.wake(0, None), Wake::Now);
    }

    #[test]
    fn event_waits_for_the_descriptor_or_the_device_s_own_time() {
        let mut m = Moderator::new(Policy::Event);
        m.looked(100, 3, 64);
        assert!(m.due(100));
        assert_eq!(m.wake(100, None), Wake::Event(None));
        assert_eq!(m.wake(100, Some(101)), Wake::Event(Some(101)));
        assert_eq!(m.wake(100, Some(100)), Wake::Now);
    }

    #[test]
    fn tick_holds_back_for_its_time_and_then_waits_for_an_event() {
        let mut m = Moderator::new(TICK);
        assert!(m.due(1_000));
        m.looked(1_000, 3, 64);
        assert!(!m.due(50_999));
        assert_eq!(m.wake(50_999, Some(0)), Wake::At(51_000));
        assert!(m.due(51_000));
        assert_eq!(m.wake(51_000, None), Wake::Event(None));
    }

    #[test]
    fn a_backlog_is_worked_off_within_its_tick() {
        let mut m = Moderator::new(TICK);
        m.looked(1_000, 64, 64);
        assert!(m.due(1_001));
        assert_eq!(m.wake(1_001, None), Wake::Now);
        m.looked(2_000, 10, 64);
        assert!(!m.due(50_999));
        assert!(m.due(51_000));
    }

    #[test]
    fn a_budget_of_nothing_is_no_backlog() {
        let mut m = Moderator::new(TICK);
        m.looked(0, 0, 0);
        assert_eq!(m.wake(0, None), Wake::Event(None));
    }

    #[test]
    fn a_look_that_found_nothing_holds_nothing_back() {
        let mut m = Moderator::new(TICK);
        m.looked(1_000, 0, 64);
        assert!(m.due(1_001));
        assert_eq!(m.wake(1_001, None), Wake::Event(None));
        m.looked(2_000, 1, 64);
        assert!(!m.due(51_999));
    }

    #[test]
    fn a_new_policy_forgets_the_old_one_s_wait() {
        let mut m = Moderator::new(TICK);
        m.looked(0, 1, 64);
        m.set_policy(Policy::Event);
        assert_eq!(m.policy(), Policy::Event);
        assert!(m.due(0));
        assert_eq!(m.wake(0, None), Wake::Event(None));
    }
}
