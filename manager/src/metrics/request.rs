//! HTTP requests and answers.

use super::text::MetricFormat;
use httparse::{EMPTY_HEADER, Request, Status};

/// Maximum bytes of a request.
pub(crate) const REQUEST_MAX: usize = 8 * 1024;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 64;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HttpRequest {
    /// The requested format of the metrics, or the status and text of the answer to an invalid
    /// request.
    pub(crate) format: Result<MetricFormat, (&'static str, &'static str)>,
    /// Whether the answer has a body; the answer to `HEAD` has none.
    pub(crate) has_text: bool,
}

/// Parses a request. Returns `None` if it is incomplete.
pub(crate) fn read(bytes: &[u8]) -> Option<HttpRequest> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let parsed = request.parse(bytes);
    let has_text = request.method != Some("HEAD");
    let answered = |format| Some(HttpRequest { format, has_text });
    let refused = |status, why| answered(Err((status, why)));
    match parsed {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) if bytes.len() < REQUEST_MAX => return None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let status = "431 Request Header Fields Too Large";
            return refused(status, "the request is too long\n");
        }
        Err(_) => return refused("400 Bad Request", "this is not an HTTP request\n"),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return refused("405 Method Not Allowed", "use GET\n");
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
        true => MetricFormat::OpenMetrics,
        false => MetricFormat::Text,
    };
    answered(Ok(format))
}

/// Returns the bytes of an answer. The connection is closed after it.
pub(crate) fn response(status: &str, content_type: &str, text: &str, has_text: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        text.len()
    );
    let mut bytes = head.into_bytes();
    if has_text {
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Returns an answer that consists of a sentence.
pub(crate) fn text_response(status: &str, text: &str, has_text: bool) -> Vec<u8> {
    response(status, "text/plain; charset=utf-8", text, has_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed() {
        let metrics = |format, has_text| {
            let format = Ok(format);
            Some(HttpRequest { format, has_text })
        };
        let open = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        for (request, expected) in [
            (
                "GET /metrics HTTP/1.1\r\n\r\n",
                metrics(MetricFormat::Text, true),
            ),
            (
                "HEAD /metrics HTTP/1.0\r\n\r\n",
                metrics(MetricFormat::Text, false),
            ),
            (
                &format!("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naccept: {open}\r\n\r\n"),
                metrics(MetricFormat::OpenMetrics, true),
            ),
            ("", None),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", None),
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
            assert_eq!(refused(request), (status, true), "{request}");
        }
        // An answer to HEAD has no text.
        for request in ["HEAD / HTTP/1.1\r\n\r\n", &format!("HEAD{}", &long[3..])] {
            assert!(!refused(request).1, "{request}");
        }
    }

    /// Returns the status of a rejected request, and whether its answer has a text.
    fn refused(request: &str) -> (&'static str, bool) {
        let HttpRequest { format, has_text } = read(request.as_bytes()).unwrap();
        let (status, why) = format.unwrap_err();
        assert!(why.ends_with('\n'), "{why}");
        (status.split(' ').next().unwrap(), has_text)
    }

    #[test]
    fn an_answer_to_head_has_the_length_of_the_text() {
        let head = response("200 OK", "text/plain", "abc", false);
        let text = String::from_utf8(head).unwrap();
        assert!(
            text.contains("Content-Length: 3\r\n") && text.ends_with("\r\n\r\n"),
            "{text}"
        );
        let whole = text_response("404 Not Found", "no\n", true);
        let text = String::from_utf8(whole).unwrap();
        assert!(text.starts_with("HTTP/1.1 404 Not Found\r\n") && text.ends_with("\r\n\r\nno\n"));
    }
}
