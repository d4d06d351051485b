//! Exit statuses of `run`: the command's, or a status for a failure to run it.

use crate::output;
use std::process::ExitCode;
pub(crate) use tool::exit::OWN_FAILURE;
pub(super) use tool::exit::{by_signal, status};

/// The command cannot be executed.
pub(super) const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist.
pub(super) const NOT_FOUND: u8 = 127;

/// Returns the process's exit status, which is the command's. Reports a failure and returns its
/// status.
pub(super) fn finish(status: anyhow::Result<u8>) -> ExitCode {
    let status = status.unwrap_or_else(|error| {
        output::failed(&error);
        OWN_FAILURE
    });
    ExitCode::from(status)
}
