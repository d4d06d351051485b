//! Cores that do not halt while they are idle, so that a wake-up costs no exit to the hypervisor
//! below: the kernel is asked for a latency of 0, and its idle loop polls.
//!
//! A thread of the idle class that spins would do so too, and worse. Where the kernel preempts
//! lazily, a task that is woken waits for such a thread until the next tick, up to 4 ms. And
//! softirqs that interrupt the thread would be counted as its time.

use anyhow::Context as _;
use figures::Failure;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

/// The kernel holds to what was written here as long as the file is open.
const REQUEST: &str = "/dev/cpu_dma_latency";
const IDLE: &str = "/sys/devices/system/cpu";
/// The idle state that polls, by its name.
const POLL: &str = "POLL";

/// The cores, which may halt until told otherwise, and again when this ends.
#[derive(Debug, Default)]
pub struct IdleCores {
    request: Option<File>,
}

/// Whether cores can be kept awake here.
///
/// # Errors
/// [`Failure::CannotRun`] saying why not.
pub fn possible() -> Result<(), Failure> {
    polls(Path::new(IDLE))?;
    match OpenOptions::new().write(true).open(REQUEST) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::CannotRun(format!(
            "idle cores cannot be kept from halting: {REQUEST}: {error}"
        ))),
    }
}

/// Whether there is an idle state that polls. A latency of 0 asks for the first state.
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
    /// If the kernel refuses.
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
    fn a_kernel_without_a_polling_state_is_told_by_name() {
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
