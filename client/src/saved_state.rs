//! The state that a machine leaves for the next machine with its name.

use crate::Error;
use crate::runtime::{check_name, lock_of, runtime_dir};
use abi::core::STATE_BYTES_MAX;
use rustix::fs::{Mode, OFlags, open};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Mode bits that let other users change a file.
const OTHERS_WRITE: u32 = 0o022;
/// Time limit of another machine's start.
const LOCK: Duration = Duration::from_secs(30);

/// Returns the file in which the machine of a name leaves its attached guests.
pub(crate) fn path_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.state"))
}

/// Returns the state that a machine has left in its folder, if the machine did not stop cleanly.
/// The text is for the next machine. The caller must hold the folder's lock, so that no other
/// process removes the file.
///
/// # Errors
///
/// Returns an error if the file does not belong to this user or root, other users can change it, or
/// it cannot be read.
pub(crate) fn saved_state_in(dir: &Path, name: &str) -> Result<Option<String>, Error> {
    let path = path_of(dir, name);
    match read(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("read {}", path.display()), error)),
    }
}

/// Removes the state of a machine that does not run. Returns whether a state existed.
///
/// # Errors
///
/// Returns an error if the machine runs ([`Error::Running`]), another machine's start takes too
/// long, or the file cannot be removed.
pub fn remove_saved_state(name: &str) -> Result<bool, Error> {
    check_name(name)?;
    remove_in(&runtime_dir()?, name, LOCK)
}

fn remove_in(dir: &Path, name: &str, limit: Duration) -> Result<bool, Error> {
    let path = path_of(dir, name);
    if matches!(fs::symlink_metadata(&path), Err(e) if e.kind() == io::ErrorKind::NotFound) {
        return Ok(false);
    }
    let _lock = lock_of(dir, limit)?;
    // A machine that has started meanwhile has read the file, and may have replaced it.
    if UnixStream::connect(dir.join(format!("{name}.sock"))).is_ok() {
        return Err(Error::Running(name.to_owned()));
    }
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io(format!("remove {}", path.display()), error)),
    }
}

pub(crate) fn read(path: &Path) -> io::Result<String> {
    // The flags prevent it from following links and from blocking on a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_file() || (found.uid() != own && found.uid() != 0) {
        return Err(io::Error::other("it is not a file of this user"));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::other("other users may change it"));
    }
    if found.len() > STATE_BYTES_MAX as u64 {
        let bytes = found.len();
        return Err(io::Error::other(format!(
            "it has {bytes} bytes; the limit is {STATE_BYTES_MAX}"
        )));
    }
    let mut text = String::new();
    file.take(STATE_BYTES_MAX as u64)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_this_users_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_of(dir.path(), "m");
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "text").unwrap();
        let says = |why: &str| {
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        assert_eq!(read(&path).unwrap(), "text");
        mode(0o620);
        says("other users may change it");
        mode(0o600);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(STATE_BYTES_MAX as u64 + 1)
            .unwrap();
        says("the limit is");
        fs::write(&path, [0xff]).unwrap();
        says("UTF-8");
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(7), None).unwrap();
            says("not a file of this user");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        says("not a file of this user");
        fs::remove_dir(&path).unwrap();
        symlink("/etc/hostname", &path).unwrap();
        assert!(read(&path).is_err(), "a link");
    }

    #[test]
    fn state_that_a_start_may_read_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_of(dir.path(), "m");
        let forget = |limit| remove_in(dir.path(), "m", limit);
        let (soon, late) = (Duration::from_millis(50), Duration::from_secs(600));
        assert!(!forget(late).unwrap());
        fs::write(&path, "text").unwrap();
        let starts = lock_of(dir.path(), late).unwrap();
        assert!(matches!(forget(soon), Err(Error::TimedOut { .. })));
        drop(starts);
        let listener = UnixListener::bind(dir.path().join("m.sock")).unwrap();
        assert!(matches!(forget(late), Err(Error::Running(name)) if name == "m"));
        assert_eq!(read(&path).unwrap(), "text");
        drop(listener);
        assert!(forget(late).unwrap());
        assert!(!path.exists());
    }
}
