//! Fetches the metrics of a machine's manager: one HTTP request to a socket.

use crate::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4, which node_exporter's textfile collector and `promtool check
    /// metrics` read.
    Text,
}

impl MetricsFormat {
    const fn accept(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0",
            Self::Text => "text/plain; version=0.0.4",
        }
    }
}

/// The maximum length of an answer in bytes, far above that of the largest machine.
const ANSWER_MAX: usize = 64 << 20;

/// Returns the metrics socket of the instance with this control socket.
pub(crate) fn path_of(control: &Path) -> PathBuf {
    control.with_extension("metrics")
}

/// Fetches the text, within `limit`.
pub(crate) fn fetch(path: &Path, format: MetricsFormat, limit: Duration) -> Result<String, Error> {
    let answer = exchange(path, format, limit).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::TimedOut {
            what: "the metrics".to_owned(),
            limit,
            hint: String::new(),
        },
        ErrorKind::NotFound => Error::Refused(format!(
            "this instance serves no metrics: {} does not exist",
            path.display()
        )),
        _ => Error::io(format!("read metrics from {}", path.display()), e),
    })?;
    body(&answer)
}

fn exchange(path: &Path, format: MetricsFormat, limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + limit;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut),
        left => Ok(Some(left)),
    };
    let mut stream = UnixStream::connect(path)?;
    stream.set_write_timeout(left()?)?;
    let accept = format.accept();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    let mut chunk = [0; 16384];
    loop {
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(answer),
            Ok(n) => answer.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if answer.len() > ANSWER_MAX {
            return Err(io::Error::other("the answer is too long"));
        }
    }
}

/// Returns the body of an HTTP answer, if it is complete and successful.
fn body(answer: &[u8]) -> Result<String, Error> {
    let nonsense = || Error::InvalidAnswer("no metrics".to_owned());
    let text = std::str::from_utf8(answer).map_err(|_| nonsense())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(nonsense)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status.ok_or_else(nonsense)?;
    let length = lines.find_map(|line| line.strip_prefix("Content-Length: "));
    if length.and_then(|length| length.parse().ok()) != Some(body.len()) {
        return Err(Error::InvalidAnswer("the metrics end too early".to_owned()));
    }
    if status.starts_with("200 ") {
        Ok(body.to_owned())
    } else {
        Err(Error::Refused(body.trim_end().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Returns a server that gives one answer to every request.
    fn answered(answer: &'static str) -> Result<String, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        let got = fetch(&path, MetricsFormat::Text, Duration::from_secs(120));
        let request = server.join().unwrap();
        assert!(
            request.starts_with("GET /metrics HTTP/1.1\r\n"),
            "{request}"
        );
        assert!(request.contains("Accept: text/plain"), "{request}");
        got
    }

    #[test]
    fn only_a_complete_answer_is_accepted() {
        let whole = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nx 1\n";
        assert_eq!(answered(whole).unwrap(), "x 1\n");
        let cut = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx 1\n";
        assert!(matches!(answered(cut), Err(Error::InvalidAnswer(_))));
        for nonsense in ["", "HTTP/1.1 200 OK\r\n", "hello\r\n\r\n"] {
            assert!(matches!(answered(nonsense), Err(Error::InvalidAnswer(_))));
        }
        let refused = "HTTP/1.1 503 Not Now\r\nContent-Length: 5\r\n\r\nbusy\n";
        assert!(matches!(answered(refused), Err(Error::Refused(why)) if why == "busy"));
    }

    #[test]
    fn an_instance_without_metrics_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_of(&dir.path().join("x.sock"));
        let none = fetch(&path, MetricsFormat::OpenMetrics, Duration::from_secs(1));
        let why = none.unwrap_err().to_string();
        assert!(
            why.contains("serves no metrics") && why.contains("x.metrics"),
            "{why}"
        );
    }
}
