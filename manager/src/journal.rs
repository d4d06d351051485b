//! The journal from which the next manager resumes: a memory file that the core holds but does not
//! read.
//!
//! The first line is the whole state at the creation of the file; each further line is a change. A
//! written line survives the manager immediately, without a request to the core, so an attach
//! writes lines about one guest only. The manager replaces a file that is much longer than its
//! first line.

use crate::core::{CoreError, CoreLink};
use crate::life::Lifecycle;
use crate::machine_state::MachineState;
use crate::spec::{MachineSpec, SpecChange};
use abi::core::{CoreRequest, KEPT_MAX};
use abi::machine::Restarts;
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes of changes that a file may always hold before it is replaced.
const CHANGES_MIN_BYTES: usize = 256 << 10;

/// The state that survives a manager.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedState<'a> {
    /// Time at which the machine was complete, by the monotonic clock.
    pub(crate) complete_ns: u64,
    /// Properties that the system lacks, as text.
    pub(crate) missing: Cow<'a, BTreeSet<String>>,
    /// Restart state of the domains that can restart, by place.
    pub(crate) restarts: Cow<'a, BTreeMap<usize, Restarts>>,
    /// The specification, if it has changed since the start.
    pub(crate) spec: Option<Cow<'a, MachineSpec>>,
    /// Changes of the specification since then.
    #[serde(skip)]
    pub(crate) changes: Vec<SpecChange>,
}

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum JournalLine {
    /// A change of the specification.
    Spec(SpecChange),
    /// Properties that the system lacks.
    Missing(BTreeSet<String>),
    /// Restarts of the domain at a place; `None` if the domain is no longer restarted.
    Restarts(usize, Option<Restarts>),
}

impl SavedState<'_> {
    /// Reads the state from the file of an earlier manager. Returns `None` if its first line is
    /// invalid. Ignores the other lines from the first incomplete or invalid line on.
    pub(crate) fn read(file: &OwnedFd) -> Option<Self> {
        Self::of(&bytes_of(file).ok()?)
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let mut saved: Self = serde_json::from_slice(lines.next()?).ok()?;
        for line in lines.take_while(|line| line.ends_with(b"\n")) {
            match serde_json::from_slice(line) {
                Ok(JournalLine::Spec(change)) => saved.changes.push(change),
                Ok(JournalLine::Missing(missing)) => saved.missing = Cow::Owned(missing),
                Ok(JournalLine::Restarts(place, known)) => {
                    let restarts = saved.restarts.to_mut();
                    match known {
                        Some(known) => restarts.insert(place, known),
                        None => restarts.remove(&place),
                    };
                }
                Err(_) => break,
            }
        }
        Some(saved)
    }
}

/// Reads a file without blocking. Fails if the file supports no positioned reads.
fn bytes_of(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let len = usize::try_from(fstat(file)?.st_size).unwrap_or(usize::MAX);
    if len > KEPT_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; len];
    File::from(file.try_clone()?).read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The writer of the journal.
#[derive(Debug, Default)]
pub(crate) struct StateJournal {
    /// The file; `None` if a new file must be created.
    file: Option<File>,
    /// Length at which the file is replaced, and its current length.
    bytes_max: usize,
    bytes: usize,
    /// The content of the file except the specification.
    missing: BTreeSet<String>,
    restarts: BTreeMap<usize, Restarts>,
    /// Whether the specification has changed since the start.
    is_changed: bool,
    /// Whether restarts may have changed since they were written.
    are_restarts_stale: bool,
}

impl StateJournal {
    /// Continues the file of an earlier manager.
    pub(crate) fn continue_file(&mut self, is_changed: bool) {
        self.is_changed = is_changed;
    }

    /// Marks the written restarts as possibly out of date.
    pub(crate) fn mark_restarts_stale(&mut self) {
        self.are_restarts_stale = true;
    }

    /// Returns whether the file is up to date. Called in every turn, so its cost must not depend on
    /// the number of domains.
    pub(crate) fn is_current(&self, state: &MachineState) -> bool {
        let has_changed = self.are_restarts_stale || state.has_changed();
        self.file.is_some() && !has_changed && self.missing == state.missing
    }

    /// Writes the changes since the last call.
    pub(crate) fn write(
        &mut self,
        core: &mut CoreLink,
        complete_ns: u64,
        state: &mut MachineState,
        lives: &BTreeMap<usize, Lifecycle>,
    ) -> Result<(), CoreError> {
        let changes = state.take_changes();
        self.is_changed |= !changes.is_empty();
        let lines = self.lines(changes, state, lives);
        let mut text = Vec::new();
        for line in &lines {
            serde_json::to_writer(&mut text, line).map_err(|error| error.to_string())?;
            text.push(b'\n');
        }
        self.bytes += text.len();
        if self.bytes <= self.bytes_max
            && let Some(file) = &mut self.file
        {
            match file.write_all(&text) {
                Ok(()) => return Ok(()),
                // The next manager stops at an incomplete line.
                Err(error) => {
                    self.file = None;
                    return Err(error.to_string().into());
                }
            }
        }
        self.file = None;
        self.begin(core, complete_ns, state)
    }

    /// Returns the lines to write, and records them as written.
    fn lines(
        &mut self,
        changes: Vec<SpecChange>,
        state: &MachineState,
        lives: &BTreeMap<usize, Lifecycle>,
    ) -> Vec<JournalLine> {
        self.are_restarts_stale = false;
        let mut lines: Vec<JournalLine> = changes.into_iter().map(JournalLine::Spec).collect();
        if self.missing != state.missing {
            self.missing.clone_from(&state.missing);
            lines.push(JournalLine::Missing(self.missing.clone()));
        }
        let restarting = || lives.values().filter(|life| life.restarts());
        for life in restarting() {
            let (place, known) = (life.place, &life.known);
            if self.restarts.get(&place) != Some(known) {
                self.restarts.insert(place, known.clone());
                lines.push(JournalLine::Restarts(place, Some(known.clone())));
            }
        }
        if self.restarts.len() != restarting().count() {
            let current: BTreeSet<usize> = restarting().map(|life| life.place).collect();
            let removed = self
                .restarts
                .extract_if(.., |place, _| !current.contains(place));
            lines.extend(removed.map(|(place, _)| JournalLine::Restarts(place, None)));
        }
        lines
    }

    /// Creates a new file and hands it to the core.
    fn begin(
        &mut self,
        core: &mut CoreLink,
        complete_ns: u64,
        state: &MachineState,
    ) -> Result<(), CoreError> {
        let whole = SavedState {
            complete_ns,
            missing: Cow::Borrowed(&self.missing),
            restarts: Cow::Borrowed(&self.restarts),
            spec: self.is_changed.then_some(Cow::Borrowed(state.spec())),
            changes: Vec::new(),
        };
        let mut text = serde_json::to_vec(&whole).map_err(|error| error.to_string())?;
        text.push(b'\n');
        if text.len() > KEPT_MAX {
            let why = format!("it is longer than the {KEPT_MAX} bytes that the next manager reads");
            return Err(why.into());
        }
        let begin = || -> io::Result<File> {
            let mut file = File::from(memfd_create("kept", MemfdFlags::CLOEXEC)?);
            file.write_all(&text)?;
            Ok(file)
        };
        let file = begin().map_err(|error| error.to_string())?;
        core.request(CoreRequest::KeepStateFile {}, &[file.as_fd()])?;
        self.bytes = text.len();
        let room = text
            .len()
            .saturating_mul(2)
            .saturating_add(CHANGES_MIN_BYTES);
        self.bytes_max = room.min(KEPT_MAX);
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::core::{CoreMessage, Record};
    use config::live::LiveConfig;
    use link::{Link, Received};
    use rustix::event::PollFlags;
    use std::thread::JoinHandle;

    fn known(count: u64) -> Restarts {
        Restarts {
            count,
            ..Restarts::default()
        }
    }

    fn removed(name: &str) -> SpecChange {
        SpecChange::RemoveGuest(name.into())
    }

    /// Returns the bytes of a file with these lines, of which the last is incomplete.
    fn written(lines: &[JournalLine]) -> Vec<u8> {
        let first = SavedState {
            complete_ns: 7,
            restarts: Cow::Owned([(0, known(1)), (2, known(2))].into()),
            ..SavedState::default()
        };
        let mut text = serde_json::to_vec(&first).unwrap();
        for line in lines {
            text.push(b'\n');
            serde_json::to_writer(&mut text, line).unwrap();
        }
        text
    }

    #[test]
    fn changes_are_read_after_the_whole_state() {
        let missing = BTreeSet::from(["seals".to_owned()]);
        let text = written(&[
            JournalLine::Spec(removed("a")),
            JournalLine::Restarts(2, None),
            JournalLine::Restarts(0, Some(known(5))),
            JournalLine::Missing(missing.clone()),
            JournalLine::Restarts(3, Some(known(9))),
            JournalLine::Spec(removed("b")),
        ]);
        // The last line is incomplete, as if the manager was killed while it wrote.
        let saved = SavedState::of(&text).unwrap();
        assert_eq!(saved.complete_ns, 7);
        assert_eq!(*saved.missing, missing);
        assert_eq!(*saved.restarts, [(0, known(5)), (3, known(9))].into());
        assert_eq!(saved.changes, [removed("a")]);
        let whole = [text, b"\n".to_vec()].concat();
        assert_eq!(
            SavedState::of(&whole).unwrap().changes,
            [removed("a"), removed("b")]
        );
    }

    #[test]
    fn an_invalid_line_ends_the_changes() {
        let text = written(&[JournalLine::Spec(removed("a"))]);
        let nonsense = [text, b"\nnonsense\n".to_vec()].concat();
        let more = serde_json::to_vec(&JournalLine::Spec(removed("b"))).unwrap();
        let saved = SavedState::of(&[nonsense, more, b"\n".to_vec()].concat()).unwrap();
        assert_eq!(saved.changes, [removed("a")]);
        for nothing in [&b""[..], b"\n", b"nonsense", b"{}\n"] {
            assert!(SavedState::of(nothing).is_none(), "{nothing:?}");
        }
    }

    /// Returns the link to a core that holds journals, and a handle that returns them.
    fn core_with_journal() -> (CoreLink, JoinHandle<Vec<OwnedFd>>) {
        let (ours, its) = Link::pair().unwrap();
        let core_thread = std::thread::spawn(move || {
            let mut files = Vec::new();
            loop {
                match its.receive::<CoreRequest>() {
                    Ok(Some(Received { record, fds })) => {
                        files.extend(fds);
                        let token = record.token;
                        let message = CoreMessage::Done { value: 0 };
                        its.send(&Record { token, message }, &[]).unwrap();
                    }
                    Ok(None) => {
                        its.wait(PollFlags::IN, None);
                    }
                    Err(_) => return files,
                }
            }
        });
        (CoreLink::new(ours), core_thread)
    }

    fn state() -> MachineState {
        let text = "[driver]\n[[guest]]\nname = \"first\"\n[[guest.vif]]\nendpoint = \"echo\"\n";
        let file = config::ConfigFile {
            name: "f".into(),
            text: text.into(),
        };
        let config = config::parse("f", text).unwrap();
        MachineState::new(config::live::machine(&config, &[file]).unwrap())
    }

    /// Adds an attached guest to the specification. Returns its place.
    fn attach(state: &mut MachineState, config: &mut LiveConfig, name: &str) -> usize {
        let json = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo"}}]}}"#);
        let guest = serde_json::from_str(&json).unwrap();
        let admitted = state.admit(config, &guest, Some(7)).unwrap();
        let ports = state.spec().ports(&admitted.vifs).unwrap();
        state.edit_guest(name, |guest| guest.ports = ports);
        state.edit_guest(name, |guest| guest.is_changing = false);
        admitted.place
    }

    #[test]
    fn a_guest_costs_the_same_beside_any_number() {
        let (mut core, core_thread) = core_with_journal();
        let mut state = state();
        let mut config = state.spec().config().unwrap();
        let mut journal = StateJournal::default();
        let mut restarts = BTreeMap::new();
        journal.write(&mut core, 7, &mut state, &restarts).unwrap();
        let mut took = Vec::new();
        for number in 100..356 {
            let place = attach(&mut state, &mut config, &format!("g{number}"));
            let life = Lifecycle::resume(place, Some(100), known(number), None, 0);
            restarts.insert(place, life);
            journal.mark_restarts_stale();
            assert!(!journal.is_current(&state));
            let before = (journal.bytes, journal.bytes_max);
            journal.write(&mut core, 7, &mut state, &restarts).unwrap();
            assert!(journal.is_current(&state));
            // The length of a new file depends on the whole machine.
            if journal.bytes_max == before.1 {
                took.push(journal.bytes - before.0);
            }
        }
        assert!(took.len() > 250, "{} of 256", took.len());
        // The lengths differ by the digits of places and slots.
        let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
        assert!(most - least < 100, "{least} to {most} bytes");
        drop(core);
        let files = core_thread.join().unwrap();
        assert!(files.len() > 1, "a file is replaced before it is too long");
        let kept = SavedState::read(files.last().unwrap()).unwrap();
        let mut spec = kept.spec.unwrap().into_owned();
        kept.changes.into_iter().for_each(|it| spec.apply(it));
        assert_eq!(&spec, state.spec());
        assert_eq!(kept.restarts.len(), restarts.len());
        assert_eq!(kept.restarts[restarts.keys().nth(9).unwrap()], known(109));
    }

    #[test]
    fn a_file_that_blocks_is_not_read() {
        let (pipe, other) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&other, b"{}\n").unwrap();
        assert!(SavedState::read(&pipe).is_none());
        let file = memfd_create("kept", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, KEPT_MAX as u64 + 1).unwrap();
        let why = bytes_of(&file).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::FileTooLarge);
    }
}
