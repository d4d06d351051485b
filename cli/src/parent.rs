//! A process that does not outlive the one that has started it.

use anyhow::Context;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs;

/// This process's number, as `/proc` shows it: that may be of a PID namespace around its own.
pub(crate) fn own() -> anyhow::Result<u32> {
    let own = fs::read_link("/proc/self").context("find the own process in /proc")?;
    let number = own.to_str().and_then(|number| number.parse().ok());
    number.context("/proc/self is no number")
}

/// Has this process get `signal` when `parent`, whose [`own`] number that is, ends; false: it has
/// ended already. Who has lost its parent has another one, even while the lost one still has its
/// number: one that was killed keeps it until somebody has waited for it.
pub(crate) fn follow(parent: u32, signal: Signal) -> anyhow::Result<bool> {
    set_parent_process_death_signal(Some(signal)).context("follow the parent")?;
    let status = fs::read_to_string("/proc/self/status").context("find the parent in /proc")?;
    let shown = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Ok(shown.is_some_and(|shown| shown.trim().parse() == Ok(parent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_parent_is_not_followed() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let parent = parent.unsigned_abs();
        // The signal that a process ignores unless it says otherwise.
        let follows = |number| follow(number, Signal::URG).unwrap();
        assert!(follows(parent));
        assert!(!follows(own().unwrap()));
    }
}
