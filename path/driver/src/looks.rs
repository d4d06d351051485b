//! Which ports are looked at in a round. While there is work, guests that have been quiet for long are looked at
//! every 20 µs and not more often: a look is a line of the cache in a page of its own, and with 63 idle guests
//! beside a busy one they are what its small frames would wait for.

/// Looks in a row that found nothing, after which a guest is a quiet one.
const QUIET: u8 = 64;
/// How long a quiet guest may wait for a look.
const PATIENCE_NS: u64 = 20_000;

/// How quiet each guest is, and who is looked at next.
#[derive(Debug)]
pub struct Looks {
    /// By port, looks in a row that found nothing.
    empty: Vec<u8>,
    /// Ports that are not quiet.
    lively: Vec<usize>,
    /// When all were last to be looked at.
    all_ns: u64,
    next: Vec<usize>,
}

impl Looks {
    /// So many ports, none of which is quiet yet.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            empty: vec![0; ports],
            lively: (0..ports).collect(),
            all_ns: 0,
            next: (0..ports).collect(),
        }
    }

    /// A round begins: the ports to look at. [`Looks::end`] takes them back.
    #[must_use]
    pub fn begin(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.next)
    }

    /// What a look at the guest at `port` found. A port of which nothing is said is never quiet.
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

    /// The round is over that [began](Looks::begin) with `looked` at `now_ns`; whether it found work. After one
    /// that found none everybody is looked at.
    pub fn end(&mut self, mut looked: Vec<usize>, work: bool, now_ns: u64) {
        looked.clear();
        if work && now_ns.saturating_sub(self.all_ns) < PATIENCE_NS {
            looked.extend(&self.lively);
        } else {
            self.all_ns = now_ns;
            looked.extend(0..self.empty.len());
        }
        self.next = looked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: usize = 65;
    const BUSY: [usize; 2] = [0, 9];

    /// A round at `now_ns` in which only the ports of `busy` have work; who was looked at.
    fn round(looks: &mut Looks, busy: &[usize], now_ns: u64) -> Vec<usize> {
        let looked = looks.begin();
        for &port in looked.iter().filter(|port| **port != 0) {
            looks.found(port, busy.contains(&port));
        }
        let mut sorted = looked.clone();
        looks.end(looked, !busy.is_empty(), now_ns);
        sorted.sort_unstable();
        sorted
    }

    #[test]
    fn the_quiet_are_looked_at_now_and_then_while_others_have_work() {
        let mut looks = Looks::new(PORTS);
        let all: Vec<usize> = (0..PORTS).collect();
        for _ in 0..QUIET {
            assert_eq!(
                round(&mut looks, &BUSY, 1000),
                all,
                "not quiet for long enough"
            );
        }
        assert_eq!(round(&mut looks, &BUSY, PATIENCE_NS - 1), BUSY);
        assert_eq!(round(&mut looks, &BUSY, PATIENCE_NS), BUSY);
        assert_eq!(round(&mut looks, &BUSY, PATIENCE_NS), all, "it is time");
        assert_eq!(round(&mut looks, &BUSY, 2 * PATIENCE_NS), BUSY);
        // Who is found at work then is looked at every time again, at once.
        assert_eq!(round(&mut looks, &[0, 9, 33], 2 * PATIENCE_NS), all);
        assert_eq!(round(&mut looks, &BUSY, 2 * PATIENCE_NS), [0, 9, 33]);
        // Without any work there is time for all.
        round(&mut looks, &[], 2 * PATIENCE_NS);
        assert_eq!(round(&mut looks, &[], 2 * PATIENCE_NS), all);
    }

    #[test]
    fn no_port_is_no_trouble() {
        let mut looks = Looks::new(0);
        looks.found(3, true);
        let looked = looks.begin();
        looks.end(looked, true, 0);
        assert!(looks.begin().is_empty());
    }
}
