//! The file of a session: JSON lines, each an object with one key that names its kind.
//! `docs/profile-format.md` describes the format.
//!
//! The last line has the number of lines and a checksum, so that a truncated or modified file is
//! rejected. Reading validates every reference, so that later code need not.

use super::{
    CallStack, DEPTH_MAX, EVENTS_MAX, Head, Loss, Marker, Module, ProfiledDomain, Sample, Session,
    StackFrame, Thread, depth_below,
};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The format version that this program writes.
pub const VERSION: u32 = 4;
/// The oldest supported version. Version 1 lacks build ids, addresses and source lines; version 2
/// lacks markers; version 3 has one event.
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
        let events = self.head.more_events.len() + 1;
        match line {
            Line::Profile(head) => {
                if !(OLDEST..=VERSION).contains(&head.version) {
                    return Err(format!(
                        "format version {}: this program reads versions {OLDEST} to {VERSION}",
                        head.version
                    ));
                }
                if head.more_events.len() >= EVENTS_MAX {
                    return Err(format!("more than {EVENTS_MAX} events"));
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
                within("event", sample.4, events)?;
                within("thread", sample.2, self.threads.len())?;
                within("stack", sample.3, self.stacks.len())?;
                self.samples.push(sample);
            }
            Line::Marker(marker) => {
                within("domain", marker.domain, self.domains.len())?;
                self.markers.push(marker);
            }
            Line::Loss(loss) => {
                within("event", loss.event, events)?;
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
mod tests;
