//! The directory of the instances' sockets and logs.

use crate::control::send_request;
use crate::{Error, metrics};
use abi::machine::{ControlRequest, Status};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Environment variable that sets the runtime directory.
pub const RUNTIME_DIR_VAR: &str = "GRANTWAY_RUNTIME_DIR";

/// Root's directory, which every user searches for instances that are not their own.
const SYSTEM_DIR: &str = "/run/grantway";

/// Returns the runtime directory in [`RUNTIME_DIR_VAR`], if it is set and not empty.
#[must_use]
pub fn configured_runtime_dir() -> Option<PathBuf> {
    dir_from_env(RUNTIME_DIR_VAR)
}

fn dir_from_env(variable: &str) -> Option<PathBuf> {
    let dir = std::env::var_os(variable).filter(|dir| !dir.is_empty());
    dir.map(PathBuf::from)
}

/// Returns the directory with the sockets of this user's instances, and creates it (mode 0700) if
/// it is missing: [`RUNTIME_DIR_VAR`], else `/run/grantway` for root, else `grantway` in
/// `XDG_RUNTIME_DIR`, else `/tmp/grantway-UID`. The directory may belong to root.
///
/// # Errors
///
/// Returns an error if the directory cannot be created, belongs to another user, or can be changed
/// by other users.
pub fn runtime_dir() -> Result<PathBuf, Error> {
    let dir = runtime_path();
    make_private(&dir, rustix::process::geteuid().as_raw())?;
    Ok(dir)
}

/// Returns the runtime directory if it exists: a command that only queries must not create it.
pub(crate) fn existing_runtime_dir() -> Result<Option<PathBuf>, Error> {
    match runtime_path().exists() {
        true => runtime_dir().map(Some),
        false => Ok(None),
    }
}

fn runtime_path() -> PathBuf {
    let uid = rustix::process::geteuid();
    match (configured_runtime_dir(), dir_from_env("XDG_RUNTIME_DIR")) {
        (Some(dir), _) => dir,
        (None, _) if uid.is_root() => PathBuf::from(SYSTEM_DIR),
        (None, Some(dir)) => dir.join("grantway"),
        (None, None) => PathBuf::from(format!("/tmp/grantway-{}", uid.as_raw())),
    }
}

/// Creates `dir` for user `uid` alone, or checks that only this user and root may change its
/// contents. Other users may see that a socket exists, because each file has separate permissions.
fn make_private(dir: &Path, uid: u32) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::io(format!("make {}", dir.display()), e)),
    }
    // In a directory that all users may write to, another user may have created the name first,
    // even as a link.
    let found =
        fs::symlink_metadata(dir).map_err(|e| Error::io(format!("check {}", dir.display()), e))?;
    let is_theirs = found.uid() != uid && found.uid() != 0;
    if !found.is_dir() || is_theirs || found.mode() & 0o022 != 0 {
        return Err(Error::ForeignDirectory(dir.to_owned()));
    }
    Ok(())
}

/// Checks an instance's name, which becomes a file name.
///
/// # Errors
///
/// Returns [`Error::BadName`].
pub fn check_name(name: &str) -> Result<(), Error> {
    let good = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    if (1..=32).contains(&name.len()) && name.bytes().all(good) {
        Ok(())
    } else {
        Err(Error::BadName(name.to_owned()))
    }
}

/// Returns the path of the control socket of the instance `name`.
///
/// # Errors
///
/// Returns an error if the name is invalid, or no runtime directory exists.
pub fn socket_path(name: &str) -> Result<PathBuf, Error> {
    check_name(name)?;
    Ok(runtime_dir()?.join(format!("{name}.sock")))
}

/// Returns the control socket to use for the instance `name`: this user's, or the system's (root's)
/// if this user has none of that name.
///
/// # Errors
///
/// Returns the errors of [`socket_path`].
pub fn find(name: &str) -> Result<PathBuf, Error> {
    check_name(name)?;
    let dir = existing_runtime_dir()?.unwrap_or_else(runtime_path);
    let own = dir.join(format!("{name}.sock"));
    let systems = Path::new(SYSTEM_DIR).join(format!("{name}.sock"));
    match configured_runtime_dir().is_none() && !own.exists() && systems.exists() {
        true => Ok(systems),
        false => Ok(own),
    }
}

/// Returns the names of the instances that answer, sorted.
///
/// # Errors
///
/// Returns an error if the runtime directory cannot be read.
pub fn running_instances() -> Result<Vec<String>, Error> {
    let Some(dir) = existing_runtime_dir()? else {
        return Ok(Vec::new());
    };
    let mut names = listed_instances()?;
    names.retain(|name| UnixStream::connect(dir.join(format!("{name}.sock"))).is_ok());
    Ok(names)
}

/// Returns the names of the instances that have a socket, sorted, without connecting to them.
///
/// # Errors
///
/// Returns an error if the runtime directory cannot be read.
pub fn listed_instances() -> Result<Vec<String>, Error> {
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
/// The monitor's program that also has the grant mechanisms of comparisons.
pub const LAB_MONITOR: &str = "grantwayd-lab";
/// The driver domain's program that this monitor starts.
const DRIVER_OF_COMPARISONS: &str = "driver-lab";

/// Returns the path of the monitor's program.
///
/// # Errors
///
/// Returns an error if it does not exist.
pub fn daemon_path() -> Result<PathBuf, Error> {
    program_path(MONITOR)
}

/// Returns the path of a program of this workspace. It is in the folder of the running program, in
/// that folder's parent (if a test runs), or, if the running program is installed in a folder
/// `bin`, in `bin/../libexec/grantway`.
///
/// # Errors
///
/// Returns an error if it does not exist.
pub fn program_path(name: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|e| Error::io("find this program's file", e))?;
    program_beside(&own, name)
}

/// Returns the path of a monitor's program. For comparisons, the driver's program must exist,
/// too.
pub(crate) fn core_path(name: &str) -> Result<PathBuf, Error> {
    let program = program_path(name)?;
    if name == LAB_MONITOR {
        program_path(DRIVER_OF_COMPARISONS)?;
    }
    Ok(program)
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

/// Prevents other processes from starting an instance until this value is dropped.
pub(crate) struct StartLock(#[expect(dead_code, reason = "closing it unlocks")] OwnedFd);

/// Locks this runtime directory. Without the lock, two processes could find the same stale socket,
/// and one could remove the new socket of the other.
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
            return Err(Error::TimedOut {
                what,
                limit,
                hint: String::new(),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Prepares `path` for a new socket: returns an error if an instance answers there, or does not
/// answer within `limit`; otherwise removes the socket of a dead instance.
pub(crate) fn clear_stale(path: &Path, name: &str, limit: Duration) -> Result<(), Error> {
    let end = Instant::now() + limit;
    // After its monitor was killed, a manager keeps the socket briefly, and disconnects clients.
    while disconnects_without_answer(path, end.saturating_duration_since(Instant::now())) {
        std::thread::sleep(Duration::from_millis(5));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::Running(name.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| Error::io(format!("remove the stale {}", path.display()), e)),
        Err(e) => Err(Error::io(format!("check {}", path.display()), e)),
    }
}

/// Removes the control socket and the metrics socket of a machine that was killed.
pub(crate) fn remove_sockets(socket: &Path) {
    let _ = fs::remove_file(socket);
    let _ = fs::remove_file(metrics::path_of(socket));
}

/// Returns whether a process at `path` accepts a request and disconnects without an answer, within
/// `limit`.
fn disconnects_without_answer(path: &Path, limit: Duration) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let closed = [BrokenPipe, ConnectionReset, UnexpectedEof];
    match send_request::<Status>(path, &ControlRequest::Status, limit) {
        Err(Error::Io { error, .. }) => closed.contains(&error.kind()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_file_names_are_valid_names() {
        for name in ["a", "grantway", "x-1_Y", &"n".repeat(32)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "..", "a/b", "a b", "ä", "a.sock", &"n".repeat(33)] {
            assert!(matches!(check_name(name), Err(Error::BadName(_))), "{name}");
        }
    }

    #[test]
    fn programs_are_found_beside_or_installed() {
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
    fn only_stale_sockets_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let clear = |limit| clear_stale(&path, "x", limit);
        let (soon, late) = (Duration::from_millis(50), Duration::from_secs(600));
        assert!(clear(late).is_ok());
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(clear(soon), Err(Error::Running(n)) if n == "x"));
        assert!(path.exists());
        // An instance that exits instead of answering counts as dead.
        let ends = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(clear(late).is_ok());
        ends.join().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn an_open_or_foreign_directory_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let path = dir.path().join("run");
        assert!(make_private(&path, uid).is_ok());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(make_private(&path, uid).is_ok());
        // All users can use root's directory, but no user can use another user's.
        assert_eq!(make_private(&path, uid + 1).is_ok(), uid == 0);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(make_private(&path, uid).is_ok());
        for mode in [0o775, 0o777, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(
                make_private(&path, uid),
                Err(Error::ForeignDirectory(_))
            ));
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(matches!(
            make_private(&link, uid),
            Err(Error::ForeignDirectory(_))
        ));
        assert!(make_private(&dir.path().join("a/b"), uid).is_err());
    }
}
