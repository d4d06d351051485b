//! What a domain is made of, and why it is not.

use abi::layout::{FRAMES_MAX, WINDOW_SLOTS_MAX, fd, info};
use abi::status::Program;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Why a domain could not be built or started: its name, and what is wrong.
#[derive(Debug, thiserror::Error)]
#[error("domain {0}: {1}")]
pub struct DomainError(String, String);

impl DomainError {
    pub(crate) fn new(name: &str, what: impl ToString) -> Self {
        Self(name.to_owned(), what.to_string())
    }
}

/// What a domain is made of.
#[derive(Clone, Debug)]
pub struct DomainSpec {
    /// Its name, unique in the machine.
    pub name: String,
    /// Its program.
    pub program: Program,
    /// Page frames of its own.
    pub frames: u32,
    /// Entries of its classic grant table, and of its largest other one.
    pub grant_entries: u32,
    /// Slots of its grant window.
    pub window_slots: u32,
    /// Frames that others' forced revocations may cost it at a time: see
    /// [`abi::counted::Revocation::Force`].
    pub collateral: u32,
    /// Its share of what all granters may cost the users of their grants, beside others' shares.
    pub weight: u32,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Devices that it is given before its start.
    pub devices: u32,
    /// Its configuration.
    pub config: Vec<u8>,
}

/// How to start a domain's process.
#[derive(Debug)]
pub struct Start {
    /// The program: a static ELF.
    pub program: PathBuf,
    /// Becomes its standard output and standard error.
    pub console: OwnedFd,
    /// Its user id, if it gets one of its own.
    pub uid: Option<u32>,
}

impl DomainSpec {
    /// Whether there is such a domain.
    ///
    /// # Errors
    /// What there is at most.
    pub(crate) fn check(&self) -> Result<(), DomainError> {
        let entries_max = 1 << abi::GrantRef::INDEX_BITS;
        for (what, value, min, max) in [
            ("page frames", self.frames, 1, FRAMES_MAX),
            ("window slots", self.window_slots, 0, WINDOW_SLOTS_MAX),
            ("grant entries", self.grant_entries, 0, entries_max),
            ("devices", self.devices, 0, fd::DEVICES_MAX),
        ] {
            if !(min..=max).contains(&value) {
                let what = format!("{what}: {min} to {max}, not {value}");
                return Err(DomainError::new(&self.name, what));
            }
        }
        match self.config.len() {
            0..=info::CONFIG_MAX => Ok(()),
            more => {
                let max = info::CONFIG_MAX;
                let what = format!("bytes of configuration: at most {max}, not {more}");
                Err(DomainError::new(&self.name, what))
            }
        }
    }
}
