//! A continuous stream of datagrams, for tests of rate limits.

use crate::wait_until;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of the Ethernet, IP and UDP headers in front of a datagram's data.
const HEADERS: usize = 14 + 20 + 8;

/// Sets a flag when dropped, so that threads of a scope that poll the flag also exit if the test
/// panics.
#[derive(Debug)]
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends datagrams of this size continuously until some have arrived, a second has passed, and
/// `enough` returns true. Returns the bytes of the frames that arrived, and the duration.
///
/// # Panics
///
/// Panics like [`wait_until`], and if a socket cannot be used.
pub fn flood(
    (sender, receiver): (&UdpSocket, &UdpSocket),
    bytes: usize,
    enough: impl Fn() -> bool,
) -> (f64, Duration) {
    let pause = Duration::from_millis(200);
    receiver.set_read_timeout(Some(pause)).unwrap();
    let to = receiver.local_addr().unwrap();
    let (stop, got) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        scope.spawn(|| {
            let datagram = vec![7; bytes];
            while !stop.load(Ordering::Relaxed) {
                // Datagrams that the kernel cannot queue are lost, which the test allows.
                let _ = sender.send_to(&datagram, to);
            }
        });
        let all = scope.spawn(|| {
            let mut datagram = vec![0; bytes];
            // Datagrams that were in flight when the sender stopped also count.
            loop {
                match receiver.recv(&mut datagram) {
                    Ok(bytes) => got.fetch_add((bytes + HEADERS) as u64, Ordering::Relaxed),
                    Err(_) if stop.load(Ordering::Relaxed) => return begin.elapsed(),
                    Err(_) => 0,
                };
            }
        });
        wait_until("no datagram arrives, or none is lost", || {
            let came = got.load(Ordering::Relaxed) > 0;
            came && begin.elapsed() > Duration::from_secs(1) && enough()
        });
        drop(stops);
        let took = all.join().unwrap();
        (got.load(Ordering::Relaxed) as f64, took)
    })
}
