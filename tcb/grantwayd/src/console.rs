//! A domain's console: what it prints becomes lines of the log. Its bytes are untrusted: lines
//! are cut, control characters replaced, and what comes too fast is dropped and counted.

use crate::log::Log;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use shmem::rate::TokenBucket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a line that are kept; the rest becomes the next line.
const LINE_MAX: usize = 1024;
/// Bytes taken at once.
const CHUNK: usize = 16 * 1024;
/// Bytes in a row that are kept whatever the rate.
const BURST: u32 = 128 * 1024;
/// Bytes a second that are kept in the long run.
const RATE: u64 = 32 * 1024;
/// How long a console that floods is left alone before the next chunk is taken (and dropped):
/// its domain goes on, slowly, and costs the monitor next to nothing.
const PAUSE_NS: u64 = 10_000_000;

/// The reading end of a domain's standard output and standard error.
#[derive(Debug)]
pub(crate) struct Console {
    name: String,
    pipe: Option<OwnedFd>,
    line: Vec<u8>,
    last: String,
    kept: TokenBucket,
    dropped: u64,
    pause_until_ns: u64,
}

impl Console {
    /// A new console, and the domain's end of it.
    pub(crate) fn create(name: &str) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        // Only our end: the two are separate open files, and a domain may well wait.
        rustix::io::ioctl_fionbio(&ours, true)?;
        let console = Self {
            name: name.to_owned(),
            pipe: Some(ours),
            line: Vec::new(),
            last: String::new(),
            kept: TokenBucket::new(RATE, BURST),
            dropped: 0,
            pause_until_ns: 0,
        };
        Ok((console, theirs))
    }

    /// What to wait for now, if anything.
    pub(crate) fn watch(&self, now_ns: u64) -> Option<BorrowedFd<'_>> {
        self.pipe
            .as_ref()
            .filter(|_| self.pause_until_ns <= now_ns)
            .map(AsFd::as_fd)
    }

    /// When to look again although nothing is waited for.
    pub(crate) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        (self.pipe.is_some() && self.pause_until_ns > now_ns).then_some(self.pause_until_ns)
    }

    /// The last line that was printed.
    pub(crate) fn last_line(&self) -> &str {
        &self.last
    }

    /// Takes one chunk. Whether there was one.
    pub(crate) fn take(&mut self, log: &mut Log, now_ns: u64) -> bool {
        let mut chunk = [0; CHUNK];
        let Some(pipe) = &self.pipe else { return false };
        let bytes = match rustix::io::read(pipe, &mut chunk) {
            Ok(0) => {
                self.pipe = None;
                self.end_line(log);
                return false;
            }
            Ok(n) => chunk.get(..n).unwrap_or_default(),
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => {
                self.pipe = None;
                return false;
            }
        };
        if !self.kept.take(now_ns, bytes.len() as u32) {
            self.dropped += bytes.len() as u64;
            self.pause_until_ns = now_ns.saturating_add(PAUSE_NS);
            return true;
        }
        if self.dropped > 0 {
            self.end_line(log);
            log.line(&self.name, &format!("[{} bytes dropped]", self.dropped));
            self.dropped = 0;
        }
        for &byte in bytes {
            if byte == b'\n' || self.line.len() >= LINE_MAX {
                self.end_line(log);
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
        true
    }

    /// Takes what is left when the domain is gone.
    pub(crate) fn drain(&mut self, log: &mut Log, now_ns: u64) {
        // As much as a pipe holds: another holder of its end must not keep us.
        for _ in 0..8 {
            if !self.take(log, now_ns) {
                break;
            }
        }
        self.end_line(log);
    }

    fn end_line(&mut self, log: &mut Log) {
        if self.line.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&self.line);
        let clean = |c: char| {
            if c.is_control() && c != '\t' {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        };
        self.last = text.chars().map(clean).collect();
        self.line.clear();
        log.line(&self.name, &self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(bytes: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::open(path.to_str()).unwrap();
        let (mut console, theirs) = Console::create("d").unwrap();
        rustix::io::write(&theirs, bytes).unwrap();
        drop(theirs);
        console.drain(&mut log, 0);
        assert!(console.watch(0).is_none());
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn lines_are_cut_and_cleaned() {
        assert_eq!(printed(b"one\n\ntwo"), "d: one\nd: two\n");
        assert_eq!(printed(b"\x1b[2Jboo\xff"), "d: \u{fffd}[2Jboo\u{fffd}\n");
        let long = printed(&[b'x'; LINE_MAX + 1]);
        assert_eq!(
            long.lines().map(str::len).collect::<Vec<_>>(),
            [LINE_MAX + 3, 4]
        );
    }

    #[test]
    fn a_flood_is_dropped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::open(path.to_str()).unwrap();
        let (mut console, theirs) = Console::create("d").unwrap();
        let chunk = [b'\n'; CHUNK];
        for _ in 0..=BURST as usize / CHUNK {
            rustix::io::write(&theirs, &chunk).unwrap();
            assert!(console.take(&mut log, 0));
        }
        assert!(console.watch(0).is_none(), "it is left alone for a while");
        assert_eq!(console.deadline_ns(0), Some(PAUSE_NS));
        let later = 10_000_000_000;
        rustix::io::write(&theirs, b"again\n").unwrap();
        assert!(console.watch(later).is_some() && console.take(&mut log, later));
        let log = std::fs::read_to_string(path).unwrap();
        assert_eq!(log, format!("d: [{CHUNK} bytes dropped]\nd: again\n"));
    }
}
