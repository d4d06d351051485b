//! Grants groups access to a control socket and its folder by POSIX access control lists. The
//! kernel then rejects connections of all other users.

use crate::Error;
use abi::machine::Access;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The extended attribute of a file's access control list.
const NAME: &str = "system.posix_acl_access";
/// Version of the attribute's format: `posix_acl_xattr.h` of the kernel.
const VERSION: u32 = 2;
/// Bytes of an entry: tag, permissions, and the id of a user or group.
const ENTRY: usize = 8;
/// Bytes of the longest list that is read: the kernel's limit for attributes.
const LIST_MAX: usize = 64 << 10;
/// The id in entries without a named user or group.
const NO_ID: u32 = u32::MAX;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNERS_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

const READ_WRITE: u16 = 6;
const EXECUTE: u16 = 1;
const ALL: u16 = 7;

/// A list: permissions by tag and id, in the kernel's order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AclEntries(BTreeMap<(u16, u32), u16>);

impl AclEntries {
    /// Returns a list for the owner alone.
    fn new(owner: u16) -> Self {
        Self(BTreeMap::from([
            ((OWNER, NO_ID), owner),
            ((OWNERS_GROUP, NO_ID), 0),
            ((OTHER, NO_ID), 0),
        ]))
    }

    /// Gives these permissions to the groups, and to the members that `access` lists for them.
    fn allow(&mut self, access: &Access, permissions: u16) {
        for group in [&access.query, &access.change].into_iter().flatten() {
            self.0.insert((GROUP, group.id), permissions);
            for member in &group.members {
                self.0.insert((USER, *member), permissions);
            }
        }
        // The mask limits the permissions of all named entries.
        self.0.insert((MASK, NO_ID), permissions);
    }

    fn written(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for ((tag, id), permissions) in &self.0 {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Parses the entries of the owner and of named users and groups; returns `None` if the bytes
    /// have another format.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (version, entries) = bytes.split_first_chunk()?;
        let mut list = Self(BTreeMap::new());
        for entry in entries.chunks(ENTRY) {
            let (tag, rest) = entry.split_first_chunk()?;
            let (permissions, id) = rest.split_first_chunk()?;
            let key = (
                u16::from_le_bytes(*tag),
                u32::from_le_bytes(id.try_into().ok()?),
            );
            list.0.insert(key, u16::from_le_bytes(*permissions));
        }
        (u32::from_le_bytes(*version) == VERSION).then_some(list)
    }
}

/// Lets members of the groups find and use the socket. On a file system without access control
/// lists every user may connect, and the manager disconnects those without rights.
pub(crate) fn open_to_groups(dir: &Path, socket: &Path, access: &Access) -> Result<(), Error> {
    let mut of_socket = AclEntries::new(READ_WRITE);
    of_socket.allow(access, READ_WRITE);
    // Machines of other groups may have opened the folder already. Reading it stays forbidden,
    // because a reader could hold its lock.
    let mut of_dir = list_of(dir).unwrap_or_else(|| AclEntries::new(ALL));
    of_dir.allow(access, EXECUTE);
    // The folder is opened first, because a socket in a closed folder cannot be found.
    for (path, list, without) in [(dir, of_dir, 0o711), (socket, of_socket, 0o666)] {
        let set = match setxattr(path, NAME, &list.written(), XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => fs::set_permissions(path, Permissions::from_mode(without)),
            set => set.map_err(io::Error::from),
        };
        set.map_err(|e| Error::io(format!("open {} to groups", path.display()), e))?;
    }
    Ok(())
}

/// Returns the list of a file, if it has one.
fn list_of(path: &Path) -> Option<AclEntries> {
    let mut bytes = vec![0; LIST_MAX];
    let length = getxattr(path, NAME, &mut bytes[..]).ok()?;
    AclEntries::read(bytes.get(..length)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::machine::Group;
    use std::os::unix::net::UnixListener;

    fn access(look: u32, change: u32, members: &[u32]) -> Access {
        let members = members.to_vec();
        Access {
            query: Some(Group {
                id: look,
                members: Vec::new(),
            }),
            change: Some(Group {
                id: change,
                members,
            }),
        }
    }

    #[test]
    fn only_groups_and_members_have_entries() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("x.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        open_to_groups(dir.path(), &socket, &access(50, 60, &[7])).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let Some(list) = list_of(&socket) else {
            assert_eq!(mode(&socket), 0o666, "a file system without lists");
            return;
        };
        assert_eq!((mode(&socket), mode(dir.path())), (0o660, 0o710));
        for (key, permissions) in [
            ((USER, 7), READ_WRITE),
            ((GROUP, 50), READ_WRITE),
            ((GROUP, 60), READ_WRITE),
            ((OWNERS_GROUP, NO_ID), 0),
            ((OTHER, NO_ID), 0),
        ] {
            assert_eq!(list.0.get(&key), Some(&permissions), "{key:?}");
        }
        // A second machine in the same folder.
        open_to_groups(dir.path(), &socket, &access(70, 80, &[])).unwrap();
        let of_dir = list_of(dir.path()).unwrap();
        for id in [50, 60, 70, 80] {
            assert_eq!(of_dir.0.get(&(GROUP, id)), Some(&EXECUTE), "{id}");
        }
        assert_eq!(list_of(&socket).unwrap().0.get(&(GROUP, 50)), None);
        assert_eq!(mode(dir.path()), 0o710);
    }

    #[test]
    fn lists_of_another_format_are_not_read() {
        let mut list = AclEntries::new(ALL);
        list.allow(&access(1, 2, &[3, 4]), EXECUTE);
        let bytes = list.written();
        assert_eq!(AclEntries::read(&bytes), Some(list));
        for wrong in [
            &bytes[..0],
            &bytes[..3],
            &bytes[..bytes.len() - 1],
            &[3, 0, 0, 0],
        ] {
            assert_eq!(AclEntries::read(wrong), None, "{wrong:?}");
        }
    }
}
