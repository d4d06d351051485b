//! Reading and writing private bytes at places that a header claims: never beyond their end.

use super::numbers::{MAX_EXTENSIONS, MAX_TAGS};

/// Why the headers could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A header reaches beyond the bytes given.
    #[error("a header reaches beyond the bytes at hand")]
    TooShort,
    /// A header's own length, or its version, is none that it can have.
    #[error("a header contradicts itself")]
    Malformed,
    /// More VLAN tags than are followed.
    #[error("more than {MAX_TAGS} VLAN tags")]
    TooManyTags,
    /// More extension headers than are followed.
    #[error("more than {MAX_EXTENSIONS} extension headers")]
    TooManyExtensions,
}

/// `N` bytes from `at` on.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ParseError> {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .ok_or(ParseError::TooShort)
}

/// The byte at `at`.
pub(crate) fn byte(bytes: &[u8], at: usize) -> Result<u8, ParseError> {
    bytes.get(at).copied().ok_or(ParseError::TooShort)
}

/// The big-endian number at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Result<u16, ParseError> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The big-endian number at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Result<u32, ParseError> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Puts bytes at `at`; whether they fit.
#[must_use]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> bool {
    let there = at
        .checked_add(value.len())
        .and_then(|end| bytes.get_mut(at..end));
    there.is_some_and(|to| {
        to.copy_from_slice(value);
        true
    })
}
