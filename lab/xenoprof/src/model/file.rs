//! The file of a session: JSON lines, each an object with one key that names its kind.
//! `docs/profile-format.md` describes the format.
//!
//! The last line has the number of lines and a checksum, so that a truncated or modified file is
//! rejected. Reading validates every reference, so that later code need not.

use super::{
    CallStack, DEPTH_MAX, Head, Loss, Marker, Module, ProfiledDomain, Sample, Session, StackFrame,
    Thread, depth_below,
};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The format version that this program writes.
pub const VERSION: u32 = 3;
/// The oldest supported version. Version 1 lacks build ids, addresses and source lines; version 2
/// lacks markers.
const OLDEST: u32 = 1;
/// Maximum length of a line in bytes.
const LINE_MAX: u64 = 16 << 20;

/// One line. Files have lines in the order of these variants.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Line {
    Profile(Head),
    Domain(ProfiledDomain),
    Thread(Thread),
    Module(Module),
    File(String),
    Frame(StackFrame),
    Stack(CallStack),
    Sample(Sample),
    Marker(Marker),
    Loss(Loss),
    End(End),
}

#[derive(Debug, Serialize, Deserialize)]
struct End {
    /// Number of lines before this one.
    lines: u64,
    /// CRC-32 (IEEE) of their bytes, newlines included.
    crc32: u32,
}

/// Error of writing or reading a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file exists and must not be replaced.
    #[error("{0} exists: choose another name with -o, or replace it with --force")]
    Exists(PathBuf),
    /// A system call failed.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file is not a session, or is damaged.
    #[error("{path}:{line}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line number.
        line: u64,
        /// The error.
        what: String,
    },
}

/// A file that is reserved before the session begins, so that a name in use is reported
/// immediately, and not after an hour of profiling. It is removed if nothing is written to it.
#[derive(Debug)]
pub struct Reserved {
    /// Path of the temporary file. `None` for a device or a pipe, to which the session is written
    /// directly.
    path: Option<PathBuf>,
    file: Option<File>,
}

/// Reserves a file.
///
/// # Errors
/// Returns [`FileError::Exists`] if the file exists and `force` is false.
pub fn reserve(path: &Path, force: bool) -> Result<Reserved, FileError> {
    let there = std::fs::metadata(path).ok();
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        let file = OpenOptions::new().write(true).open(path);
        return Ok(Reserved {
            path: None,
            file: Some(file.map_err(|error| io_error(path, error))?),
        });
    }
    let force = force || is_left_over(path);
    // An old session is kept until the new one is complete.
    let place = if force && path.exists() {
        path.with_extension("prof.part")
    } else {
        path.to_owned()
    };
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(false);
    } else {
        options.create_new(true);
    }
    let file = options.open(&place).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => FileError::Exists(path.to_owned()),
        _ => io_error(path, error),
    })?;
    // The file is locked while it is open, so that no other recorder considers it abandoned.
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(FileError::Exists(path.to_owned())),
        // The file system does not support locks.
        Err(TryLockError::Error(_)) | Ok(()) => {}
    }
    file.set_len(0).map_err(|error| io_error(path, error))?;
    Ok(Reserved {
        path: Some(place),
        file: Some(file),
    })
}

/// Returns whether a killed recorder has left this reserved file, which is then empty and not
/// locked.
fn is_left_over(path: &Path) -> bool {
    let is_free = |file: File| {
        let is_empty = file.metadata().is_ok_and(|there| there.len() == 0);
        is_empty && file.try_lock_shared().is_ok()
    };
    File::open(path).is_ok_and(is_free)
}

impl Reserved {
    /// Writes the session and renames the file to its final name.
    ///
    /// # Errors
    /// Returns an error if a system call fails.
    pub fn write(mut self, path: &Path, session: &Session) -> Result<(), FileError> {
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        let done = write(&file, session).and_then(|()| match &self.path {
            Some(written) => std::fs::rename(written, path),
            None => Ok(()),
        });
        if done.is_err() {
            self.file = Some(file);
        }
        done.map_err(|error| io_error(path, error))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let (Some(_), Some(path)) = (&self.file, &self.path) {
            let _gone_already = std::fs::remove_file(path);
        }
    }
}

fn io_error(path: &Path, error: io::Error) -> FileError {
    FileError::Io {
        path: path.to_owned(),
        error,
    }
}

/// A writer that counts lines and computes the checksum of the bytes that pass through.
struct Summed<W> {
    out: W,
    lines: u64,
    crc: crc32fast::Hasher,
}

impl<W: Write> Summed<W> {
    fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.lines += 1;
        self.crc.update(&bytes);
        self.out.write_all(&bytes)
    }
}

/// Writes a session.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write(out: impl Write, session: &Session) -> io::Result<()> {
    let mut to = Summed {
        out: BufWriter::new(out),
        lines: 0,
        crc: crc32fast::Hasher::new(),
    };
    to.line(&Line::Profile(session.head.clone()))?;
    for domain in &session.domains {
        to.line(&Line::Domain(domain.clone()))?;
    }
    for thread in &session.threads {
        to.line(&Line::Thread(thread.clone()))?;
    }
    for module in &session.modules {
        to.line(&Line::Module(module.clone()))?;
    }
    for file in &session.files {
        to.line(&Line::File(file.clone()))?;
    }
    for frame in &session.frames {
        to.line(&Line::Frame(frame.clone()))?;
    }
    for stack in &session.stacks {
        to.line(&Line::Stack(*stack))?;
    }
    for sample in &session.samples {
        to.line(&Line::Sample(*sample))?;
    }
    for marker in &session.markers {
        to.line(&Line::Marker(marker.clone()))?;
    }
    for loss in &session.losses {
        to.line(&Line::Loss(*loss))?;
    }
    let end = End {
        lines: to.lines,
        crc32: to.crc.clone().finalize(),
    };
    to.line(&Line::End(end))?;
    to.out.flush()
}

/// Reads a session.
///
/// # Errors
/// Returns [`FileError::Damaged`] with the invalid line.
pub fn read(path: &Path) -> Result<Session, FileError> {
    let file = File::open(path).map_err(|error| io_error(path, error))?;
    parse(BufReader::new(file)).map_err(|problem| match problem {
        Problem::Io(error) => io_error(path, error),
        Problem::Damaged(line, what) => FileError::Damaged {
            path: path.to_owned(),
            line,
            what,
        },
    })
}

/// Reads a session from another process.
///
/// # Errors
/// Returns the invalid line and the error.
pub fn from_bytes(bytes: &[u8]) -> Result<Session, String> {
    parse(bytes).map_err(|problem| match problem {
        Problem::Io(error) => error.to_string(),
        Problem::Damaged(line, what) => format!("line {line}: {what}"),
    })
}

#[derive(Debug)]
enum Problem {
    Io(io::Error),
    Damaged(u64, String),
}

fn parse(mut from: impl BufRead) -> Result<Session, Problem> {
    let mut session = Session::default();
    let mut crc = crc32fast::Hasher::new();
    let (mut number, mut rank) = (0u64, 0u8);
    let mut depths: Vec<u32> = Vec::new();
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        number += 1;
        let damaged = |what: &str| Problem::Damaged(number, what.to_owned());
        io::Read::take(&mut from, LINE_MAX)
            .read_until(b'\n', &mut bytes)
            .map_err(Problem::Io)?;
        let Some(text) = bytes.strip_suffix(b"\n") else {
            return Err(damaged(match number {
                1 => "not a profile of grantway",
                _ => "the file is truncated here",
            }));
        };
        let line: Line = serde_json::from_slice(text).map_err(|error| match number {
            1 => damaged("not a profile of grantway"),
            _ => Problem::Damaged(number, error.to_string()),
        })?;
        let now = line.rank();
        if (number == 1) != (now == 0) || now < rank {
            return Err(damaged("this line is out of order"));
        }
        rank = now;
        if let Line::End(end) = line {
            if end.lines != number - 1 || end.crc32 != crc.finalize() {
                return Err(damaged("the file was modified: its checksum differs"));
            }
            let mut rest = [0];
            return match from.read(&mut rest).map_err(Problem::Io)? {
                0 => {
                    session.clean();
                    Ok(session)
                }
                _ => Err(damaged("data after the last line")),
            };
        }
        crc.update(&bytes);
        if let Line::Stack(CallStack(caller, _)) = &line {
            let depth = depth_below(*caller, &depths);
            if depth > DEPTH_MAX {
                return Err(damaged("the stack has too many frames"));
            }
            depths.push(depth);
        }
        session
            .take(line)
            .map_err(|what| Problem::Damaged(number, what))?;
    }
}

impl Line {
    const fn rank(&self) -> u8 {
        match self {
            Self::Profile(_) => 0,
            Self::Domain(_) => 1,
            Self::Thread(_) => 2,
            Self::Module(_) => 3,
            Self::File(_) => 4,
            Self::Frame(_) => 5,
            Self::Stack(_) => 6,
            Self::Sample(_) => 7,
            Self::Marker(_) => 8,
            Self::Loss(_) => 9,
            Self::End(_) => 10,
        }
    }
}

impl Session {
    /// Adds a line. All of its references must point to earlier lines.
    fn take(&mut self, line: Line) -> Result<(), String> {
        let within = |what: &str, index: u32, len: usize| {
            if (index as usize) < len {
                Ok(())
            } else {
                Err(format!("no {what} {index}"))
            }
        };
        match line {
            Line::Profile(head) => {
                if !(OLDEST..=VERSION).contains(&head.version) {
                    return Err(format!(
                        "format version {}: this program reads versions {OLDEST} to {VERSION}",
                        head.version
                    ));
                }
                self.head = head;
            }
            Line::Domain(domain) => self.domains.push(domain),
            Line::Thread(thread) => {
                within("domain", thread.domain, self.domains.len())?;
                self.threads.push(thread);
            }
            Line::Module(module) => self.modules.push(module),
            Line::File(path) => self.files.push(path),
            Line::Frame(frame) => {
                within("module", frame.module, self.modules.len())?;
                if let Some(super::Location(file, _)) = frame.source {
                    within("file", file, self.files.len())?;
                }
                self.frames.push(frame);
            }
            Line::Stack(stack) => {
                if let Some(caller) = stack.0 {
                    within("stack", caller, self.stacks.len())?;
                }
                within("frame", stack.1, self.frames.len())?;
                self.stacks.push(stack);
            }
            Line::Sample(sample) => {
                within("thread", sample.2, self.threads.len())?;
                within("stack", sample.3, self.stacks.len())?;
                self.samples.push(sample);
            }
            Line::Marker(marker) => {
                within("domain", marker.domain, self.domains.len())?;
                self.markers.push(marker);
            }
            Line::Loss(loss) => {
                if let Some(domain) = loss.domain {
                    within("domain", domain, self.domains.len())?;
                }
                self.losses.push(loss);
            }
            Line::End(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NAME_MAX;
    use crate::testing::session;

    fn bytes() -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, &session()).unwrap();
        out
    }

    #[test]
    fn written_sessions_can_be_read() {
        assert_eq!(parse(&bytes()[..]).unwrap(), session());
    }

    #[test]
    fn truncated_files_are_rejected() {
        let whole = bytes();
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn modified_bytes_are_rejected() {
        let whole = bytes();
        for at in 0..whole.len() {
            for flip in [1, 0x20] {
                let mut changed = whole.clone();
                changed[at] ^= flip;
                if let Ok(read) = parse(&changed[..]) {
                    assert_eq!(read, session(), "byte {at} ^ {flip}");
                }
            }
        }
    }

    fn refused(lines: &[&str]) -> String {
        let whole = String::from_utf8(bytes()).unwrap();
        let head = whole.lines().next().unwrap();
        let text: String = std::iter::once(head)
            .chain(lines.iter().copied())
            .map(|line| format!("{line}\n"))
            .collect();
        match parse(text.as_bytes()) {
            Err(Problem::Damaged(line, what)) => format!("{line}: {what}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dangling_references_are_rejected() {
        assert_eq!(refused(&[r#"{"stack":[0,0]}"#]), "2: no stack 0");
        assert_eq!(refused(&[r#"{"stack":[null,7]}"#]), "2: no frame 7");
        assert_eq!(refused(&[r#"{"sample":[0,0,3,0]}"#]), "2: no thread 3");
        let marker = r#"{"marker":{"domain":4,"kind":"drops","from_ns":1,"to_ns":2}}"#;
        assert_eq!(refused(&[marker]), "2: no domain 4");
        assert_eq!(
            refused(&[r#"{"frame":{"module":1,"symbol":"f"}}"#]),
            "2: no module 1"
        );
        let module = r#"{"module":{"path":"/k","space":"kernel"}}"#;
        assert_eq!(
            refused(&[module, &bytes_line(1)]),
            "3: this line is out of order"
        );
        let line = r#"{"frame":{"module":0,"symbol":"f","source":[2,1]}}"#;
        assert_eq!(refused(&[module, line]), "3: no file 2");
        assert!(refused(&[r#"{"surprise":1}"#]).starts_with("2: unknown variant"));
    }

    fn bytes_line(at: usize) -> String {
        let whole = String::from_utf8(bytes()).unwrap();
        whole.lines().nth(at).unwrap().to_owned()
    }

    /// The cost of a sample grows with the depth of its stack.
    #[test]
    fn endless_stacks_are_rejected() {
        let module = r#"{"module":{"path":"/k","space":"kernel"}}"#.to_owned();
        let frame = r#"{"frame":{"module":0,"symbol":"f"}}"#.to_owned();
        let outermost = r#"{"stack":[null,0]}"#.to_owned();
        let mut lines = vec![module, frame, outermost];
        lines.extend((0..DEPTH_MAX).map(|caller| format!("{{\"stack\":[{caller},0]}}")));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let line = lines.len() + 1;
        assert_eq!(
            refused(&lines),
            format!("{line}: the stack has too many frames")
        );
        let cut = &lines[..lines.len() - 1];
        assert!(refused(cut).ends_with("the file is truncated here"));
    }

    #[test]
    fn long_names_are_truncated() {
        let mut long = session();
        long.frames[0].symbol = "ü".repeat(NAME_MAX);
        let mut out = Vec::new();
        write(&mut out, &long).unwrap();
        let symbol = from_bytes(&out).unwrap().frames[0].symbol.clone();
        assert!(symbol.len() <= NAME_MAX && symbol.ends_with("ü…"));
    }

    #[test]
    fn other_versions_are_rejected() {
        for text in ["", "\n", "{}\n", "\u{7f}ELF\n"] {
            let error = parse(text.as_bytes()).unwrap_err();
            let Problem::Damaged(1, what) = error else {
                panic!("{error:?}")
            };
            assert_eq!(what, "not a profile of grantway");
        }
        let later =
            String::from_utf8(bytes())
                .unwrap()
                .replacen("\"version\":3", "\"version\":4", 1);
        let error = parse(later.as_bytes()).unwrap_err();
        assert!(matches!(error, Problem::Damaged(1, what) if what.contains("version 4")));
    }

    #[test]
    fn files_are_not_overwritten_or_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.prof");
        drop(reserve(&path, false).unwrap());
        assert!(!path.exists(), "an unwritten file is removed");
        reserve(&path, false)
            .unwrap()
            .write(&path, &session())
            .unwrap();
        assert!(matches!(reserve(&path, false), Err(FileError::Exists(_))));
        drop(reserve(&path, true).unwrap());
        assert_eq!(read(&path).unwrap(), session(), "the old session is kept");
        let mut other = session();
        other.head.id = 7;
        reserve(&path, true).unwrap().write(&path, &other).unwrap();
        assert_eq!(read(&path).unwrap(), other);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_reservations_of_killed_recorders_are_reused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.prof");
        let mine = reserve(&path, false).unwrap();
        assert!(matches!(reserve(&path, false), Err(FileError::Exists(_))));
        drop(mine);
        File::create(&path).unwrap();
        reserve(&path, false)
            .unwrap()
            .write(&path, &session())
            .unwrap();
        assert_eq!(read(&path).unwrap(), session());
    }

    #[test]
    fn a_device_is_written_directly() {
        let full = Path::new("/dev/full");
        let error = reserve(full, true).unwrap().write(full, &session());
        assert!(error.unwrap_err().to_string().contains("/dev/full: "));
        assert!(!std::fs::metadata(full).unwrap().is_file());
    }

    #[test]
    fn names_lose_control_characters() {
        let mut hostile = session();
        hostile.threads[0].name = "\u{1b}]0;x\u{7}".to_owned();
        hostile.domains[0].missing = Some("a\nb".to_owned());
        let mut out = Vec::new();
        write(&mut out, &hostile).unwrap();
        let read = from_bytes(&out).unwrap();
        assert_eq!(read.threads[0].name, "\u{fffd}]0;x\u{fffd}");
        assert_eq!(read.domains[0].missing.as_deref(), Some("a\u{fffd}b"));
    }
}
