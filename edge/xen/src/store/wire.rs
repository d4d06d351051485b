//! Messages of the xenstore protocol (public/io/xs_wire.h).
//!
//! ```text
//!   0  u32 type
//!   4  u32 request    the answer has its request's number
//!   8  u32 transaction, 0: none
//!  12  u32 length     of the payload that follows
//! ```

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of the longest payload (`XENSTORE_PAYLOAD_MAX`).
pub const PAYLOAD_MAX: usize = 4096;

/// Types of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MessageType {
    /// List a node's children.
    Directory = 1,
    /// Read a node's value.
    Read = 2,
    /// Watch a node and all nodes below it.
    Watch = 4,
    /// End a watch.
    Unwatch = 5,
    /// Begin a transaction.
    TransactionStart = 6,
    /// End it.
    TransactionEnd = 7,
    /// Set a node's value; create missing nodes.
    Write = 11,
    /// Remove a node and all nodes below it.
    Remove = 13,
    /// A watched node has changed (not a request).
    WatchEvent = 15,
    /// The request was rejected (not a request).
    Error = 16,
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its type, which may be unknown.
    pub kind: u32,
    /// The number of the request.
    pub request: u32,
    /// The transaction.
    pub transaction: u32,
    /// Bytes of the payload.
    pub length: u32,
}

impl Header {
    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [self.kind, self.request, self.transaction, self.length];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a header. Returns `None` if the payload would exceed the limit.
    #[must_use]
    pub fn decode(bytes: [u8; HEADER]) -> Option<Self> {
        let mut words = bytes.chunks_exact(4).map(|word| {
            let word = word.try_into().unwrap_or([0; 4]);
            u32::from_le_bytes(word)
        });
        let mut next = || words.next();
        let header = Self {
            kind: next()?,
            request: next()?,
            transaction: next()?,
            length: next()?,
        };
        (header.length as usize <= PAYLOAD_MAX).then_some(header)
    }
}

/// Encodes a request with the payload `parts` (see [`PayloadPart`]). Returns `None` if it is too
/// long or a part contains a zero.
#[must_use]
pub fn request(
    kind: MessageType,
    number: u32,
    transaction: u32,
    parts: &[PayloadPart<'_>],
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    for part in parts {
        let (text, zero) = match part {
            PayloadPart::Name(text) => (text, true),
            PayloadPart::Value(text) => (text, false),
        };
        if text.contains('\0') {
            return None;
        }
        bytes.extend_from_slice(text.as_bytes());
        if zero {
            bytes.push(0);
        }
    }
    let length = bytes.len() - HEADER;
    if length > PAYLOAD_MAX {
        return None;
    }
    let header = Header {
        kind: kind as u32,
        request: number,
        transaction,
        length: length as u32,
    };
    bytes.get_mut(..HEADER)?.copy_from_slice(&header.encode());
    Some(bytes)
}

/// A part of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadPart<'a> {
    /// A path, a token or an answer, terminated by a zero.
    Name(&'a str),
    /// A node's value, which extends to the end.
    Value(&'a str),
}

/// Iterates over the texts of a payload, each terminated by a zero, which is optional for the last.
/// Replaces invalid UTF-8 with replacement characters.
pub fn texts(payload: &[u8]) -> impl Iterator<Item = String> + '_ {
    let ended = payload.strip_suffix(&[0]).unwrap_or(payload);
    let texts = ended.split(|byte| *byte == 0);
    let texts = texts.map(|text| String::from_utf8_lossy(text).into_owned());
    texts.filter(move |_| !payload.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_write_matches_the_header_file() {
        let parts = [PayloadPart::Name("a/state"), PayloadPart::Value("4")];
        let bytes = request(MessageType::Write, 7, 9, &parts).unwrap();
        let header = [11, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0];
        assert_eq!(bytes.split_at(HEADER), (&header[..], &b"a/state\x004"[..]));
    }

    #[test]
    fn payloads_are_limited() {
        let long = "x".repeat(PAYLOAD_MAX);
        assert!(request(MessageType::Read, 0, 0, &[PayloadPart::Value(&long)]).is_some());
        assert!(request(MessageType::Read, 0, 0, &[PayloadPart::Name(&long)]).is_none());
        let header = |length| Header {
            kind: 2,
            request: 0,
            transaction: 0,
            length,
        };
        assert!(Header::decode(header(4096).encode()).is_some());
        assert!(Header::decode(header(4097).encode()).is_none());
        assert!(Header::decode(header(u32::MAX).encode()).is_none());
    }

    #[test]
    fn a_name_with_a_zero_is_rejected() {
        assert!(request(MessageType::Read, 0, 0, &[PayloadPart::Name("a\0b")]).is_none());
        assert!(request(MessageType::Write, 0, 0, &[PayloadPart::Value("a\0b")]).is_none());
    }

    #[test]
    fn lists_may_be_empty_and_need_no_last_zero() {
        let of = |payload: &[u8]| texts(payload).collect::<Vec<_>>();
        assert_eq!(of(b""), [""; 0]);
        assert_eq!(of(b"a\0bc\0"), ["a", "bc"]);
        assert_eq!(of(b"a\0bc"), ["a", "bc"]);
        assert_eq!(of(b"\0"), [""]);
    }

    proptest! {
        #[test]
        fn headers_round_trip(
            kind: u32,
            request: u32,
            transaction: u32,
            length in 0u32..=4096,
        ) {
            let header = Header { kind, request, transaction, length };
            prop_assert_eq!(Header::decode(header.encode()), Some(header));
        }

        #[test]
        fn names_round_trip(names in prop::collection::vec("[a-z/0-9]{1,20}", 1..20)) {
            let parts: Vec<_> = names.iter().map(|name| PayloadPart::Name(name)).collect();
            let bytes = super::request(MessageType::Watch, 1, 0, &parts).unwrap();
            let got: Vec<_> = texts(&bytes[HEADER..]).collect();
            prop_assert_eq!(got, names);
        }

        #[test]
        fn any_payload_is_handled(payload in prop::collection::vec(any::<u8>(), 0..300)) {
            let total: usize = texts(&payload).count();
            prop_assert!(total <= payload.len());
        }
    }
}
