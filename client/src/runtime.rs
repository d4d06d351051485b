//! Where instances keep their sockets and logs.

use crate::Error;
use crate::control::ask;
use abi::machine::{Control, Status};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Environment variable that moves the runtime directory.
pub const RUNTIME_DIR_VAR: &str = "GRANTWAY_RUNTIME_DIR";

/// Root's, where everybody looks who has no instance of the name.
const SYSTEM_DIR: &str = "/run/grantway";

/// The runtime directory that the user has chosen by [`RUNTIME_DIR_VAR`], if any: nothing is no
/// choice.
#[must_use]
pub fn given_dir() -> Option<PathBuf> {
    given(RUNTIME_DIR_VAR)
}

fn given(variable: &str) -> Option<PathBuf> {
    let dir = std::env::var_os(variable).filter(|dir| !dir.is_empty());
    dir.map(PathBuf::from)
}

/// The directory with the sockets of this user's instances, made (mode 0700) if it is missing:
/// [`RUNTIME_DIR_VAR`], else `/run/grantway` for root, else `grantway` in `XDG_RUNTIME_DIR`, else
/// `/tmp/grantway-UID`. It may be root's.
///
/// # Errors
/// It cannot be made, or is somebody else's, or others may change what is in it.
pub fn runtime_dir() -> Result<PathBuf, Error> {
    let dir = runtime_path();
    make_private(&dir, rustix::process::geteuid().as_raw())?;
    Ok(dir)
}

/// The runtime directory if it exists: a command that only looks must not leave one behind.
pub(crate) fn existing_runtime_dir() -> Result<Option<PathBuf>, Error> {
    match runtime_path().exists() {
        true => runtime_dir().map(Some),
        false => Ok(None),
    }
}

fn runtime_path() -> PathBuf {
    let uid = rustix::process::geteuid();
    match (given_dir(), given("XDG_RUNTIME_DIR")) {
        (Some(dir), _) => dir,
        (None, _) if uid.is_root() => PathBuf::from(SYSTEM_DIR),
        (None, Some(dir)) => dir.join("grantway"),
        (None, None) => PathBuf::from(format!("/tmp/grantway-{}", uid.as_raw())),
    }
}

/// Make `dir` for user `uid` alone, or check that only he and root may change what is in it. That
/// others may look whether there is a socket is harmless: each file says who may use it.
fn make_private(dir: &Path, uid: u32) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::io(format!("make {}", dir.display()), e)),
    }
    // In a directory that all may write, somebody else could have been first, even with a link.
    let found = fs::symlink_metadata(dir)
        .map_err(|e| Error::io(format!("look at {}", dir.display()), e))?;
    let is_theirs = found.uid() != uid && found.uid() != 0;
    if !found.is_dir() || is_theirs || found.mode() & 0o022 != 0 {
        return Err(Error::NotOurs(dir.to_owned()));
    }
    Ok(())
}

/// Check an instance's name: it becomes a file name.
///
/// # Errors
/// [`Error::BadName`].
pub fn check_name(name: &str) -> Result<(), Error> {
    let good = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    if (1..=32).contains(&name.len()) && name.bytes().all(good) {
        Ok(())
    } else {
        Err(Error::BadName(name.to_owned()))
    }
}

/// The control socket of the instance `name`.
///
/// # Errors
/// The name is none, or there is no runtime directory.
pub fn socket_path(name: &str) -> Result<PathBuf, Error> {
    check_name(name)?;
    Ok(runtime_dir()?.join(format!("{name}.sock")))
}

/// The control socket of the instance `name` as it is to be spoken to: this user's, or the system's
/// (root's) where this user has none of that name.
///
/// # Errors
/// As [`socket_path`].
pub fn find(name: &str) -> Result<PathBuf, Error> {
    check_name(name)?;
    let dir = existing_runtime_dir()?.unwrap_or_else(runtime_path);
    let own = dir.join(format!("{name}.sock"));
    let systems = Path::new(SYSTEM_DIR).join(format!("{name}.sock"));
    match given_dir().is_none() && !own.exists() && systems.exists() {
        true => Ok(systems),
        false => Ok(own),
    }
}

/// Names of the instances that answer, sorted.
///
/// # Errors
/// The runtime directory cannot be read.
pub fn names() -> Result<Vec<String>, Error> {
    let Some(dir) = existing_runtime_dir()? else {
        return Ok(Vec::new());
    };
    let mut names = listed()?;
    names.retain(|name| UnixStream::connect(dir.join(format!("{name}.sock"))).is_ok());
    Ok(names)
}

/// Names of the instances that have a socket, sorted, without a word to those behind them.
///
/// # Errors
/// The runtime directory cannot be read.
pub fn listed() -> Result<Vec<String>, Error> {
    let Some(dir) = existing_runtime_dir()? else {
        return Ok(Vec::new());
    };
    let entries =
        fs::read_dir(&dir).map_err(|e| Error::io(format!("read {}", dir.display()), e))?;
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name();
        Some(name.to_str()?.strip_suffix(".sock")?.to_owned())
    };
    let mut names: Vec<String> = entries.filter_map(Result::ok).filter_map(name).collect();
    names.sort();
    Ok(names)
}

/// The monitor's program.
pub const MONITOR: &str = "grantwayd";
/// The same with the grant mechanisms that only comparisons use.
pub const MONITOR_OF_COMPARISONS: &str = "grantwayd-lab";

/// Where the monitor's program lies.
///
/// # Errors
/// There is none.
pub fn daemon_path() -> Result<PathBuf, Error> {
    program_path(MONITOR)
}

/// A program of this workspace: beside the running one (tests lie one directory deeper), or where
/// it is installed, in `../libexec/grantway` of a folder `bin`.
///
/// # Errors
/// There is none.
pub fn program_path(name: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|e| Error::io("find the own program", e))?;
    program_beside(&own, name)
}

fn program_beside(own: &Path, name: &str) -> Result<PathBuf, Error> {
    let beside = own.with_file_name(name);
    let folder = own.parent();
    let above = folder.and_then(Path::parent);
    let elsewhere = match folder {
        Some(folder) if folder.ends_with("deps") => above.map(|above| above.join(name)),
        Some(folder) if folder.ends_with("bin") => {
            above.map(|above| above.join("libexec/grantway").join(name))
        }
        _ => None,
    };
    let places = [Some(beside.clone()), elsewhere];
    let found = places.into_iter().flatten().find(|path| path.is_file());
    found.ok_or(Error::NoDaemon(beside))
}

/// Keeps others from starting an instance until it is dropped.
pub(crate) struct StartLock(#[expect(dead_code, reason = "closing it unlocks")] OwnedFd);

/// Take the lock of this runtime directory: without it, of two that find the same stale socket one
/// could remove the other's new one.
pub(crate) fn lock_of(dir: &Path, limit: Duration) -> Result<StartLock, Error> {
    let fail = |e: rustix::io::Errno| Error::io(format!("lock {}", dir.display()), e.into());
    let fd = open(
        dir,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(fail)?;
    let start = Instant::now();
    loop {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(StartLock(fd)),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(e) => return Err(fail(e)),
        }
        if start.elapsed() > limit {
            let what = "waiting for another instance to start".to_owned();
            return Err(Error::Late {
                what,
                limit,
                hint: String::new(),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Make way for a new socket at `path`: an error if an instance answers there, or is silent for
/// `limit`, else whatever a dead one left is removed.
pub(crate) fn clear_stale(path: &Path, name: &str, limit: Duration) -> Result<(), Error> {
    let end = Instant::now() + limit;
    // A manager has the socket for a moment after its monitor was killed: it hangs up.
    while hangs_up(path, end.saturating_duration_since(Instant::now())) {
        std::thread::sleep(Duration::from_millis(5));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::Running(name.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| Error::io(format!("remove the stale {}", path.display()), e)),
        Err(e) => Err(Error::io(format!("look at {}", path.display()), e)),
    }
}

/// Whether somebody at `path` takes a request and goes instead of an answer, within `limit`.
fn hangs_up(path: &Path, limit: Duration) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let gone = [BrokenPipe, ConnectionReset, UnexpectedEof];
    match ask::<Status>(path, &Control::Status, limit) {
        Err(Error::Io { error, .. }) => gone.contains(&error.kind()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn names_become_file_names_only() {
        for name in ["a", "grantway", "x-1_Y", &"n".repeat(32)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "..", "a/b", "a b", "ä", "a.sock", &"n".repeat(33)] {
            assert!(matches!(check_name(name), Err(Error::BadName(_))), "{name}");
        }
    }

    #[test]
    fn programs_lie_beside_or_where_they_are_installed() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("usr/bin");
        let libexec = dir.path().join("usr/libexec/grantway");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&libexec).unwrap();
        let own = bin.join("grantway");
        let found = |own: &Path| program_beside(own, "driver").ok();
        assert_eq!(found(&own), None);
        fs::write(libexec.join("driver"), "").unwrap();
        assert_eq!(found(&own), Some(libexec.join("driver")));
        assert_eq!(found(&dir.path().join("usr/sbin/grantway")), None);
        fs::write(bin.join("driver"), "").unwrap();
        assert_eq!(found(&own), Some(bin.join("driver")));
        assert_eq!(found(&bin.join("deps/x")), Some(bin.join("driver")));
    }

    #[test]
    fn stale_sockets_are_removed_and_live_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let clear = |limit| clear_stale(&path, "x", limit);
        let (soon, late) = (Duration::from_millis(50), Duration::from_secs(600));
        assert!(clear(late).is_ok());
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(clear(soon), Err(Error::Running(n)) if n == "x"));
        assert!(path.exists());
        // One that is asked and ends instead is none any more.
        let ends = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(clear(late).is_ok());
        ends.join().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn an_open_or_foreign_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let path = dir.path().join("run");
        assert!(make_private(&path, uid).is_ok());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(make_private(&path, uid).is_ok());
        // Root's may be used by everybody, another user's by nobody.
        assert_eq!(make_private(&path, uid + 1).is_ok(), uid == 0);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(make_private(&path, uid).is_ok());
        for mode in [0o775, 0o777, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(make_private(&path, uid), Err(Error::NotOurs(_))));
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(matches!(make_private(&link, uid), Err(Error::NotOurs(_))));
        assert!(make_private(&dir.path().join("a/b"), uid).is_err());
    }
}
