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
/// Maximum bytes of all maps together.
const MAPS_MAX: u64 = 256 << 20;
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

/// Bytes of maps that may still be read.
#[derive(Debug)]
pub(super) struct MapBudget(u64);

impl Default for MapBudget {
    fn default() -> Self {
        Self(MAPS_MAX)
    }
}

/// Functions by start address.
#[derive(Debug, Default)]
pub(super) struct Map {
    /// End and name of each function.
    functions: BTreeMap<u64, (u64, String)>,
    /// Number of lines that are not `START SIZE NAME`.
    malformed: u64,
    /// Whether the map is longer than the part that is read.
    is_cut: bool,
}

/// Returns the map of the process whose module this is, and a note if parts of it are unusable.
///
/// A process in a PID namespace uses its id in that namespace, and a process in a mount namespace
/// uses the folder in that namespace.
pub(super) fn of_module(module: &str, budget: &mut MapBudget) -> (Option<Map>, Option<String>) {
    let pid = module
        .strip_prefix(MODULE)
        .and_then(|rest| rest.strip_suffix(']'));
    let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
        return (None, None);
    };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let words = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace()
    };
    let own = pid.to_string();
    let inner = words("NSpid:").last().unwrap_or(&own);
    // The second id is the effective one. A process that has exited probably belonged to this user.
    let uid = words("Uid:").nth(1).and_then(|uid| uid.parse().ok());
    let uid = uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let inner = files::open_of(pid, &format!("/tmp/perf-{inner}.map"), OFlags::NOFOLLOW);
    let outer = || files::open(format!("/tmp/perf-{pid}.map"), OFlags::NOFOLLOW);
    let Ok(file) = inner.or_else(|_| outer()) else {
        return (None, None);
    };
    match read(&file, uid, budget) {
        Ok(map) => {
            let note = map
                .note()
                .map(|note| format!("perf map of process {pid}: {note}"));
            (Some(map), note)
        }
        Err(error) => (
            None,
            Some(format!("perf map of process {pid} not used: {error}")),
        ),
    }
}

impl Map {
    fn parse(text: &[u8]) -> Self {
        let mut map = Self::default();
        for line in text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let Some((start, end, name)) = function(line) else {
                map.malformed += 1;
                continue;
            };
            if map.functions.len() == FUNCTIONS_MAX {
                map.is_cut = true;
                break;
            }
            // A later line replaces code that has been freed.
            map.functions.insert(start, (end, name));
        }
        map
    }

    /// Returns the function at an address.
    pub(super) fn name(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.functions.range(..=address).next_back()?;
        (address < *end).then_some(name.as_str())
    }

    fn note(&self) -> Option<String> {
        let malformed = format!("malformed lines skipped: {}", self.malformed);
        let cut = format!(
            "only the first {} functions were read",
            self.functions.len()
        );
        match (self.malformed > 0, self.is_cut) {
            (false, false) => None,
            (true, false) => Some(malformed),
            (false, true) => Some(cut),
            (true, true) => Some(format!("{malformed}, {cut}")),
        }
    }
}

/// Parses a line: the start, the end and the name of a function.
fn function(line: &[u8]) -> Option<(u64, u64, String)> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.splitn(3, ' ');
    let mut number = || {
        let digits = fields.next()?;
        u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
    };
    let (start, len) = (number()?, number()?);
    let name = fields.next().filter(|name| !name.is_empty())?;
    Some((start, start.saturating_add(len), name.to_owned()))
}

/// Reads the map of a process with this user id. Any user may create a file of this name, so the
/// process's user or root must own it.
fn read(file: &File, uid: u32, budget: &mut MapBudget) -> std::io::Result<Map> {
    let status = file.metadata()?;
    let owner = status.uid();
    if ![0, uid].contains(&owner) {
        let error = format!("user {owner} owns it, not the process's user {uid}");
        return Err(std::io::Error::other(error));
    }
    let most = MAP_MAX.min(budget.0);
    if status.len() > budget.0 && most < MAP_MAX {
        let error = format!("all maps exceed {} MiB", MAPS_MAX >> 20);
        return Err(std::io::Error::other(error));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    budget.0 = budget.0.saturating_sub(bytes.len() as u64);
    let is_long = bytes.len() as u64 > most;
    if is_long {
        // The last line is incomplete.
        let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        bytes.truncate(end);
    }
    let mut map = Map::parse(&bytes);
    map.is_cut |= is_long;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_address() {
        let text =
            "1000 20 LazyCompile:~add /srv/app.js:3\n0x2000 0x10 old\nx\n1 2\n2000 8 new f\n";
        let map = Map::parse(text.as_bytes());
        assert_eq!(map.name(0x101f), Some("LazyCompile:~add /srv/app.js:3"));
        assert_eq!(map.name(0x1020), None);
        assert_eq!(map.name(0x2007), Some("new f"));
        assert_eq!(map.name(0x2008), None, "the freed function is forgotten");
        assert_eq!(map.name(0xfff), None);
        assert_eq!(map.note().unwrap(), "malformed lines skipped: 2");
    }

    #[test]
    fn maps_have_a_maximum() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for start in 0..=FUNCTIONS_MAX {
            writeln!(text, "{start:x} 1 f").unwrap();
        }
        let map = Map::parse(text.as_bytes());
        assert_eq!(map.name(FUNCTIONS_MAX as u64 - 1), Some("f"));
        assert_eq!(map.name(FUNCTIONS_MAX as u64), None);
        assert_eq!(
            map.note().unwrap(),
            "only the first 1000000 functions were read"
        );
    }

    #[test]
    fn maps_of_processes_are_read() {
        let pid = std::process::id();
        let path = format!("/tmp/perf-{pid}.map");
        let map = || of_module(&module(pid), &mut MapBudget::default());
        assert!(matches!(map(), (None, None)));
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let (found, note) = map();
        // Only root can give the file to another user.
        let foreign = std::os::unix::fs::chown(&path, Some(12345), None);
        let of_another = foreign.map(|()| map());
        std::fs::remove_file(&path).unwrap();
        let target = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(target.path(), "1000 10 secret\n").unwrap();
        std::os::unix::fs::symlink(target.path(), &path).unwrap();
        let linked = map();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((found.unwrap().name(0x1008), note), (Some("f"), None));
        if let Ok((map, note)) = of_another {
            assert!(map.is_none() && note.unwrap().contains("user 12345 owns it"));
        }
        assert!(matches!(linked, (None, None)), "a link is not followed");
        let of_file = of_module("/bin/sh", &mut MapBudget::default());
        assert!(matches!(of_file, (None, None)));
    }

    /// The process writes the map, and the profiler may be root.
    #[test]
    fn arbitrary_maps_are_read() {
        let mut long = b"1 2 f\n".repeat(MAP_MAX as usize / 6);
        long.extend(b"\xff\xfe\n1000 10 never");
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &long).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let mut budget = MapBudget::default();
        let map = read(&file, uid, &mut budget).unwrap();
        assert_eq!((map.name(1), map.name(0x1000)), (Some("f"), None));
        assert!(map.is_cut);
        let mut again = || {
            std::io::Seek::rewind(&mut file).unwrap();
            read(&file, uid, &mut budget).map(|map| map.name(1).is_some())
        };
        let maps: Vec<_> = std::iter::repeat_with(&mut again).take(3).collect();
        assert!(maps[..2].iter().all(|map| matches!(map, Ok(true))));
        let error = maps[2].as_ref().unwrap_err().to_string();
        assert_eq!(error, "all maps exceed 256 MiB");
        for text in [
            &b"\xff \xff \xff"[..],
            b"-1 1 f",
            b"1 1",
            b"1 1 ",
            b"0xfffffffffffffffff 1 f",
        ] {
            let map = Map::parse(text);
            assert_eq!((map.functions.len(), map.malformed), (0, 1), "{text:?}");
        }
        let edge = Map::parse(b"ffffffffffffffff ffffffffffffffff f");
        assert_eq!(edge.name(u64::MAX), None, "an end above all addresses");
    }
}
