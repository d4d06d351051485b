//! Names of code from just-in-time compilers: the run-time system of a program writes them to
//! `/tmp/perf-PID.map`, a line `START SIZE NAME` for each function.

use crate::host::files;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

/// Maximum bytes of a map.
const MAP_MAX: u64 = 64 << 20;
/// Maximum functions of a map; further ones have no names.
const FUNCTIONS_MAX: usize = 1_000_000;
/// Beginning of the name of a module that is a process's code without a file.
const MODULE: &str = "[anonymous ";

/// Returns the name of the module that is a process's code without a file. Offsets in it are
/// addresses.
pub(super) fn module(pid: u32) -> String {
    format!("{MODULE}{pid}]")
}

/// Returns whether a mapping of this path has no file.
pub(super) fn is_anonymous(path: &str) -> bool {
    matches!(path, "" | "//anon")
}

/// Functions by start address: their end and name.
#[derive(Debug, Default)]
pub(super) struct Map(BTreeMap<u64, (u64, String)>);

impl Map {
    /// Reads the map of the process whose module this is. A process in a PID namespace uses its
    /// number there, one in a mount namespace the folder there.
    pub(super) fn of_module(module: &str) -> Option<Self> {
        let pid: u32 = module
            .strip_prefix(MODULE)?
            .strip_suffix(']')?
            .parse()
            .ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let words = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().split_whitespace()
        };
        let own = pid.to_string();
        let inner = words("NSpid:").last().unwrap_or(&own);
        // The second one is effective. A process that has ended was probably of this user.
        let uid = words("Uid:").nth(1).and_then(|uid| uid.parse().ok());
        let uid = uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let inner = files::open_of(pid, &format!("/tmp/perf-{inner}.map"), OFlags::NOFOLLOW);
        let outer = || files::open(format!("/tmp/perf-{pid}.map"), OFlags::NOFOLLOW);
        let text = read(inner.ok(), uid).or_else(|| read(outer().ok(), uid))?;
        Some(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut functions = BTreeMap::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ' ');
            let mut number = || {
                let digits = fields.next()?;
                u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
            };
            let (Some(start), Some(len)) = (number(), number()) else {
                continue;
            };
            let Some(name) = fields.next().filter(|name| !name.is_empty()) else {
                continue;
            };
            if functions.len() == FUNCTIONS_MAX {
                break;
            }
            // A later line replaces code that has been freed.
            functions.insert(start, (start.saturating_add(len), name.to_owned()));
        }
        Self(functions)
    }

    /// Returns the function at an address.
    pub(super) fn name(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.0.range(..=address).next_back()?;
        (address < *end).then_some(name.as_str())
    }
}

/// Reads the map of a process with this user id. Any user may create a file of this name, so the
/// process's user or root must own it.
fn read(file: Option<File>, uid: u32) -> Option<String> {
    let file = file?;
    if ![0, uid].contains(&file.metadata().ok()?.uid()) {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAP_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_address() {
        let text =
            "1000 20 LazyCompile:~add /srv/app.js:3\n0x2000 0x10 old\nx\n1 2\n2000 8 new f\n";
        let map = Map::parse(text);
        assert_eq!(map.name(0x101f), Some("LazyCompile:~add /srv/app.js:3"));
        assert_eq!(map.name(0x1020), None);
        assert_eq!(map.name(0x2007), Some("new f"));
        assert_eq!(map.name(0x2008), None, "the freed function is forgotten");
        assert_eq!(map.name(0xfff), None);
    }

    #[test]
    fn maps_have_a_maximum() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for start in 0..=FUNCTIONS_MAX {
            writeln!(text, "{start:x} 1 f").unwrap();
        }
        let map = Map::parse(&text);
        assert_eq!(map.name(FUNCTIONS_MAX as u64 - 1), Some("f"));
        assert_eq!(map.name(FUNCTIONS_MAX as u64), None);
    }

    #[test]
    fn maps_of_processes_are_read() {
        let pid = std::process::id();
        let path = format!("/tmp/perf-{pid}.map");
        assert!(Map::of_module(&module(pid)).is_none());
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let map = Map::of_module(&module(pid));
        // Only root can give the file to another user.
        let foreign = std::os::unix::fs::chown(&path, Some(12345), None);
        let of_another = foreign.map(|()| Map::of_module(&module(pid)));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(map.unwrap().name(0x1008), Some("f"));
        assert!(!of_another.is_ok_and(|map| map.is_some()));
        assert!(Map::of_module("/bin/sh").is_none());
    }
}
