//! HTTP requests and answers.

use httparse::{EMPTY_HEADER, Request, Status};

/// Limit of a request's head, bytes.
pub(crate) const HEAD_MAX: usize = 8 << 10;
/// Limit of a request's body, bytes.
pub(crate) const BODY_MAX: usize = 1 << 20;
/// Limit of headers.
const HEADERS_MAX: usize = 64;
/// The type of answers that Docker expects.
const CONTENT_TYPE: &str = "application/vnd.docker.plugins.v1.2+json";

/// The part of a request that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedRequest<'a> {
    /// It is incomplete.
    Unfinished,
    /// A call: its name and its argument.
    Call { name: &'a str, body: &'a [u8] },
    /// Any other request: the status and the text of its answer.
    Rejected {
        status: &'static str,
        why: &'static str,
    },
}

/// Parses a request.
pub(crate) fn parse(bytes: &[u8]) -> ParsedRequest<'_> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let rejected = |status, why| ParsedRequest::Rejected { status, why };
    let head = match request.parse(bytes) {
        Ok(Status::Complete(head)) if head <= HEAD_MAX => head,
        Ok(Status::Partial) if bytes.len() < HEAD_MAX => return ParsedRequest::Unfinished,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            let status = "431 Request Header Fields Too Large";
            return rejected(status, "the request's head is too long");
        }
        Err(_) => return rejected("400 Bad Request", "this is not an HTTP request"),
    };
    if request.method != Some("POST") {
        return rejected("405 Method Not Allowed", "calls are POST requests");
    }
    let length = match length(request.headers) {
        Some(Ok(length)) if length <= BODY_MAX => length,
        Some(Ok(_)) => return rejected("413 Content Too Large", "the request's body is too long"),
        Some(Err(())) => return rejected("400 Bad Request", "the length of the body is unclear"),
        None => return rejected("411 Length Required", "the request has no Content-Length"),
    };
    let name = request.path.and_then(|path| path.strip_prefix('/'));
    let rest = bytes.get(head..).unwrap_or_default();
    match (name, rest.get(..length)) {
        (Some(name), Some(body)) => ParsedRequest::Call { name, body },
        (Some(_), None) => ParsedRequest::Unfinished,
        (None, _) => rejected("400 Bad Request", "the path does not begin with `/`"),
    }
}

/// Returns the length of the body; `None` if no length is given, or for a chunked body, which
/// Docker does not send.
fn length(headers: &[httparse::Header<'_>]) -> Option<Result<usize, ()>> {
    let is = |header: &httparse::Header<'_>, name: &str| header.name.eq_ignore_ascii_case(name);
    if headers.iter().any(|header| is(header, "transfer-encoding")) {
        return None;
    }
    let mut lengths = headers.iter().filter(|header| is(header, "content-length"));
    let first = lengths.next()?;
    if lengths.any(|other| other.value != first.value) {
        return Some(Err(()));
    }
    let text = std::str::from_utf8(first.value).unwrap_or_default().trim();
    let digits = text.bytes().all(|digit| digit.is_ascii_digit());
    let length = text.parse().ok().filter(|_| digits);
    Some(length.ok_or(()))
}

/// Returns the bytes of an answer. The connection is closed after it.
pub(crate) fn answer(status: &str, json: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{json}",
        json.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(head: &str, body: &str) -> Vec<u8> {
        format!("POST /NetworkDriver.Join HTTP/1.1\r\n{head}\r\n{body}").into_bytes()
    }

    fn status(bytes: &[u8]) -> &'static str {
        match parse(bytes) {
            ParsedRequest::Rejected { status, .. } => status.split(' ').next().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_has_a_name_and_a_body() {
        let call = |name, body| ParsedRequest::Call { name, body };
        let docker = request("Host: \r\nContent-Length: 2\r\n", "{}");
        assert_eq!(parse(&docker), call("NetworkDriver.Join", b"{}"));
        // Bytes after the body belong to no request.
        let more = request("content-length: 2\r\n", "{}GET /");
        assert_eq!(parse(&more), call("NetworkDriver.Join", b"{}"));
        let empty = b"POST /Plugin.Activate HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(parse(empty), call("Plugin.Activate", b""));
        for end in 0..docker.len() {
            assert_eq!(parse(&docker[..end]), ParsedRequest::Unfinished, "{end}");
        }
    }

    #[test]
    fn other_requests_are_rejected() {
        let long = "x".repeat(HEAD_MAX);
        for (bytes, expected) in [
            (request("Content-Length: 1048577\r\n", ""), "413"),
            (request("Content-Length: -1\r\n", ""), "400"),
            (request("Content-Length: +1\r\n", "a"), "400"),
            (
                request("Content-Length: 99999999999999999999\r\n", ""),
                "400",
            ),
            (
                request("Content-Length: 1\r\nContent-Length: 2\r\n", ""),
                "400",
            ),
            (
                request("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
                "411",
            ),
            (request("", "{}"), "411"),
            (request(&"a: b\r\n".repeat(HEADERS_MAX + 1), ""), "431"),
            (request(&format!("a: {long}\r\n"), ""), "431"),
            (format!("POST /{long}").into_bytes(), "431"),
            (b"GET /Plugin.Activate HTTP/1.1\r\n\r\n".to_vec(), "405"),
            (
                b"POST x HTTP/1.1\r\nContent-Length: 0\r\n\r\n".to_vec(),
                "400",
            ),
            (b"{\"op\":\"down\"}\n".to_vec(), "400"),
            (b"\x16\x03\x01\x02\x00\x01\x00".to_vec(), "400"),
        ] {
            assert_eq!(status(&bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn an_answer_has_its_length() {
        let text = String::from_utf8(answer("200 OK", "{\"Err\":\"ä\"}")).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("Content-Length: 12\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n{\"Err\":\"ä\"}"), "{text}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed(head in "[ -~\r\n]{0,80}", body in any::<Vec<u8>>()) {
            let mut bytes = b"POST /a HTTP/1.1\r\nContent-Length: 7\r\n".to_vec();
            bytes.extend(head.as_bytes());
            bytes.extend(&body);
            if let ParsedRequest::Call { body, .. } = parse(&bytes) {
                prop_assert!(body.len() <= BODY_MAX);
            }
            let _any = parse(&body);
        }
    }
}
