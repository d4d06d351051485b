//! Waiting for what has to come, without a guess how soon.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ExitStatus, Output};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long something that has to come is waited for: no promise of anybody's, only the end of a
/// test that fails. A test's machine may be many times slower than ours.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Looks so often.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until there is something: what there is.
///
/// # Panics
/// Nothing comes: says what is missing.
#[track_caller]
pub fn wait_for<T>(missing: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        // What is late by the clock may be there all the same: it is looked for after the end, too.
        let is_over = Instant::now() >= end;
        if let Some(found) = look() {
            return found;
        }
        assert!(!is_over, "{missing}");
        std::thread::sleep(PAUSE);
    }
}

/// Looks until it is so.
///
/// # Panics
/// It never is: says what is wrong.
#[track_caller]
pub fn wait_until(wrong: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(wrong, || is_so().then_some(()));
}

/// The next connection. Who waits for it too long, or later for a byte of it, fails.
///
/// # Panics
/// None comes.
#[track_caller]
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("a socket");
    let stream = wait_for("nobody connects", || match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("nobody can connect: {error}"),
    });
    listener.set_nonblocking(false).expect("a socket");
    stream.set_nonblocking(false).expect("a socket");
    patient(stream)
}

/// A connection whose bytes are not waited for longer than [`PATIENCE`].
///
/// # Panics
/// It is none.
#[track_caller]
pub fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Returns what a program has printed into its pipes when it ends, as
/// [`Child::wait_with_output`], within a deadline. A process that the program has left behind may
/// hold the pipes open.
///
/// # Panics
/// If the pipes stay open for longer than `longest`, or the program does not end then.
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
        status: end_of(&mut child),
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

/// How a program has ended, which is waited for.
///
/// # Panics
/// It does not end.
#[track_caller]
pub fn end_of(child: &mut Child) -> ExitStatus {
    let ended = || child.try_wait().expect("a child");
    wait_for("a program does not end", ended)
}
