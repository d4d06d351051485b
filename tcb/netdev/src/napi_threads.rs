//! The setting by which the kernel polls an interface's queues on threads.
//!
//! It is a file of sysfs. `/sys` shows the interfaces of the namespace in which it was mounted, so
//! this module mounts the sysfs of the interface's namespace, without attaching it to a folder.

use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

/// The type of sysfs.
const SYSFS_MAGIC: i64 = 0x6265_6572;

/// Function that opens the setting of the interface with this name in a mounted sysfs.
pub type SettingOpener = dyn Fn(BorrowedFd<'_>, &str) -> io::Result<OwnedFd> + Send + Sync;

static OPENER: OnceLock<Box<SettingOpener>> = OnceLock::new();

/// Sets the function that opens all settings, for a process that may not open files of sysfs
/// itself. Later calls have no effect.
pub fn open_by(opener: Box<SettingOpener>) {
    let _ = OPENER.set(opener);
}

/// Opens the setting of the interface `ifname` in a mounted sysfs for writing.
///
/// # Errors
/// Returns an error if `sysfs` is another file system, `ifname` is not the name of a virtual
/// interface in it, or the kernel lacks the setting (before Linux 5.12).
pub fn open_here(sysfs: BorrowedFd<'_>, ifname: &str) -> io::Result<OwnedFd> {
    if fstatfs(sysfs)?.f_type != SYSFS_MAGIC {
        return Err(Errno::INVAL.into());
    }
    let mut names = Path::new(ifname).components();
    let (Some(std::path::Component::Normal(name)), None) = (names.next(), names.next()) else {
        return Err(Errno::INVAL.into());
    };
    let file = Path::new("devices/virtual/net").join(name).join("threaded");
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(sysfs, file, flags, Mode::empty(), resolve)?)
}

/// Makes the kernel poll the queues of `ifname`, a virtual interface of the calling thread's
/// namespace, on a thread each.
pub(crate) fn switch_on(ifname: &str) -> io::Result<()> {
    let sysfs = mount()?;
    let file = match OPENER.get() {
        Some(opener) => opener(sysfs.as_fd(), ifname)?,
        None => open_here(sysfs.as_fd(), ifname)?,
    };
    rustix::io::write(file, b"1")?;
    Ok(())
}

/// Returns the sysfs of the calling thread's namespace. It remains mounted until the descriptor is
/// closed.
fn mount() -> io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use testing::require;

    #[test]
    fn only_settings_of_interfaces_are_opened() {
        require!(sysfs);
        Namespace::new()
            .unwrap()
            .enter(|| {
                let sysfs = mount().unwrap();
                open_here(sysfs.as_fd(), "lo").unwrap();
                for bad in ["", ".", "..", "lo/queues", "../net/lo", "/lo", "nothing"] {
                    assert!(open_here(sysfs.as_fd(), bad).is_err(), "{bad}");
                }
                let other = std::fs::File::open("/proc").unwrap();
                let error = open_here(other.as_fd(), "lo").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            })
            .unwrap();
    }
}
