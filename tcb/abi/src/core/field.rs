//! Fields of a record or a report, and their encoding as words.

use super::stage::Stage;
use super::wire::Malformed;
use crate::status::Program;
use crate::{DomId, XenbusState};

/// The maximum length of a [`Text`] in bytes.
pub const TEXT_MAX: usize = 128;

/// A buffer of words for fields.
#[derive(Debug, Default)]
pub struct Writer(pub(super) Vec<u64>);

/// A reader of fields.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn word(&mut self) -> Result<u64, Malformed> {
        self.at += 1;
        let end = self.at * 8;
        let word = self.bytes.get(end - 8..end).and_then(|b| b.try_into().ok());
        word.map(u64::from_le_bytes).ok_or_else(|| self.malformed())
    }

    pub(super) fn malformed(&self) -> Malformed {
        Malformed::Field(self.at)
    }

    /// Returns the unread bytes.
    pub(super) fn rest(self) -> &'a [u8] {
        self.bytes.get(self.at * 8..).unwrap_or_default()
    }
}

/// A value of a field.
pub trait Field: Sized {
    /// Writes the value's words.
    fn put(&self, to: &mut Writer);

    /// Reads the value's words.
    ///
    /// # Errors
    /// Returns an error if the words are invalid for this type, or the bytes end before them.
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Encodes a number as one word, and checks it against its type.
macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Field for $number {
            fn put(&self, to: &mut Writer) {
                to.0.push(u64::from(*self));
            }

            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.word()?.try_into().map_err(|_| from.malformed())
            }
        }
    )*};
}

numbers! { u16 u32 u64 }

/// Encodes and decodes types that are sent as numbers.
macro_rules! as_numbers {
    ($($type:ty as $number:ty: $put:expr, $take:expr;)*) => {$(
        impl Field for $type {
            fn put(&self, to: &mut Writer) {
                let put: fn(Self) -> $number = $put;
                put(*self).put(to);
            }

            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let take: fn($number) -> Option<Self> = $take;
                take(<$number>::take(from)?).ok_or_else(|| from.malformed())
            }
        }
    )*};
}

as_numbers! {
    i32 as u32: |number| number as u32, |number| Some(number as i32);
    DomId as u16: |id| id.0, |id| Some(Self(id));
    XenbusState as u64: |state| state as u64, Self::from_wire;
    bool as u16: u16::from, |number| (number < 2).then_some(number == 1);
    Program as u16: |program| program as u16, Self::from_wire;
    Stage as u16: |stage| stage as u16, Self::from_wire;
}

/// Encodes a structure as its fields, in this order.
macro_rules! fields {
    ($struct:ident { $($field:ident)+ }) => {
        impl Field for $struct {
            fn put(&self, to: &mut Writer) {
                $(self.$field.put(to);)+
            }

            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self { $($field: Field::take(from)?,)+ })
            }
        }
    };
}
pub(super) use fields;

/// Encodes an option as a presence flag, and then the value, if any.
impl<T: Field> Field for Option<T> {
    fn put(&self, to: &mut Writer) {
        self.is_some().put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let is_some = bool::take(from)?;
        is_some.then(|| T::take(from)).transpose()
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    fn put(&self, to: &mut Writer) {
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let all: Result<Vec<T>, _> = (0..N).map(|_| T::take(from)).collect();
        all?.try_into().map_err(|_| from.malformed())
    }
}

/// Encodes a list as its length, and then each element. Decoding a length that is too large fails
/// at the end of the bytes, and allocates no memory for it.
impl<T: Field> Field for Vec<T> {
    fn put(&self, to: &mut Writer) {
        (self.len() as u64).put(to);
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = from.word()?;
        (0..count).map(|_| T::take(from)).collect()
    }
}

/// Encodes a string as its length in bytes, and then eight bytes per word.
impl Field for String {
    fn put(&self, to: &mut Writer) {
        (self.len() as u64).put(to);
        let byte = |(at, byte): (usize, &u8)| u64::from(*byte) << (8 * at);
        let words = self.as_bytes().chunks(8);
        let words = words.map(|chunk| chunk.iter().enumerate().map(byte).sum::<u64>());
        to.0.extend(words);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = usize::try_from(from.word()?).map_err(|_| from.malformed())?;
        let mut bytes = Vec::new();
        for _ in 0..len.div_ceil(8) {
            bytes.extend(from.word()?.to_le_bytes());
        }
        let rest = bytes.split_off(len);
        let is_empty = rest.iter().all(|byte| *byte == 0);
        let text = Self::from_utf8(bytes).ok().filter(|_| is_empty);
        text.ok_or_else(|| from.malformed())
    }
}

/// A text of at most [`TEXT_MAX`] bytes, such as a name or a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// Creates a text from as much of `text` as fits.
    #[must_use]
    pub fn truncated(text: &str) -> Self {
        let end = text.floor_char_boundary(TEXT_MAX);
        Self(text.get(..end).unwrap_or_default().to_owned())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Field for Text {
    fn put(&self, to: &mut Writer) {
        self.0.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let text = Some(String::take(from)?).filter(|text| text.len() <= TEXT_MAX);
        text.map(Self).ok_or_else(|| from.malformed())
    }
}
