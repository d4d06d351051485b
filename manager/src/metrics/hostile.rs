//! Hostile peers of the metrics, for the fuzzers: an HTTP client, and the domains whose counters
//! are in the text.

use super::gather::Snapshot;
use super::names::{NAMES_MAX, RULE_NAMES_MAX, SeriesNames};
use super::request::{self, HttpRequest, REQUEST_MAX};
use super::texts;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

const STATUS: &str = include_str!("testing/status.json");
const AUDIT: &str = include_str!("testing/audit.json");
/// Maximum number of lines of one scrape: two counters for each rule of the driver domain's ports,
/// which are those that it names, `other`, and the interface of `web`; and a bounded number of
/// others.
const LINES_MAX: usize = 4096 + 2 * (NAMES_MAX + 2) * (RULE_NAMES_MAX + 1);

/// Reads an HTTP request that arrives in pieces of `step` bytes. Checks that further bytes do not
/// change the parser's first verdict, and that the answer is one well-formed response.
///
/// # Panics
/// Panics if a check fails.
pub fn hostile_client(bytes: &[u8], step: usize) {
    let whole = bytes.get(..REQUEST_MAX).unwrap_or(bytes);
    let last = request::read(whole);
    let steps = (0..whole.len()).step_by(step.max(1));
    let arrived = steps.map(|len| request::read(whole.get(..len).unwrap_or(whole)));
    let verdict = arrived.chain([last]).flatten().next();
    assert_eq!(verdict, last, "a verdict changed: {}", whole.escape_ascii());
    let Some(HttpRequest { format, has_text }) = verdict else {
        assert!(
            whole.len() < REQUEST_MAX,
            "a request of the maximum length is still incomplete"
        );
        return;
    };
    let (status, answer, text) = match format {
        Ok(format) => {
            let line = whole.trim_ascii_start();
            assert!(line.starts_with(b"GET /metrics") || line.starts_with(b"HEAD /metrics"));
            let text = "x 1\n";
            let answer = request::response("200 OK", format.content_type(), text, has_text);
            (200, answer, text)
        }
        Err((status, why)) => {
            let code = status.get(..3).and_then(|code| code.parse().ok());
            let code = code.expect("a status begins with its code");
            (code, request::text_response(status, why, has_text), why)
        }
    };
    assert_one_response(&answer, status, text, has_text);
}

fn assert_one_response(answer: &[u8], status: u16, text: &str, has_text: bool) {
    let mut headers = [httparse::EMPTY_HEADER; 8];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(answer).expect("a response");
    assert!(parsed.is_complete(), "{}", answer.escape_ascii());
    let head = parsed.unwrap();
    assert_eq!(response.code, Some(status));
    let length = response.headers.iter().find(|h| h.name == "Content-Length");
    let length = length.map(|header| String::from_utf8_lossy(header.value).into_owned());
    assert_eq!(length, Some(text.len().to_string()));
    let body = if has_text { text.as_bytes() } else { &[] };
    assert_eq!(answer.get(head..), Some(body));
}

/// Writes the metrics of a machine whose domains report `driver` and `web`, and then with the two
/// reports exchanged. Checks that a domain cannot break a line, repeat a sample, or add an
/// unbounded number of names.
///
/// # Panics
/// Panics if a collector would reject the text.
pub fn hostile_counts(driver: &[u8], web: &[u8]) {
    let mut names = SeriesNames::default();
    for [driver, web] in [[driver, web], [web, driver]] {
        let named = [("driver", driver), ("web", web)].into_iter();
        let read = |(name, stat): (&str, &[u8])| {
            let stat: Value = serde_json::from_slice(stat).ok()?;
            Some((name.to_owned(), stat))
        };
        let snapshot = Snapshot {
            status: serde_json::from_str(STATUS).expect("a status"),
            audit: serde_json::from_str(AUDIT).ok(),
            stats: named.filter_map(read).collect(),
            took: Duration::from_millis(1),
        };
        for text in texts(&snapshot, &mut names) {
            assert_valid_for_collector(&text);
        }
    }
}

fn assert_valid_for_collector(text: &str) {
    assert!(text.lines().count() < LINES_MAX, "{text}");
    assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text}");
    let mut series_set = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').expect("a name and a value");
        let value: f64 = value.parse().expect("a number");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let name = series.split_once('{').map_or(series, |(name, _)| name);
        let is_ours = name.starts_with("grantway_")
            && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(is_ours, "{line}");
        let is_plain = series.chars().all(|c| matches!(c, ' '..='~') && c != '\\');
        assert!(is_plain && series.matches('"').count() % 2 == 0, "{line}");
        assert!(series_set.insert(series), "repeated sample: {line}");
    }
}
