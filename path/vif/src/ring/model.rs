//! Checks every order of events with loom: `RUSTFLAGS="--cfg loom" cargo test -p vif --lib model`.

use super::consumer::Consumer;
use super::producer::Producer;
use super::slots::SlotPositions;
use super::{Back, Format, Front, RingIndex, RingMemory};
use crate::events::{EventWords, Events};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

/// A ring of one page in loom's memory: the indices and the first few slots.
#[derive(Clone)]
struct Model {
    format: Format,
    indices: Arc<[AtomicU32; 4]>,
    /// In the native format requests, then responses.
    slots: Arc<Vec<AtomicU32>>,
}

/// Words of a slot.
const N: usize = 2;
/// Words of one kind of slots.
const WORDS: usize = 2 * N;

impl Model {
    fn new(format: Format) -> Self {
        Self {
            format,
            indices: Arc::new(std::array::from_fn(|_| AtomicU32::new(0))),
            slots: Arc::new((0..2 * WORDS).map(|_| AtomicU32::new(0)).collect()),
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let (requests, responses) = (self.format.requests(N), self.format.responses(N, N));
        let at = if offset >= responses.at && responses != requests {
            WORDS + (offset - responses.at) / 4 % WORDS
        } else {
            (offset - requests.at) / 4 % WORDS
        };
        &self.slots[at]
    }
}

impl RingMemory for Model {
    fn format(&self) -> Format {
        self.format
    }

    fn pages(&self) -> usize {
        1
    }

    fn index(&self, index: RingIndex, order: Ordering) -> u32 {
        self.indices[index as usize].load(order)
    }

    fn set_index(&self, index: RingIndex, value: u32, order: Ordering) {
        self.indices[index as usize].store(value, order);
    }

    fn read<const M: usize>(&self, _: usize, offset: usize, stride: usize, to: &mut [[u32; M]]) {
        for (n, slot) in to.iter_mut().enumerate() {
            for (m, word) in slot.iter_mut().enumerate() {
                let at = offset + n * stride + m * 4;
                *word = self.word(at).load(Ordering::Relaxed);
            }
        }
    }

    fn write<const M: usize>(&self, _: usize, offset: usize, slot: [u32; M]) {
        for (m, word) in slot.into_iter().enumerate() {
            let word_at = self.word(offset + m * 4);
            word_at.store(word, Ordering::Relaxed);
        }
    }

    fn write_run<const M: usize>(&self, page: usize, offset: usize, slots: &[[u32; M]]) {
        for (n, slot) in slots.iter().enumerate() {
            self.write(page, offset + n * M * 4, *slot);
        }
    }
}

/// Models `body` with each format in turn.
fn model(body: impl Fn(Format) + Sync + Send + 'static) {
    let body = std::sync::Arc::new(body);
    for format in Format::ALL {
        let body = std::sync::Arc::clone(&body);
        loom::model(move || body(format));
    }
}

/// The event channel in loom's memory.
#[derive(Clone)]
struct Channel(Arc<[AtomicU32; 4]>);

impl Channel {
    fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU32::new(0))))
    }
}

impl EventWords for Channel {
    fn load(&self, n: usize, order: Ordering) -> u32 {
        self.0[n].load(order)
    }

    fn store(&self, n: usize, value: u32, order: Ordering) {
        self.0[n].store(value, order);
    }

    fn swap(&self, n: usize, value: u32, order: Ordering) -> u32 {
        self.0[n].swap(value, order)
    }
}

/// RING-7 for the producer alone: a peer that sees the producer's index sees every slot that the
/// index covers. A producer that checks after its fence does not miss a peer that armed earlier
/// (RING-9).
#[test]
fn a_producer_publishes_its_slots() {
    model(|format| {
        let words = Model::new(format);
        let (requests, _) = SlotPositions::of::<N, N>(&words);
        let mut producer = Producer::<N>::new(requests);
        words.set_index(RingIndex::ReqEvent, 1, Ordering::Relaxed);
        let shared = words.clone();
        let writer = thread::spawn(move || {
            producer.write(&shared, [1, 1]);
            producer.publish(&shared, RingIndex::ReqProd);
            producer.write_all(&shared, &[[2, 2]]);
            producer.publish(&shared, RingIndex::ReqProd);
            fence(Ordering::SeqCst);
            assert_eq!(producer.unnotified(), 2);
            producer.should_notify(&shared, RingIndex::ReqEvent)
        });
        let prod = words.index(RingIndex::ReqProd, Ordering::Acquire);
        for n in 0..prod {
            let (page, offset) = format.requests(N).of(n);
            let mut slot = [[0; N]];
            words.read(page, offset, N * 4, &mut slot);
            assert_eq!(slot, [[n + 1; N]]);
        }
        words.set_index(RingIndex::ReqEvent, prod + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let sleeps = words.index(RingIndex::ReqProd, Ordering::Acquire) == prod;
        let rang = writer.join().expect("the writer");
        assert!(!sleeps || prod == 2 || rang, "asleep without a doorbell");
    });
}

/// RING-7 and RING-10 for the consumer alone: a ready slot was written. A consumer that arms and
/// checks again does not sleep without a doorbell while a slot waits.
#[test]
fn consumer_misses_no_published_slot() {
    model(|format| {
        let words = Model::new(format);
        let (requests, _) = SlotPositions::of::<N, N>(&words);
        let mut consumer = Consumer::<N>::new(requests);
        let shared = words.clone();
        let writer = thread::spawn(move || {
            for n in 0..2 {
                let (page, offset) = format.requests(N).of(n);
                shared.write(page, offset, [n + 1; N]);
                shared.set_index(RingIndex::ReqProd, n + 1, Ordering::Release);
            }
            fence(Ordering::SeqCst);
            super::passes(shared.index(RingIndex::ReqEvent, Ordering::Relaxed), 0, 2)
        });
        let ready = consumer.ready_for(&words, RingIndex::ReqProd, 2, 2);
        let ready = ready.expect("an honest peer");
        for n in 0..ready {
            assert_eq!(consumer.peek(&words, 0), Some([n + 1; N]));
            consumer.consume(1);
        }
        assert_eq!(consumer.peek(&words, 0), None);
        consumer.arm(&words, RingIndex::ReqEvent, 0);
        fence(Ordering::SeqCst);
        let sleeps = consumer.pending(&words, RingIndex::ReqProd) == 0;
        let rang = writer.join().expect("the writer");
        assert!(!sleeps || ready == 2 || rang, "asleep without a doorbell");
    });
}

/// RING-7: in both directions, a peer that sees an index sees the slots that it covers; and a
/// response is never read as the request in the same slot.
#[test]
fn published_slots_are_visible_to_the_peer() {
    model(|format| {
        let words = Model::new(format);
        let mut front = Front::<_, N, N>::new(words.clone());
        let mut back = Back::<_, N, N>::new(words);
        let guest = thread::spawn(move || {
            for n in 1..=2 {
                front.request([n, n]);
                front.publish();
            }
            let ready = front.ready_for(1).expect("an honest peer");
            for n in 0..ready {
                let id = n + 1;
                assert_eq!(front.peek(n), Some([id + 10, id + 10]));
            }
        });
        let ready = back.ready_for(2).expect("an honest peer");
        for n in 0..ready {
            let id = n + 1;
            assert_eq!(back.peek(n), Some([id, id]));
        }
        back.consume(ready);
        for n in 0..ready {
            back.respond([n + 11, n + 11]);
        }
        back.publish();
        guest.join().expect("the guest");
    });
}

/// A consumer that is about to sleep and a producer that publishes once: either the consumer sees
/// the request at its last check, or the producer rings (RING-10, RING-12). Both mechanisms must
/// work together: the ring's event index and the channel's armed flag.
#[test]
fn no_wake_up_is_lost() {
    model(|format| {
        let words = Model::new(format);
        let channel = Channel::new();
        let front_events = Events::for_frontend(channel.clone());
        let mut front = Front::<_, N, N>::new(words.clone());
        let mut back = Back::<_, N, N>::new(words);
        let back_events = Events::for_backend(channel);
        // The back slept before and was notified, so its event index is behind.
        front.request([1, 1]);
        front.publish();
        let _ = front.should_notify();
        back.ready_for(1).expect("an honest peer");
        back.consume(1);

        let guest = thread::spawn(move || {
            front.request([2, 2]);
            front.publish();
            fence(Ordering::SeqCst);
            front.should_notify() && front_events.notify()
        });
        back.arm(0);
        back_events.arm();
        fence(Ordering::SeqCst);
        let sleeps = back.pending() == 0 && !back_events.is_pending();
        let rang = guest.join().expect("the guest");
        assert!(!sleeps || rang, "asleep without a doorbell");
    });
}

/// No notification is lost if the consumer reads only the channel's pending word, as a domain with
/// many peers does.
#[test]
fn no_event_is_lost() {
    loom::model(|| {
        let channel = Channel::new();
        let front = Events::for_frontend(channel.clone());
        let back = Events::for_backend(channel);
        let guest = thread::spawn(move || front.notify());
        back.arm();
        fence(Ordering::SeqCst);
        let sleeps = !back.is_pending();
        let rang = guest.join().expect("the guest");
        assert!(!sleeps || rang, "asleep without a doorbell");
        assert!(back.take_pending());
        assert!(!back.take_pending());
    });
}

/// Two notifications and one sleeper: the notifier rings the doorbell at most once per arming, and
/// the receiver of a notification sees all slots published before it.
#[test]
fn a_bell_is_rung_once() {
    loom::model(|| {
        let channel = Channel::new();
        let data = Arc::new(AtomicU32::new(0));
        let front = Events::for_frontend(channel.clone());
        let back = Events::for_backend(channel);
        back.arm();
        let written = Arc::clone(&data);
        let guest = thread::spawn(move || {
            written.store(1, Ordering::Relaxed);
            let first = front.notify();
            written.store(2, Ordering::Relaxed);
            let second = front.notify();
            u32::from(first) + u32::from(second)
        });
        if back.take_pending() {
            assert!(data.load(Ordering::Relaxed) >= 1);
        }
        let rings = guest.join().expect("the guest");
        assert_eq!(rings, 1);
        back.take_pending();
        assert_eq!(data.load(Ordering::Relaxed), 2);
    });
}

/// One fence for several rings, as in the driver's turn: the driver publishes to the rings of two
/// sleeping guests, executes one fence, and checks both. Both guests wake.
#[test]
fn one_fence_serves_two_rings() {
    model(|format| {
        let rings = [Model::new(format), Model::new(format)];
        let mut fronts = rings.clone().map(Front::<_, N, N>::new);
        let mut backs = rings.map(Back::<_, N, N>::new);
        // Requests that the back will answer.
        for (front, back) in fronts.iter_mut().zip(&mut backs) {
            front.request([1, 1]);
            front.publish();
            let _ = front.should_notify();
            back.ready_for(1).expect("an honest peer");
            back.consume(1);
            front.disarm();
        }
        let driver = thread::spawn(move || {
            for back in &mut backs {
                back.respond([1, 1]);
                back.publish();
            }
            fence(Ordering::SeqCst);
            backs.each_mut().map(Back::should_notify)
        });
        let sleeps = fronts.each_mut().map(|front| !front.prepare_sleep(0));
        let rang = driver.join().expect("the driver");
        for (sleeps, rang) in sleeps.into_iter().zip(rang) {
            assert!(!sleeps || rang, "asleep without a doorbell");
        }
    });
}

/// Acts as a hostile peer: writes arbitrary values into words of the channel.
fn scribble(channel: &Channel) {
    for (word, value) in [(0, u32::MAX), (1, 0), (3, 1), (2, 0)] {
        channel.store(word, value, Ordering::Relaxed);
    }
}

/// XSA-332, XSA-343 at the driver's end. A hostile guest publishes, takes requests back and
/// overruns the ring while it writes arbitrary values into the channel. The driver takes no more
/// than the ring holds, answers only taken requests, rings at most once per turn, and loses no
/// wake-up from an honest guest.
#[test]
fn attack_10_12_a_hostile_front_beside_an_honest_one() {
    model(|format| {
        let (words, channels) = (Model::new(format), [Channel::new(), Channel::new()]);
        let (shared, hostile) = (words.clone(), channels[0].clone());
        let mut back = Back::<_, N, N>::new(words);
        let front = Events::for_frontend(channels[1].clone());
        let [bad, good] = channels.map(Events::for_backend);
        let attacker = thread::spawn(move || {
            shared.set_index(RingIndex::ReqProd, 2, Ordering::Relaxed);
            scribble(&hostile);
            shared.set_index(RingIndex::ReqProd, 1, Ordering::Relaxed);
        });
        let guest = thread::spawn(move || front.notify());
        let ready = back.ready_for(2).unwrap_or(0);
        assert!(ready <= 2);
        back.consume(ready);
        for n in 0..=ready {
            assert_eq!(
                back.respond([n, n]),
                n < ready,
                "a response without a request"
            );
        }
        back.publish();
        fence(Ordering::SeqCst);
        let rings = back.should_notify() && bad.notify();
        assert!(
            !(back.should_notify() && bad.notify()),
            "{rings}, and again"
        );
        bad.arm();
        good.arm();
        fence(Ordering::SeqCst);
        let sleeps = !good.is_pending();
        attacker.join().expect("the attacker");
        let rang = guest.join().expect("the guest");
        assert!(!sleeps || rang, "asleep, and the honest guest did not ring");
    });
}

/// XSA-391 at the guest's end. A hostile driver answers requests that were never made, and takes
/// responses back, while it writes arbitrary values into the channel. The guest takes no more
/// responses than it has made requests, and rings at most once per batch.
#[test]
fn attack_11_a_hostile_back() {
    model(|format| {
        let (words, channel) = (Model::new(format), Channel::new());
        let mut front = Front::<_, N, N>::new(words.clone());
        let events = Events::for_frontend(channel.clone());
        front.request([1, 1]);
        front.publish();
        let attacker = thread::spawn(move || {
            words.set_index(RingIndex::RspProd, 1, Ordering::Relaxed);
            channel.store(1, 1, Ordering::Relaxed);
            words.set_index(RingIndex::ReqEvent, 1, Ordering::Relaxed);
            words.set_index(RingIndex::RspProd, 2, Ordering::Relaxed);
        });
        fence(Ordering::SeqCst);
        let rings = front.should_notify() && events.notify();
        assert!(
            !(front.should_notify() && events.notify()),
            "{rings}, and again"
        );
        match front.ready_for(2) {
            Ok(ready) => {
                assert!(ready <= front.unanswered());
                front.consume(2);
                assert_eq!(front.unanswered(), 1 - ready);
            }
            Err(_) => assert_eq!(front.ready(), 0),
        }
        events.arm();
        events.take_pending();
        events.disarm();
        attacker.join().expect("the attacker");
    });
}

/// Both ends are hostile: each half has a peer that publishes unwritten slots. Neither takes more
/// slots than the ring can hold, in any order.
#[test]
fn attack_11_both_ends_overrun_each_other() {
    model(|format| {
        let words = Model::new(format);
        let mut front = Front::<_, N, N>::new(words.clone());
        let mut back = Back::<_, N, N>::new(words.clone());
        let shared = words.clone();
        let driver = thread::spawn(move || {
            let ready = back.ready_for(2).unwrap_or(0);
            assert!(ready <= 2);
            back.consume(ready);
            // More responses than requests.
            shared.set_index(RingIndex::RspProd, 5, Ordering::Release);
            assert_eq!(back.unanswered(), ready);
        });
        front.request([1, 1]);
        front.publish();
        // More requests than the ring has slots.
        words.set_index(RingIndex::ReqProd, 300, Ordering::Release);
        let ready = front.ready_for(2);
        assert!(
            ready.is_err() || ready == Ok(0),
            "requests that were never answered"
        );
        driver.join().expect("the driver");
    });
}
