//! Exit statuses of a command that a program runs for its user, as a shell reports them.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The exit status if the program itself fails, as `env` and `timeout` use it.
pub const OWN_FAILURE: u8 = 125;
/// Added to the signal's number for the exit status of a command that a signal has killed.
const BY_SIGNAL: u8 = 128;

/// Returns the exit status of a command that this signal has killed.
#[must_use]
pub fn by_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(OWN_FAILURE, |signal| BY_SIGNAL.saturating_add(signal))
}

/// Returns the exit status of a command that exited with this status of wait(2).
#[must_use]
pub fn status(ended: ExitStatus) -> u8 {
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    code.or(ended.signal().map(by_signal))
        .unwrap_or(OWN_FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_those_of_a_shell() {
        // In the encoding of wait(2): a code, a signal, a signal with a core file, a stop.
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
