//! The manager's side of [`super::report`]: status and audit out of bytes.

use super::field::{Field, Reader};

/// The status or audit of these bytes; none: they are none.
#[must_use]
pub fn report_of<T: Field>(bytes: &[u8]) -> Option<T> {
    let mut from = Reader::new(bytes);
    let report = T::take(&mut from).ok()?;
    from.rest().is_empty().then_some(report)
}
