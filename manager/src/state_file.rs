//! The state file: the attached guests, for the machine that starts after an exit of the core. The
//! core writes the file before the manager answers an attach, and when the removal of a guest
//! begins. It always writes the whole file.
//!
//! A failure to write the file does not fail an attach, so that containers can start. The answer,
//! the log and `status` report the failure, and the manager retries until the file is written.

use crate::core_error::CoreError;
use crate::spec::MachineSpec;
use abi::journal::Level;
use config::live::state::{self, AttachedGuest};

/// Interval of attempts to write the file.
pub(crate) const RETRY_NS: u64 = 1_000_000_000;

/// The state file as last written.
#[derive(Debug, Default)]
pub(crate) struct StateFile {
    /// The content; `None` if it is unknown.
    written: Option<Vec<u8>>,
    /// Reason why the last attempt failed, if it did.
    failure: Option<String>,
}

/// The entry of `status` while the file cannot be written. [`StateFile::missing_feature`] appends
/// the reason in parentheses, because the log may be on the same full disk, and then does not
/// contain the reason.
pub(crate) const REATTACH: &str = "the reattachment of guests after an exit of the core";

impl StateFile {
    /// Returns the content to write, or `None` if it equals the file. `is_stale` states whether the
    /// guests may have changed since the last call.
    pub(crate) fn due(&self, name: &str, spec: &MachineSpec, is_stale: bool) -> Option<Vec<u8>> {
        if !is_stale && self.written.is_some() {
            return None;
        }
        let text = state::write(name, &guests_to_save(spec));
        (self.written.as_ref() != Some(&text)).then_some(text)
    }

    /// Records whether the core has written the file. Returns a line for the log if this changes.
    /// After a failure, the next attempt is due after [`RETRY_NS`].
    pub(crate) fn record_write(
        &mut self,
        text: Vec<u8>,
        written: Result<(), CoreError>,
    ) -> Option<(Level, String)> {
        let failed = self.failure.take();
        let Err(CoreError { why, .. }) = written else {
            self.written = Some(text);
            let line = || {
                "the state file is written again: guests are reattached after an exit \
                           of the core"
            };
            return failed.map(|_| (Level::Info, line().to_owned()));
        };
        self.written = None;
        let line = format!("the state file with the attached guests cannot be written: {why}");
        self.failure = Some(why);
        failed.is_none().then_some((Level::Warning, line))
    }

    /// Returns the entry of `status` while the file cannot be written.
    pub(crate) fn missing_feature(&self) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!("{REATTACH} ({why})"))
    }

    /// Returns a warning for the answer to a request if the file could not be written. `outcome` is
    /// the consequence if the core exits before a retry succeeds.
    pub(crate) fn warning(&self, outcome: &str) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!(
            "the state file cannot be written ({why}): {outcome} if the core exits before a retry \
             succeeds; free space in the control socket's file system"
        ))
    }
}

/// Returns the guests to attach after an exit of the core: the attached guests, and the saved
/// guests that are not attached again yet.
pub(crate) fn guests_to_save(spec: &MachineSpec) -> Vec<&AttachedGuest> {
    let attached = spec.live().into_iter().flat_map(|live| &live.attached);
    // A guest that was just attached again is in both lists until the next step.
    let is_complete = |name: &str| !spec.is_changing(name) && spec.saved_guest(name).is_none();
    let complete = attached.filter(|(name, _)| is_complete(name));
    let complete = complete.map(|(_, guest)| guest);
    complete.chain(spec.saved_guests()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_is_retried_and_reported_once() {
        let mut state = StateFile::default();
        let spec = MachineSpec::default();
        let empty = Some(Vec::new());
        let full = || Err("No space guests_to_save on device".to_owned().into());
        assert_eq!(
            state.due("m", &spec, false),
            empty,
            "the file of an earlier core is unknown"
        );
        let (level, line) = state.record_write(Vec::new(), full()).unwrap();
        assert_eq!(level, Level::Warning);
        assert!(line.contains("No space guests_to_save"), "{line}");
        assert!(
            state
                .missing_feature()
                .is_some_and(|lack| lack.contains("No space guests_to_save"))
        );
        let warning = state.warning("guest a is not reattached").unwrap();
        assert!(
            warning.contains("(No space guests_to_save on device): guest a is not"),
            "{warning}"
        );
        assert_eq!(state.due("m", &spec, false), empty);
        assert_eq!(state.record_write(Vec::new(), full()), None);
        let (level, line) = state.record_write(Vec::new(), Ok(())).unwrap();
        assert_eq!(level, Level::Info);
        assert!(line.contains("written again"), "{line}");
        assert_eq!((state.missing_feature(), state.warning("x")), (None, None));
        assert_eq!(state.record_write(Vec::new(), Ok(())), None);
        assert_eq!(state.due("m", &spec, false), None);
        assert_eq!(state.due("m", &spec, true), None, "the content is the same");
    }
}
