//! Scheduling of guests: deficit round robin in bytes, and rate limits that cause backpressure.

use config::domain::VifConfig;
use config::domain::bytes_per_s;
use net::fair::{DeficitRoundRobin, QUANTUM_MIN, Turn};
use nic::rate::TokenBucket;

/// Length in bytes of a full packet at the largest MTU. If a guest's average packet is longer, the
/// guest sends GSO packets.
const MTU_PACKET_MAX: u32 = 9_018;

/// The queue of guests with work, by port.
#[derive(Debug)]
pub struct Fairness {
    fair: DeficitRoundRobin,
    /// Full frames that a guest of weight 1 may send per turn.
    budget: u32,
    /// Recent average packet length in bytes, by port. It predicts the length of the next packets,
    /// which a ring does not reveal.
    average_bytes: Vec<u32>,
    /// Whether each port's guest is queued, by port.
    queued: Vec<bool>,
    /// Whether all queued guests wait for their rate limits.
    all_limited: bool,
    /// Time at which the first of these guests may send again.
    due_ns: Option<u64>,
}

/// One guest's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestShare {
    /// The guest's port.
    pub port: usize,
    /// Number of packets that the guest may send now.
    pub packets: usize,
    /// Whether the guest's recent packets were GSO packets.
    pub large: bool,
}

impl Fairness {
    /// Creates an empty queue. A guest of weight 1 may send `budget` full frames per turn.
    #[must_use]
    pub fn new(budget: u32) -> Self {
        Self {
            fair: DeficitRoundRobin::new(),
            budget,
            average_bytes: Vec::new(),
            queued: Vec::new(),
            all_limited: false,
            due_ns: None,
        }
    }

    /// Adds the guest at `port`.
    pub fn insert(&mut self, port: usize, vif: &VifConfig) {
        let quantum = QUANTUM_MIN
            .saturating_mul(self.budget)
            .saturating_mul(vif.settings.weight.max(1));
        let rate = vif
            .settings
            .rate_mbps
            .map(|mbps| TokenBucket::new(bytes_per_s(mbps), vif.settings.burst_bytes));
        self.fair.set(port, quantum, rate);
        if self.average_bytes.len() <= port {
            self.average_bytes.resize(port + 1, QUANTUM_MIN);
            self.queued.resize(port + 1, false);
        }
    }

    /// Removes the guest at `port`.
    pub fn remove(&mut self, port: usize) {
        self.fair.remove(port);
        self.set_queued(port, false);
        if let Some(average_bytes) = self.average_bytes.get_mut(port) {
            *average_bytes = QUANTUM_MIN;
        }
    }

    /// Begins a round. Forgets which guests waited for their rate limits, because these guests may
    /// have no work any more.
    pub fn begin_round(&mut self) {
        self.all_limited = false;
        self.due_ns = None;
    }

    /// Queues the guest at `port`, which has work.
    pub fn activate(&mut self, port: usize) {
        self.set_queued(port, true);
        self.fair.activate(port);
    }

    /// Returns the next guest's turn, of at most `budget` packets. Returns `None` if no guest may
    /// send now.
    pub fn next(&mut self, now_ns: u64, budget: usize) -> Option<GuestShare> {
        self.begin_round();
        match self.fair.next(now_ns) {
            Turn::Serve { vif, bytes } => {
                let average_bytes = self
                    .average_bytes
                    .get(vif)
                    .copied()
                    .unwrap_or(QUANTUM_MIN)
                    .max(1);
                let packets = (bytes.div_ceil(average_bytes) as usize).clamp(1, budget.max(1));
                Some(GuestShare {
                    port: vif,
                    packets,
                    large: average_bytes > MTU_PACKET_MAX,
                })
            }
            Turn::Wait(due_ns) => {
                self.all_limited = true;
                self.due_ns = due_ns;
                None
            }
            Turn::Idle => None,
        }
    }

    /// Ends the turn of the guest at `port`, which sent `packets` packets with `bytes` bytes in
    /// total. `more` states whether the guest has more packets to send.
    pub fn served(&mut self, port: usize, packets: usize, bytes: u64, more: bool) {
        if let Some(average_bytes) = self.average_bytes.get_mut(port)
            && packets > 0
        {
            *average_bytes = u32::try_from(bytes / packets as u64).unwrap_or(u32::MAX);
        }
        self.set_queued(port, more);
        self.fair
            .served(port, u32::try_from(bytes).unwrap_or(u32::MAX), more);
    }

    /// Returns the time at which the first guest that waits for its rate limit may send again, or
    /// `None` if no guest waits.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Returns whether the guest at `port` has packets that wait for its rate limit.
    #[must_use]
    pub fn is_rate_limited(&self, port: usize) -> bool {
        self.all_limited && self.queued.get(port).copied().unwrap_or(false)
    }

    fn set_queued(&mut self, port: usize, is_queued: bool) {
        if let Some(queued) = self.queued.get_mut(port) {
            *queued = is_queued;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::domain::{BURST_BYTES, PortSettings};

    fn vif(weight: u32, rate_mbps: Option<f64>) -> VifConfig {
        VifConfig {
            settings: PortSettings {
                rate_mbps,
                weight,
                ..PortSettings::default()
            },
            ..VifConfig::new(0, String::new(), [2, 0, 0, 0, 0, 1])
        }
    }

    /// Returns a queue with the guests of `vifs` at consecutive ports from `first`.
    fn queue(vifs: &[VifConfig], first: usize) -> Fairness {
        let mut queue = Fairness::new(64);
        for (port, vif) in (first..).zip(vifs) {
            queue.insert(port, vif);
        }
        queue
    }

    /// Returns the bytes that each of two permanently busy guests may send, with packets of
    /// `sizes`.
    fn compete(vifs: &[VifConfig], sizes: [u64; 2]) -> [u64; 2] {
        let mut queue = queue(vifs, 1);
        let mut bytes = [0; 2];
        queue.activate(1);
        queue.activate(2);
        for _ in 0..1000 {
            let share = queue.next(0, 64).expect("both have work");
            let sent = share.packets as u64 * sizes[share.port - 1];
            bytes[share.port - 1] += sent;
            queue.served(share.port, share.packets, sent, true);
        }
        bytes
    }

    #[test]
    fn large_packets_gain_nothing() {
        let [large, full] = compete(&[vif(1, None), vif(1, None)], [64_000, 1514]);
        let ratio = large as f64 / full as f64;
        assert!((0.8..1.25).contains(&ratio), "{large} {full}");
    }

    #[test]
    fn removed_guest_has_no_turn_and_no_debt() {
        let mut queue = queue(&[vif(1, Some(8.0)), vif(1, None)], 0);
        queue.activate(0);
        queue.served(0, 4, 1 << 20, true);
        queue.activate(1);
        queue.remove(0);
        assert_eq!(queue.next(0, 64).map(|share| share.port), Some(1));
        queue.served(1, 1, 60, false);
        assert_eq!((queue.next(0, 64), queue.due_ns()), (None, None));
        queue.insert(0, &vif(1, None));
        queue.activate(0);
        assert_eq!(queue.next(0, 64).map(|share| share.port), Some(0));
    }

    #[test]
    fn weight_is_a_share() {
        let [heavy, light] = compete(&[vif(1, None), vif(1, None)], [1514, 1514]);
        assert!(heavy.abs_diff(light) < heavy / 10, "{heavy} {light}");
    }

    /// Returns the bytes that the guest at port 0 may send before it must wait.
    fn sent_before_waiting(queue: &mut Fairness) -> u64 {
        queue.activate(0);
        let mut sent = 0;
        while let Some(share) = queue.next(0, 64) {
            let bytes = share.packets as u64 * 1514;
            sent += bytes;
            queue.served(0, share.packets, bytes, true);
        }
        sent
    }

    #[test]
    fn rate_limited_guest_waits_until_due() {
        let mut queue = queue(&[vif(1, Some(8.0))], 0);
        let sent = sent_before_waiting(&mut queue);
        assert!(
            sent >= u64::from(BURST_BYTES) && sent < 2 * u64::from(BURST_BYTES),
            "{sent}"
        );
        assert!(queue.due_ns().is_some_and(|due| due > 0));
        assert!(queue.is_rate_limited(0));
    }

    #[test]
    fn bursts_are_sent_without_waiting() {
        for burst_bytes in [1, 20_000, 10_000_000] {
            let mut queue = Fairness::new(64);
            let mut limited = vif(1, Some(8.0));
            limited.settings.burst_bytes = burst_bytes;
            queue.insert(0, &limited);
            let sent = sent_before_waiting(&mut queue);
            let burst = u64::from(burst_bytes);
            assert!(sent >= burst && sent < burst + 64 * 1514, "{sent}");
        }
    }

    #[test]
    fn rate_limited_guest_delays_no_other() {
        let mut queue = queue(&[vif(1, Some(8.0)), vif(1, None)], 0);
        queue.activate(0);
        queue.served(0, 4, 1 << 20, true);
        assert_eq!(queue.next(0, 64), None);
        assert!(queue.is_rate_limited(0), "it is in debt");
        assert!(
            !queue.is_rate_limited(1),
            "it may send while the other waits"
        );
        queue.activate(1);
        assert_eq!(queue.next(0, 64).map(|share| share.port), Some(1));
        assert!(!queue.is_rate_limited(1));
    }

    #[test]
    fn guest_without_work_leaves_no_deadline() {
        let mut queue = queue(&[vif(1, Some(8.0))], 0);
        queue.activate(0);
        queue.served(0, 4, 1 << 20, true);
        assert_eq!(queue.next(0, 64), None);
        queue.begin_round();
        assert_eq!((queue.due_ns(), queue.is_rate_limited(0)), (None, false));
    }
}
