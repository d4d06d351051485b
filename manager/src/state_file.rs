//! The state file: the attached guests, for the machine that is started after an end of the core.
//! The core writes it before an attach is answered, and when a guest begins to be removed; a file
//! is written as a whole.
//!
//! A failure to write it does not fail an attach, because containers start all the same. The
//! answer, the log and `status` report it, and the manager retries until the file is written.

use crate::core_error::CoreError;
use crate::spec::MachineSpec;
use abi::journal::Level;
use config::live::state::{self, Origin, SavedGuestRef};

/// Time between two attempts to write the file.
pub(crate) const AGAIN_NS: u64 = 1_000_000_000;

/// The state file as last written.
#[derive(Debug, Default)]
pub(crate) struct StateFile {
    /// The content; `None`: unknown.
    written: Option<Vec<u8>>,
    /// Why the last attempt failed, if it did.
    failure: Option<String>,
}

/// The entry of `status` while the file cannot be written. The reason follows, because the log may
/// be on the same full disk.
pub(crate) const LACK: &str = "that attached guests come back after an end of the core";

impl StateFile {
    /// Returns the content to write, if it differs from the file. `is_stale`: whether the guests
    /// may have changed since the last call.
    pub(crate) fn due(&self, name: &str, spec: &MachineSpec, is_stale: bool) -> Option<Vec<u8>> {
        if !is_stale && self.written.is_some() {
            return None;
        }
        let text = state::write(name, &left(spec));
        (self.written.as_ref() != Some(&text)).then_some(text)
    }

    /// Records whether the core has written the file. Returns a line for the log when this changes.
    /// After a failure the next attempt is due in [`AGAIN_NS`].
    pub(crate) fn wrote(
        &mut self,
        text: Vec<u8>,
        written: Result<(), CoreError>,
    ) -> Option<(Level, String)> {
        let failed = self.failure.take();
        let Err(CoreError { why, .. }) = written else {
            self.written = Some(text);
            let line = || {
                "the state file is written again: attached guests come back after an end \
                           of the core"
            };
            return failed.map(|_| (Level::Info, line().to_owned()));
        };
        self.written = None;
        let line = format!("what is attached cannot be written for the next core: {why}");
        self.failure = Some(why);
        failed.is_none().then_some((Level::Warning, line))
    }

    /// Returns the entry of `status` while the file cannot be written.
    pub(crate) fn lack(&self) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!("{LACK} ({why})"))
    }

    /// Returns a warning for the answer to a request if the file could not be written. `outcome` is
    /// what happens if the core ends before a retry succeeds.
    pub(crate) fn warning(&self, outcome: &str) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!(
            "the state file cannot be written ({why}): {outcome} if the core ends before a retry \
             succeeds; free space beside the control socket"
        ))
    }
}

/// Returns the guests to attach again after the core's end: the attached ones, and those that have
/// not been attached again yet.
pub(crate) fn left(spec: &MachineSpec) -> Vec<SavedGuestRef<'_>> {
    const UNKNOWN: &Origin = &Origin::UNKNOWN;
    let attached = spec.live().into_iter().flat_map(|live| &live.attached);
    // A guest that was just attached again is in both lists for a moment.
    let is_there = |name: &str| !spec.is_changing(name) && spec.saved_guest(name).is_none();
    let there = attached.filter(|(name, _)| is_there(name));
    let there = there.map(|(name, guest)| SavedGuestRef {
        guest,
        origin: spec.origin(name).unwrap_or(UNKNOWN),
    });
    there
        .chain(spec.saved_guests().iter().map(SavedGuestRef::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_is_retried_and_reported_once() {
        let mut state = StateFile::default();
        let spec = MachineSpec::default();
        let nothing = Some(Vec::new());
        let full = || Err("No space left on device".to_owned().into());
        assert_eq!(state.due("m", &spec, false), nothing, "of another core");
        let (level, said) = state.wrote(Vec::new(), full()).unwrap();
        assert_eq!(level, Level::Warning);
        assert!(said.contains("No space left"), "{said}");
        assert!(
            state
                .lack()
                .is_some_and(|lack| lack.contains("No space left"))
        );
        let warning = state.warning("guest a does not come back").unwrap();
        assert!(
            warning.contains("(No space left on device): guest a does not"),
            "{warning}"
        );
        assert_eq!(state.due("m", &spec, false), nothing);
        assert_eq!(state.wrote(Vec::new(), full()), None);
        let (level, said) = state.wrote(Vec::new(), Ok(())).unwrap();
        assert_eq!(level, Level::Info);
        assert!(said.contains("written again"), "{said}");
        assert_eq!((state.lack(), state.warning("x")), (None, None));
        assert_eq!(state.wrote(Vec::new(), Ok(())), None);
        assert_eq!(state.due("m", &spec, false), None);
        assert_eq!(state.due("m", &spec, true), None, "the same");
    }
}
