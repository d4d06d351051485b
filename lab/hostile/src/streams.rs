//! Flows between pairs of innocent guests: in an established one per pair, a datagram per
//! millisecond, which the other end returns; and a hundred new TCP connections per second. Both
//! ends are threads of this process, so they use the same clock.

use crate::machines::{PORT, address};
use crate::probe::{Delays, PERIOD, bound, histogram, receive};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use netdev::netns::Namespace;
use std::io;
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

type Results = (Histogram<u64>, u64);

/// Running streams and connection attempts.
pub(crate) struct Streams {
    stop: Arc<AtomicBool>,
    established: Vec<(JoinHandle<u64>, JoinHandle<Histogram<u64>>)>,
    connects: Vec<JoinHandle<Results>>,
}

impl Streams {
    /// Starts them between the innocent guests in these namespaces.
    pub(crate) fn start(places: &[Namespace]) -> Result<Self> {
        let begun = Instant::now();
        let mut streams = Self {
            stop: Arc::default(),
            established: Vec::new(),
            connects: Vec::new(),
        };
        for (pair, two) in places.chunks_exact(2).enumerate() {
            let server = SocketAddr::new(address(2 * pair + 1).into(), PORT);
            let listener = two[1].enter(|| TcpListener::bind(server))?;
            let listener = listener.with_context(|| server.to_string())?;
            let own = SocketAddr::new(address(2 * pair).into(), 0);
            let (client, returning) = (bound(&two[0], own)?, bound(&two[1], server)?);
            client.connect(server)?;
            let (receiver, stop) = (client.try_clone()?, Arc::clone(&streams.stop));
            std::thread::spawn(move || return_all(&returning));
            streams.established.push((
                std::thread::spawn(move || send(&client, begun, &stop)),
                std::thread::spawn(move || receive(&receiver, begun)),
            ));
            std::thread::spawn(move || while listener.accept().is_ok() {});
            let place = Namespace::from(two[0].as_fd().try_clone_to_owned()?);
            let stop = Arc::clone(&streams.stop);
            streams.connects.push(std::thread::spawn(move || {
                let tried = place.enter(|| connect(server, &stop));
                tried.unwrap_or_else(|_| (histogram(), 0))
            }));
        }
        Ok(streams)
    }

    /// Stops them. Returns the round trips in established flows, and the times that
    /// new connections took.
    pub(crate) fn stop(self) -> [Delays; 2] {
        self.stop.store(true, Ordering::Relaxed);
        let (mut messages, mut connects) = (Delays::default(), Delays::default());
        for (sender, receiver) in self.established {
            let sent = sender.join().unwrap_or_default();
            messages.add(receiver.join().unwrap_or_else(|_| histogram()), sent);
        }
        for tries in self.connects {
            let (times, tried) = tries.join().unwrap_or_else(|_| (histogram(), 0));
            connects.add(times, tried);
        }
        [messages, connects]
    }
}

/// Sends a datagram per period until `stop`, and returns their number.
fn send(socket: &UdpSocket, begun: Instant, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    paced(PERIOD, stop, || {
        sent += 1;
        // A datagram that the kernel rejects counts as lost.
        let _taken = socket.send(&now_ns(begun).to_be_bytes());
        Ok(())
    });
    sent
}

/// Returns datagrams to their senders until none arrives for the maximum delay.
fn return_all(socket: &UdpSocket) {
    let mut bytes = [0; 8];
    while let Ok((count, sender)) = socket.recv_from(&mut bytes) {
        let _taken = socket.send_to(bytes.get(..count).unwrap_or_default(), sender);
    }
}

/// Connects once per period until `stop`. Returns the times of the successful attempts, and the
/// number of all.
fn connect(server: SocketAddr, stop: &AtomicBool) -> Results {
    let (mut times, mut tried) = (histogram(), 0);
    paced(CONNECT_PERIOD, stop, || {
        tried += 1;
        let began = Instant::now();
        if TcpStream::connect_timeout(&server, CONNECT_WAIT).is_ok() {
            times.saturating_record(now_ns(began));
        }
        Ok(())
    });
    (times, tried)
}

/// Calls `each` once per period until `stop` or an error. A delayed call delays the next ones only
/// as long as it lasts.
fn paced(period: Duration, stop: &AtomicBool, mut each: impl FnMut() -> io::Result<()>) {
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) && each().is_ok() {
        due = (due + period).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn now_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
