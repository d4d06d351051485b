//! CoDel, the controlled delay algorithm (RFC 8289). It derives from the delay of packets whether a
//! queue is standing. While it is, CoDel signals the senders at a slowly rising rate.

/// The longest packet on a wire. A queue of at most this length never counts as standing.
pub const MTU_BYTES: u64 = 1514;

/// Acceptable minimum of the delay (RFC 8289, 4.2).
const TARGET_NS: u64 = 5_000_000;
/// Time within which the delay must fall to the target at least once (RFC 8289, 4.3): longer than a
/// round trip.
const INTERVAL_NS: u64 = 100_000_000;

/// Parameters for one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Acceptable standing delay.
    pub target_ns: u64,
    /// Time that the delay may stay above the target.
    pub interval_ns: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            target_ns: TARGET_NS,
            interval_ns: INTERVAL_NS,
        }
    }
}

impl Params {
    /// Returns the parameters of a queue that drains at `bytes_per_s`. The target covers at least
    /// two full packets, which at a low rate take longer than the usual target.
    #[must_use]
    pub fn at_rate(bytes_per_s: u64) -> Self {
        let two_packets_ns = (2 * MTU_BYTES * 1_000_000_000) / bytes_per_s.max(1);
        let target_ns = TARGET_NS.max(two_packets_ns);
        Self {
            target_ns,
            interval_ns: INTERVAL_NS.max(target_ns.saturating_mul(2)),
        }
    }
}

/// State of one flow's queue.
#[derive(Clone, Debug, Default)]
pub struct Codel {
    /// Time at which the delay will have been above the target for an interval.
    first_above_ns: Option<u64>,
    /// Next signal in the dropping state.
    next_ns: u64,
    /// Signals since the dropping state began.
    count: u32,
    /// `count` when the dropping state began.
    first_count: u32,
    dropping: bool,
}

impl Codel {
    /// Returns whether to mark or drop the packet at the head of the queue. It has waited for
    /// `sojourn_ns`; `left_bytes` are in the queue, including the packet.
    pub fn should_signal(
        &mut self,
        params: Params,
        now_ns: u64,
        sojourn_ns: u64,
        left_bytes: u64,
    ) -> bool {
        let stands = self.stands(params, now_ns, sojourn_ns, left_bytes);
        if !self.dropping {
            if !stands {
                return false;
            }
            // If the queue was in the dropping state recently, it resumes near the signal rate that
            // was sufficient then.
            let recent =
                now_ns.saturating_sub(self.next_ns) < params.interval_ns.saturating_mul(16);
            let before = self.count.saturating_sub(self.first_count);
            self.count = if recent && before > 1 { before } else { 1 };
            self.first_count = self.count;
            self.dropping = true;
            self.next_ns = self.after(params, now_ns);
            return true;
        }
        self.dropping = stands;
        if !stands || now_ns < self.next_ns {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.next_ns = self.after(params, self.next_ns);
        true
    }

    /// Resets the measurement, because the queue is empty.
    pub fn reset_empty(&mut self) {
        self.first_above_ns = None;
        self.dropping = false;
    }

    fn stands(&mut self, params: Params, now_ns: u64, sojourn_ns: u64, left_bytes: u64) -> bool {
        if sojourn_ns < params.target_ns || left_bytes <= MTU_BYTES {
            self.first_above_ns = None;
            return false;
        }
        let until_ns = now_ns.saturating_add(params.interval_ns);
        now_ns >= *self.first_above_ns.get_or_insert(until_ns)
    }

    /// Returns the time of the next signal after `ns` by the control law: the longer the queue has
    /// been standing, the shorter the interval between signals.
    fn after(&self, params: Params, ns: u64) -> u64 {
        let step = params.interval_ns as f64 / f64::from(self.count.max(1)).sqrt();
        ns.saturating_add(step as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the times, in ms, of the signals for a queue with delays `sojourn_ms`.
    fn signalled(sojourn_ms: impl Fn(u64) -> u64, until_ms: u64) -> Vec<u64> {
        let mut codel = Codel::default();
        let params = Params::default();
        let judge =
            |now: &u64| codel.should_signal(params, now * MS, sojourn_ms(*now) * MS, 100_000);
        (0..until_ms).filter(judge).collect()
    }

    #[test]
    fn eq_4_standing_queue_is_signalled_faster() {
        let times = signalled(|_| 6, 500);
        // The first signal occurs when the delay has been above the target for 100 ms. The interval
        // before each further signal is 100 / sqrt(n) ms.
        assert_eq!(times, [100, 200, 271, 329, 379, 424, 464]);
    }

    #[test]
    fn eq_4_a_burst_that_drains_in_an_interval_passes() {
        assert_eq!(signalled(|now| 90_u64.saturating_sub(now), 500), []);
        assert_eq!(signalled(|_| 4, 500), []);
        let dips = |now: u64| if now.is_multiple_of(99) { 1 } else { 50 };
        assert_eq!(signalled(dips, 500), []);
    }

    #[test]
    fn eq_4_one_full_packet_is_no_standing_queue() {
        let mut codel = Codel::default();
        let params = Params::default();
        let judge = |now: u64| codel.should_signal(params, now * MS, 900 * MS, MTU_BYTES);
        assert!(!(0..500).any(judge));
    }

    #[test]
    fn eq_4_low_rates_have_a_longer_target() {
        assert_eq!(Params::at_rate(1_250_000), Params::default());
        let slow = Params::at_rate(12_500);
        assert_eq!(slow.target_ns, 242_240_000);
        assert!(slow.interval_ns >= 2 * slow.target_ns);
        assert!(Params::at_rate(0).target_ns > slow.target_ns);
    }
}
