//! Waiting for conditions and events without assumptions about time.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ExitStatus, Output};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Deadline for an event that must occur. Its only purpose is to end a failing test, so it is long:
/// a machine that runs the tests may be many times slower than the developers' machines.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Interval between checks.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `look` returns a value, and returns it.
///
/// # Panics
///
/// Panics after the deadline with the message `missing`.
#[track_caller]
pub fn wait_for<T>(missing: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        // The condition is checked once more after the deadline, because the machine may have been
        // too slow to check it in time.
        let is_over = Instant::now() >= end;
        if let Some(found) = look() {
            return found;
        }
        assert!(!is_over, "{missing}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a condition is true.
///
/// # Panics
///
/// Panics after the deadline with the message `wrong`.
#[track_caller]
pub fn wait_until(wrong: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(wrong, || is_so().then_some(()));
}

/// Accepts the next connection. The wait for the connection, and each later read, fails after the
/// deadline.
///
/// # Panics
///
/// Panics if no connection arrives.
#[track_caller]
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("a socket");
    let stream = wait_for("no client connects", || match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("cannot accept a connection: {error}"),
    });
    listener.set_nonblocking(false).expect("a socket");
    stream.set_nonblocking(false).expect("a socket");
    with_timeout(stream)
}

/// Returns the connection with a read timeout of [`TIMEOUT`].
///
/// # Panics
///
/// Panics if the timeout cannot be set.
#[track_caller]
pub fn with_timeout(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a socket");
    stream
}

/// Returns the output of a program when it exits, like [`Child::wait_with_output`], within a
/// deadline. A process that the program has left behind may hold the pipes open.
///
/// # Panics
///
/// Panics if the pipes stay open for longer than `longest`, or if the program does not exit
/// afterwards.
#[track_caller]
pub fn output_of(mut child: Child, longest: Duration) -> Output {
    drop(child.stdin.take());
    let [out, err] = [
        child.stdout.take().map(read_all),
        child.stderr.take().map(read_all),
    ];
    let bytes = |pipe: Option<mpsc::Receiver<Vec<u8>>>| match pipe {
        Some(pipe) => pipe.recv_timeout(longest).expect("its pipes stay open"),
        None => Vec::new(),
    };
    let [stdout, stderr] = [out, err].map(bytes);
    Output {
        status: wait_for_exit(&mut child),
        stdout,
        stderr,
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, bytes) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if pipe.read_to_end(&mut all).is_ok() {
            let _gave_up = sender.send(all);
        }
    });
    bytes
}

/// Waits until a program exits; returns its status.
///
/// # Panics
///
/// Panics if the program does not exit.
#[track_caller]
pub fn wait_for_exit(child: &mut Child) -> ExitStatus {
    let ended = || child.try_wait().expect("a child");
    wait_for("a program does not end", ended)
}
