//! The API server, accessed through the socket of `kubectl proxy`.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A client of the API server.
#[derive(Clone)]
pub(super) struct Api {
    socket: PathBuf,
}

impl Api {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Fetches an object or a list.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        self.request_object("GET", path, "", "application/json")
    }

    /// Creates or changes an object.
    pub(super) fn apply(&self, path: &str, object: &Value) -> Result<Value> {
        let path = format!("{path}?fieldManager=xtask&force=true");
        self.request_object(
            "PATCH",
            &path,
            &object.to_string(),
            "application/apply-patch+yaml",
        )
    }

    /// Deletes an object or all objects of a list.
    pub(super) fn delete(&self, path: &str) -> Result<Value> {
        self.request_object("DELETE", path, "", "application/json")
    }

    fn request_object(&self, method: &str, path: &str, body: &str, kind: &str) -> Result<Value> {
        let about = || format!("{method} {path}");
        let mut stream = UnixStream::connect(&self.socket).with_context(about)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        // In HTTP/1.0 the answer ends when the server closes the connection.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).with_context(about)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(about)?;
        parse(&answer).with_context(about)
    }
}

fn parse(answer: &str) -> Result<Value> {
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        bail!("{}", body.get(..400).unwrap_or(body));
    }
    serde_json::from_str(body).context("the answer is not JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_values_or_errors() {
        let value = parse("HTTP/1.0 201 Created\r\nA: b\r\n\r\n{\"a\": 1}").unwrap();
        assert_eq!(value["a"], 1);
        let error = parse("HTTP/1.0 404 Not Found\r\n\r\nno such pod").unwrap_err();
        assert_eq!(error.to_string(), "no such pod");
        assert!(parse("").is_err());
    }
}
