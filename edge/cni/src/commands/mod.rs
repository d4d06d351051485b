//! What a plugin can be called for, each in a file.

pub(crate) mod add;
mod bandwidth;
pub(crate) mod check;
pub(crate) mod del;
pub(crate) mod gc;
pub(crate) mod status;
mod wanted;

/// Reads everything that ADD reads, and attaches nothing.
#[cfg(feature = "testing")]
pub(crate) fn read_add(request: &crate::request::Request) -> Result<(), crate::failure::Failure> {
    let wanted = wanted::Wanted::of(request)?;
    let given = wanted.before.clone().unwrap_or_default();
    wanted.are_given(&given)?;
    let joined = given.and(wanted.addresses()?);
    joined.routes_told().map(drop)
}
