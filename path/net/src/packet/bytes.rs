//! Bounds-checked reading and writing of private bytes at offsets that a header claims.

use super::constants::{MAX_EXTENSIONS, MAX_TAGS};

/// Error of parsing headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A header extends beyond the given bytes.
    #[error("a header extends beyond the given bytes")]
    TooShort,
    /// A header's length or version is invalid.
    #[error("a header is invalid")]
    Malformed,
    /// More VLAN tags than [`super::MAX_TAGS`].
    #[error("more than {MAX_TAGS} VLAN tags")]
    TooManyTags,
    /// More extension headers than [`super::MAX_EXTENSIONS`].
    #[error("more than {MAX_EXTENSIONS} extension headers")]
    TooManyExtensions,
}

/// Returns `N` bytes starting at `at`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ParseError> {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .ok_or(ParseError::TooShort)
}

/// Returns the byte at `at`.
pub(crate) fn byte(bytes: &[u8], at: usize) -> Result<u8, ParseError> {
    bytes.get(at).copied().ok_or(ParseError::TooShort)
}

/// Returns the big-endian number at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Result<u16, ParseError> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// Returns the big-endian number at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Result<u32, ParseError> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Writes bytes at `at`; returns whether they fit.
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
