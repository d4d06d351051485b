//! What identifies a network namespace at a path: its file, and since when it is there.

use abi::machine::NetnsPlace;
use netdev::netns::identity;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The namespace at `path`, if there is one.
pub(crate) fn place(path: &Path) -> Option<NetnsPlace> {
    let [device, inode] = identity(path)?;
    // The kernel reuses an inode's number at once. A file that is mounted is as old as its mount.
    let mounted = |file: Metadata| file.ctime() as u64 * 1_000_000_000 + file.ctime_nsec() as u64;
    let since = began(path).or_else(|| std::fs::metadata(path).ok().map(mounted));
    Some([device, inode, since?])
}

/// When the process began that a path is about, in ticks of the system's clock.
fn began(path: &Path) -> Option<u64> {
    let pid = path.strip_prefix("/proc").ok()?.iter().next()?;
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    // The name before it may be anything. The 22nd field is the 20th behind it.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_reused_process_id_is_another_place() {
        let of = |path: &str| began(Path::new(path));
        let own = of("/proc/self/ns/net").unwrap();
        assert_eq!(
            of(&format!("/proc/{}/ns/net", std::process::id())),
            Some(own)
        );
        // Process 1 may be as old as this one, where both were made with their namespaces.
        assert!(own > 0);
        testing::wait_for("the next process is as old as this one", || {
            let mut next = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let began = of(&format!("/proc/{}/ns/net", next.id())).unwrap();
            drop(next.stdin.take());
            next.wait().unwrap();
            (began > own).then_some(())
        });
        assert_eq!(of("/run/netns/x"), None);
        assert_eq!(place(Path::new("/proc/self/ns/net")).unwrap()[2], own);
        assert_eq!(place(Path::new("/no/such/namespace")), None);
    }
}
