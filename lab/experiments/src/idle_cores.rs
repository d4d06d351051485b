//! Keeps idle cores from halting, so that a wake-up causes no exit to the underlying hypervisor.
//! The process requests a latency of 0, which makes the kernel's idle loop poll.
//!
//! A spinning thread of the idle class would have the same effect, with two disadvantages. Where
//! the kernel preempts lazily, a woken task waits for that thread until the next tick, up to 4 ms.
//! Also, the time of softirqs that interrupt the thread would be charged to it.

use anyhow::Context as _;
use figures::Failure;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

/// The kernel keeps the requested latency while this file is open.
const REQUEST: &str = "/dev/cpu_dma_latency";
const IDLE: &str = "/sys/devices/system/cpu";
/// Name of the idle state that polls.
const POLL: &str = "POLL";

/// Idle state of the cores. They halt by default, and again after this value is dropped.
#[derive(Debug, Default)]
pub struct IdleCores {
    request: Option<File>,
}

/// Checks whether cores can be kept awake on this system.
///
/// # Errors
/// Returns [`Failure::CannotRun`] with the reason if they cannot.
pub fn possible() -> Result<(), Failure> {
    polls(Path::new(IDLE))?;
    match OpenOptions::new().write(true).open(REQUEST) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::CannotRun(format!(
            "idle cores cannot be kept from halting: {REQUEST}: {error}"
        ))),
    }
}

/// Checks that the first idle state, which a latency of 0 selects, polls.
fn polls(cpus: &Path) -> Result<(), Failure> {
    let read = |file: &str| std::fs::read_to_string(cpus.join(file)).unwrap_or_default();
    match read("cpu0/cpuidle/state0/name").trim() {
        POLL => Ok(()),
        found => Err(Failure::CannotRun(format!(
            "idle cores cannot be kept from halting: no idle state of this kernel polls (driver \
             `{}`, first state `{found}`)",
            read("cpuidle/current_driver").trim()
        ))),
    }
}

impl IdleCores {
    /// Keeps the cores awake, or lets them halt.
    ///
    /// # Errors
    /// Returns an error if the kernel rejects the call.
    pub fn set(&mut self, awake: bool) -> anyhow::Result<()> {
        self.request = None;
        if awake {
            let mut file = OpenOptions::new()
                .write(true)
                .open(REQUEST)
                .context(REQUEST)?;
            file.write_all(&0i32.to_ne_bytes()).context(REQUEST)?;
            self.request = Some(file);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_a_polling_state_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("cpu0/cpuidle/state0");
        std::fs::create_dir_all(&state).unwrap();
        std::fs::create_dir_all(folder.path().join("cpuidle")).unwrap();
        std::fs::write(folder.path().join("cpuidle/current_driver"), "x\n").unwrap();
        std::fs::write(state.join("name"), "WFI\n").unwrap();
        let error = polls(folder.path()).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(
            error.to_string().contains("driver `x`, first state `WFI`"),
            "{error}"
        );
        std::fs::write(state.join("name"), "POLL\n").unwrap();
        polls(folder.path()).unwrap();
        assert!(polls(Path::new("/nowhere")).is_err());
    }
}
