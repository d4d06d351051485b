//! A runtime limits a container's bandwidth in each direction.

use crate::machine::{Machine, call, path, reaches};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testing::{StopOnDrop, accept, flood, wait_until, with_timeout};

/// Limit to the container, bits per second. Queued packets to the container still arrive after the
/// test.
const INGRESS: u32 = 800_000;
/// Limit from the container, bits per second.
const EGRESS: u32 = 8_000_000;
/// Bits of a burst.
const BURST: u32 = 160_000;
/// Bytes of a datagram.
const DATAGRAM: usize = 1400;

/// A container, and its address.
struct Limited(Namespace, IpAddr);

impl Limited {
    fn new(id: &str, conf: &Value) -> Self {
        let namespace = Namespace::new().unwrap();
        let added = call("ADD", id, &path(&namespace), conf).done();
        let mut after = conf.clone();
        after["prevResult"] = added.clone();
        call("CHECK", id, &path(&namespace), &after).done();
        let address = added["ips"][0]["address"].as_str().unwrap();
        let address = address.split('/').next().unwrap().parse().unwrap();
        Self(namespace, address)
    }

    fn socket(&self) -> UdpSocket {
        let bind = || UdpSocket::bind((self.1, 9000)).unwrap();
        self.0.enter(bind).unwrap()
    }
}

#[test]
fn a_containers_limits_hold_in_both_directions() {
    let Some(mut machine) = Machine::up() else {
        return;
    };
    let conf = machine.network();
    let mut limited = conf.clone();
    limited["runtimeConfig"]["bandwidth"] = json!({
        "ingressRate": INGRESS, "ingressBurst": BURST, "egressRate": EGRESS, "egressBurst": BURST,
    });
    let [a, b] = [("0a", &conf), ("0b", &limited)].map(|(id, conf)| Limited::new(id, conf));
    reaches(&a.0, &b.1.to_string());
    let dropped = || -> u64 {
        let drops = &machine.stat("driver")["drops"];
        let count = |reason: &str| drops[reason].as_u64().unwrap();
        count("queue_full") + count("queue_codel") + count("queue_late")
    };
    let most = |rate: u32, took: Duration| f64::from(rate) / 8.0 * took.as_secs_f64() * 1.2;

    let (got, took) = flood((&a.socket(), &b.socket()), DATAGRAM, || dropped() > 0);
    let burst = f64::from(BURST) / 8.0;
    assert!(
        got <= most(INGRESS, took) + burst,
        "{got} bytes in {took:?}"
    );
    // A turn of the sender may exceed the burst by a packet.
    let (got, took) = flood((&b.socket(), &a.socket()), DATAGRAM, || true);
    assert!(
        got <= most(EGRESS, took) + burst + 65_536.0,
        "{got} bytes in {took:?}"
    );

    for (id, container, conf) in [("0a", &a, &conf), ("0b", &b, &limited)] {
        call("DEL", id, &path(&container.0), conf).done();
    }
    machine.down();
}

/// Sends a stream from one container to another until, in some second, at least `bits_min` bits per
/// second have arrived.
fn stream(from: &Limited, to: &Limited, bits_min: f64) {
    let bind = || TcpListener::bind((to.1, 7000)).unwrap();
    let listener = to.0.enter(bind).unwrap();
    let connect = || TcpStream::connect((to.1, 7000)).unwrap();
    let mut sender = with_timeout(from.0.enter(connect).unwrap());
    let mut receiver = accept(&listener);
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        scope.spawn(|| {
            let block = vec![7; 64 << 10];
            while !stop.load(Ordering::Relaxed) {
                sender.write_all(&block).unwrap();
            }
            drop(sender);
        });
        scope.spawn(|| {
            let mut part = vec![0; 64 << 10];
            while let count @ 1.. = receiver.read(&mut part).unwrap() {
                received.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        wait_until("the stream stays below the limit", || {
            let (begin, before) = (Instant::now(), received.load(Ordering::Relaxed));
            thread::sleep(Duration::from_secs(1));
            let bits = (received.load(Ordering::Relaxed) - before) as f64 * 8.0;
            println!("{bits} bits in {:?}", begin.elapsed());
            bits >= bits_min * begin.elapsed().as_secs_f64()
        });
        drop(stops);
    });
}

/// Excess packets wait, so that one stream reaches most of the limit.
#[test]
fn a_stream_reaches_a_containers_limit() {
    const RATE: u32 = 20_000_000;
    let Some(mut machine) = Machine::up() else {
        return;
    };
    let conf = machine.network();
    let mut limited = conf.clone();
    limited["runtimeConfig"]["bandwidth"] = json!({ "ingressRate": RATE });
    let [a, b] = [("0a", &conf), ("0b", &limited)].map(|(id, conf)| Limited::new(id, conf));
    reaches(&a.0, &b.1.to_string());
    stream(&a, &b, 0.8 * f64::from(RATE));
    for (id, container, conf) in [("0a", &a, &conf), ("0b", &b, &limited)] {
        call("DEL", id, &path(&container.0), conf).done();
    }
    machine.down();
}
