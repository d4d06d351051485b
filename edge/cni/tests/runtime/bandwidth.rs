//! A container that its runtime limits is limited, each way.

use crate::machine::{Machine, call, path, reaches};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testing::wait_until;

/// Bits a second to the container, and from it: what waits there goes on when the test has enough.
const INGRESS: u32 = 800_000;
const EGRESS: u32 = 8_000_000;
/// Bits at once.
const BURST: u32 = 160_000;
/// Bytes of a datagram, and of Ethernet, IP and UDP before them.
const DATAGRAM: usize = 1400;
const HEADERS: usize = 14 + 20 + 8;

/// A container, and its address.
struct Limited(Namespace, IpAddr);

impl Limited {
    fn new(id: &str, conf: &Value) -> Self {
        let namespace = Namespace::new().unwrap();
        let came = call("ADD", id, &path(&namespace), conf).done();
        let mut after = conf.clone();
        after["prevResult"] = came.clone();
        call("CHECK", id, &path(&namespace), &after).done();
        let address = came["ips"][0]["address"].as_str().unwrap();
        let address = address.split('/').next().unwrap().parse().unwrap();
        Self(namespace, address)
    }

    fn socket(&self) -> UdpSocket {
        let bind = || UdpSocket::bind((self.1, 9000)).unwrap();
        self.0.enter(bind).unwrap()
    }
}

/// Who sends does so no more when the test is over, however it ends.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends datagrams without end until some came, a second is over and `enough` says so. Bytes of
/// frames that came, and how long it took.
fn flood(from: &Limited, to: &Limited, enough: impl Fn() -> bool) -> (f64, Duration) {
    let (sender, receiver) = (from.socket(), to.socket());
    let pause = Duration::from_millis(200);
    receiver.set_read_timeout(Some(pause)).unwrap();
    let (stop, got) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        let stops = Stops(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // What the kernel has no room for is lost, which is as good.
                let _ = sender.send_to(&[7; DATAGRAM], (to.1, 9000));
            }
        });
        let took = scope.spawn(|| {
            let mut datagram = [0; DATAGRAM];
            loop {
                match receiver.recv(&mut datagram) {
                    Ok(bytes) => got.fetch_add((bytes + HEADERS) as u64, Ordering::Relaxed),
                    Err(_) if stop.load(Ordering::Relaxed) => return begin.elapsed(),
                    Err(_) => 0,
                };
            }
        });
        wait_until("nothing comes, or all of it does", || {
            let came = got.load(Ordering::Relaxed) > 0;
            came && begin.elapsed() > Duration::from_secs(1) && enough()
        });
        drop(stops);
        let took = took.join().unwrap();
        (got.load(Ordering::Relaxed) as f64, took)
    })
}

#[test]
fn a_container_that_is_limited_gets_and_sends_no_more() {
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
    let dropped = || machine.stat("driver")["drops"]["rate_to_guest"].as_u64();
    let most = |rate: u32, took: Duration| f64::from(rate) / 8.0 * took.as_secs_f64() * 1.2;

    let (got, took) = flood(&a, &b, || dropped().unwrap() > 0);
    let burst = f64::from(BURST) / 8.0;
    assert!(
        got <= most(INGRESS, took) + burst,
        "{got} bytes in {took:?}"
    );
    // A turn of what it sends may be a packet too long.
    let (got, took) = flood(&b, &a, || true);
    assert!(
        got <= most(EGRESS, took) + burst + 65_536.0,
        "{got} bytes in {took:?}"
    );

    for (id, container, conf) in [("0a", &a, &conf), ("0b", &b, &limited)] {
        call("DEL", id, &path(&container.0), conf).done();
    }
    machine.down();
}
