//! Flows between pairs of innocent guests. Each pair has an established flow with a datagram per
//! millisecond, which the other end returns, and a hundred new TCP connections per second. Both
//! ends are threads of this process, so they use the same clock.

use crate::machines::{PORT, address};
use crate::probe::{Delays, PERIOD, bound, histogram, now_ns, receive, send_time, until_silent};
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use netdev::netns::Namespace;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between connections of a pair.
const CONNECT_PERIOD: Duration = Duration::from_millis(10);
/// Timeout of a connection attempt.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// Interval of checks for new connections.
const ACCEPT_PERIOD: Duration = Duration::from_millis(5);

/// Times of successful connection attempts, and the number of all attempts.
type ConnectTimes = (Histogram<u64>, u64);

/// The flows of one pair.
struct Pair {
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Histogram<u64>>,
    connects: JoinHandle<ConnectTimes>,
}

/// Running streams and connection attempts.
pub(crate) struct Streams {
    stop: Arc<AtomicBool>,
    pairs: Vec<Pair>,
}

impl Streams {
    /// Starts the flows between the innocent guests in these namespaces.
    pub(crate) fn start(places: &[Namespace]) -> Result<Self> {
        let (begun, stop) = (Instant::now(), Arc::<AtomicBool>::default());
        let pairs = places.chunks_exact(2).enumerate();
        let pairs = pairs.map(|(number, two)| pair(number, two, begun, &stop));
        Ok(Self {
            pairs: pairs.collect::<Result<_>>()?,
            stop,
        })
    }

    /// Stops the flows. Returns the round-trip times in established flows and the times of new
    /// connections, for the first pair and for the others.
    pub(crate) fn stop(self) -> Vec<(&'static str, Delays)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all: [Delays; 4] = Default::default();
        for (number, pair) in self.pairs.into_iter().enumerate() {
            let first = if number == 0 { 0 } else { 2 };
            let sent = pair.sender.join().unwrap_or_default();
            let times = pair.receiver.join().unwrap_or_else(|_| histogram());
            all[first].add(times, sent);
            let (times, tried) = pair.connects.join().unwrap_or_else(|_| (histogram(), 0));
            all[first + 1].add(times, tried);
        }
        let names = ["its flow", "its connects", "flows", "connects"];
        names.into_iter().zip(all).collect()
    }
}

/// Starts the flows between two namespaces.
fn pair(
    number: usize,
    places: &[Namespace],
    begun: Instant,
    stop: &Arc<AtomicBool>,
) -> Result<Pair> {
    let [from, to] = places else {
        bail!("a pair has two namespaces");
    };
    let server = SocketAddr::new(address(2 * number + 1).into(), PORT);
    let own = SocketAddr::new(address(2 * number).into(), 0);
    let listener = to.enter(|| TcpListener::bind(server))?;
    let listener = listener.with_context(|| server.to_string())?;
    listener.set_nonblocking(true)?;
    let (client, returning) = (bound(from, own)?, bound(to, server)?);
    client.connect(server)?;
    let receiver = client.try_clone()?;
    let place = Namespace::from(from.as_fd().try_clone_to_owned()?);
    let flag = || Arc::clone(stop);
    let (returns, accepts) = (flag(), flag());
    std::thread::spawn(move || return_all(&returning, &returns));
    std::thread::spawn(move || {
        paced(
            ACCEPT_PERIOD,
            &accepts,
            || while listener.accept().is_ok() {},
        )
    });
    let (sends, receives, connects) = (flag(), flag(), flag());
    Ok(Pair {
        sender: std::thread::spawn(move || send(&client, begun, &sends)),
        receiver: std::thread::spawn(move || receive(&receiver, begun, &receives)),
        connects: std::thread::spawn(move || {
            let tried = place.enter(|| connect(server, &connects));
            tried.unwrap_or_else(|_| (histogram(), 0))
        }),
    })
}

/// Sends a datagram per period until `stop`, and returns their number.
fn send(socket: &UdpSocket, begun: Instant, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    paced(PERIOD, stop, || {
        sent += 1;
        send_time(socket, begun);
    });
    sent
}

/// Returns datagrams to their senders until `stop`.
fn return_all(socket: &UdpSocket, stop: &AtomicBool) {
    let mut bytes = [0; 8];
    until_silent(stop, || {
        let (count, sender) = socket.recv_from(&mut bytes)?;
        socket.send_to(bytes.get(..count).unwrap_or_default(), sender)?;
        Ok(())
    });
}

/// Connects once per period until `stop`.
fn connect(server: SocketAddr, stop: &AtomicBool) -> ConnectTimes {
    let (mut times, mut tried) = (histogram(), 0);
    paced(CONNECT_PERIOD, stop, || {
        tried += 1;
        let began = Instant::now();
        if TcpStream::connect_timeout(&server, CONNECT_WAIT).is_ok() {
            times.saturating_record(now_ns(began));
        }
    });
    (times, tried)
}

/// Calls `each` once per period until `stop`. A call that takes longer than a period delays the
/// next ones.
fn paced(period: Duration, stop: &AtomicBool, mut each: impl FnMut()) {
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        each();
        due = (due + period).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}
