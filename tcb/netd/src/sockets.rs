//! Unix sockets of virtual machine monitors. The broker creates them, and connects to them.

use abi::machine::VhostUser;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chmodat, chownat, mkdirat,
    openat2, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::umask;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Folder of sockets that the machine's description does not name, if netd runs as root. Through a
/// socket in another folder, an attached guest could impersonate a service, or send commands to
/// one.
pub(crate) const FOLDER: &str = "/run/grantway/vhost/";
const PARENT_FOLDER: &str = "/run/grantway";
/// Maximum number of connections that the domain has not accepted yet.
const BACKLOG: i32 = 16;

/// Returns whether a guest may have a socket at `path` that the machine's description does not
/// name.
pub(crate) fn is_allowed_without_description(path: &Path) -> bool {
    let below = path.to_str().is_some_and(|path| path.starts_with(FOLDER));
    let plain = path.components().all(|part| part.as_os_str() != "..");
    !rustix::process::geteuid().is_root() || below && plain
}

/// A folder, and a name in it. The folder is opened without following symbolic links, because other
/// users may own folders of the path.
struct SocketPath<'a> {
    folder: OwnedFd,
    name: &'a OsStr,
}

impl<'a> SocketPath<'a> {
    fn of(path: &'a Path) -> io::Result<Self> {
        let none = || io::Error::from(io::ErrorKind::InvalidInput);
        let (folder, name) = path.parent().zip(path.file_name()).ok_or_else(none)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let links = ResolveFlags::NO_SYMLINKS;
        let folder = openat2(CWD, folder, flags, Mode::empty(), links)?;
        Ok(Self { folder, name })
    }

    fn address(&self) -> io::Result<SocketAddrUnix> {
        let folder = format!("/proc/self/fd/{}", self.folder.as_raw_fd());
        Ok(SocketAddrUnix::new(PathBuf::from(folder).join(self.name))?)
    }

    /// Connects to the socket with this name. Does not block: a full backlog is an error.
    fn connect(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, self.name, flags, Mode::empty())?;
        let socket = unix_socket()?;
        let address = format!("/proc/self/fd/{}", file.as_raw_fd());
        connect(&socket, &SocketAddrUnix::new(address)?)?;
        Ok(socket)
    }

    /// Returns whether the file with this name is a socket, or `None` if it does not exist.
    fn is_socket(&self) -> io::Result<Option<bool>> {
        match statat(&self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(
                FileType::from_raw_mode(stat.st_mode) == FileType::Socket,
            )),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the socket with this name. Does not remove any other type of file.
    fn remove(&self) -> io::Result<()> {
        if self.is_socket()? == Some(true) {
            unlinkat(&self.folder, self.name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Removes the socket with this name if no program listens on it.
    ///
    /// # Errors
    /// Returns an error if a program listens on the socket, or the file is not a socket.
    fn clear(&self) -> io::Result<()> {
        match self.is_socket()? {
            None => Ok(()),
            Some(false) => Err(io::Error::other("the path is a file that is not a socket")),
            Some(true) => match self.connect() {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.remove(),
                _ => Err(io::Error::other("another program listens on the socket")),
            },
        }
    }
}

/// Creates a listening socket. Replaces a socket on which no program listens.
pub(crate) fn create(spec: &VhostUser) -> io::Result<OwnedFd> {
    let path = Path::new(&spec.path);
    let owner = number_of("/etc/passwd", spec.owner.as_deref())?.map(Uid::from_raw);
    let group = number_of("/etc/group", spec.group.as_deref())?.map(Gid::from_raw);
    if spec.path.starts_with(FOLDER) {
        create_folder()?;
    }
    let place = SocketPath::of(path)?;
    place.clear()?;
    let socket = unix_socket()?;
    let before = umask(Mode::from_raw_mode(!spec.mode & 0o777));
    let bound = place.address().and_then(|at| Ok(bind(&socket, &at)?));
    umask(before);
    bound?;
    // The owner is set before the socket listens, because no program can connect earlier.
    let owned = match owner.is_some() || group.is_some() {
        true => chownat(
            &place.folder,
            place.name,
            owner,
            group,
            AtFlags::SYMLINK_NOFOLLOW,
        ),
        false => Ok(()),
    };
    if let Err(error) = owned.and_then(|()| listen(&socket, BACKLOG)) {
        let _ = place.remove();
        return Err(error.into());
    }
    Ok(socket)
}

/// Creates the folder of sockets that other users access. Only root can list the folder and its
/// parent; the modes of the sockets exclude other users.
fn create_folder() -> io::Result<()> {
    let searchable = Mode::from_raw_mode(0o711);
    match mkdirat(CWD, FOLDER, Mode::RWXU) {
        Ok(()) => {
            chmodat(CWD, PARENT_FOLDER, searchable, AtFlags::empty())?;
            Ok(chmodat(CWD, FOLDER, searchable, AtFlags::empty())?)
        }
        Err(Errno::EXIST | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Connects to a socket.
pub(crate) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    SocketPath::of(path)?.connect()
}

/// Removes the file of a socket. Does not remove any other file.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match SocketPath::of(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        place => place?.remove(),
    }
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Returns the number of a user or group. Looks a name up in `file`, such as `/etc/passwd`.
fn number_of(file: &str, name: Option<&str>) -> io::Result<Option<u32>> {
    let Some(name) = name else { return Ok(None) };
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let lines = std::fs::read_to_string(file)?;
    let number = lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    let unknown = || io::Error::other(format!("{file} has no \"{name}\""));
    number.map(Some).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::net::UnixStream;

    fn spec(path: &Path, owner: Option<&str>) -> VhostUser {
        VhostUser {
            path: path.display().to_string(),
            client: false,
            owner: owner.map(Into::into),
            group: None,
            mode: 0o600,
        }
    }

    #[test]
    fn a_socket_has_its_owner_and_mode() {
        testing::require!(root);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _socket = create(&spec(&path, Some("daemon"))).unwrap();
        let file = std::fs::metadata(&path).unwrap();
        assert_eq!((file.uid(), file.permissions().mode() & 0o777), (1, 0o600));
        let error = create(&spec(&path, Some("no-such-user"))).unwrap_err();
        assert!(error.to_string().contains("no-such-user"), "{error}");
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = create(&spec(&path, None)).unwrap();
        let error = create(&spec(&path, None)).unwrap_err();
        assert!(error.to_string().contains("listens"), "{error}");
        drop(first);
        let _second = create(&spec(&path, None)).unwrap();
        UnixStream::connect(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "text").unwrap();
        create(&spec(&path, None)).unwrap_err();
        remove(&path).unwrap();
        assert!(path.exists(), "a file that is not a socket is not removed");
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, link, folder] = ["s", "link", "folder"].map(|name| dir.path().join(name));
        let _socket = create(&spec(&path, None)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::os::unix::fs::symlink(dir.path(), &folder).unwrap();
        connect_to(&path).unwrap();
        for by_link in [link.clone(), folder.join("s")] {
            assert!(connect_to(&by_link).is_err(), "{}", by_link.display());
        }
        create(&spec(&folder.join("new"), None)).unwrap_err();
        create(&spec(&link, None)).unwrap_err();
        remove(&link).unwrap();
        assert!(link.is_symlink() && path.exists());
    }

    #[test]
    fn sockets_of_attached_guests_are_in_one_folder() {
        testing::require!(root);
        for (path, free) in [
            ("/run/grantway/vhost/web.sock", true),
            ("/run/grantway/vhost/qemu/web.sock", true),
            ("/run/grantway/vhost/../../systemd/private", false),
            ("/run/grantway/grantway.sock", false),
            ("/run/systemd/private", false),
            ("run/grantway/vhost/web.sock", false),
        ] {
            assert_eq!(
                is_allowed_without_description(Path::new(path)),
                free,
                "{path}"
            );
        }
    }
}
