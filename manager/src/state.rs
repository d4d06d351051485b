//! What this machine leaves for the one that takes its place when the core has ended: guests that
//! were attached, in a file that the core writes. It is written before who attaches is answered,
//! and when a guest begins to go: what is in it is there as a whole.
//!
//! A file that cannot be written is no reason to refuse a guest: containers start all the same. The
//! answer to the request, the log and `status` report it, and the manager retries until the file is
//! written.

use crate::refusal::Refusal;
use crate::shape::{Shape, ShapeChange};
use abi::journal::Level;
use config::live::state::{self, Left, Origin};

/// Time between two attempts to write the file.
const AGAIN_NS: u64 = 1_000_000_000;

/// What the file has, as far as we know.
#[derive(Debug, Default)]
pub(crate) struct LeftState {
    /// None: it is to be looked at.
    written: Option<Vec<u8>>,
    /// Whether something of it may have become otherwise.
    is_stale: bool,
    /// When it is tried again; none: it was written.
    again_ns: Option<u64>,
    /// Why the last attempt failed, if it did.
    failure: Option<String>,
}

/// What `status` lists as missing while the file cannot be written; the reason follows, because the
/// log may be on the same full disk.
pub(crate) const LACK: &str = "that attached guests come back after an end of the core";

impl LeftState {
    /// The machine becomes so.
    pub(crate) fn look_at(&mut self, changes: &[ShapeChange]) {
        let concerns = |change: &ShapeChange| {
            matches!(
                change,
                ShapeChange::Up { .. }
                    | ShapeChange::Leaves { .. }
                    | ShapeChange::Gone { .. }
                    | ShapeChange::Described { .. }
                    | ShapeChange::Return { .. }
                    | ShapeChange::Returned { .. }
            )
        };
        self.is_stale |= changes.iter().any(concerns);
    }

    /// What is to be written, if that is not in the file, and not too soon to be tried again.
    pub(crate) fn due(&mut self, name: &str, shape: &Shape, now_ns: u64) -> Option<Vec<u8>> {
        let is_due = match self.again_ns {
            Some(at) => now_ns >= at,
            None => self.is_stale || self.written.is_none(),
        };
        if !is_due {
            return None;
        }
        self.is_stale = false;
        let text = state::write(name, &left(shape));
        (self.written.as_ref() != Some(&text)).then_some(text)
    }

    /// When it is tried again.
    pub(crate) fn again_ns(&self) -> Option<u64> {
        self.again_ns
    }

    /// Notes whether the core has written it. Returns a line for the log if the file could be
    /// written before and cannot be now, or the other way round.
    pub(crate) fn wrote(
        &mut self,
        text: Vec<u8>,
        written: Result<(), Refusal>,
        now_ns: u64,
    ) -> Option<(Level, String)> {
        let failed = self.failure.take();
        let Err(Refusal { why, .. }) = written else {
            self.written = Some(text);
            self.again_ns = None;
            let line = || {
                "the state file is written again: attached guests come back after an end \
                           of the core"
            };
            return failed.map(|_| (Level::Info, line().to_owned()));
        };
        self.written = None;
        self.again_ns = Some(now_ns.saturating_add(AGAIN_NS));
        let line = format!("what is attached cannot be written for the next core: {why}");
        self.failure = Some(why);
        failed.is_none().then_some((Level::Warning, line))
    }

    /// Returns what the machine goes without, and why, while the file cannot be written.
    pub(crate) fn lack(&self) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!("{LACK} ({why})"))
    }

    /// Returns a warning for the answer to a request if the file could not be written; `outcome`
    /// says what an end of the core leads to until it is.
    pub(crate) fn warning(&self, outcome: &str) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!(
            "the state file cannot be written ({why}): {outcome} if the core ends before a retry \
             succeeds; free space beside the control socket"
        ))
    }
}

/// The guests that are to come back: those that are there and stay, and those that are on their way
/// back.
pub(crate) fn left(shape: &Shape) -> Vec<Left<'_>> {
    const UNKNOWN: &Origin = &Origin::UNKNOWN;
    let attached = shape.live().into_iter().flat_map(|live| &live.attached);
    // One that is up is among both for a moment.
    let is_there = |name: &str| !shape.is_changing(name) && shape.returning(name).is_none();
    let there = attached.filter(|(name, _)| is_there(name));
    let there = there.map(|(name, guest)| Left {
        guest,
        origin: shape.origin(name).unwrap_or(UNKNOWN),
    });
    there
        .chain(shape.all_returning().iter().map(Left::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_written_is_tried_again_and_said_once() {
        let mut state = LeftState::default();
        let shape = Shape::default();
        let nothing = Some(Vec::new());
        let full = || Err("No space left on device".to_owned().into());
        assert_eq!(state.due("m", &shape, 5), nothing, "of another core");
        let (level, said) = state.wrote(Vec::new(), full(), 5).unwrap();
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
        state.look_at(&[ShapeChange::Up { name: "a".into() }]);
        assert_eq!(state.due("m", &shape, 4 + AGAIN_NS), None, "too soon");
        assert_eq!(state.due("m", &shape, 5 + AGAIN_NS), nothing);
        assert_eq!(state.wrote(Vec::new(), full(), 6), None);
        let (level, said) = state.wrote(Vec::new(), Ok(()), 7).unwrap();
        assert_eq!(level, Level::Info);
        assert!(said.contains("written again"), "{said}");
        assert_eq!((state.lack(), state.warning("x")), (None, None));
        assert_eq!(state.wrote(Vec::new(), Ok(()), 7), None);
        assert_eq!(state.again_ns(), None);
        assert_eq!(state.due("m", &shape, 8), None);
        state.look_at(&[ShapeChange::HasRefitted]);
        assert!(!state.is_stale);
        state.look_at(&[ShapeChange::Up { name: "a".into() }]);
        assert!(state.is_stale);
        assert_eq!(state.due("m", &shape, 9), None, "the same");
    }
}
