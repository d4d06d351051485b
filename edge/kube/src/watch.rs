//! Follows all objects of a kind: lists them, then watches for changes.
//!
//! A watch reports the changes after the last known version of the kind. If the server no longer
//! has that version (status 410), or answers anything unexpected, the objects are listed again.

use crate::api::ObjectName;
use crate::object::{Kind, Object, decoded, named};
use crate::server::{ApiServer, HttpBody, Limits};
use serde::Deserialize;
use serde_json::Value;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

/// Objects on a page of a list.
const PAGE_OBJECTS: u32 = 500;
/// Limit of a page, bytes.
const PAGE_BYTES_MAX: u64 = 256 << 20;
/// Limit of an event, bytes: several times the limit of an object.
const EVENT_BYTES_MAX: u64 = 16 << 20;
/// Limit of an explanation in an answer, bytes.
const REASON_BYTES_MAX: u64 = 16 << 10;
/// The deadlines of a page.
const PAGE_LIMITS: Limits = Limits {
    silence: Duration::from_secs(30),
    whole: Duration::from_secs(120),
};
/// Time after which the server ends a watch.
const WATCH_TIME: Duration = Duration::from_secs(300);
/// The deadlines of a watch. The server sends a bookmark each minute. If no bookmark arrives in
/// time, the program repeats the watch.
const WATCH_LIMITS: Limits = Limits {
    silence: Duration::from_secs(150),
    whole: WATCH_TIME.saturating_add(Duration::from_secs(30)),
};
/// The pause after the first failure. It doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A watch that lasted this long, or received an event, does not count as a failure.
const WATCH_MIN: Duration = Duration::from_secs(5);

/// A change of the cluster.
#[derive(Debug)]
pub(crate) enum ClusterChange {
    /// These are all objects of a kind.
    Listed(Kind, Vec<(ObjectName, Object)>),
    /// An object is new or different.
    Put(ObjectName, Object),
    /// An object was removed.
    Removed(Kind, ObjectName),
    /// A message for the user.
    Note(String),
}

/// The receiver of changes no longer exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiverClosed;

/// Reason for the end of a list or a watch.
enum WatchEnd {
    /// The connection ended, or could not be established. The server may still have the last
    /// version.
    Connection(io::Error),
    /// The server no longer has the version.
    Expired,
    /// An answer that is an error, or cannot be decoded.
    Answer(String),
    ReceiverClosed,
}

impl From<io::Error> for WatchEnd {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Answer(error.to_string()),
            _ => Self::Connection(error),
        }
    }
}

impl fmt::Display for WatchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => error.fmt(f),
            Self::Expired => f.write_str("the server no longer has the version"),
            Self::Answer(why) => f.write_str(why),
            Self::ReceiverClosed => f.write_str("no receiver"),
        }
    }
}

/// Sends all objects of a kind and their changes. Returns when the receiver no longer exists.
pub(crate) fn follow(
    server: &ApiServer,
    kind: Kind,
    to: &SyncSender<ClusterChange>,
) -> ReceiverClosed {
    let mut follower = Follower {
        server,
        kind,
        to,
        version: None,
        failures: 0,
        reported: None,
    };
    loop {
        if let Err(ReceiverClosed) = follower.round() {
            return ReceiverClosed;
        }
    }
}

struct Follower<'a> {
    server: &'a ApiServer,
    kind: Kind,
    to: &'a SyncSender<ClusterChange>,
    /// The last known version; `None`: a list is due.
    version: Option<String>,
    /// Consecutive failures.
    failures: u32,
    /// The last reported failure.
    reported: Option<String>,
}

impl Follower<'_> {
    /// Lists or watches once; pauses after a failure.
    fn round(&mut self) -> Result<(), ReceiverClosed> {
        let began = Instant::now();
        let before = self.version.clone();
        let end = match &before {
            None => self.list(),
            Some(version) => self.watch(version),
        };
        let has_moved = before.is_some() && self.version != before;
        let is_good = has_moved || (before.is_some() && began.elapsed() >= WATCH_MIN);
        if is_good {
            self.failures = 0;
        }
        match end {
            Ok(()) if before.is_none() => {
                if self.reported.take().is_some() {
                    self.note("the API server answers again".to_owned())?;
                }
                return Ok(());
            }
            // The server ends each watch after a time.
            Ok(()) if is_good => return Ok(()),
            Ok(()) => {}
            Err(WatchEnd::ReceiverClosed) => return Err(ReceiverClosed),
            Err(WatchEnd::Expired) => self.version = None,
            Err(end) => {
                if matches!(end, WatchEnd::Answer(_)) {
                    self.version = None;
                }
                let why = end.to_string();
                if self.reported.as_ref() != Some(&why) {
                    self.note(format!("{why}; trying again"))?;
                    self.reported = Some(why);
                }
            }
        }
        thread::sleep(pause(self.failures));
        self.failures = self.failures.saturating_add(1);
        Ok(())
    }

    fn note(&self, text: String) -> Result<(), ReceiverClosed> {
        let note = format!("{}: {text}", self.kind.path());
        self.to
            .send(ClusterChange::Note(note))
            .map_err(|_| ReceiverClosed)
    }

    fn send(&self, change: ClusterChange) -> Result<(), WatchEnd> {
        self.to.send(change).map_err(|_| WatchEnd::ReceiverClosed)
    }

    /// Requests all objects, a page at a time.
    fn list(&mut self) -> Result<(), WatchEnd> {
        let mut all = Vec::new();
        let mut next = String::new();
        loop {
            let path = self.kind.path();
            let query = match next.as_str() {
                "" => String::new(),
                next => format!("&continue={}", escaped(next)),
            };
            let path = format!("{path}?limit={PAGE_OBJECTS}{query}");
            let (status, body) = self.server.get(&path, PAGE_LIMITS)?;
            let body = accepted(status, body)?;
            let page: Page = parsed(body, PAGE_BYTES_MAX)?;
            for object in &page.items {
                match decoded(self.kind, object) {
                    Ok(object) => all.push(object),
                    Err(why) => {
                        named(self.kind, object).map_err(WatchEnd::Answer)?;
                        self.note(why).map_err(|_| WatchEnd::ReceiverClosed)?;
                    }
                }
            }
            let version = page.metadata.resource_version;
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(more) => next = more,
                None if version.is_empty() => {
                    return Err(WatchEnd::Answer("a list has no version".into()));
                }
                None => {
                    self.send(ClusterChange::Listed(self.kind, all))?;
                    self.version = Some(version);
                    return Ok(());
                }
            }
        }
    }

    /// Receives changes after this version until the watch ends.
    fn watch(&mut self, version: &str) -> Result<(), WatchEnd> {
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
            self.kind.path(),
            WATCH_TIME.as_secs(),
            escaped(version)
        );
        let (status, body) = self.server.get(&path, WATCH_LIMITS)?;
        let mut events = BufReader::new(accepted(status, body)?);
        if self.reported.take().is_some() {
            self.note("the API server answers again".to_owned())
                .map_err(|_| WatchEnd::ReceiverClosed)?;
        }
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut limited = (&mut events).take(EVENT_BYTES_MAX);
            limited.read_until(b'\n', &mut line)?;
            match line.last() {
                None => return Ok(()),
                Some(b'\n') => {}
                Some(_) if line.len() as u64 == EVENT_BYTES_MAX => {
                    return Err(WatchEnd::Answer("an event exceeds 16 MiB".into()));
                }
                // The connection ended within an event, which the next watch repeats.
                Some(_) => return Ok(()),
            }
            let event = serde_json::from_slice(&line);
            let event = event.map_err(|error| WatchEnd::Answer(format!("an event: {error}")))?;
            self.apply(&event)?;
        }
    }

    fn apply(&mut self, event: &ApiEvent) -> Result<(), WatchEnd> {
        let object = &event.object;
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => match decoded(self.kind, object) {
                Ok((name, object)) => self.send(ClusterChange::Put(name, object))?,
                Err(why) => {
                    let (name, _) = named(self.kind, object).map_err(WatchEnd::Answer)?;
                    self.note(why).map_err(|_| WatchEnd::ReceiverClosed)?;
                    self.send(ClusterChange::Removed(self.kind, name))?;
                }
            },
            "DELETED" => {
                let (name, _) = named(self.kind, object).map_err(WatchEnd::Answer)?;
                self.send(ClusterChange::Removed(self.kind, name))?;
            }
            "BOOKMARK" => {}
            "ERROR" => return Err(failure(object)),
            other => return Err(WatchEnd::Answer(format!("an event of the type `{other}`"))),
        }
        let version = object.pointer("/metadata/resourceVersion");
        match version.and_then(Value::as_str) {
            Some(version) if !version.is_empty() => self.version = Some(version.to_owned()),
            _ => return Err(WatchEnd::Answer("an event has no version".into())),
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    /// The objects; null if the page has none.
    #[serde(default, deserialize_with = "crate::api::or_default")]
    items: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct ApiEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// Returns the body of an answer that is not an error.
fn accepted<R: Read>(status: u16, body: HttpBody<R>) -> Result<HttpBody<R>, WatchEnd> {
    if status == 200 {
        return Ok(body);
    }
    let failure = match parsed::<Value>(body, REASON_BYTES_MAX) {
        Ok(object) if status != 410 => failure(&object),
        _ if status == 410 => WatchEnd::Expired,
        _ => WatchEnd::Answer("no reason is given".into()),
    };
    Err(match failure {
        WatchEnd::Answer(why) => {
            WatchEnd::Answer(format!("the API server answers {status}: {why}"))
        }
        other => other,
    })
}

/// Returns the failure that a `Status` of the API describes.
fn failure(status: &Value) -> WatchEnd {
    if status.get("code").and_then(Value::as_u64) == Some(410) {
        return WatchEnd::Expired;
    }
    let message = status.get("message").and_then(Value::as_str);
    WatchEnd::Answer(message.unwrap_or("no reason is given").to_owned())
}

/// Decodes a whole body.
fn parsed<T: for<'de> Deserialize<'de>>(body: impl Read, limit: u64) -> Result<T, WatchEnd> {
    let mut text = Vec::new();
    body.take(limit + 1).read_to_end(&mut text)?;
    if text.len() as u64 > limit {
        return Err(WatchEnd::Answer(format!("an answer exceeds {limit} bytes")));
    }
    serde_json::from_slice(&text).map_err(|error| WatchEnd::Answer(format!("an answer: {error}")))
}

/// Returns the text as a part of a query.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(byte.into());
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Returns the pause after a failure, with a random part: nodes must not all reconnect at the same
/// time.
fn pause(failures: u32) -> Duration {
    let longest = PAUSE_MIN
        .saturating_mul(1 << failures.min(16))
        .min(PAUSE_MAX);
    let random = RandomState::new().hash_one(failures) % 512;
    longest.mul_f64(0.5 + random as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        for failures in 0..100 {
            let longest = PAUSE_MIN
                .saturating_mul(1 << failures.min(7))
                .min(PAUSE_MAX);
            let pause = pause(failures);
            assert!(
                pause <= longest && pause >= longest / 2,
                "{failures}: {pause:?}"
            );
        }
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escaped("a-1_.~"), "a-1_.~");
        assert_eq!(escaped("a&b=c d/é"), "a%26b%3Dc%20d%2F%C3%A9");
    }
}
