//! A message with its token, as sent.

use super::field::{Reader, Writer};
use super::wire::{BYTES, Malformed, VERSION};

/// The message of a record: one of the enums of this module.
pub trait Message: Sized {
    /// Writes the fields, and returns the number of the message's kind.
    fn put(&self, fields: &mut Writer) -> u32;

    /// Reads the message of a kind.
    ///
    /// # Errors
    /// Returns an error if the kind does not exist, or a field is invalid.
    fn take(kind: u32, fields: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// A message with its token, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<M> {
    /// Identifies a request and its answer; 0 in events.
    pub token: u32,
    /// The message.
    pub message: M,
}

impl<M: Message> Record<M> {
    /// Encodes the record.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut fields = Writer::default();
        let kind = u64::from(self.message.put(&mut fields));
        let head = [u64::from(VERSION) << 32 | kind, u64::from(self.token)];
        let mut bytes = [0; BYTES];
        // No message has more words than a record; the tests encode each of them.
        let words = head.into_iter().chain(fields.0);
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| Malformed::Size(bytes.len()))?;
        let mut fields = Reader::new(bytes);
        let head: u64 = fields.word()?;
        let version = (head >> 32) as u32;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let token = u32::try_from(fields.word()?).map_err(|_| fields.malformed())?;
        let message = M::take(head as u32, &mut fields)?;
        match fields.rest().iter().all(|byte| *byte == 0) {
            true => Ok(Self { token, message }),
            false => Err(Malformed::TrailingBytes),
        }
    }
}
