//! Backpressure: GSO packets wait in the sender's ring while the destination guest lacks receive
//! buffers. If the driver dropped these packets, the sender would have to retransmit all of their
//! segments. A sending TCP reacts immediately to a full ring.
//!
//! A slow guest must not delay a sender's packets to other guests. So a sender waits only if its
//! whole last batch was for one guest, for at most `MAX_WAIT_NS` per wait, and for at most half of
//! the time. After a wait that timed out, the sender does not wait for the same guest until that
//! guest has had buffers again. Senders of MTU-sized packets never wait: their protocols may ignore
//! backpressure and need drops as a signal.

use net::bridge::Verdict;

/// Maximum duration of a wait: several turns of a guest on a shared CPU.
const MAX_WAIT_NS: u64 = 500_000;

/// Senders that wait, and the guests for which they wait.
#[derive(Debug, Default)]
pub struct Backpressure {
    /// All waits of this round.
    waiting: Vec<SenderWait>,
}

/// The wait of one sender.
#[derive(Clone, Copy, Debug)]
struct SenderWait {
    from: usize,
    to: usize,
    since_ns: u64,
}

/// The backpressure state of a sending guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendingGuest {
    /// The destination port of its last batch, if all frames had the same.
    to: Option<usize>,
    /// Start of its current wait, if it waits.
    since_ns: Option<u64>,
    /// Earliest time of its next wait.
    not_before_ns: u64,
    /// The port for which its last wait timed out.
    timed_out_for: Option<usize>,
}

impl SendingGuest {
    /// Records the bridge's verdicts on a batch.
    pub fn sent(&mut self, verdicts: &[Verdict]) {
        self.to = match verdicts.split_first() {
            Some((Verdict::Unicast(to), rest))
                if rest.iter().all(|one| *one == Verdict::Unicast(*to)) =>
            {
                Some(*to)
            }
            _ => None,
        };
    }

    /// Returns the predicted destination port of the next packets.
    #[must_use]
    pub fn destination(&self) -> Option<usize> {
        self.to
    }

    /// Forgets the removed port `port` as a destination.
    pub fn forget(&mut self, port: usize) {
        self.to = self.to.filter(|to| *to != port);
        self.timed_out_for = self.timed_out_for.filter(|to| *to != port);
    }

    /// Ends the current wait, if any. The next one may begin after the same time again.
    fn end_wait(&mut self, now_ns: u64) {
        if let Some(since) = self.since_ns.take() {
            self.not_before_ns = now_ns + now_ns.saturating_sub(since);
        }
    }
}

impl Backpressure {
    /// Ends all waits of a removed port, and all waits for it.
    pub fn remove(&mut self, port: usize) {
        self.waiting
            .retain(|wait| wait.from != port && wait.to != port);
    }

    /// Begins a round: no sender waits yet.
    pub fn begin_round(&mut self) {
        self.waiting.clear();
    }

    /// Returns whether the sender at `port` must wait. `has_room` states whether its
    /// [destination](SendingGuest::destination) has buffers for a packet.
    pub fn must_wait(
        &mut self,
        (port, sender): (usize, &mut SendingGuest),
        has_room: bool,
        now_ns: u64,
    ) -> bool {
        let Some(to) = sender.to else {
            sender.end_wait(now_ns);
            return false;
        };
        if has_room {
            sender.timed_out_for = sender.timed_out_for.filter(|port| *port != to);
            sender.end_wait(now_ns);
            return false;
        }
        if sender.timed_out_for == Some(to) || now_ns < sender.not_before_ns {
            return false;
        }
        let since_ns = *sender.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) >= MAX_WAIT_NS {
            sender.timed_out_for = Some(to);
            sender.end_wait(now_ns);
            return false;
        }
        self.waiting.push(SenderWait {
            from: port,
            to,
            since_ns,
        });
        true
    }

    /// Returns whether the sender at `port` had to wait in this round.
    #[must_use]
    pub fn is_waiting(&self, port: usize) -> bool {
        self.waiting.iter().any(|wait| wait.from == port)
    }

    /// Iterates over the destination ports of this round's waits.
    pub fn awaited_destinations(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|wait| wait.to)
    }

    /// Returns the time at which the first wait of this round times out.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        let since = self.waiting.iter().map(|wait| wait.since_ns);
        since.min().map(|since| since + MAX_WAIT_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::bridge::DropReason;

    const TO_PORT_2: Verdict = Verdict::Unicast(2);
    const US: u64 = 1000;

    /// A sender at port 1.
    #[derive(Default)]
    struct TestSender {
        sender: SendingGuest,
        all: Backpressure,
    }

    impl TestSender {
        fn waits(&mut self, has_room: bool, now_ns: u64) -> bool {
            self.all.must_wait((1, &mut self.sender), has_room, now_ns)
        }
    }

    fn one() -> TestSender {
        let mut one = TestSender::default();
        one.sender.sent(&[TO_PORT_2, TO_PORT_2]);
        one
    }

    #[test]
    fn sender_waits_until_the_guest_has_room() {
        let mut one = one();
        assert!(!one.waits(true, 0));
        for now in 0..10 {
            one.all.begin_round();
            assert!(one.waits(false, now * US));
            assert!(one.all.is_waiting(1) && !one.all.is_waiting(2));
            assert_eq!(one.all.awaited_destinations().collect::<Vec<_>>(), [2]);
            assert_eq!(one.all.due_ns(), Some(MAX_WAIT_NS));
        }
        one.all.begin_round();
        assert!(!one.waits(true, 10 * US));
        assert_eq!((one.all.is_waiting(1), one.all.due_ns()), (false, None));
    }

    #[test]
    fn waits_time_out_and_do_not_repeat() {
        let mut one = one();
        assert!(one.waits(false, 0));
        assert!(one.waits(false, MAX_WAIT_NS - 1));
        for now in [0, 1, 10, 1000] {
            assert!(!one.waits(false, MAX_WAIT_NS + now * MAX_WAIT_NS));
        }
        // The sender still waits for other guests. It waits for this guest again after this guest
        // has had buffers.
        let later = 2000 * MAX_WAIT_NS;
        one.sender.sent(&[Verdict::Unicast(3)]);
        assert!(one.waits(false, later));
        one.sender.sent(&[TO_PORT_2]);
        assert!(!one.waits(true, later + US));
        assert!(one.waits(false, later + 3 * US));
    }

    /// The destination posts one buffer every `drip` microseconds.
    #[test]
    fn senders_wait_at_most_half_of_the_time() {
        for drip in [1, 10, 100, 490] {
            let mut one = one();
            let mut waited = 0;
            const ROUNDS: u64 = 10_000;
            for now in 0..ROUNDS {
                one.all.begin_round();
                waited += u64::from(one.waits(now % drip == 0, now * US));
            }
            assert!(waited <= ROUNDS / 2 + 500, "{waited} µs of {ROUNDS}");
        }
    }

    #[test]
    fn removed_guest_neither_waits_nor_is_awaited() {
        for removed in [1, 2] {
            let mut one = one();
            one.all.begin_round();
            assert!(one.waits(false, 0));
            one.all.remove(removed);
            assert!(!one.all.is_waiting(1));
            assert_eq!(one.all.awaited_destinations().count(), 0, "{removed}");
        }
        let mut one = one();
        one.sender.forget(2);
        assert_eq!(one.sender.destination(), None);
        assert!(!one.waits(false, US), "the destination is unknown");
    }

    #[test]
    fn sender_to_several_guests_never_waits() {
        let mut one = one();
        for batch in [
            &[TO_PORT_2, Verdict::Unicast(3)][..],
            &[TO_PORT_2, Verdict::Drop(DropReason::Firewall)],
            &[],
        ] {
            one.sender.sent(batch);
            assert_eq!(one.sender.destination(), None);
            assert!(!one.waits(false, 0), "{batch:?}");
        }
    }
}
