//! Selection of the ports to poll in a round.
//!
//! While there is work, the driver polls quiet guests only every 20 µs. A poll reads a cache line
//! in a page of the guest: with 63 idle guests, a busy guest's small frames would otherwise wait
//! for 63 of these reads.

use vif::ring::RingWatch;

/// Number of consecutive vain polls after which a guest is quiet. High enough that a guest that
/// answers its frames never becomes quiet between two of them.
const QUIET: u8 = 64;
/// Maximum time between polls of a quiet guest.
const PATIENCE_NS: u64 = 20_000;

/// State of one port.
#[derive(Clone, Copy, Debug)]
struct PollState {
    /// A check whether its guest has sent something.
    watch: RingWatch,
    /// Number of consecutive vain polls.
    empty: u8,
}

impl PollState {
    const NEW: Self = Self {
        watch: RingWatch::NONE,
        empty: 0,
    };
}

/// Activity of each port, and the ports to poll next.
#[derive(Debug, Default)]
pub struct PollSet {
    /// All ports in the set.
    all: Vec<usize>,
    /// By port. Compact, so that a round over many idle guests stays in the cache.
    states: Vec<PollState>,
    /// Ports that are not quiet.
    lively: Vec<usize>,
    /// Time of the last round that polled all ports.
    all_ns: u64,
    next: Vec<usize>,
}

impl PollSet {
    /// Adds `port`, which starts as not quiet, from the next round on.
    pub fn insert(&mut self, port: usize) {
        if self.states.len() <= port {
            self.states.resize(port + 1, PollState::NEW);
        }
        for ports in [&mut self.all, &mut self.lively, &mut self.next] {
            ports.push(port);
        }
    }

    /// Removes `port`.
    pub fn remove(&mut self, port: usize) {
        for ports in [&mut self.all, &mut self.lively, &mut self.next] {
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

    /// Returns whether the guest at `port` has certainly sent nothing, and records a vain poll if
    /// so.
    #[inline]
    pub fn is_idle(&mut self, port: usize) -> bool {
        let state = self.states.get(port);
        let is_idle = state.is_some_and(|state| state.watch.is_idle());
        if is_idle {
            self.found(port, false);
        }
        is_idle
    }

    /// Begins a round; returns the ports to poll. [`PollSet::end`] takes them back.
    #[must_use]
    pub fn begin(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.next)
    }

    /// Records whether polling the guest at `port` found work. Ports never recorded never become
    /// quiet.
    #[inline]
    pub fn found(&mut self, port: usize, work: bool) {
        let Some(PollState { empty, .. }) = self.states.get_mut(port) else {
            return;
        };
        let before = std::mem::replace(
            empty,
            match work {
                true => 0,
                false => empty.saturating_add(1).min(QUIET),
            },
        );
        match (before == QUIET, *empty == QUIET) {
            (true, false) => self.lively.push(port),
            (false, true) => self.lively.retain(|lively| *lively != port),
            _ => {}
        }
    }

    /// Ends the round that [began](PollSet::begin) with `polled` at `now_ns`. `work` states whether
    /// it found work; if it did not, the next round polls all ports.
    pub fn end(&mut self, mut polled: Vec<usize>, work: bool, now_ns: u64) {
        polled.clear();
        if work && now_ns.saturating_sub(self.all_ns) < PATIENCE_NS {
            polled.extend(&self.lively);
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
        let polled = set.begin();
        for &port in polled.iter().filter(|port| **port != 0) {
            set.found(port, busy.contains(&port));
        }
        let mut sorted = polled.clone();
        set.end(polled, !busy.is_empty(), now_ns);
        sorted.sort_unstable();
        sorted
    }

    #[test]
    fn quiet_ports_are_polled_rarely_under_load() {
        let mut set = PollSet::default();
        let all: Vec<usize> = (0..PORTS).collect();
        all.iter().for_each(|port| set.insert(*port));
        for _ in 0..QUIET {
            assert_eq!(
                round(&mut set, &BUSY, 1000),
                all,
                "not quiet for long enough"
            );
        }
        assert_eq!(round(&mut set, &BUSY, PATIENCE_NS - 1), BUSY);
        assert_eq!(round(&mut set, &BUSY, PATIENCE_NS), BUSY);
        assert_eq!(round(&mut set, &BUSY, PATIENCE_NS), all, "it is time");
        assert_eq!(round(&mut set, &BUSY, 2 * PATIENCE_NS), BUSY);
        // A guest in which a poll found work is polled in every round again.
        assert_eq!(round(&mut set, &[0, 9, 33], 2 * PATIENCE_NS), all);
        assert_eq!(round(&mut set, &BUSY, 2 * PATIENCE_NS), [0, 9, 33]);
        // A round without work makes the next one poll all.
        round(&mut set, &[], 2 * PATIENCE_NS);
        assert_eq!(round(&mut set, &[], 2 * PATIENCE_NS), all);
    }

    #[test]
    fn removed_port_is_not_polled_and_its_number_resets() {
        let mut set = PollSet::default();
        (0..3).for_each(|port| set.insert(port));
        for _ in 0..QUIET {
            round(&mut set, &[0, 1], 0);
        }
        set.remove(1);
        set.remove(2);
        assert_eq!(round(&mut set, &[0], 0), [0]);
        assert_eq!(round(&mut set, &[], 2 * PATIENCE_NS), [0]);
        set.insert(2);
        assert_eq!(round(&mut set, &[0], 2 * PATIENCE_NS), [0, 2]);
        assert_eq!(
            round(&mut set, &[0], 2 * PATIENCE_NS),
            [0, 2],
            "not quiet yet"
        );
    }

    #[test]
    fn no_port_is_no_trouble() {
        let mut set = PollSet::default();
        set.found(3, true);
        let polled = set.begin();
        set.end(polled, true, 0);
        assert!(set.begin().is_empty());
    }
}
