//! Notes of running machines about their changes to the host: `NAME.host` in the runtime directory.
//! A start writes the note before it changes anything. A process that finds the note of a dead
//! machine reverts the changes.

use crate::Error;
use crate::runtime::{check_name, existing_runtime_dir, lock_of, runtime_dir};
use crate::saved_state::read;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit of another machine's start.
const LOCK: Duration = Duration::from_secs(30);
const END: &str = ".host";
/// The end of a note that is being written.
const NEW: &str = ".host.new";

fn path_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}{END}"))
}

fn new_path_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}{NEW}"))
}

/// Writes the note of a machine in its folder atomically.
pub(crate) fn write_in(dir: &Path, name: &str, text: &str) -> Result<(), Error> {
    let path = path_of(dir, name);
    let new = new_path_of(dir, name);
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&new, &path)
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&new);
        Error::io(format!("write {}", path.display()), e)
    })
}

/// Replaces the note of a running machine.
///
/// # Errors
///
/// Returns an error if it cannot be written.
pub fn write_note(name: &str, text: &str) -> Result<(), Error> {
    check_name(name)?;
    write_in(&runtime_dir()?, name, text)
}

/// Returns the note of a machine, if it has one.
///
/// # Errors
///
/// Returns an error if it cannot be read, or users other than this one and root may change it.
pub fn note_of(name: &str) -> Result<Option<String>, Error> {
    check_name(name)?;
    match existing_runtime_dir()? {
        Some(dir) => note_in(&dir, name),
        None => Ok(None),
    }
}

fn note_in(dir: &Path, name: &str) -> Result<Option<String>, Error> {
    let path = path_of(dir, name);
    match read(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("read {}", path.display()), error)),
    }
}

/// Calls `clear` with name and note of each machine that does not run, and removes the notes for
/// which it returns true. Removes notes that a killed process has not finished. No machine can
/// start meanwhile.
///
/// # Errors
///
/// Returns an error if the runtime directory or a note cannot be read, or another machine's start
/// takes too long.
pub fn clear_notes(clear: impl FnMut(&str, &str) -> bool) -> Result<(), Error> {
    match existing_runtime_dir()? {
        Some(dir) => clear_in(&dir, LOCK, clear),
        None => Ok(()),
    }
}

fn clear_in(
    dir: &Path,
    limit: Duration,
    mut clear: impl FnMut(&str, &str) -> bool,
) -> Result<(), Error> {
    let is_dead = |name: &String| UnixStream::connect(dir.join(format!("{name}.sock"))).is_err();
    let names = names_in(dir)?;
    if !names.iter().any(is_dead) {
        return Ok(());
    }
    let _lock = lock_of(dir, limit)?;
    for name in names.iter().filter(|name| is_dead(name)) {
        let _ = fs::remove_file(new_path_of(dir, name));
        if let Some(text) = note_in(dir, name)?
            && clear(name, &text)
        {
            let path = path_of(dir, name);
            fs::remove_file(&path)
                .map_err(|e| Error::io(format!("remove {}", path.display()), e))?;
        }
    }
    Ok(())
}

fn names_in(dir: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(dir).map_err(|e| Error::io(format!("read {}", dir.display()), e))?;
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let name = name.strip_suffix(END).or_else(|| name.strip_suffix(NEW))?;
        Some(name.to_owned())
    };
    let mut names: Vec<_> = entries.flatten().filter_map(name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_notes_of_dead_machines_are_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for name in ["lives", "dead", "stays"] {
            write_in(dir, name, "old").unwrap();
            write_in(dir, name, name).unwrap();
        }
        for name in ["lives", "half"] {
            fs::write(new_path_of(dir, name), "unfinished").unwrap();
        }
        let _listener = UnixListener::bind(dir.join("lives.sock")).unwrap();
        let mut seen = Vec::new();
        let soon = Duration::from_millis(50);
        let cleared = clear_in(dir, soon, |name, text| {
            assert_eq!(name, text);
            seen.push(name.to_owned());
            name == "dead"
        });
        cleared.unwrap();
        assert_eq!(seen, ["dead", "stays"]);
        assert_eq!(names_in(dir).unwrap(), ["lives", "stays"]);
        assert!(new_path_of(dir, "lives").exists());
        assert_eq!(note_in(dir, "lives").unwrap().as_deref(), Some("lives"));
        assert_eq!(note_in(dir, "dead").unwrap(), None);
        let starts = lock_of(dir, soon).unwrap();
        let late = clear_in(dir, soon, |_, _| true);
        assert!(matches!(late, Err(Error::TimedOut { .. })));
        drop(starts);
    }
}
