//! The manager's side of [`super::report`]: decoding of status and audit.

use super::field::{Field, Reader};

/// Decodes a status or an audit. Returns `None` if the bytes are invalid.
#[must_use]
pub fn decode_report<T: Field>(bytes: &[u8]) -> Option<T> {
    let mut from = Reader::new(bytes);
    let report = T::take(&mut from).ok()?;
    from.rest().is_empty().then_some(report)
}
