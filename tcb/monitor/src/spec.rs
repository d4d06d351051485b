//! Limits of a domain's specification.

use abi::core::NewDomain;
use abi::layout::{FOREIGN_PAGES, FRAMES_MAX, WINDOW_SLOTS_MAX, fd, info};
use sandbox::Profile;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Error of building or starting a domain: its name and the reason.
#[derive(Debug, thiserror::Error)]
#[error("domain {0}: {1}")]
pub struct DomainError(String, String);

impl DomainError {
    pub(crate) fn new(name: &str, what: impl ToString) -> Self {
        Self(name.to_owned(), what.to_string())
    }
}

/// Parameters for the start of a domain's process.
#[derive(Debug)]
pub struct StartSpec {
    /// The program, a static ELF file.
    pub program: PathBuf,
    /// The console: its standard output and standard error.
    pub console: OwnedFd,
}

/// Checks a domain's specification and the size of its configuration.
///
/// # Errors
/// Returns the value that is out of range, and its limits.
pub(crate) fn check(spec: &NewDomain, config: &[u8]) -> Result<(), DomainError> {
    let entries_max = 1 << abi::GrantRef::INDEX_BITS;
    for (what, value, min, max) in [
        ("page frames", spec.frames as usize, 1, FRAMES_MAX),
        (
            "window slots",
            spec.window_slots as usize,
            0,
            WINDOW_SLOTS_MAX,
        ),
        // The agent's filter permits one range: either a window or foreign memory.
        (
            "pages of foreign memory",
            spec.foreign_pages as usize,
            0,
            match (Profile::from(spec), spec.window_slots) {
                (Profile::Shim, 0) => FOREIGN_PAGES,
                _ => 0,
            },
        ),
        ("grant entries", spec.grant_entries as usize, 0, entries_max),
        ("devices", spec.devices as usize, 0, fd::DEVICES_MAX),
        (
            "bytes of configuration",
            config.len(),
            0,
            info::CONFIG_MAX as u32,
        ),
    ] {
        if !(min..=max as usize).contains(&value) {
            let what = format!("{what}: {min} to {max}, not {value}");
            return Err(DomainError::new(spec.name.as_str(), what));
        }
    }
    Ok(())
}
