//! Which ports are polled in a round.
//!
//! While there is work, guests that have been quiet for long are polled every 20 µs and not more
//! often. A poll reads a cache line in a page of the guest's own. With 63 idle guests beside a busy
//! one, the busy one's small frames would wait for 63 such reads.

/// Polls in a row that found nothing, after which a guest is a quiet one: enough that a guest which
/// answers what it gets is never taken for quiet between two of its frames.
const QUIET: u8 = 64;
/// How long a quiet guest may wait for a poll.
const PATIENCE_NS: u64 = 20_000;

/// How quiet each port is, and which are polled next.
#[derive(Debug, Default)]
pub struct PollSet {
    /// All ports that are polled at all.
    all: Vec<usize>,
    /// By port, polls in a row that found nothing.
    empty: Vec<u8>,
    /// Ports that are not quiet.
    lively: Vec<usize>,
    /// When all were last to be polled.
    all_ns: u64,
    next: Vec<usize>,
}

impl PollSet {
    /// Polls `port` from the next round on. It is not quiet yet.
    pub fn insert(&mut self, port: usize) {
        if self.empty.len() <= port {
            self.empty.resize(port + 1, 0);
        }
        for ports in [&mut self.all, &mut self.lively, &mut self.next] {
            ports.push(port);
        }
    }

    /// Polls `port` no more.
    pub fn remove(&mut self, port: usize) {
        for ports in [&mut self.all, &mut self.lively, &mut self.next] {
            ports.retain(|other| *other != port);
        }
        if let Some(empty) = self.empty.get_mut(port) {
            *empty = 0;
        }
    }

    /// A round begins: the ports to poll. [`PollSet::end`] takes them back.
    #[must_use]
    pub fn begin(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.next)
    }

    /// Whether a poll of the guest at `port` found work. A port of which this is never said is
    /// never quiet.
    #[inline]
    pub fn found(&mut self, port: usize, work: bool) {
        let Some(empty) = self.empty.get_mut(port) else {
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

    /// The round is over that [began](PollSet::begin) with `polled` at `now_ns`; `work`: it found
    /// some. After a round that found none all ports are polled.
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

    /// A round at `now_ns` in which only the ports of `busy` have work; who was polled.
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
    fn the_quiet_are_polled_now_and_then_while_others_have_work() {
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
        // A guest that is found at work then is polled every time again, at once.
        assert_eq!(round(&mut set, &[0, 9, 33], 2 * PATIENCE_NS), all);
        assert_eq!(round(&mut set, &BUSY, 2 * PATIENCE_NS), [0, 9, 33]);
        // Without any work there is time for all.
        round(&mut set, &[], 2 * PATIENCE_NS);
        assert_eq!(round(&mut set, &[], 2 * PATIENCE_NS), all);
    }

    #[test]
    fn a_port_that_has_gone_is_polled_no_more_and_its_number_is_as_new() {
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
