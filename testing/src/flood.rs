//! Datagrams without end, for tests of what is let through.

use crate::wait_until;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of Ethernet, IP and UDP before those of a datagram.
const HEADERS: usize = 14 + 20 + 8;

/// Sets a flag at its end: threads of a scope that look at it end, too, when the test panics.
#[derive(Debug)]
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends datagrams of so many bytes without end, until some came, a second is over, and `enough`
/// says so. Bytes of frames that came, and how long that took.
///
/// # Panics
///
/// As [`wait_until`], and if a socket cannot be used.
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
        let stops = Stops(&stop);
        scope.spawn(|| {
            let datagram = vec![7; bytes];
            while !stop.load(Ordering::Relaxed) {
                // What the kernel has no room for is lost, which is as good.
                let _ = sender.send_to(&datagram, to);
            }
        });
        let all = scope.spawn(|| {
            let mut datagram = vec![0; bytes];
            // Those that were under way when the sender has ended come as well.
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
        let took = all.join().unwrap();
        (got.load(Ordering::Relaxed) as f64, took)
    })
}
