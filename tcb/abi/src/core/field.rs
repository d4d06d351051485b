//! Fields of a record: words in, words out.

use super::wire::{BYTES, Malformed, WORDS};
use crate::status::Program;
use crate::{DomId, XenbusState};

/// Bytes that a [`Text`] may have.
pub const TEXT_MAX: usize = 128;

/// Writes the fields of a record.
#[derive(Debug)]
pub struct Writer {
    words: [u64; WORDS],
    at: usize,
}

impl Default for Writer {
    fn default() -> Self {
        // Behind the head, which comes last.
        Self {
            words: [0; WORDS],
            at: 2,
        }
    }
}

impl Writer {
    fn word(&mut self, value: u64) {
        // No message has more words than a record: the tests encode each of them.
        if let Some(word) = self.words.get_mut(self.at) {
            *word = value;
        }
        self.at += 1;
    }

    pub(super) fn finish(mut self, head: [u64; 2]) -> [u8; BYTES] {
        for (word, value) in self.words.iter_mut().zip(head) {
            *word = value;
        }
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Reads the fields of a record.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8; BYTES],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8; BYTES]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn word(&mut self) -> Result<u64, Malformed> {
        self.at += 1;
        let end = self.at * 8;
        let word = self.bytes.get(end - 8..end).and_then(|b| b.try_into().ok());
        word.map(u64::from_le_bytes).ok_or_else(|| self.wrong())
    }

    pub(super) fn wrong(&self) -> Malformed {
        Malformed::Field(self.at)
    }

    pub(super) fn finish(self) -> Result<(), Malformed> {
        let rest = self.bytes.get(self.at * 8..).unwrap_or_default();
        match rest.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(Malformed::Rest),
        }
    }
}

/// Something that a field can hold.
pub(super) trait Field: Sized {
    fn put(&self, to: &mut Writer);
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// A number's word, checked against its type.
macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Field for $number {
            fn put(&self, to: &mut Writer) {
                to.word(u64::from(*self));
            }

            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.word()?.try_into().map_err(|_| from.wrong())
            }
        }
    )*};
}

numbers! { u16 u32 u64 }

impl Field for i32 {
    fn put(&self, to: &mut Writer) {
        to.word(u64::from(*self as u32));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(u32::take(from)? as i32)
    }
}

impl Field for bool {
    fn put(&self, to: &mut Writer) {
        to.word(u64::from(*self));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(from.wrong()),
        }
    }
}

impl Field for DomId {
    fn put(&self, to: &mut Writer) {
        self.0.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        u16::take(from).map(Self)
    }
}

impl Field for Program {
    fn put(&self, to: &mut Writer) {
        to.word(match self {
            Self::Driver => 0,
            Self::Guest => 1,
        });
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.word()? {
            0 => Ok(Self::Driver),
            1 => Ok(Self::Guest),
            _ => Err(from.wrong()),
        }
    }
}

impl Field for XenbusState {
    fn put(&self, to: &mut Writer) {
        to.word(u64::from(*self as u8));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let value = from.word()?;
        Self::from_wire(value).ok_or_else(|| from.wrong())
    }
}

/// There or not, and then the value.
impl<T: Field> Field for Option<T> {
    fn put(&self, to: &mut Writer) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match bool::take(from)? {
            true => Some(T::take(from)?),
            false => None,
        })
    }
}

impl<const N: usize> Field for [u64; N] {
    fn put(&self, to: &mut Writer) {
        self.iter().for_each(|word| to.word(*word));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut all = [0; N];
        for word in &mut all {
            *word = from.word()?;
        }
        Ok(all)
    }
}

/// A short text: a name, or how something ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    bytes: [u8; TEXT_MAX],
    len: usize,
}

impl Text {
    /// As much of `text` as there is room for.
    #[must_use]
    pub fn cut(text: &str) -> Self {
        let mut len = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; TEXT_MAX];
        for (to, from) in bytes.iter_mut().zip(text.bytes().take(len)) {
            *to = from;
        }
        Self { bytes, len }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        // It was made of a text, or checked.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl Field for Text {
    fn put(&self, to: &mut Writer) {
        to.word(self.len as u64);
        for bytes in self.bytes.chunks_exact(8) {
            to.word(bytes.try_into().map_or(0, u64::from_le_bytes));
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = from.word()?;
        let words = <[u64; TEXT_MAX / 8]>::take(from)?;
        let mut bytes = [0; TEXT_MAX];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let len = usize::try_from(len).map_err(|_| from.wrong())?;
        let (text, rest) = bytes.split_at_checked(len).ok_or_else(|| from.wrong())?;
        if std::str::from_utf8(text).is_err() || rest.iter().any(|byte| *byte != 0) {
            return Err(from.wrong());
        }
        Ok(Self { bytes, len })
    }
}
