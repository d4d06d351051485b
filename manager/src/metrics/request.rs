//! HTTP requests and answers.

use super::text::Format;
use httparse::{EMPTY_HEADER, Request, Status};

/// Bytes of a request.
pub(crate) const REQUEST_MAX: usize = 8 * 1024;
/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// A request, as far as it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpRequest {
    /// It is incomplete.
    Unfinished,
    /// A request for the metrics.
    Metrics { format: Format, how: ResponsePart },
    /// Any other request: the status and the sentence of its answer.
    Else {
        status: &'static str,
        why: &'static str,
        how: ResponsePart,
    },
}

/// The part of an answer that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponsePart {
    /// Head and text.
    Whole,
    /// The head alone, for `HEAD`.
    Head,
}

/// Parses a request.
pub(crate) fn read(bytes: &[u8]) -> HttpRequest {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let parsed = request.parse(bytes);
    let how = match request.method {
        Some("HEAD") => ResponsePart::Head,
        _ => ResponsePart::Whole,
    };
    let refused = |status, why| HttpRequest::Else { status, why, how };
    match parsed {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) if bytes.len() < REQUEST_MAX => return HttpRequest::Unfinished,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let status = "431 Request Header Fields Too Large";
            return refused(status, "the request is too long\n");
        }
        Err(_) => return refused("400 Bad Request", "this is no HTTP request\n"),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return refused("405 Method Not Allowed", "write GET\n");
    }
    if path != "/metrics" {
        return refused("404 Not Found", "metrics are at /metrics\n");
    }
    let mut accepts = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let open = |value: &[u8]| {
        let name = b"application/openmetrics-text";
        value.windows(name.len()).any(|part| part == name)
    };
    let format = match accepts.any(|header| open(header.value)) {
        true => Format::OpenMetrics,
        false => Format::Text,
    };
    HttpRequest::Metrics { format, how }
}

/// Returns the bytes of an answer. The connection is closed after it.
pub(crate) fn answer(status: &str, content_type: &str, text: &str, how: ResponsePart) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        text.len()
    );
    let mut bytes = head.into_bytes();
    if how == ResponsePart::Whole {
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Returns an answer that consists of a sentence.
pub(crate) fn sentence(status: &str, text: &str, how: ResponsePart) -> Vec<u8> {
    answer(status, "text/plain; charset=utf-8", text, how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_distinguished() {
        use ResponsePart::{Head, Whole};
        let metrics = |format, how| HttpRequest::Metrics { format, how };
        let open = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        for (request, expected) in [
            (
                "GET /metrics HTTP/1.1\r\n\r\n",
                metrics(Format::Text, Whole),
            ),
            (
                "HEAD /metrics HTTP/1.0\r\n\r\n",
                metrics(Format::Text, Head),
            ),
            (
                &format!("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naccept: {open}\r\n\r\n"),
                metrics(Format::OpenMetrics, Whole),
            ),
            ("", HttpRequest::Unfinished),
            (
                "GET /metrics HTTP/1.1\r\nHost: a\r\n",
                HttpRequest::Unfinished,
            ),
        ] {
            assert_eq!(read(request.as_bytes()), expected, "{request}");
        }
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(HEADERS_MAX + 1)
        );
        let long = format!("GET /{}", "x".repeat(REQUEST_MAX));
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("{\"op\":\"down\"}\n", "400"),
            ("\u{1}\u{2}\u{3}", "400"),
            (&many, "431"),
            (&long, "431"),
        ] {
            assert_eq!(refused(request), (status, Whole), "{request}");
        }
        // An answer to HEAD has no text.
        for request in ["HEAD / HTTP/1.1\r\n\r\n", &format!("HEAD{}", &long[3..])] {
            assert_eq!(refused(request).1, Head, "{request}");
        }
    }

    /// Returns the status of a rejected request, and the part that is sent.
    fn refused(request: &str) -> (&'static str, ResponsePart) {
        let HttpRequest::Else { status, why, how } = read(request.as_bytes()) else {
            panic!("{request}")
        };
        assert!(why.ends_with('\n'), "{why}");
        (status.split(' ').next().unwrap(), how)
    }

    #[test]
    fn an_answer_to_head_has_the_length_of_the_text() {
        let head = answer("200 OK", "text/plain", "abc", ResponsePart::Head);
        let text = String::from_utf8(head).unwrap();
        assert!(
            text.contains("Content-Length: 3\r\n") && text.ends_with("\r\n\r\n"),
            "{text}"
        );
        let whole = sentence("404 Not Found", "no\n", ResponsePart::Whole);
        let text = String::from_utf8(whole).unwrap();
        assert!(text.starts_with("HTTP/1.1 404 Not Found\r\n") && text.ends_with("\r\n\r\nno\n"));
    }
}
