//! Clients of the metrics' HTTP server, and domains that choose their counters.

use crate::input::Input;

/// Pieces of requests, in an order that mostly parses.
const REQUEST: [&str; 21] = [
    "GET ",
    "HEAD ",
    "POST ",
    "/metrics",
    "/metrics?a=b",
    "/",
    "http://h/metrics",
    " HTTP/1.1\r\n",
    " HTTP/1.0\n",
    " HTTP/2\r\n",
    "\r\n",
    "\n",
    "Host: a\r\n",
    "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain\r\n",
    "accept:\tapplication/openmetrics-tex\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Transfer-Encoding: chunked\r\n",
    " folded\r\n",
    ": \r\n",
    "a: b\r\na: b\r\na: b\r\na: b\r\na: b\r\na: b\r\na: b\r\na: b\r\n",
    "\0",
];

/// Pieces of a domain's counters.
const COUNTS: [&str; 31] = [
    r#"{"ledger":{"tsc_hz":1,"hops":{"a":{"cycles":18446744073709551615}"#,
    r#""hops":{"copy":{"cycles":7},"x y":{"cycles":1},"other":{"cycles":2}}"#,
    r#","tsc_hz":0}"#,
    r#""ports":{"vif.web-0":{"traffic":{"in_packets":1,"out_bytes":18446744073709551615}},"#,
    r#""vif.web-0\n":{"traffic":{"in_packets":1}},"other":{"traffic":{"in_bytes":9}},"#,
    r#""nic.wire":{"traffic":null,"lro":{"flushed":{"timeout":4,"\"}":1}}}}"#,
    r#""drops":{"a\\":1,"other":2,"forged_source":3,"\u0000":4}"#,
    r#""lro":{"segments":1,"aggregates":-1,"waits_ns":{"0":1,"99999999999999999999":1,"#,
    r#""49151":18446744073709551615,"50000":1},"wait_sum_ns":1e300}"#,
    r#""flushed":{"poll":1,"flushed":{"poll":1}}"#,
    r#"{"ledger":"#,
    r#""ports":"#,
    r#""traffic":"#,
    r#""in_packets":"#,
    r#""drops":"#,
    r#""flushed":"#,
    r#""waits_ns":"#,
    r#""lro":"#,
    "{",
    "}",
    "}}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "1.5",
    "18446744073709551615",
    r#""a":"#,
    r#""b""#,
    "-0",
];

/// Passes the input in pieces to the metrics' HTTP parser. Then passes a request made of common
/// parts to it, or formats counters of two domains in both text formats.
pub fn metrics(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let step = usize::from(input.u8());
    manager::testing::hostile_client(bytes, step.max(bytes.len() / 64));
    let counts = input.bool();
    let mut text = Vec::new();
    let pieces: &[&str] = if counts { &COUNTS } else { &REQUEST };
    while !input.is_empty() && text.len() < 1 << 13 {
        match pieces.get(input.below(pieces.len() + 3)) {
            Some(piece) => text.extend(piece.as_bytes()),
            None => text.extend(input.bytes(2)),
        }
    }
    if !counts {
        return manager::testing::hostile_client(&text, step.max(text.len() / 64));
    }
    let (driver, web) = text.split_at(text.len().min(step * 16));
    manager::testing::hostile_counts(bytes, &text);
    manager::testing::hostile_counts(driver, web);
}
