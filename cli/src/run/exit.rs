//! Exit statuses: the command's, or one that says why there is none.

/// The exit status when it is `grantway` that fails; what `env`, `timeout` and others have.
pub(crate) const OWN_FAILURE: u8 = 125;
/// Of a command that cannot be executed.
pub(super) const NOT_EXECUTABLE: u8 = 126;
/// Of one that is not there.
pub(super) const NOT_FOUND: u8 = 127;
/// Of one that a signal has ended: this and the signal's number.
pub(super) const BY_SIGNAL: u8 = 128;
