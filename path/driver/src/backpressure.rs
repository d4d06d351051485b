//! Backpressure: GSO packets wait in their sender's ring while the destination guest lacks buffers,
//! because after a drop the sender would have to retransmit all of their segments. A sending TCP
//! reacts at once to a full ring.
//!
//! A slow guest must not delay a sender's packets to other guests. So a sender waits only if its
//! whole last batch was for one guest, for at most `LONGEST_NS`, and at most half of the time.
//! After a wait that was in vain, it does not wait for that guest again until the guest has had
//! room. Senders of MTU-sized packets never wait: their protocols may ignore backpressure, and need
//! drops instead.

use net::bridge::Verdict;

/// The longest wait: several turns of a guest on a shared CPU.
const LONGEST_NS: u64 = 500_000;

/// Senders, and the destinations for which they wait.
#[derive(Debug, Default)]
pub struct Backpressure {
    /// By port.
    senders: Vec<Sender>,
    /// Ports that wait in this round, with their destinations.
    waiting: Vec<(usize, usize)>,
}

/// One sender.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    /// The single destination of its last batch, if any.
    to: Option<usize>,
    /// Start of its wait.
    since_ns: Option<u64>,
    /// Earliest time of its next wait.
    not_before_ns: u64,
    /// The port for which it has waited in vain.
    in_vain: Option<usize>,
}

impl Sender {
    /// Ends a wait.
    fn end_wait(&mut self, now_ns: u64) {
        if let Some(since) = self.since_ns.take() {
            self.not_before_ns = now_ns + now_ns.saturating_sub(since);
        }
    }
}

impl Backpressure {
    /// Adds the sender at `port`.
    pub fn insert(&mut self, port: usize) {
        if self.senders.len() <= port {
            self.senders.resize(port + 1, Sender::default());
        }
    }

    /// Removes the guest at `port` as sender and as destination.
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

    /// Begins a round, in which no sender waits yet.
    pub fn begin(&mut self) {
        self.waiting.clear();
    }

    /// Records the bridge's verdicts on a batch of the sender at `port`.
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

    /// Returns the predicted destination of the sender's next packets.
    #[must_use]
    pub fn destination(&self, port: usize) -> Option<usize> {
        self.senders.get(port)?.to
    }

    /// Returns whether the sender at `port` must wait, because its
    /// [destination](Backpressure::destination) has no room for a packet (`!has_room`).
    pub fn waits(&mut self, port: usize, has_room: bool, now_ns: u64) -> bool {
        let Some(sender) = self.senders.get_mut(port) else {
            return false;
        };
        let Some(to) = sender.to else {
            sender.end_wait(now_ns);
            return false;
        };
        if has_room {
            sender.in_vain = sender.in_vain.filter(|vain| *vain != to);
            sender.end_wait(now_ns);
            return false;
        }
        if sender.in_vain == Some(to) || now_ns < sender.not_before_ns {
            return false;
        }
        let since = *sender.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) >= LONGEST_NS {
            sender.in_vain = Some(to);
            sender.end_wait(now_ns);
            return false;
        }
        self.waiting.push((port, to));
        true
    }

    /// Returns whether the sender at `port` had to wait in this round.
    #[must_use]
    pub fn is_waiting(&self, port: usize) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == port)
    }

    /// Iterates over the destinations of this round's waits.
    pub fn awaited(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|(_, to)| *to)
    }

    /// Returns the latest time at which the first wait of this round ends.
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

    fn backpressure() -> Backpressure {
        let mut backpressure = Backpressure::default();
        backpressure.insert(1);
        backpressure.sent(1, &[TO, TO]);
        backpressure
    }

    #[test]
    fn sender_waits_until_the_guest_has_room() {
        let mut backpressure = backpressure();
        assert!(!backpressure.waits(1, true, 0));
        for now in 0..10 {
            backpressure.begin();
            assert!(backpressure.waits(1, false, now * US));
            assert!(backpressure.is_waiting(1) && !backpressure.is_waiting(2));
            assert_eq!(backpressure.awaited().collect::<Vec<_>>(), [2]);
            assert_eq!(backpressure.due_ns(), Some(LONGEST_NS));
        }
        backpressure.begin();
        assert!(!backpressure.waits(1, true, 10 * US));
        assert_eq!(
            (backpressure.is_waiting(1), backpressure.due_ns()),
            (false, None)
        );
    }

    #[test]
    fn waits_are_short_and_vain_only_once() {
        let mut backpressure = backpressure();
        assert!(backpressure.waits(1, false, 0));
        assert!(backpressure.waits(1, false, LONGEST_NS - 1));
        for now in [0, 1, 10, 1000] {
            assert!(!backpressure.waits(1, false, LONGEST_NS + now * LONGEST_NS));
        }
        // It still waits for other guests, and for this one again after this one has had room.
        let later = 2000 * LONGEST_NS;
        backpressure.sent(1, &[Verdict::Unicast(3)]);
        assert!(backpressure.waits(1, false, later));
        backpressure.sent(1, &[TO]);
        assert!(!backpressure.waits(1, true, later + US));
        assert!(backpressure.waits(1, false, later + 3 * US));
    }

    /// The destination posts one buffer at the end of each long wait.
    #[test]
    fn senders_wait_at_most_half_of_the_time() {
        for drip in [1, 10, 100, 490] {
            let mut backpressure = backpressure();
            let mut waited = 0;
            const ROUNDS: u64 = 10_000;
            for now in 0..ROUNDS {
                backpressure.begin();
                waited += u64::from(backpressure.waits(1, now % drip == 0, now * US));
            }
            assert!(waited <= ROUNDS / 2 + 500, "{waited} µs of {ROUNDS}");
        }
    }

    #[test]
    fn removed_guest_neither_waits_nor_is_awaited() {
        for gone in [1, 2] {
            let mut backpressure = backpressure();
            backpressure.begin();
            assert!(backpressure.waits(1, false, 0));
            backpressure.remove(gone);
            assert_eq!(
                (backpressure.destination(1), backpressure.is_waiting(1)),
                (None, false)
            );
            assert_eq!(backpressure.awaited().count(), 0, "{gone}");
            assert!(
                !backpressure.waits(1, false, US),
                "the destination is unknown"
            );
        }
    }

    #[test]
    fn sender_to_several_guests_never_waits() {
        let mut backpressure = backpressure();
        for batch in [
            &[TO, Verdict::Unicast(3)][..],
            &[TO, Verdict::Drop(DropReason::Firewall)],
            &[],
        ] {
            backpressure.sent(1, batch);
            assert_eq!(backpressure.destination(1), None);
            assert!(!backpressure.waits(1, false, 0), "{batch:?}");
        }
        assert!(!backpressure.waits(9, false, 0));
    }
}
