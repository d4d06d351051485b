//! A kubelet's calls of the Container Runtime Interface, as gRPC through `curl`.

use std::io::Write;
use std::process::{Command, Stdio};

/// A protocol buffers message that is being written.
#[derive(Clone, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn number(mut self, field: u64, number: u64) -> Self {
        self.varint(field << 3);
        self.varint(number);
        self
    }

    pub(crate) fn text(mut self, field: u64, text: impl AsRef<[u8]>) -> Self {
        self.varint(field << 3 | 2);
        self.varint(text.as_ref().len() as u64);
        self.0.extend_from_slice(text.as_ref());
        self
    }

    pub(crate) fn message(self, field: u64, message: &Self) -> Self {
        self.text(field, &message.0)
    }
}

/// A parsed message: the values of its fields, in order. Numbers of all kinds are stored alike,
/// because no test distinguishes them.
pub(crate) struct Fields(Vec<(u64, Vec<u8>)>);

impl Fields {
    fn of(mut bytes: &[u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = take_varint(&mut bytes);
            let value = match tag & 7 {
                0 => take_varint(&mut bytes).to_le_bytes().to_vec(),
                2 => {
                    let length = take_varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    value.to_vec()
                }
                other => panic!("a field of kind {other}"),
            };
            fields.push((tag >> 3, value));
        }
        Self(fields)
    }

    pub(crate) fn all(&self, field: u64) -> impl Iterator<Item = &[u8]> {
        let is_it = move |found: &&(u64, Vec<u8>)| found.0 == field;
        self.0.iter().filter(is_it).map(|(_, value)| &value[..])
    }

    fn bytes(&self, field: u64) -> &[u8] {
        self.all(field).next().unwrap_or_default()
    }

    pub(crate) fn text(&self, field: u64) -> String {
        String::from_utf8_lossy(self.bytes(field)).into_owned()
    }

    /// Returns a number, or zero if the field is missing, which is how zero is encoded.
    pub(crate) fn number(&self, field: u64) -> u64 {
        let bytes = self.bytes(field).try_into();
        u64::from_le_bytes(bytes.unwrap_or_default())
    }

    pub(crate) fn message(&self, field: u64) -> Self {
        Self::of(self.bytes(field))
    }

    pub(crate) fn messages(&self, field: u64) -> impl Iterator<Item = Self> {
        self.all(field).map(Self::of)
    }
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("the message continues");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// Calls a method of the runtime that listens on a socket; returns its answer, or the error
/// message.
pub(crate) fn call(socket: &str, method: &str, asked: &Message) -> Result<Fields, String> {
    let mut curl = Command::new("curl");
    let args = ["--http2-prior-knowledge", "--unix-socket", socket];
    let curl = curl
        .args(["--silent", "--show-error", "--max-time", "120"])
        .args(args)
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .args(["--data-binary", "@-", "--dump-header", "/dev/stderr"])
        .arg(format!(
            "http://localhost/runtime.v1.RuntimeService/{method}"
        ))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut curl = curl.spawn().unwrap();
    // A message is preceded by a byte for its compression, and its length.
    let mut sent = vec![0];
    sent.extend((asked.0.len() as u32).to_be_bytes());
    sent.extend(&asked.0);
    // A `curl` that cannot connect reads nothing.
    let _ = curl.stdin.take().unwrap().write_all(&sent);
    let run = curl.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    let header = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    match header("grpc-status: ") {
        Some("0") => Ok(Fields::of(run.stdout.get(5..).unwrap_or_default())),
        Some(_) => Err(header("grpc-message: ").unwrap_or_default().to_owned()),
        None => Err(said.into_owned()),
    }
}

#[test]
fn a_message_round_trips() {
    let inner = Message::default().text(1, "x".repeat(300)).number(2, 8080);
    let message = Message::default().message(7, &inner).text(15, "y");
    let read = Fields::of(&message.0);
    assert_eq!(read.text(15), "y");
    assert_eq!(read.message(7).text(1), "x".repeat(300));
    assert_eq!(read.message(7).number(2), 8080);
    assert_eq!(
        (read.message(7).number(3), read.text(3)),
        (0, String::new())
    );
}
