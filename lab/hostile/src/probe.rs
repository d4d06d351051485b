//! Probes, with which every second innocent guest sends a datagram per millisecond to the next
//! guest. A datagram contains its send time. Both ends are threads of this process, so they use the
//! same clock.

use crate::machines::{PORT, address};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use netdev::netns::Namespace;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between messages of a probe.
pub(crate) const PERIOD: Duration = Duration::from_millis(1);
/// Delay after which a datagram counts as lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum delay that is recorded, nanoseconds. Longer delays are recorded as the maximum.
const LONGEST_NS: u64 = 10_000_000_000;

/// One-way delays, round-trip times or connection times of probes.
pub(crate) struct Delays {
    times: Histogram<u64>,
    sent: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            times: histogram(),
            sent: 0,
        }
    }
}

impl Delays {
    /// Adds the times of the messages that arrived, out of `sent`.
    pub(crate) fn add(&mut self, times: Histogram<u64>, sent: u64) {
        let _same_bounds = self.times.add(times);
        self.sent += sent;
    }

    /// Returns the share of messages that were lost, or 1 if none was sent.
    pub(crate) fn lost_share(&self) -> f64 {
        match self.sent {
            0 => 1.0,
            sent => self.lost() as f64 / sent as f64,
        }
    }

    /// Returns a quantile of the delays, in microseconds.
    pub(crate) fn us(&self, part: f64) -> f64 {
        self.times.value_at_quantile(part) as f64 / 1e3
    }

    /// Returns the number of lost messages.
    pub(crate) fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.times.len())
    }
}

/// Running probes.
pub(crate) struct Probes {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<()>,
    receivers: Vec<JoinHandle<Histogram<u64>>>,
}

impl Probes {
    /// Starts probes between the innocent guests in these namespaces.
    pub(crate) fn start(places: &[Namespace]) -> Result<Self> {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let begun = Instant::now();
        let (mut sockets, mut receivers) = (Vec::new(), Vec::new());
        for (pair, two) in places.chunks_exact(2).enumerate() {
            let [from, to] = [2 * pair, 2 * pair + 1].map(address);
            let [sender, receiver] = [(&two[0], from, 0), (&two[1], to, PORT)]
                .map(|(place, address, port)| bound(place, SocketAddr::new(address.into(), port)));
            let (sender, receiver) = (sender?, receiver?);
            sender.connect((to, PORT))?;
            sockets.push(sender);
            let ended = Arc::clone(&stop);
            receivers.push(std::thread::spawn(move || {
                receive(&receiver, begun, &ended)
            }));
        }
        let (ended, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let sender = std::thread::spawn(move || send(&sockets, begun, &ended, &count));
        Ok(Self {
            stop,
            sent,
            sender,
            receivers,
        })
    }

    /// Stops the probes and returns the combined results.
    pub(crate) fn stop(self) -> Delays {
        self.stop.store(true, Ordering::Relaxed);
        let _ended = self.sender.join();
        let mut delays = Delays::default();
        for receiver in self.receivers {
            delays.add(receiver.join().unwrap_or_else(|_| histogram()), 0);
        }
        delays.add(histogram(), self.sent.load(Ordering::Relaxed));
        delays
    }
}

/// Returns an empty histogram of nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_NS, 3).expect("the constants are within its bounds")
}

/// Creates a socket in a namespace. Retries to bind it, because the interface may be new.
pub(crate) fn bound(place: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    let socket = place.enter(|| -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(LOSS_TIMEOUT))?;
        Ok(socket)
    });
    socket?.with_context(|| address.to_string())
}

fn send(sockets: &[UdpSocket], begun: Instant, stop: &AtomicBool, sent: &AtomicU64) {
    for number in 1u32.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for socket in sockets {
            send_time(socket, begun);
            sent.fetch_add(1, Ordering::Relaxed);
        }
        let due = PERIOD.saturating_mul(number);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}

/// Sends a datagram with its send time. A datagram that the kernel rejects counts as lost.
pub(crate) fn send_time(socket: &UdpSocket, begun: Instant) {
    let _taken = socket.send(&now_ns(begun).to_be_bytes());
}

/// Returns the nanoseconds since an instant.
pub(crate) fn now_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

/// Receives until `stop`, and then until no datagram arrives for [`LOSS_TIMEOUT`].
pub(crate) fn receive(socket: &UdpSocket, begun: Instant, stop: &AtomicBool) -> Histogram<u64> {
    let mut times = histogram();
    let mut bytes = [0; 8];
    until_silent(stop, || {
        let count = socket.recv(&mut bytes)?;
        if count == bytes.len() {
            times.saturating_record(now_ns(begun).saturating_sub(u64::from_be_bytes(bytes)));
        }
        Ok(())
    });
    times
}

/// Calls `each` until a call that began after `stop` fails. An earlier failure only means that a
/// message is late, so the calls continue.
pub(crate) fn until_silent(stop: &AtomicBool, mut each: impl FnMut() -> io::Result<()>) {
    loop {
        // This is read before the call, so that the last call waits for the whole timeout.
        let stopped = stop.load(Ordering::Relaxed);
        if each().is_err() {
            if stopped {
                return;
            }
            std::thread::sleep(PERIOD);
        }
    }
}
