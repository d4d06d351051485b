//! The identity of the network namespace at a path: its file, and the time of its creation.

use abi::machine::NetnsId;
use netdev::netns::identity;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the identity of the namespace at `path`, or `None` if the path names no namespace.
pub(crate) fn namespace_id(path: &Path) -> Option<NetnsId> {
    let [device, inode] = identity(path)?;
    // The kernel reuses inode numbers immediately, so the time is necessary. For a namespace
    // mounted on a file, the time is that of the mount.
    let mounted = |file: Metadata| file.ctime() as u64 * 1_000_000_000 + file.ctime_nsec() as u64;
    let since = start_time(path).or_else(|| std::fs::metadata(path).ok().map(mounted));
    Some([device, inode, since?])
}

/// Returns the start time of the process that a path refers to, in clock ticks.
fn start_time(path: &Path) -> Option<u64> {
    let pid = path.strip_prefix("/proc").ok()?.iter().next()?;
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    // The process name may contain any characters. The 22nd field is the 20th after the name.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_reused_process_id_has_another_identity() {
        let of = |path: &str| start_time(Path::new(path));
        let own = of("/proc/self/ns/net").unwrap();
        assert_eq!(
            of(&format!("/proc/{}/ns/net", std::process::id())),
            Some(own)
        );
        // The test does not compare with process 1, which may be as old as this process.
        assert!(own > 0);
        testing::wait_for("the next process is as old as this one", || {
            let mut next = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let start_time = of(&format!("/proc/{}/ns/net", next.id())).unwrap();
            drop(next.stdin.take());
            next.wait().unwrap();
            (start_time > own).then_some(())
        });
        assert_eq!(of("/run/netns/x"), None);
        assert_eq!(
            namespace_id(Path::new("/proc/self/ns/net")).unwrap()[2],
            own
        );
        assert_eq!(namespace_id(Path::new("/no/such/namespace")), None);
    }
}
