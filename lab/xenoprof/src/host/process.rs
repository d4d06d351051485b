//! Processes: names, parents, mappings, and the CPU time of children.

use std::fs;

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Parent process.
    pub parent: u32,
    /// Name.
    pub name: String,
    /// True for a kernel thread.
    pub kernel: bool,
    /// Command line.
    pub args: Vec<String>,
}

/// Code mapped into a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeMapping {
    /// Start address.
    pub start: u64,
    /// Length, bytes.
    pub len: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file, or the kernel's name of the mapping.
    pub path: String,
}

/// Reads a process. Returns `None` if it has exited.
#[must_use]
pub fn read(pid: u32) -> Option<ProcessInfo> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut process = parse_stat(&stat)?;
    if !process.kernel {
        let args = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        process.args = args
            .split(|&byte| byte == 0)
            .filter(|arg| !arg.is_empty())
            .map(|arg| String::from_utf8_lossy(arg).into_owned())
            .collect();
    }
    Some(process)
}

/// Parses `PID (NAME) STATE PPID … FLAGS …`. A name may contain any characters, including
/// parentheses.
fn parse_stat(stat: &str) -> Option<ProcessInfo> {
    const KTHREAD: u64 = 0x0020_0000;
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let flags: u64 = words.get(6)?.parse().ok()?;
    Some(ProcessInfo {
        parent: words.get(1)?.parse().ok()?,
        name: name.to_owned(),
        kernel: flags & KTHREAD != 0,
        args: Vec::new(),
    })
}

/// Returns the name of a thread, or `None` if it has exited.
#[must_use]
pub fn thread_name(pid: u32, tid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Returns the code mappings of a process. Empty if it has exited or this user may not read them.
#[must_use]
pub fn mappings(pid: u32) -> Vec<CodeMapping> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&maps)
        .lines()
        .filter_map(parse_mapping)
        .collect()
}

/// `START-END PERMS OFFSET DEVICE INODE PATH`.
fn parse_mapping(line: &str) -> Option<CodeMapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let executable = words.next()?.contains('x');
    let offset = hex(words.next()?)?;
    let path = words.nth(2).unwrap_or_default().trim_start();
    executable.then(|| CodeMapping {
        start,
        len: end.saturating_sub(start),
        offset,
        path: path.to_owned(),
    })
}

/// Returns the CPU time of all descendants for which this process has waited, nanoseconds.
#[must_use]
pub fn children_cpu_ns() -> u64 {
    // SAFETY: all zero is a value of this plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage for the kernel to fill.
    let done = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    if done != 0 {
        return 0;
    }
    let ns = |time: libc::timeval| {
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1000
    };
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use figures::measure::{cpu_ns, processes};

    #[test]
    fn lines_of_proc_are_parsed() {
        let stat = "42 (w: a) b) S 7 42 42 0 -1 2129984 0 0 0 0 1 2 0 0 20 0 1 0 5 0 0";
        let process = parse_stat(stat).unwrap();
        assert_eq!((process.parent, &*process.name), (7, "w: a) b"));
        assert!(process.kernel);
        assert_eq!(
            parse_mapping("555564-555566 r-xp 00001000 fe:00 17    /opt/a b/driver"),
            Some(CodeMapping {
                start: 0x55_5564,
                len: 2,
                offset: 0x1000,
                path: "/opt/a b/driver".to_owned()
            })
        );
        assert_eq!(parse_mapping("1-2 rw-p 0 0:0 0 /x"), None);
        assert_eq!(
            parse_mapping("1-2 --xp 0 0:0 0 [vsyscall]").unwrap().path,
            "[vsyscall]"
        );
    }

    #[test]
    fn this_process_is_read() {
        let own = std::process::id();
        assert!(processes().contains(&own.cast_signed()));
        assert!(!read(own).unwrap().kernel);
        assert!(!mappings(own).is_empty());
        assert!(thread_name(own, own).is_some());
        assert_eq!(read(u32::MAX >> 1), None);
        assert_eq!(cpu_ns((u32::MAX >> 4).cast_signed()), None);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let own = std::process::id().cast_signed();
        let before = cpu_ns(own).unwrap();
        let end = std::time::Instant::now() + testing::TIMEOUT;
        while cpu_ns(own).unwrap() < before + 1_000_000 {
            assert!(
                std::time::Instant::now() < end,
                "the CPU time does not grow"
            );
        }
    }
}
