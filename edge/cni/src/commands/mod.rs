//! What a plugin can be called for, each in a file.

pub(crate) mod add;
mod bandwidth;
pub(crate) mod check;
pub(crate) mod del;
pub(crate) mod gc;
pub(crate) mod status;
mod wanted;
