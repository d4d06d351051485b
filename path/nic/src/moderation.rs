//! Interrupt moderation: decides when to poll a NIC for received frames.
//!
//! The names follow the thesis and drivers: a NIC with moderation delays its interrupt so that one
//! interrupt serves many frames. Here the "interrupt" is the start of a poll. The policy is
//! independent of the NIC, so it works for every NIC.

/// Moderation policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModerationPolicy {
    /// Poll continuously; never sleep.
    Spin,
    /// Poll at most once in this time, and only if frames have arrived.
    Tick {
        /// Microseconds between polls.
        us: u32,
    },
    /// Poll as soon as the device signals frames.
    #[default]
    Event,
}

/// Condition for the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// No condition: poll again immediately.
    Now,
    /// Poll at this time, and ignore the device's descriptor until then.
    At(u64),
    /// Poll when the device's descriptor signals frames, at the latest at this time, if any.
    Event(Option<u64>),
}

/// Moderation state of one NIC (or queue). Times are monotonic nanoseconds.
#[derive(Clone, Debug)]
pub struct Moderator {
    policy: ModerationPolicy,
    /// Earliest time of the next poll.
    not_before_ns: u64,
    /// Whether the last poll left frames waiting, for example because it used its whole budget. A
    /// delay would then only add latency.
    backlog: bool,
}

impl Moderator {
    /// Creates the state of a NIC that was never polled.
    #[must_use]
    pub fn new(policy: ModerationPolicy) -> Self {
        Self {
            policy,
            not_before_ns: 0,
            backlog: false,
        }
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> ModerationPolicy {
        self.policy
    }

    /// Changes the policy. The new policy applies to the next poll.
    pub fn set_policy(&mut self, policy: ModerationPolicy) {
        self.policy = policy;
        self.not_before_ns = 0;
    }

    /// Returns whether a poll is due.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> bool {
        self.backlog || now_ns >= self.not_before_ns
    }

    /// Records a poll that received `taken` frames with a budget of `budget`.
    pub fn polled(&mut self, now_ns: u64, taken: usize, budget: usize) {
        // A poll that continues a backlog belongs to the tick that began it. An empty poll, which
        // another device caused, does not count as an interrupt, so the next frame need not wait.
        if let ModerationPolicy::Tick { us } = self.policy
            && taken > 0
            && now_ns >= self.not_before_ns
        {
            self.not_before_ns = now_ns.saturating_add(u64::from(us) * 1000);
        }
        self.backlog = budget > 0 && taken >= budget;
    }

    /// Records that the last poll left frames waiting.
    pub fn has_more(&mut self) {
        self.backlog = true;
    }

    /// Returns the condition for the next poll; `device_due_ns` is [`crate::Nic::next_due`].
    #[must_use]
    pub fn wake(&self, now_ns: u64, device_due_ns: Option<u64>) -> Wake {
        if self.policy == ModerationPolicy::Spin || self.backlog {
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

    const TICK: ModerationPolicy = ModerationPolicy::Tick { us: 50 };

    #[test]
    fn spin_is_always_due_and_never_waits() {
        let mut m = Moderator::new(ModerationPolicy::Spin);
        assert!(m.due(0));
        m.polled(0, 0, 64);
        assert!(m.due(0));
        assert_eq!(m.wake(0, None), Wake::Now);
    }

    #[test]
    fn event_waits_for_descriptor_or_due_time() {
        let mut m = Moderator::new(ModerationPolicy::Event);
        m.polled(100, 3, 64);
        assert!(m.due(100));
        assert_eq!(m.wake(100, None), Wake::Event(None));
        assert_eq!(m.wake(100, Some(101)), Wake::Event(Some(101)));
        assert_eq!(m.wake(100, Some(100)), Wake::Now);
    }

    #[test]
    fn tick_waits_its_time_and_then_for_an_event() {
        let mut m = Moderator::new(TICK);
        assert!(m.due(1_000));
        m.polled(1_000, 3, 64);
        assert!(!m.due(50_999));
        assert_eq!(m.wake(50_999, Some(0)), Wake::At(51_000));
        assert!(m.due(51_000));
        assert_eq!(m.wake(51_000, None), Wake::Event(None));
    }

    #[test]
    fn a_backlog_is_drained_within_its_tick() {
        let mut m = Moderator::new(TICK);
        m.polled(1_000, 64, 64);
        assert!(m.due(1_001));
        assert_eq!(m.wake(1_001, None), Wake::Now);
        m.polled(2_000, 10, 64);
        assert!(!m.due(50_999));
        assert!(m.due(51_000));
    }

    #[test]
    fn a_zero_budget_is_no_backlog() {
        let mut m = Moderator::new(TICK);
        m.polled(0, 0, 0);
        assert_eq!(m.wake(0, None), Wake::Event(None));
    }

    #[test]
    fn an_empty_poll_delays_no_frame() {
        let mut m = Moderator::new(TICK);
        m.polled(1_000, 0, 64);
        assert!(m.due(1_001));
        assert_eq!(m.wake(1_001, None), Wake::Event(None));
        m.polled(2_000, 1, 64);
        assert!(!m.due(51_999));
    }

    #[test]
    fn new_policy_discards_the_old_wait() {
        let mut m = Moderator::new(TICK);
        m.polled(0, 1, 64);
        m.set_policy(ModerationPolicy::Event);
        assert_eq!(m.policy(), ModerationPolicy::Event);
        assert!(m.due(0));
        assert_eq!(m.wake(0, None), Wake::Event(None));
    }
}
