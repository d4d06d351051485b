//! The journal from which the next manager resumes: a memory file that the core holds but does not
//! read.
//!
//! The first line is the whole state at the creation of the file; each further line is a change of
//! the specification. A written line survives the manager immediately, without a request to the
//! core, so an attach writes lines about one guest only. The manager replaces a file that is much
//! longer than its first line.

use crate::core::{CoreError, CoreLink};
use crate::machine_state::MachineState;
use crate::spec::{MachineSpec, SpecChange};
use abi::core::{CoreRequest, KEPT_MAX};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
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
    /// The specification, if it had changed since the start.
    pub(crate) spec: Option<Cow<'a, MachineSpec>>,
    /// Changes of the specification since then.
    #[serde(skip)]
    pub(crate) changes: Vec<SpecChange>,
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
        let changes = lines.take_while(|line| line.ends_with(b"\n"));
        let changes = changes.map_while(|line| serde_json::from_slice(line).ok());
        saved.changes = changes.collect();
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
    /// Whether the specification has changed since the start.
    is_changed: bool,
}

impl StateJournal {
    /// Continues the file of an earlier manager.
    pub(crate) fn continue_file(&mut self, is_changed: bool) {
        self.is_changed = is_changed;
    }

    /// Returns whether the file is up to date. Called in every turn, so its cost must not depend on
    /// the number of domains.
    pub(crate) fn is_current(&self, state: &MachineState) -> bool {
        self.file.is_some() && !state.has_changed()
    }

    /// Writes the changes since the last call.
    pub(crate) fn write(
        &mut self,
        core: &mut CoreLink,
        complete_ns: u64,
        state: &mut MachineState,
    ) -> Result<(), CoreError> {
        let changes = state.take_changes();
        let lines = lines(&changes)?;
        self.bytes += lines.len();
        let file = self.file.take().filter(|_| self.bytes <= self.bytes_max);
        let was_changed = self.is_changed;
        self.is_changed |= !changes.is_empty();
        if let Some(mut file) = file {
            // The next manager stops at an incomplete line.
            file.write_all(&lines).map_err(|error| error.to_string())?;
            self.file = Some(file);
            return Ok(());
        }
        // Without earlier changes, the lines complete the description that the core holds.
        let whole = SavedState {
            complete_ns,
            spec: was_changed.then_some(Cow::Borrowed(state.spec())),
            changes: Vec::new(),
        };
        let mut text = serde_json::to_vec(&whole).map_err(|error| error.to_string())?;
        text.push(b'\n');
        if !was_changed {
            text.extend(lines);
        }
        self.begin(core, &text)
    }

    /// Creates a new file and hands it to the core.
    fn begin(&mut self, core: &mut CoreLink, text: &[u8]) -> Result<(), CoreError> {
        if text.len() > KEPT_MAX {
            let why = format!("it is longer than the {KEPT_MAX} bytes that the next manager reads");
            return Err(why.into());
        }
        let begin = || -> io::Result<File> {
            let mut file = File::from(memfd_create("kept", MemfdFlags::CLOEXEC)?);
            file.write_all(text)?;
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

/// Returns one line for each change.
fn lines(changes: &[SpecChange]) -> Result<Vec<u8>, CoreError> {
    let mut text = Vec::new();
    for change in changes {
        serde_json::to_writer(&mut text, change).map_err(|error| error.to_string())?;
        text.push(b'\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::core::{CoreMessage, Record};
    use abi::machine::Restarts;
    use config::live::LiveConfig;
    use link::{Link, Received};
    use rustix::event::PollFlags;
    use std::thread::JoinHandle;

    fn restarts(count: u64) -> Restarts {
        Restarts {
            count,
            ..Restarts::default()
        }
    }

    fn removed(name: &str) -> SpecChange {
        SpecChange::RemoveGuest(name.into())
    }

    /// Returns the bytes of a file with these changes, of which the last is incomplete.
    fn written(changes: &[SpecChange]) -> Vec<u8> {
        let first = SavedState {
            complete_ns: 7,
            ..SavedState::default()
        };
        let mut text = serde_json::to_vec(&first).unwrap();
        for change in changes {
            text.push(b'\n');
            serde_json::to_writer(&mut text, change).unwrap();
        }
        text
    }

    #[test]
    fn changes_are_read_after_the_whole_state() {
        let missing = SpecChange::SetMissing(["seals".to_owned()].into());
        let changes = [
            removed("a"),
            SpecChange::SetRestarts(0, restarts(5)),
            missing,
            removed("b"),
        ];
        let text = written(&changes);
        // The last line is incomplete, as if the manager was killed while it wrote.
        let saved = SavedState::of(&text).unwrap();
        assert_eq!(saved.complete_ns, 7);
        assert_eq!(saved.changes, changes[..3]);
        let whole = [text, b"\n".to_vec()].concat();
        assert_eq!(SavedState::of(&whole).unwrap().changes, changes);
    }

    #[test]
    fn an_invalid_line_ends_the_changes() {
        let text = written(&[removed("a")]);
        let nonsense = [text, b"\nnonsense\n".to_vec()].concat();
        let more = serde_json::to_vec(&removed("b")).unwrap();
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
        journal.write(&mut core, 7, &mut state).unwrap();
        let mut took = Vec::new();
        for number in 100..356 {
            let place = attach(&mut state, &mut config, &format!("g{number}"));
            state.record_restarts(place, &restarts(number));
            assert!(!journal.is_current(&state));
            let before = (journal.bytes, journal.bytes_max);
            journal.write(&mut core, 7, &mut state).unwrap();
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
        let place = spec.place("g109").unwrap();
        assert_eq!(spec.restarts(place), restarts(109));
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
