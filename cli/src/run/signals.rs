//! Forwards signals from other processes to the command. A terminal's signals reach the command
//! directly.

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

/// Received signals, with their senders.
pub(super) type Signals = SignalsInfo<WithRawSiginfo>;

/// The code of signals that the kernel sends, such as a terminal's (`SI_KERNEL`).
const BY_KERNEL: i32 = 0x80;

/// Starts to catch the signals that are forwarded. Programs that this process starts do not inherit
/// the handlers. Signals that were ignored stay ignored, also in these programs (`nohup`).
pub(super) fn watch() -> io::Result<Signals> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = set(&status, "SigIgn");
    let ours = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
    let watched = ours
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    Signals::with_exfiltrator(watched, WithRawSiginfo)
}

/// Parses a set of signals in `/proc/PID/status`.
fn set(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let set = line.and_then(|line| line.strip_prefix(':'));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

/// Returns whether a process catches this signal.
pub(crate) fn catches(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    set(&status, "SigCgt") >> (signal - 1) & 1 == 1
}

/// Waits until a process catches this signal or has exited. The first process of a namespace loses
/// signals that arrive earlier.
pub(super) fn wait_until_caught(pid: u32, signal: Signal) {
    const STEP: Duration = Duration::from_millis(2);
    for _ in 0..2500 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let is_caught = set(&status, "SigCgt") >> (signal.as_raw() - 1) & 1 == 1;
        if is_caught || !status.contains("SigCgt") {
            return;
        }
        thread::sleep(STEP);
    }
}

/// Returns the signals to forward, as long as `signals` are watched.
pub(super) fn signals_to_forward(signals: &mut Signals) -> impl Iterator<Item = Signal> {
    let by_others = signals.forever().filter(|info| info.si_code != BY_KERNEL);
    by_others.filter_map(|info| Signal::from_named_raw(info.si_signo))
}

/// Returns the number of a received termination signal, if any.
pub(super) fn termination_signal(signals: &mut Signals) -> Option<i32> {
    let mut numbers = signals.pending().map(|info| info.si_signo);
    numbers.find(|number| [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_sets_are_parsed() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t04\n";
        assert_eq!(set(status, "SigIgn"), 1 | 1 << 12);
        assert_eq!(set(status, "SigCgt"), 4);
        assert_eq!(set("", "SigIgn"), 0);
    }
}
