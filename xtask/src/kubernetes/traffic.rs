//! Traffic between network namespaces: pages, connections, checked streams.

use super::space::Netns;
use super::waiting::wait;
use anyhow::{Context, Result, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Timeout for a connection and for each read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of repeated UDP requests, and of an echo server's checks whether it must stop.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout for a page that is requested repeatedly.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// A stream fails if it makes no progress for this time.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Fetches the page at an address from inside a namespace.
pub(super) fn page(from: &Netns, ip: IpAddr, port: u16) -> Result<String> {
    from.run(|| {
        let to = SocketAddr::new(ip, port);
        let context = || format!("no page of {to}");
        let mut stream = TcpStream::connect_timeout(&to, ANSWER_TIMEOUT).with_context(context)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream
            .write_all(b"GET / HTTP/1.0\r\n\r\n")
            .with_context(context)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(context)?;
        let (_, body) = answer.split_once("\r\n\r\n").with_context(context)?;
        Ok(body.trim().to_owned())
    })
}

/// Fetches the page at an address until it begins with this text.
pub(super) fn await_page(from: &Netns, ip: IpAddr, port: u16, begin: &str) -> Result<()> {
    let what = format!("{ip} port {port} does not serve the page of {begin}");
    wait(&what, PAGE_TIMEOUT, || {
        expect_page(from, ip, port, begin).map(|()| true)
    })
}

/// Fetches a page. Returns an error if it does not begin with this text.
pub(super) fn expect_page(from: &Netns, ip: IpAddr, port: u16, begin: &str) -> Result<()> {
    let found = page(from, ip, port)?;
    ensure!(found.starts_with(begin), "{ip} serves {found}");
    Ok(())
}

/// Returns whether the calling thread can connect within the given time.
pub(super) fn connects(ip: IpAddr, port: u16, within: Duration) -> bool {
    TcpStream::connect_timeout(&SocketAddr::new(ip, port), within).is_ok()
}

/// Returns whether an echo server answers the calling thread over UDP within the given time.
pub(super) fn answers(ip: IpAddr, port: u16, within: Duration) -> bool {
    let own = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let ask = || -> std::io::Result<bool> {
        let socket = UdpSocket::bind(own)?;
        socket.connect((ip, port))?;
        socket.set_read_timeout(Some(RETRY_INTERVAL))?;
        let end = Instant::now() + within;
        while Instant::now() < end {
            socket.send(b"?")?;
            match socket.recv(&mut [0; 1]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                answer => return answer.map(|length| length == 1),
            }
        }
        Ok(false)
    };
    ask().unwrap_or(false)
}

/// An echo server, which returns each datagram to its sender until this value is dropped.
pub(super) struct Echo(#[expect(dead_code, reason = "dropped")] Stop);

impl Echo {
    /// Starts an echo server at a port of both address families.
    pub(super) fn start(within: &Netns, port: u16) -> Result<Self> {
        let bind = || Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?);
        let socket = within.run(bind).with_context(|| format!("port {port}"))?;
        socket.set_read_timeout(Some(RETRY_INTERVAL))?;
        let stop = Stop::default();
        let is_over = stop.0.clone();
        std::thread::spawn(move || {
            let mut datagram = [0; 64];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut datagram) {
                    // The client requests a lost answer again.
                    let _ = socket.send_to(&datagram[..length], from);
                }
            }
        });
        Ok(Self(stop))
    }
}

/// Stops a stream's sender or an echo server when it is set or dropped.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream of bytes between two namespaces. The receiver compares each byte. Dropping this value
/// stops the stream.
pub(super) struct Stream {
    stop: Stop,
    /// Number of bytes that have arrived unchanged so far.
    received: Arc<AtomicU64>,
    sender: JoinHandle<Result<u64>>,
    receiver: JoinHandle<Result<u64>>,
}

impl Stream {
    /// Starts a stream. It ends after `bytes` bytes or when it is stopped.
    pub(super) fn start(
        from: Netns,
        to: Netns,
        ip: IpAddr,
        bytes: u64,
        pause: Duration,
    ) -> Result<Self> {
        let listener = to.run(|| Ok(TcpListener::bind(SocketAddr::new(ip, 0))?))?;
        let port = listener.local_addr()?.port();
        let stop = Stop::default();
        let is_over = stop.0.clone();
        let received = Arc::new(AtomicU64::new(0));
        let so_far = received.clone();
        let receiver = std::thread::spawn(move || receive(&listener.accept()?.0, &so_far));
        let sender = std::thread::spawn(move || {
            from.enter()?;
            let stream = TcpStream::connect_timeout(&SocketAddr::new(ip, port), STREAM_TIMEOUT)?;
            send(stream, bytes, pause, &is_over)
        });
        Ok(Self {
            stop,
            received,
            sender,
            receiver,
        })
    }

    /// Waits until this number of further bytes has arrived or the stream has ended. In the latter
    /// case [`Stream::stop`] returns the reason.
    pub(super) fn advance(&self, bytes: u64) -> Result<()> {
        let before = self.received.load(Ordering::Relaxed);
        wait(
            &format!("{bytes} further bytes did not arrive"),
            STREAM_TIMEOUT,
            || {
                let has_ended = self.sender.is_finished() || self.receiver.is_finished();
                let arrived = self.received.load(Ordering::Relaxed) - before;
                Ok(has_ended || arrived >= bytes)
            },
        )
    }

    /// Stops the stream. Returns the number of bytes that arrived unchanged.
    pub(super) fn stop(self) -> Result<u64> {
        self.stop.0.store(true, Ordering::Relaxed);
        self.finish()
    }

    /// Waits for the end of the stream. Returns the number of bytes that arrived unchanged.
    pub(super) fn finish(self) -> Result<u64> {
        let join = |thread: JoinHandle<Result<u64>>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let sent = join(self.sender).context("the sender failed")?;
        let received = join(self.receiver).context("the receiver failed")?;
        ensure!(sent == received, "{received} of {sent} bytes arrived");
        Ok(received)
    }
}

/// Returns the block with this number. All blocks differ, so the receiver detects a lost, repeated
/// or moved block.
fn block(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut words = Vec::with_capacity(1 << 16);
    while words.len() < 1 << 16 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend(state.to_le_bytes());
    }
    words
}

fn send(mut to: TcpStream, bytes: u64, pause: Duration, stop: &AtomicBool) -> Result<u64> {
    to.set_write_timeout(Some(STREAM_TIMEOUT))?;
    let mut sent = 0;
    let mut number = 0;
    while sent < bytes && !stop.load(Ordering::Relaxed) {
        let block = block(number);
        let length = block
            .len()
            .min(usize::try_from(bytes - sent).unwrap_or(usize::MAX));
        to.write_all(&block[..length])?;
        sent += length as u64;
        number += 1;
        std::thread::sleep(pause);
    }
    Ok(sent)
}

fn receive(mut from: &TcpStream, so_far: &AtomicU64) -> Result<u64> {
    from.set_read_timeout(Some(STREAM_TIMEOUT))?;
    let mut received = 0;
    for number in 0.. {
        let wanted = block(number);
        let mut got = vec![0; wanted.len()];
        let mut length = 0;
        while length < got.len() {
            match from.read(&mut got[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(|| format!("after {received} bytes")),
            }
        }
        ensure!(got[..length] == wanted[..length], "block {number} differs");
        received += length as u64;
        so_far.store(received, Ordering::Relaxed);
        if length < wanted.len() {
            break;
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(listener: TcpListener) -> JoinHandle<Result<u64>> {
        let so_far = AtomicU64::new(0);
        std::thread::spawn(move || {
            let received = receive(&listener.accept()?.0, &so_far)?;
            ensure!(so_far.into_inner() == received, "another number of bytes");
            Ok(received)
        })
    }

    #[test]
    fn a_dropped_stream_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = receiver(listener);
        let stop = Stop::default();
        let is_over = stop.0.clone();
        let sender = std::thread::spawn(move || send(stream, u64::MAX, Duration::ZERO, &is_over));
        drop(stop);
        let sent = sender.join().unwrap().unwrap();
        assert_eq!(receiver.join().unwrap().unwrap(), sent);
    }

    #[test]
    fn a_changed_block_is_detected() {
        for wrong in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let receiver = receiver(listener);
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(&block(0)).unwrap();
            stream
                .write_all(&block(1 + u64::from(wrong))[..100])
                .unwrap();
            drop(stream);
            let received = receiver.join().unwrap();
            assert_eq!(received.is_err(), wrong, "{received:?}");
        }
    }
}
