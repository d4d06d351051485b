//! Segments that wait in their sender's ring because the guest they are for has no buffers: where
//! they would be dropped, their sender would have to send them again. The ring that fills up is
//! back-pressure, which a sending TCP understands at once.
//!
//! A slow guest must not hold what its neighbour has for others. So a sender waits only if all of
//! its last batch went to one guest, never longer than `LONGEST_NS`, never for more than half of
//! the time, and for a guest that let it wait in vain not again before that one had room. Senders
//! of packets of the MTU never wait: they may be of protocols that hear of no back-pressure, for
//! which a drop is the right answer.

use net::bridge::Verdict;

/// The longest wait: some turns of a guest on a shared CPU.
const LONGEST_NS: u64 = 500_000;

/// Which ports wait for which.
#[derive(Debug, Default)]
pub struct Holds {
    /// By port.
    senders: Vec<Sender>,
    /// Ports that wait in this round, and for which: room for a few.
    waiting: Vec<(usize, usize)>,
}

/// One sender.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    /// The one port that its last batch went to.
    to: Option<usize>,
    /// Since when it waits.
    since_ns: Option<u64>,
    /// It does not wait before this moment.
    not_before_ns: u64,
    /// It has waited in vain for this port.
    in_vain: Option<usize>,
}

impl Sender {
    /// A wait is over.
    fn go_on(&mut self, now_ns: u64) {
        if let Some(since) = self.since_ns.take() {
            self.not_before_ns = now_ns + now_ns.saturating_sub(since);
        }
    }
}

impl Holds {
    /// Room for the sender at `port`.
    pub fn insert(&mut self, port: usize) {
        if self.senders.len() <= port {
            self.senders.resize(port + 1, Sender::default());
        }
    }

    /// The guest at `port` is no more: it neither waits nor is waited for.
    pub fn remove(&mut self, port: usize) {
        if let Some(sender) = self.senders.get_mut(port) {
            *sender = Sender::default();
        }
        for sender in &mut self.senders {
            sender.to = sender.to.filter(|to| *to != port);
            sender.in_vain = sender.in_vain.filter(|to| *to != port);
        }
        self.waiting
            .retain(|(from, to)| *from != port && *to != port);
    }

    /// A round begins.
    pub fn begin(&mut self) {
        self.waiting.clear();
    }

    /// What the bridge has decided on a batch of the sender at `port`.
    pub fn sent(&mut self, port: usize, verdicts: &[Verdict]) {
        let Some(sender) = self.senders.get_mut(port) else {
            return;
        };
        sender.to = match verdicts.split_first() {
            Some((Verdict::Unicast(to), rest))
                if rest.iter().all(|one| *one == Verdict::Unicast(*to)) =>
            {
                Some(*to)
            }
            _ => None,
        };
    }

    /// Where the next packets of the sender at `port` go, as far as can be told.
    #[must_use]
    pub fn destination(&self, port: usize) -> Option<usize> {
        self.senders.get(port)?.to
    }

    /// Whether the sender at `port` has to wait: its [destination](Holds::destination) has no room
    /// for a packet (`!has_room`).
    pub fn waits(&mut self, port: usize, has_room: bool, now_ns: u64) -> bool {
        let Some(sender) = self.senders.get_mut(port) else {
            return false;
        };
        let Some(to) = sender.to else {
            sender.go_on(now_ns);
            return false;
        };
        if has_room {
            sender.in_vain = sender.in_vain.filter(|vain| *vain != to);
            sender.go_on(now_ns);
            return false;
        }
        if sender.in_vain == Some(to) || now_ns < sender.not_before_ns {
            return false;
        }
        let since = *sender.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) >= LONGEST_NS {
            sender.in_vain = Some(to);
            sender.go_on(now_ns);
            return false;
        }
        self.waiting.push((port, to));
        true
    }

    /// Whether the sender at `port` had to wait in this round.
    #[must_use]
    pub fn is_waiting(&self, port: usize) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == port)
    }

    /// Ports that were waited for in this round.
    pub fn awaited(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|(_, to)| *to)
    }

    /// When the first wait of this round ends at the latest.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        let senders = self.waiting.iter();
        let since = senders.filter_map(|(port, _)| self.senders.get(*port)?.since_ns);
        since.min().map(|since| since + LONGEST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::bridge::DropReason;

    const TO: Verdict = Verdict::Unicast(2);
    const US: u64 = 1000;

    fn holds() -> Holds {
        let mut holds = Holds::default();
        holds.insert(1);
        holds.sent(1, &[TO, TO]);
        holds
    }

    #[test]
    fn who_sends_to_a_full_guest_waits_until_it_has_room() {
        let mut holds = holds();
        assert!(!holds.waits(1, true, 0));
        for now in 0..10 {
            holds.begin();
            assert!(holds.waits(1, false, now * US));
            assert!(holds.is_waiting(1) && !holds.is_waiting(2));
            assert_eq!(holds.awaited().collect::<Vec<_>>(), [2]);
            assert_eq!(holds.due_ns(), Some(LONGEST_NS));
        }
        holds.begin();
        assert!(!holds.waits(1, true, 10 * US));
        assert_eq!((holds.is_waiting(1), holds.due_ns()), (false, None));
    }

    #[test]
    fn nobody_waits_for_long_and_in_vain_only_once() {
        let mut holds = holds();
        assert!(holds.waits(1, false, 0));
        assert!(holds.waits(1, false, LONGEST_NS - 1));
        for now in [0, 1, 10, 1000] {
            assert!(!holds.waits(1, false, LONGEST_NS + now * LONGEST_NS));
        }
        // For another guest it waits; and for this one when it has been seen to take something.
        let later = 2000 * LONGEST_NS;
        holds.sent(1, &[Verdict::Unicast(3)]);
        assert!(holds.waits(1, false, later));
        holds.sent(1, &[TO]);
        assert!(!holds.waits(1, true, later + US));
        assert!(holds.waits(1, false, later + 3 * US));
    }

    /// A guest that posts one buffer whenever somebody has waited for long.
    #[test]
    fn nobody_waits_for_more_than_half_of_the_time() {
        for drip in [1, 10, 100, 490] {
            let mut holds = holds();
            let mut waited = 0;
            const ROUNDS: u64 = 10_000;
            for now in 0..ROUNDS {
                holds.begin();
                waited += u64::from(holds.waits(1, now % drip == 0, now * US));
            }
            assert!(waited <= ROUNDS / 2 + 500, "{waited} µs of {ROUNDS}");
        }
    }

    #[test]
    fn who_has_gone_neither_waits_nor_is_waited_for() {
        for gone in [1, 2] {
            let mut holds = holds();
            holds.begin();
            assert!(holds.waits(1, false, 0));
            holds.remove(gone);
            assert_eq!((holds.destination(1), holds.is_waiting(1)), (None, false));
            assert_eq!(holds.awaited().count(), 0, "{gone}");
            assert!(!holds.waits(1, false, US), "nobody knows where to");
        }
    }

    #[test]
    fn who_sends_to_several_never_waits() {
        let mut holds = holds();
        for batch in [
            &[TO, Verdict::Unicast(3)][..],
            &[TO, Verdict::Drop(DropReason::Firewall)],
            &[],
        ] {
            holds.sent(1, batch);
            assert_eq!(holds.destination(1), None);
            assert!(!holds.waits(1, false, 0), "{batch:?}");
        }
        assert!(!holds.waits(9, false, 0));
    }
}
