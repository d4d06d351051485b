//! Scheduling of guests: deficit round robin in bytes, rate limits as backpressure.

use config::domain::VifConfig;
use config::domain::bytes_per_s;
use net::fair::{DeficitRoundRobin, QUANTUM_MIN, Turn};
use nic::rate::TokenBucket;

/// If the average packet is longer than this, a guest sends GSO packets: no MTU is larger.
const LARGE: u32 = 9_018;

/// The queue of guests with work, by port.
#[derive(Debug)]
pub struct Fairness {
    fair: DeficitRoundRobin,
    /// Full frames per turn of a guest of weight 1.
    budget: u32,
    /// Recent average packet length by port, in bytes. It predicts the next packet's length, which
    /// a ring does not announce.
    usual: Vec<u32>,
    /// By port, whether it is queued.
    standing: Vec<bool>,
    /// Whether all queued guests wait for their rate limits.
    limited: bool,
    /// Time at which the first of them may continue.
    due_ns: Option<u64>,
}

/// One guest's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestShare {
    /// Its port.
    pub port: usize,
    /// Packets that it may send now.
    pub packets: usize,
    /// Whether its recent packets were GSO packets.
    pub large: bool,
}

impl Fairness {
    /// Creates an empty queue. A guest of weight 1 may send `budget` full frames per turn.
    #[must_use]
    pub fn new(budget: u32) -> Self {
        Self {
            fair: DeficitRoundRobin::new(),
            budget,
            usual: Vec::new(),
            standing: Vec::new(),
            limited: false,
            due_ns: None,
        }
    }

    /// Adds the guest at `port`.
    pub fn insert(&mut self, port: usize, vif: &VifConfig) {
        let quantum = QUANTUM_MIN
            .saturating_mul(self.budget)
            .saturating_mul(vif.weight.max(1));
        let rate = vif
            .rate_mbps
            .map(|mbps| TokenBucket::new(bytes_per_s(mbps), vif.burst_bytes));
        self.fair.set(port, quantum, rate);
        if self.usual.len() <= port {
            self.usual.resize(port + 1, QUANTUM_MIN);
            self.standing.resize(port + 1, false);
        }
    }

    /// Removes the guest at `port`.
    pub fn remove(&mut self, port: usize) {
        self.fair.remove(port);
        self.stand(port, false);
        if let Some(usual) = self.usual.get_mut(port) {
            *usual = QUANTUM_MIN;
        }
    }

    /// Begins a round. A guest that waited for its rate limit in the last round may have no more
    /// work.
    pub fn begin(&mut self) {
        self.limited = false;
        self.due_ns = None;
    }

    /// Queues the guest at `port`, which has work.
    pub fn activate(&mut self, port: usize) {
        self.stand(port, true);
        self.fair.activate(port);
    }

    /// Returns the next turn, with at most `budget` packets. Returns `None` if no guest may send
    /// now.
    pub fn next(&mut self, now_ns: u64, budget: usize) -> Option<GuestShare> {
        self.begin();
        match self.fair.next(now_ns) {
            Turn::Serve { vif, bytes } => {
                let usual = self.usual.get(vif).copied().unwrap_or(QUANTUM_MIN).max(1);
                let packets = (bytes.div_ceil(usual) as usize).clamp(1, budget.max(1));
                Some(GuestShare {
                    port: vif,
                    packets,
                    large: usual > LARGE,
                })
            }
            Turn::Wait(due_ns) => {
                self.limited = true;
                self.due_ns = due_ns;
                None
            }
            Turn::Idle => None,
        }
    }

    /// Ends the turn of the guest at `port`, which sent `packets` packets of `bytes` bytes in
    /// total. `more` states whether it has more to send.
    pub fn served(&mut self, port: usize, packets: usize, bytes: u64, more: bool) {
        if let Some(usual) = self.usual.get_mut(port)
            && packets > 0
        {
            *usual = u32::try_from(bytes / packets as u64).unwrap_or(u32::MAX);
        }
        self.stand(port, more);
        self.fair
            .served(port, u32::try_from(bytes).unwrap_or(u32::MAX), more);
    }

    /// Returns the time at which the first guest that waits for its rate limit may continue, if any
    /// waits.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Returns whether the guest at `port` has work that waits for its rate limit.
    #[must_use]
    pub fn waits(&self, port: usize) -> bool {
        self.limited && self.standing.get(port).copied().unwrap_or(false)
    }

    fn stand(&mut self, port: usize, stands: bool) {
        if let Some(standing) = self.standing.get_mut(port) {
            *standing = stands;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::domain::BURST_BYTES;

    fn vif(weight: u32, rate_mbps: Option<f64>) -> VifConfig {
        VifConfig {
            rate_mbps,
            weight,
            ..VifConfig::new(0, String::new(), [2, 0, 0, 0, 0, 1])
        }
    }

    /// Returns a queue with the guests of `vifs` at the ports starting at `first`.
    fn line(vifs: &[VifConfig], first: usize) -> Fairness {
        let mut line = Fairness::new(64);
        for (port, vif) in (first..).zip(vifs) {
            line.insert(port, vif);
        }
        line
    }

    /// Returns the number of packets of `bytes` that each of two always busy guests may send.
    fn compete(vifs: &[VifConfig], sizes: [u64; 2]) -> [u64; 2] {
        let mut line = line(vifs, 1);
        let mut bytes = [0; 2];
        line.activate(1);
        line.activate(2);
        for _ in 0..1000 {
            let share = line.next(0, 64).expect("both have work");
            let sent = share.packets as u64 * sizes[share.port - 1];
            bytes[share.port - 1] += sent;
            line.served(share.port, share.packets, sent, true);
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
    fn removed_guest_gets_no_turn_and_leaves_no_debt() {
        let mut line = line(&[vif(1, Some(8.0)), vif(1, None)], 0);
        line.activate(0);
        line.served(0, 4, 1 << 20, true);
        line.activate(1);
        line.remove(0);
        assert_eq!(line.next(0, 64).map(|share| share.port), Some(1));
        line.served(1, 1, 60, false);
        assert_eq!((line.next(0, 64), line.due_ns()), (None, None));
        line.insert(0, &vif(1, None));
        line.activate(0);
        assert_eq!(line.next(0, 64).map(|share| share.port), Some(0));
    }

    #[test]
    fn weight_is_a_share() {
        let [heavy, light] = compete(&[vif(1, None), vif(1, None)], [1514, 1514]);
        assert!(heavy.abs_diff(light) < heavy / 10, "{heavy} {light}");
    }

    /// Returns the bytes that the first guest may send before it has to wait.
    fn sent_at_once(line: &mut Fairness) -> u64 {
        line.activate(0);
        let mut sent = 0;
        while let Some(share) = line.next(0, 64) {
            let bytes = share.packets as u64 * 1514;
            sent += bytes;
            line.served(0, share.packets, bytes, true);
        }
        sent
    }

    #[test]
    fn rate_limited_guest_waits_until_due() {
        let mut line = line(&[vif(1, Some(8.0))], 0);
        let sent = sent_at_once(&mut line);
        assert!(
            sent >= u64::from(BURST_BYTES) && sent < 2 * u64::from(BURST_BYTES),
            "{sent}"
        );
        assert!(line.due_ns().is_some_and(|due| due > 0));
        assert!(line.waits(0));
    }

    #[test]
    fn a_burst_is_sent_at_once() {
        for burst_bytes in [1, 20_000, 10_000_000] {
            let mut line = Fairness::new(64);
            let limited = VifConfig {
                burst_bytes,
                ..vif(1, Some(8.0))
            };
            line.insert(0, &limited);
            let sent = sent_at_once(&mut line);
            let burst = u64::from(burst_bytes);
            assert!(sent >= burst && sent < burst + 64 * 1514, "{sent}");
        }
    }

    #[test]
    fn rate_limited_guest_delays_no_other() {
        let mut line = line(&[vif(1, Some(8.0)), vif(1, None)], 0);
        line.activate(0);
        line.served(0, 4, 1 << 20, true);
        assert_eq!(line.next(0, 64), None);
        assert!(line.waits(0), "it is in debt");
        assert!(!line.waits(1), "it may send while the other waits");
        line.activate(1);
        assert_eq!(line.next(0, 64).map(|share| share.port), Some(1));
        assert!(!line.waits(1));
    }

    #[test]
    fn a_guest_that_gave_up_leaves_no_time_to_wait_for() {
        let mut line = line(&[vif(1, Some(8.0))], 0);
        line.activate(0);
        line.served(0, 4, 1 << 20, true);
        assert_eq!(line.next(0, 64), None);
        line.begin();
        assert_eq!((line.due_ns(), line.waits(0)), (None, false));
    }
}
