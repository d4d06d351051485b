//! Exit statuses: the command's, or one that says why there is none.

use crate::output;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// The exit status when it is `grantway` that fails; what `env`, `timeout` and others have.
pub(crate) const OWN_FAILURE: u8 = 125;
/// Of a command that cannot be executed.
pub(super) const NOT_EXECUTABLE: u8 = 126;
/// Of one that is not there.
pub(super) const NOT_FOUND: u8 = 127;
/// Of one that a signal has ended: this and the signal's number.
const BY_SIGNAL: u8 = 128;

/// Of one that this signal has ended.
pub(super) fn by_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(OWN_FAILURE, |signal| BY_SIGNAL.saturating_add(signal))
}

/// Of one that has ended so, as a shell has it.
pub(crate) fn status(ended: ExitStatus) -> u8 {
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    code.or(ended.signal().map(by_signal))
        .unwrap_or(OWN_FAILURE)
}

/// The process's own: the command's, or that of a failure, which is said.
pub(super) fn finish(status: anyhow::Result<u8>) -> ExitCode {
    let status = status.unwrap_or_else(|error| {
        output::failed(&error);
        OWN_FAILURE
    });
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_what_a_shell_would_say() {
        // As wait(2) has them: a code, a signal, a signal with a core file, a stop.
        for (raw, expected) in [
            (0, 0),
            (7 << 8, 7),
            (255 << 8, 255),
            (9, 137),
            (6 | 0x80, 134),
            (64, 192),
            (19 << 8 | 0x7f, OWN_FAILURE),
        ] {
            assert_eq!(status(ExitStatus::from_raw(raw)), expected, "{raw:#x}");
        }
        assert_eq!(by_signal(15), 143);
        assert_eq!(by_signal(-1), OWN_FAILURE);
        assert_eq!(by_signal(200), 255);
    }
}
