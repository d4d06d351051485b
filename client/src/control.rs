//! The control socket: one JSON line per request, one per answer.

use crate::Error;
use abi::machine::{ControlError, ControlRequest};
use abi::reload::REQUEST_MAX;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The maximum length of an answer in bytes, far above the full audit of the largest machine.
const ANSWER_MAX: usize = 256 << 20;

/// Sends `request` to the control socket at `path` and returns its answer, within `limit`: for
/// callers with a shorter deadline than an [`Instance`](crate::Instance).
///
/// # Errors
///
/// Returns an error if no process answers there in time, or it rejects the request.
pub fn send_request<T: DeserializeOwned>(
    path: &Path,
    request: &ControlRequest,
    limit: Duration,
) -> Result<T, Error> {
    let mut line = serde_json::to_vec(request).map_err(|e| Error::InvalidAnswer(e.to_string()))?;
    line.push(b'\n');
    if line.len() > REQUEST_MAX {
        return Err(Error::Refused(format!(
            "the request has {} bytes; the limit is {REQUEST_MAX}",
            line.len()
        )));
    }
    let line = exchange(path, &line, limit).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::TimedOut {
            what: "the monitor's answer".to_owned(),
            limit,
            hint: String::new(),
        },
        _ => Error::io(format!("connect to the monitor at {}", path.display()), e),
    })?;
    if let Ok(refused) = serde_json::from_slice::<ErrorAnswer>(&line) {
        return Err(Error::Refused(refused.0.error));
    }
    serde_json::from_slice(&line).map_err(|e| Error::InvalidAnswer(e.to_string()))
}

/// An object with the single key `error`. No other answer has this form.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct ErrorAnswer(ControlError);

fn exchange(path: &Path, request: &[u8], limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + limit;
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut)
        } else {
            Ok(Some(left))
        }
    };
    let mut stream = connect(path, left()?)?;
    stream.set_write_timeout(left()?)?;
    match stream.write_all(request) {
        // A busy manager may answer and disconnect before it reads the request.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }

    let mut answer = Vec::new();
    let mut chunk = [0; 16384];
    loop {
        stream.set_read_timeout(left()?)?;
        let n = match stream.read(&mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let new = chunk.get(..n).unwrap_or_default();
        if let Some(end) = new.iter().position(|&b| b == b'\n') {
            answer.extend_from_slice(new.get(..end).unwrap_or_default());
            return Ok(answer);
        }
        answer.extend_from_slice(new);
        if answer.len() > ANSWER_MAX {
            return Err(io::Error::other("the answer is too long"));
        }
    }
}

/// Connects; the deadline also covers a listener that is too busy to accept.
fn connect(path: &Path, limit: Option<Duration>) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, limit)?;
    let address = SocketAddrUnix::new(path)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::machine::{Audit, RelayReply};
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    const TIMEOUT: Duration = Duration::from_secs(120);

    /// Returns a monitor that gives one answer.
    fn with_answer<T>(answer: &'static [u8], close: bool, check: impl FnOnce(&Path) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            // A client with a short deadline may have disconnected.
            let _ = (&stream).write_all(answer);
            if !close {
                let mut rest = Vec::new();
                let _ = (&stream).read_to_end(&mut rest);
            }
            line
        });
        let result = check(&path);
        assert!(server.join().unwrap().ends_with('\n'));
        result
    }

    fn relay() -> ControlRequest {
        ControlRequest::Relay {
            domain: "driver".into(),
            request: "{}".into(),
        }
    }

    #[test]
    fn an_answer_is_decoded() {
        let got: RelayReply = with_answer(b"{\"reply\":\"x\\n\"}\n", false, |path| {
            send_request(path, &relay(), TIMEOUT).unwrap()
        });
        assert_eq!(got.reply, "x\n");
    }

    #[test]
    fn a_request_that_is_too_long_is_not_sent() {
        let request = ControlRequest::Relay {
            domain: "driver".into(),
            request: "x".repeat(REQUEST_MAX),
        };
        let path = Path::new("/no/such/socket");
        let refused = send_request::<RelayReply>(path, &request, TIMEOUT).unwrap_err();
        let says = |why: &String| why.ends_with("bytes; the limit is 1048576");
        assert!(
            matches!(&refused, Error::Refused(why) if says(why)),
            "{refused}"
        );
    }

    #[test]
    fn kinds_of_failed_answers_are_distinguished() {
        let limit = TIMEOUT;
        let refused = with_answer(b"{\"error\":\"no domain x\"}\n", false, |path| {
            send_request::<Audit>(path, &ControlRequest::Grants, limit).unwrap_err()
        });
        assert!(matches!(refused, Error::Refused(text) if text == "no domain x"));
        let nonsense = with_answer(b"[]\n", false, |path| {
            send_request::<Audit>(path, &ControlRequest::Grants, limit).unwrap_err()
        });
        assert!(matches!(nonsense, Error::InvalidAnswer(_)));
        let hung_up = with_answer(b"{\"dom", true, |path| {
            send_request::<Audit>(path, &ControlRequest::Grants, limit).unwrap_err()
        });
        assert!(matches!(hung_up, Error::Io { .. }));
        let late = with_answer(b"{", false, |path| {
            send_request::<Audit>(path, &ControlRequest::Grants, Duration::from_millis(50))
                .unwrap_err()
        });
        assert!(matches!(late, Error::TimedOut { .. }));
    }

    #[test]
    fn a_busy_listener_is_not_awaited_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let limit = Duration::from_millis(50);
        // The first clients fill its queue and wait for an answer; the last one finds the queue
        // full.
        for _ in 0..3 {
            let late = send_request::<Audit>(&path, &ControlRequest::Grants, limit).unwrap_err();
            assert!(matches!(late, Error::TimedOut { .. }), "{late:?}");
        }
    }
}
