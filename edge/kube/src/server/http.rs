//! Answers of HTTP/1.1, read from a blocking connection.

use httparse::{EMPTY_HEADER, Response, Status};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// Limit of an answer's head, and of the lines between chunks, bytes.
const HEAD_MAX: u64 = 64 << 10;
/// Limit of headers.
const HEADERS_MAX: usize = 64;
/// Limit of interim answers (1xx) before the answer.
const INTERIM_MAX: usize = 8;

/// An answer whose body is read as it arrives.
#[derive(Debug)]
pub(crate) struct HttpResponse<R> {
    /// Its status code.
    pub(crate) status: u16,
    /// Its body.
    pub(crate) body: HttpBody<R>,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct HttpBody<R> {
    from: BufReader<R>,
    rest: BodyRest,
}

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyRest {
    /// It ends with the connection.
    UntilClose,
    /// This number of bytes.
    Bytes(u64),
    /// The bytes of the current chunk, then further chunks.
    Chunk(u64),
    /// A chunk begins. Unless it is the first one, the end of the previous chunk precedes it.
    NextChunk { is_first: bool },
    /// Nothing.
    Nothing,
}

impl<R: Read> HttpResponse<R> {
    /// Reads the head of an answer.
    pub(crate) fn read(from: R) -> io::Result<Self> {
        let mut from = BufReader::with_capacity(64 << 10, from);
        for _ in 0..INTERIM_MAX {
            let head = head(&mut from)?;
            let (status, rest) = parsed(&head)?;
            if status >= 200 {
                let body = HttpBody { from, rest };
                return Ok(Self { status, body });
            }
        }
        Err(wrong("the server sends only interim answers"))
    }
}

impl<R: Read> Read for HttpBody<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while let BodyRest::NextChunk { is_first } = self.rest {
            self.rest = self.next_chunk(is_first)?;
        }
        let limit = match self.rest {
            BodyRest::Bytes(left) | BodyRest::Chunk(left) => left,
            BodyRest::UntilClose => u64::MAX,
            BodyRest::Nothing | BodyRest::NextChunk { .. } => 0,
        };
        let room = to.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
        if room == 0 {
            // The server may keep the connection open.
            return Ok(0);
        }
        let n = self.from.read(to.get_mut(..room).unwrap_or_default())?;
        if n == 0 && self.rest != BodyRest::UntilClose {
            return Err(cut());
        }
        let left = limit.saturating_sub(n as u64);
        self.rest = match (self.rest, left) {
            (BodyRest::Bytes(_), 0) => BodyRest::Nothing,
            (BodyRest::Bytes(_), left) => BodyRest::Bytes(left),
            (BodyRest::Chunk(_), 0) => BodyRest::NextChunk { is_first: false },
            (BodyRest::Chunk(_), left) => BodyRest::Chunk(left),
            (other, _) => other,
        };
        Ok(n)
    }
}

impl<R: Read> HttpBody<R> {
    /// Reads the size of the next chunk.
    fn next_chunk(&mut self, is_first: bool) -> io::Result<BodyRest> {
        if !is_first && !matches!(line(&mut self.from)?.as_slice(), b"\r\n" | b"\n") {
            return Err(wrong("a chunk exceeds its size"));
        }
        match httparse::parse_chunk_size(&line(&mut self.from)?) {
            Ok(Status::Complete((_, 0))) => {
                // Trailers are read and ignored.
                head(&mut self.from)?;
                Ok(BodyRest::Nothing)
            }
            Ok(Status::Complete((_, size))) => Ok(BodyRest::Chunk(size)),
            _ => Err(wrong("a chunk has no size")),
        }
    }
}

/// Reads lines up to and including an empty one.
fn head(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let line = line(from)?;
        head.extend_from_slice(&line);
        if matches!(line.as_slice(), b"\r\n" | b"\n") {
            return Ok(head);
        }
        if head.len() as u64 > HEAD_MAX {
            return Err(wrong("the head of the server's answer is too long"));
        }
    }
}

fn line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(HEAD_MAX).read_until(b'\n', &mut line)?;
    match line.ends_with(b"\n") {
        true => Ok(line),
        false if (line.len() as u64) < HEAD_MAX => Err(cut()),
        false => Err(wrong("the head of the server's answer is too long")),
    }
}

/// Returns the status and the framing of the body.
fn parsed(head: &[u8]) -> io::Result<(u16, BodyRest)> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    let is_whole = matches!(response.parse(head), Ok(Status::Complete(_)));
    let status = response.code.filter(|_| is_whole);
    let status = status.ok_or_else(|| wrong("the server does not answer in HTTP"))?;
    let values = |name: &str| {
        let of = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
        let found = response.headers.iter().filter(|header| of(header));
        let text = |header: &httparse::Header<'_>| {
            String::from_utf8_lossy(header.value)
                .trim()
                .to_ascii_lowercase()
        };
        found.map(text).collect::<Vec<_>>()
    };
    let has_body = status >= 200 && !matches!(status, 204 | 304);
    let encodings = values("transfer-encoding");
    let lengths = values("content-length");
    let rest = match (encodings.as_slice(), lengths.as_slice()) {
        _ if !has_body => BodyRest::Nothing,
        ([one], _) if one == "chunked" => BodyRest::NextChunk { is_first: true },
        ([], []) => BodyRest::UntilClose,
        ([], [length]) => match length.parse() {
            Ok(0) => BodyRest::Nothing,
            Ok(length) => BodyRest::Bytes(length),
            Err(_) => return Err(wrong("the length of the server's answer is unclear")),
        },
        _ => return Err(wrong("the length of the server's answer is unclear")),
    };
    Ok((status, rest))
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

fn cut() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "the connection ended within an answer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a reader of these bytes, a few at a time.
    struct SlowReader<'a>(&'a [u8]);

    impl Read for SlowReader<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let n = to.len().min(3);
            self.0.read(&mut to[..n])
        }
    }

    fn read(text: &str) -> io::Result<(u16, String)> {
        let mut answer = HttpResponse::read(SlowReader(text.as_bytes()))?;
        let mut body = String::new();
        answer.body.read_to_string(&mut body)?;
        Ok((answer.status, body))
    }

    #[test]
    fn bodies_have_three_framings() {
        for (text, status, body) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef",
                200,
                "abc",
            ),
            ("HTTP/1.1 200 OK\r\n\r\nabcdef", 200, "abcdef"),
            (
                "HTTP/1.1 410 Gone\r\ntransfer-encoding: Chunked\r\n\r\n\
                 3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nmore",
                410,
                "abc0123456789",
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\nabc",
                204,
                "",
            ),
        ] {
            assert_eq!(read(text).unwrap(), (status, body.to_owned()), "{text}");
        }
    }

    /// The server may keep the connection open after an answer.
    #[test]
    fn nothing_is_read_behind_an_answer() {
        struct FailingReader;
        impl Read for FailingReader {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                panic!("there is nothing to read");
            }
        }
        for framing in [
            "Content-Length: 2\r\n\r\n{}",
            "Content-Length: 0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{framing}");
            let mut answer = HttpResponse::read(text.as_bytes().chain(FailingReader)).unwrap();
            answer.body.read_to_end(&mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn answers_that_are_cut_or_malformed_are_errors() {
        let whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert!(read(whole).is_ok());
        for end in 0..whole.len() {
            let error = read(&whole[..end]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{end}: {error}");
        }
        let long = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(70_000));
        for text in [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
            &"HTTP/1.1 100 Continue\r\n\r\n".repeat(9),
            &long,
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(head in "[ -~\r\n]{0,80}", body in any::<Vec<u8>>()) {
            let start = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{head}\r\n\r\n");
            for bytes in [[start.as_bytes(), &body].concat(), body] {
                if let Ok(mut answer) = HttpResponse::read(bytes.as_slice()) {
                    let mut read = Vec::new();
                    let _cut = answer.body.read_to_end(&mut read);
                    prop_assert!(read.len() <= bytes.len());
                }
            }
        }
    }
}
