//! Flush policies.

use crate::common::frame_of;
use crate::packets::{Tcp, stream};
use crate::rig::{payloads, wide};
use net::lro::{Flush, Lro, Psh, Reason, Settings};
use net::packet::flags::PSH;
use nic::Frame;

fn frames(packets: &[Tcp]) -> Vec<Frame> {
    packets.iter().map(|p| frame_of(&p.bytes(), &[])).collect()
}

/// An engine with one stream of packets that continue each other.
struct Stream {
    lro: Lro,
    next: u32,
    id: u16,
    out: Vec<Frame>,
}

impl Stream {
    fn new(settings: Settings) -> Self {
        Self {
            lro: Lro::new(settings, 5),
            next: 0,
            id: 0,
            out: Vec::new(),
        }
    }

    fn flush(flush: Flush) -> Self {
        Self::new(Settings { flush, ..wide() })
    }

    fn packets(&mut self, count: usize, flags: u8) -> Vec<Frame> {
        let packets: Vec<_> = (0..count)
            .map(|_| {
                let packet = Tcp::v4(self.next, 100).with(|p| {
                    p.id = self.id;
                    p.flags |= flags;
                });
                self.next += 100;
                self.id = self.id.wrapping_add(1);
                packet
            })
            .collect();
        frames(&packets)
    }

    /// Polls at `us` with `count` packets; returns the flushed payload sizes.
    fn poll(&mut self, us: u64, count: usize) -> Vec<usize> {
        self.poll_with(us, count, 0)
    }

    fn poll_with(&mut self, us: u64, count: usize, flags: u8) -> Vec<usize> {
        let mut frames = self.packets(count, flags);
        self.out.clear();
        self.lro.poll(us * 1000, &mut frames, &mut self.out);
        payloads(&self.out)
    }

    fn expire(&mut self, us: u64) -> Vec<usize> {
        self.out.clear();
        self.lro.expire(us * 1000, &mut self.out);
        payloads(&self.out)
    }

    fn flushed(&self, reason: Reason) -> u64 {
        self.lro.counters().flushed(reason)
    }
}

/// LR-60: the latency of an aggregate includes the rest of its poll.
#[test]
fn latency_has_the_rest_of_the_poll() {
    let mut stream = Stream::flush(Flush::Poll);
    let mut frames = stream.packets(4, 0);
    let (poll, out) = (&mut stream.lro, &mut stream.out);
    poll.poll_timed(1_000, || 34_170, &mut frames, out);
    assert_eq!((out.len(), poll.latency().count()), (1, 1));
    assert_eq!(poll.latency().max_ns(), 33_170);
    poll.poll_timed(50_000, || unreachable!("nothing waits"), &mut frames, out);
    assert_eq!(poll.latency().count(), 1);
    let mut frames = stream.packets(2, 0);
    let (poll, out) = (&mut stream.lro, &mut stream.out);
    poll.poll_timed(60_000, || 59_000, &mut frames, out);
    assert_eq!(poll.latency().count(), 2, "a clock that runs backwards");
    assert_eq!(poll.latency().max_ns(), 33_170);
}

#[test]
fn poll_policy_flushes_at_every_poll() {
    for flush in [Flush::Poll, Flush::Polls(0), Flush::Polls(1)] {
        let mut stream = Stream::flush(flush);
        assert_eq!(stream.poll(0, 3), [300]);
        assert_eq!(stream.poll(1, 1), [100]);
        assert_eq!(stream.poll(2, 0), []);
        assert_eq!((stream.lro.held(), stream.lro.next_due()), (0, None));
        assert_eq!(stream.flushed(Reason::Poll), 2);
    }
}

/// LR-61: delayed aggregation flushes at every other poll, including empty ones.
#[test]
fn polls_policy_flushes_at_every_nth_poll() {
    let mut stream = Stream::flush(Flush::Polls(2));
    assert_eq!(stream.poll(0, 3), []);
    assert_eq!(stream.poll(30, 3), [600]);
    assert_eq!(stream.poll(60, 2), []);
    assert_eq!(stream.poll(90, 0), [200]);
    assert_eq!(stream.flushed(Reason::Poll), 2);
    assert_eq!(stream.lro.latency().count(), 2);
    assert_eq!(stream.lro.latency().max_ns(), 30_000);
}

/// LR-61: without polls, the longest wait applies.
#[test]
fn every_nth_poll_is_bounded_in_time() {
    let mut stream = Stream::flush(Flush::Polls(100));
    assert_eq!(stream.poll(0, 1), []);
    let due = stream.lro.next_due().unwrap();
    assert!((190_000..=200_000).contains(&due), "{due}");
    assert_eq!(stream.expire(150), []);
    assert_eq!(stream.expire(200), [100]);
    assert_eq!((stream.lro.held(), stream.lro.next_due()), (0, None));
    assert_eq!(stream.flushed(Reason::Time), 1);
}

/// LR-62: an aggregate is flushed at most t microseconds after its first segment, however many
/// follow.
#[test]
fn after_policy_flushes_after_its_time() {
    let mut stream = Stream::flush(Flush::After { us: 50 });
    assert_eq!(stream.poll(1000, 1), []);
    assert_eq!(stream.poll(1020, 1), []);
    assert_eq!(stream.poll(1040, 1), []);
    let due = stream.lro.next_due().unwrap();
    assert!((1_049_000..=1_050_000).contains(&due), "{due}");
    assert_eq!(stream.poll(1050, 1), [400]);
    assert_eq!(stream.lro.latency().p50_ns(), 50_000);
    // At the time of an earlier `next_due`, without a poll.
    assert_eq!(stream.poll(2000, 1), []);
    let due = stream.lro.next_due().unwrap();
    assert_eq!(stream.expire(due / 1000 - 1), []);
    assert_eq!(stream.expire(due.div_ceil(1000)), [100]);
}

/// LR-62: `hold_max_us` applies to every policy.
#[test]
fn every_policy_respects_the_longest_wait() {
    for flush in [
        Flush::Polls(1000),
        Flush::After { us: 1000 },
        Flush::Adaptive,
    ] {
        let settings = Settings {
            flush,
            hold_max_us: 40,
            ..wide()
        };
        let mut stream = Stream::new(settings);
        for us in 0..5000 {
            stream.poll(us, usize::from(us % 7 == 0));
            assert!(stream.lro.latency().max_ns() <= 40_000, "{flush:?}");
        }
        assert!(stream.lro.latency().count() > 100);
        assert!(stream.lro.counters().rate() > 3.0, "{flush:?}");
    }
}

/// LR-63: an aggregate that cannot grow does not wait. It cannot grow after PSH, FIN or a short
/// segment, or if it has the maximum number of bytes or segments.
#[test]
fn complete_aggregates_do_not_wait() {
    for flush in [Flush::Polls(9), Flush::After { us: 100 }, Flush::Adaptive] {
        let mut stream = Stream::flush(flush);
        assert_eq!(stream.poll_with(0, 1, PSH), [100], "{flush:?}");
        let mut stream = Stream::flush(flush);
        stream.lro.poll(0, &mut frames(&[]), &mut Vec::new());
        let mut packets = stream_of(3);
        packets[2].flags |= PSH;
        let mut out = Vec::new();
        stream.lro.poll(0, &mut frames(&packets), &mut out);
        assert_eq!(payloads(&out), [300]);
        // Full: another one of 1460 bytes would not fit.
        let full: Vec<_> = (0..44)
            .map(|n| Tcp::v4(n * 1460, 1460).with(|p| p.id = n as u16))
            .collect();
        out.clear();
        stream.lro.poll(0, &mut frames(&full), &mut out);
        assert_eq!(payloads(&out), [44 * 1460], "{flush:?}");
        assert_eq!(stream.lro.held(), 0);
    }
}

fn stream_of(count: usize) -> Vec<Tcp> {
    stream(false, count, 100)
}

/// LR-64: acknowledgements, control flags and other protocols never wait, and never overtake.
#[test]
fn control_and_acknowledgements_never_wait() {
    for flag in [1, 2, 4, 0x20] {
        let mut lro = Lro::new(
            Settings {
                flush: Flush::After { us: 100 },
                ..wide()
            },
            1,
        );
        let mut out = Vec::new();
        let mut packets = stream_of(3);
        packets[2].payload.clear();
        packets[2].flags |= flag;
        lro.poll(0, &mut frames(&packets), &mut out);
        assert_eq!(payloads(&out), [200, 0]);
        packets[1].flags |= flag;
        let alone = &packets[1..2];
        out.clear();
        lro.poll(0, &mut frames(alone), &mut out);
        assert_eq!((payloads(&out), lro.held()), (vec![100], 0));
    }
}

/// LR-65: settings change while packets are held: these are flushed first at the next poll.
#[test]
fn settings_change_while_packets_are_held() {
    let hold = Settings {
        flush: Flush::After { us: 100 },
        ..wide()
    };
    let mut stream = Stream::new(hold);
    assert_eq!(stream.poll(0, 2), []);
    stream.lro.set(hold);
    assert_ne!(stream.lro.next_due(), Some(0), "nothing has changed");
    stream.lro.set(wide());
    assert_eq!(*stream.lro.settings(), wide());
    assert_eq!(stream.lro.next_due(), Some(0));
    assert_eq!(stream.poll(1, 2), [200, 200]);
    assert_eq!(stream.flushed(Reason::Settings), 1);
    assert_eq!(
        stream.lro.latency().count(),
        1,
        "only latencies of the new policy"
    );
    stream.lro.set(hold);
    assert_eq!((stream.lro.next_due(), stream.poll(2, 1)), (None, vec![]));
    stream.lro.set(Settings { flows: 1, ..hold });
    assert_eq!(stream.expire(3), [100]);
    assert_eq!((stream.lro.held(), stream.lro.next_due()), (0, None));
    assert_eq!(stream.poll(4, 1), []);
}

/// LR-66: everything is flushed when the interface closes.
#[test]
fn drain_flushes_all_aggregates() {
    let mut stream = Stream::flush(Flush::After { us: 100 });
    assert_eq!(stream.poll(0, 2), []);
    stream.out.clear();
    stream.lro.drain(1000, &mut stream.out);
    assert_eq!(payloads(&stream.out), [200]);
    assert_eq!(stream.flushed(Reason::Drain), 1);
}

fn adaptive() -> Settings {
    Settings {
        flush: Flush::Adaptive,
        ..wide()
    }
}

/// LR-70: a steady stream is held for about the longest wait, at any poll interval.
#[test]
fn adaptive_holds_a_steady_stream() {
    for (gap, at_least) in [(2, 40.0), (12, 10.0), (50, 2.5), (125, 1.9)] {
        let mut stream = Stream::new(adaptive());
        for n in 0..400 {
            stream.poll(1000 + n * gap, 1);
        }
        let rate = stream.lro.counters().rate();
        assert!(rate > at_least, "every {gap} µs: {rate}");
    }
}

/// LR-70: if no segment is expected within the longest wait, nothing waits.
#[test]
fn adaptive_does_not_hold_at_light_load() {
    let mut stream = Stream::new(adaptive());
    for n in 0..100 {
        assert_eq!(stream.poll(1000 + n * 500, 1), [100]);
    }
    assert_eq!(stream.lro.latency().max_ns(), 0);
}

/// LR-71: the aggregate at the end of a burst is flushed after a few times the gap between the
/// burst's packets, not after the longest wait.
#[test]
fn adaptive_flushes_the_end_of_a_burst() {
    let mut stream = Stream::new(adaptive());
    let mut now = 1000;
    for _ in 0..20 {
        for _ in 0..6 {
            now += 5;
            stream.poll(now, 2);
        }
        let last = now;
        while stream.lro.held() > 0 {
            now += 1;
            stream.expire(now);
            assert!(now - last <= 30, "still held {} µs after", now - last);
        }
        now += 1000;
    }
    assert!(stream.lro.counters().rate() > 4.0);
}

/// LR-72: if a sender waits for a delayed acknowledgement, the engine almost never waits after a
/// few attempts without a further segment.
#[test]
fn adaptive_stops_fruitless_waits() {
    let mut stream = Stream::new(adaptive());
    let (mut now, mut waited) = (1000, 0);
    for _ in 0..1000 {
        stream.poll(now, 4);
        while stream.lro.held() > 0 {
            waited += 1;
            now += 1;
            stream.expire(now);
        }
        // The next window arrives after a round trip.
        now += 60;
    }
    assert!(
        waited < 1000 * 60 / 20,
        "waited {waited} µs in 1000 windows"
    );
}

/// LR-73: with `psh = merge` a message's end is distinguished from its middle.
#[test]
fn adaptive_does_not_hold_the_ends_of_messages() {
    let mut stream = Stream::new(Settings {
        psh: Psh::Merge,
        ..adaptive()
    });
    let (mut now, mut late) = (1000, 0);
    for n in 0..200 {
        for _ in 0..3 {
            stream.poll(now, 4);
            now += 4;
        }
        stream.poll_with(now, 1, PSH);
        while stream.lro.held() > 0 {
            late += u64::from(n >= 20);
            now += 1;
            stream.expire(now);
        }
        now += 80;
    }
    assert!(late < 180 * 5, "waited {late} µs after 180 messages");
    // 1 KB messages in a steady stream all have PSH, and are still held.
    let mut stream = Stream::new(Settings {
        psh: Psh::Merge,
        ..adaptive()
    });
    for n in 0..400 {
        stream.poll_with(1000 + n * 8, 1, PSH);
    }
    assert!(stream.lro.counters().rate() > 15.0);
}
