//! Selection of the ports to poll in a round.
//!
//! While some guests have work, the driver polls quiet guests only every 20 µs. A poll reads a
//! cache line in a page of the guest. If the driver polled 63 idle guests in every round, a busy
//! guest's small frames would wait for 63 of these reads.

use vif::ring::RingWatch;

/// Number of consecutive empty polls after which a guest is quiet. High enough that a guest that
/// answers each of its frames does not become quiet between two frames.
const QUIET_AFTER_POLLS: u8 = 64;
/// Maximum time between polls of a quiet guest.
const QUIET_POLL_INTERVAL_NS: u64 = 20_000;

/// State of one port.
#[derive(Clone, Copy, Debug)]
struct PollState {
    /// Check whether the guest may have sent something.
    watch: RingWatch,
    /// Number of consecutive empty polls.
    empty_polls: u8,
}

impl PollState {
    const NEW: Self = Self {
        watch: RingWatch::NONE,
        empty_polls: 0,
    };
}

/// Activity of each port, and the ports to poll next.
#[derive(Debug, Default)]
pub struct PollSet {
    /// All ports in the set.
    all: Vec<usize>,
    /// State of each port, by port number. Compact, so that a round over many idle guests stays in
    /// the cache.
    states: Vec<PollState>,
    /// Ports that are not quiet.
    active: Vec<usize>,
    /// Time of the last round that polled all ports.
    all_ns: u64,
    next: Vec<usize>,
}

impl PollSet {
    /// Adds `port` from the next round on. A new port is not quiet.
    pub fn insert(&mut self, port: usize) {
        if self.states.len() <= port {
            self.states.resize(port + 1, PollState::NEW);
        }
        for ports in [&mut self.all, &mut self.active, &mut self.next] {
            ports.push(port);
        }
    }

    /// Removes `port`.
    pub fn remove(&mut self, port: usize) {
        for ports in [&mut self.all, &mut self.active, &mut self.next] {
            ports.retain(|other| *other != port);
        }
        if let Some(state) = self.states.get_mut(port) {
            *state = PollState::NEW;
        }
    }

    /// Replaces the check whether the guest at `port` has sent something.
    pub fn set_watch(&mut self, port: usize, watch: RingWatch) {
        if let Some(state) = self.states.get_mut(port) {
            state.watch = watch;
        }
    }

    /// Returns true, and records an empty poll, if the guest at `port` has certainly sent nothing.
    #[inline]
    pub fn is_idle(&mut self, port: usize) -> bool {
        let state = self.states.get(port);
        let is_idle = state.is_some_and(|state| state.watch.is_idle());
        if is_idle {
            self.record_poll(port, false);
        }
        is_idle
    }

    /// Begins a round; returns the ports to poll. [`PollSet::end_round`] takes them back.
    #[must_use]
    pub fn begin_round(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.next)
    }

    /// Records whether polling the guest at `port` found work. A port without records, such as a
    /// NIC, never becomes quiet.
    #[inline]
    pub fn record_poll(&mut self, port: usize, work: bool) {
        let Some(PollState { empty_polls, .. }) = self.states.get_mut(port) else {
            return;
        };
        let before = std::mem::replace(
            empty_polls,
            match work {
                true => 0,
                false => empty_polls.saturating_add(1).min(QUIET_AFTER_POLLS),
            },
        );
        match (
            before == QUIET_AFTER_POLLS,
            *empty_polls == QUIET_AFTER_POLLS,
        ) {
            (true, false) => self.active.push(port),
            (false, true) => self.active.retain(|active| *active != port),
            _ => {}
        }
    }

    /// Ends the round that polled the ports in `polled`, which [`PollSet::begin_round`] returned.
    /// `work` states whether the round found work; if it did not, the next round polls all ports.
    pub fn end_round(&mut self, mut polled: Vec<usize>, work: bool, now_ns: u64) {
        polled.clear();
        if work && now_ns.saturating_sub(self.all_ns) < QUIET_POLL_INTERVAL_NS {
            polled.extend(&self.active);
        } else {
            self.all_ns = now_ns;
            polled.extend(&self.all);
        }
        self.next = polled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: usize = 65;
    const BUSY: [usize; 2] = [0, 9];

    /// Runs a round at `now_ns` in which only the ports of `busy` have work; returns the polled
    /// ports.
    fn round(set: &mut PollSet, busy: &[usize], now_ns: u64) -> Vec<usize> {
        let polled = set.begin_round();
        for &port in polled.iter().filter(|port| **port != 0) {
            set.record_poll(port, busy.contains(&port));
        }
        let mut sorted = polled.clone();
        set.end_round(polled, !busy.is_empty(), now_ns);
        sorted.sort_unstable();
        sorted
    }

    #[test]
    fn quiet_ports_are_polled_rarely_under_load() {
        let mut set = PollSet::default();
        let all: Vec<usize> = (0..PORTS).collect();
        all.iter().for_each(|port| set.insert(*port));
        for _ in 0..QUIET_AFTER_POLLS {
            assert_eq!(
                round(&mut set, &BUSY, 1000),
                all,
                "all ports are still active"
            );
        }
        assert_eq!(round(&mut set, &BUSY, QUIET_POLL_INTERVAL_NS - 1), BUSY);
        assert_eq!(round(&mut set, &BUSY, QUIET_POLL_INTERVAL_NS), BUSY);
        assert_eq!(
            round(&mut set, &BUSY, QUIET_POLL_INTERVAL_NS),
            all,
            "the interval is over"
        );
        assert_eq!(round(&mut set, &BUSY, 2 * QUIET_POLL_INTERVAL_NS), BUSY);
        // A guest that has work again is polled in every round again.
        assert_eq!(
            round(&mut set, &[0, 9, 33], 2 * QUIET_POLL_INTERVAL_NS),
            all
        );
        assert_eq!(
            round(&mut set, &BUSY, 2 * QUIET_POLL_INTERVAL_NS),
            [0, 9, 33]
        );
        // After a round without work, the next round polls all ports.
        round(&mut set, &[], 2 * QUIET_POLL_INTERVAL_NS);
        assert_eq!(round(&mut set, &[], 2 * QUIET_POLL_INTERVAL_NS), all);
    }

    #[test]
    fn removed_port_is_not_polled_and_its_number_resets() {
        let mut set = PollSet::default();
        (0..3).for_each(|port| set.insert(port));
        for _ in 0..QUIET_AFTER_POLLS {
            round(&mut set, &[0, 1], 0);
        }
        set.remove(1);
        set.remove(2);
        assert_eq!(round(&mut set, &[0], 0), [0]);
        assert_eq!(round(&mut set, &[], 2 * QUIET_POLL_INTERVAL_NS), [0]);
        set.insert(2);
        assert_eq!(round(&mut set, &[0], 2 * QUIET_POLL_INTERVAL_NS), [0, 2]);
        assert_eq!(
            round(&mut set, &[0], 2 * QUIET_POLL_INTERVAL_NS),
            [0, 2],
            "a new port is not quiet yet"
        );
    }

    #[test]
    fn unknown_ports_are_ignored() {
        let mut set = PollSet::default();
        set.record_poll(3, true);
        let polled = set.begin_round();
        set.end_round(polled, true, 0);
        assert!(set.begin_round().is_empty());
    }
}
