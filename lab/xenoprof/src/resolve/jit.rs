//! Names of code from just-in-time compilers: the run-time system of a program writes them to
//! `/tmp/perf-PID.map`, a line `START SIZE NAME` for each function.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

/// Maximum bytes of a map.
const MAP_MAX: u64 = 64 << 20;
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
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let inner = inner.and_then(|pids| pids.split_whitespace().last());
        let own = pid.to_string();
        let inner = inner.unwrap_or(&own);
        let text = read(&format!("/proc/{pid}/root/tmp/perf-{inner}.map"))
            .or_else(|| read(&format!("/tmp/perf-{pid}.map")))?;
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

/// Reads a map. Any user may create a file of this name, so for users other than root it must be
/// their own or root's. Root profiles programs of all users, whose names it shows anyway.
fn read(path: &str) -> Option<String> {
    let mut options = OpenOptions::new();
    // A FIFO would block.
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let file = options.open(path).ok()?;
    let status = file.metadata().ok()?;
    let own = rustix::process::geteuid().as_raw();
    if !status.is_file() || ![0, own].contains(&status.uid()) && own != 0 {
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
    fn maps_of_processes_are_read() {
        let pid = std::process::id();
        let path = format!("/tmp/perf-{pid}.map");
        assert!(Map::of_module(&module(pid)).is_none());
        std::fs::write(&path, "1000 10 f\n").unwrap();
        let map = Map::of_module(&module(pid));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(map.unwrap().name(0x1008), Some("f"));
        assert!(Map::of_module("/bin/sh").is_none());
    }
}
