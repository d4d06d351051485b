//! Limits the command's processes and threads by the largest process id of its PID namespace. This
//! limit stops fork bombs before they exhaust the system's process ids and memory.

use std::fs;
use std::io;

/// Default limit. It is an eighth of the number that systemd's default limits allow a user, and
/// several times the number that a parallel build starts.
pub(super) const DEFAULT_PROCESSES: u32 = 4096;
/// The smallest limit: the kernel accepts nothing below 301.
pub(super) const MIN_PROCESSES: u32 = 512;

const LIMIT: &str = "/proc/sys/kernel/pid_max";
/// The first kernel with a limit per PID namespace. Earlier kernels have only a limit for the whole
/// system, which a command must not change.
const MIN_KERNEL: (u32, u32) = (6, 14);

/// Parses a value of `--processes`.
pub(super) fn parse(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number == 0 || number >= MIN_PROCESSES => Ok(number),
        _ => Err(format!("write 0, or a number of at least {MIN_PROCESSES}")),
    }
}

/// Limits the processes and threads of the calling process's PID namespace to `most`. Sets no limit
/// if `most` is 0, or before Linux 6.14.
pub(super) fn limit(most: u32) -> io::Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    if most == 0 || version(&release) < MIN_KERNEL {
        return Ok(());
    }
    fs::write(LIMIT, most.to_string())
}

/// Returns the first two numbers of a kernel's release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_parses_to_two_numbers() {
        assert_eq!(version("6.14.0-37-generic\n"), (6, 14));
        assert_eq!(version("6.9-rc1"), (6, 9));
        assert_eq!(version("7.0"), (7, 0));
        assert!(version("6.9-rc1") < MIN_KERNEL && version("unknown") < MIN_KERNEL);
    }

    #[test]
    fn numbers_too_small_for_the_kernel_are_refused() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("512"), Ok(512));
        for bad in ["511", "-1", "many", "4294967296"] {
            assert!(parse(bad).unwrap_err().contains("512"), "{bad}");
        }
    }
}
