//! Ends a process when its parent exits.

use anyhow::Context;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs;

/// Returns this process's id as `/proc` shows it, which may be the id in an outer PID namespace.
pub(crate) fn own() -> anyhow::Result<u32> {
    let own = fs::read_link("/proc/self").context("find this process in /proc")?;
    let number = own.to_str().and_then(|number| number.parse().ok());
    number.context("/proc/self is not a number")
}

/// Makes the kernel send `signal` to this process when its parent exits. `parent` is the parent's
/// process id, as [`own`] returned it. Returns false if the parent has already exited. The check is
/// reliable, because the kernel immediately gives an orphan a new parent, even while the old parent
/// is a zombie.
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
    fn a_dead_parent_is_not_followed() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let parent = parent.unsigned_abs();
        // URG is a signal that a process ignores by default.
        let follows = |number| follow(number, Signal::URG).unwrap();
        assert!(follows(parent));
        assert!(!follows(own().unwrap()));
    }
}
