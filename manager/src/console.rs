//! A domain's console: writes the domain's output to the log, line by line. The bytes are
//! untrusted: the console splits long lines, replaces control characters, and drops and counts
//! output above a rate. The rate applies to the bytes of the log, because stamps and replacement
//! characters make the log longer than the output.

use crate::log::{LogSender, STAMP_BYTES};
use abi::journal::Level;
use rustix::io::Errno;
use shmem::rate::TokenBucket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum bytes of a line. The rest becomes the next line.
const LINE_MAX: usize = 1024;
/// Bytes of one read.
const CHUNK: usize = 16 * 1024;
/// Burst, in bytes, that is written at any rate.
const BURST: u32 = 128 * 1024;
/// Sustained rate, in bytes per second.
const RATE: u64 = 32 * 1024;
/// Pause after a dropped chunk. Meanwhile the pipe fills, and the domain's further output is lost
/// at no cost for the manager.
const PAUSE_NS: u64 = 10_000_000;

/// The reading end of a domain's standard output and standard error.
#[derive(Debug)]
pub(crate) struct Console {
    name: String,
    pipe: Option<OwnedFd>,
    line: Vec<u8>,
    last: String,
    log_rate: TokenBucket,
    dropped: u64,
    pause_until_ns: u64,
}

impl Console {
    /// Returns the console of a domain. `pipe` must be non-blocking.
    pub(crate) fn new(name: &str, pipe: OwnedFd) -> Self {
        Self {
            name: name.to_owned(),
            pipe: Some(pipe),
            line: Vec::new(),
            last: String::new(),
            log_rate: TokenBucket::new(RATE, BURST),
            dropped: 0,
            pause_until_ns: 0,
        }
    }

    /// Returns the pipe, or `None` once it is closed.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Returns the end of the current pause.
    pub(crate) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        (self.pipe.is_some() && self.pause_until_ns > now_ns).then_some(self.pause_until_ns)
    }

    /// Returns the last printed line.
    pub(crate) fn last_line(&self) -> &str {
        &self.last
    }

    /// Reads one chunk. Returns whether the pipe had any.
    pub(crate) fn read_chunk(&mut self, log: &mut LogSender, now_ns: u64) -> bool {
        let mut chunk = [0; CHUNK];
        let Some(pipe) = &self.pipe else { return false };
        let mut bytes = match rustix::io::read(pipe, &mut chunk) {
            Ok(0) => {
                self.pipe = None;
                self.end_line(log, now_ns);
                return false;
            }
            Ok(n) => chunk.get(..n).unwrap_or_default(),
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => {
                self.pipe = None;
                return false;
            }
        };
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = rest;
            let full = self.line.len() >= LINE_MAX;
            if (byte == b'\n' || full) && !self.end_line(log, now_ns) {
                // The rest of the chunk is dropped unread.
                self.dropped += bytes.len() as u64;
                self.pause_until_ns = now_ns.saturating_add(PAUSE_NS);
                return true;
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
        true
    }

    /// Reads the remaining output after the domain has exited.
    pub(crate) fn drain(&mut self, log: &mut LogSender, now_ns: u64) {
        // Bounded, because another holder of the pipe may keep writing.
        for _ in 0..8 {
            if !self.read_chunk(log, now_ns) {
                break;
            }
        }
        self.end_line(log, now_ns);
    }

    /// Writes the current line, if any, to the log. Returns false if the rate limit drops it.
    fn end_line(&mut self, log: &mut LogSender, now_ns: u64) -> bool {
        if self.line.is_empty() {
            return true;
        }
        let raw = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&raw);
        let clean = |c: char| {
            if c.is_control() && c != '\t' {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        };
        let text: String = text.chars().map(clean).collect();
        let note = match self.dropped {
            0 => String::new(),
            bytes => format!("[{bytes} bytes dropped]"),
        };
        let written = |text: &str| match text.len() {
            0 => 0,
            bytes => STAMP_BYTES + self.name.len() + ": \n".len() + bytes,
        };
        let bytes = written(&text) + written(&note);
        if !self.log_rate.take(now_ns, bytes as u32) {
            self.dropped += raw.len() as u64;
            return false;
        }
        if !note.is_empty() {
            log.line(Level::Warning, &self.name, &note);
            self.dropped = 0;
        }
        log.line(Level::Info, &self.name, &text);
        self.last = text;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::without_stamps;

    fn create() -> (Console, OwnedFd) {
        use rustix::pipe::{PipeFlags, pipe_with};
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        (Console::new("d", ours), theirs)
    }

    fn printed(bytes: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogSender::start(Some(crate::log::tests::files(&path))).unwrap();
        let (mut console, theirs) = create();
        rustix::io::write(&theirs, bytes).unwrap();
        drop(theirs);
        console.drain(&mut log, 0);
        assert!(console.pipe().is_none());
        drop(log);
        without_stamps(&std::fs::read_to_string(path).unwrap())
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

    /// Returns the log after a flood of `chunk`, and ten seconds later.
    fn flood(chunk: &[u8]) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogSender::start(Some(crate::log::tests::files(&path))).unwrap();
        let (mut console, theirs) = create();
        while console.pause_until_ns == 0 {
            rustix::io::write(&theirs, chunk).unwrap();
            assert!(console.read_chunk(&mut log, 0));
        }
        assert_eq!(console.deadline_ns(PAUSE_NS), None);
        assert_eq!(console.deadline_ns(0), Some(PAUSE_NS));
        console.drain(&mut log, 0);
        let later = 10_000_000_000;
        rustix::io::write(&theirs, b"again\n").unwrap();
        assert!(console.read_chunk(&mut log, later));
        drop(log);
        let text = std::fs::read_to_string(path).unwrap();
        let (flood, after) = text.split_once("d: [").unwrap();
        let flood = flood.rsplit_once('\n').map_or("", |(lines, _)| lines);
        (format!("{flood}\n"), after.to_owned())
    }

    #[test]
    fn a_flood_is_dropped_and_counted() {
        let mut line = [b'x'; 100];
        line[99] = b'\n';
        let (flood, after) = flood(&line);
        // The first dropped line uses up the burst.
        let lines = BURST as usize / (STAMP_BYTES + 3 + line.len());
        assert_eq!(flood.lines().count(), lines);
        let (dropped, after) = after.split_once('\n').unwrap();
        assert_eq!(dropped, "99 bytes dropped]");
        assert_eq!(without_stamps(after), "d: again\n");
    }

    #[test]
    fn the_rate_counts_bytes_after_escaping() {
        for chunk in [
            [1u8; 4096],
            [0xff; 4096],
            b"a\n".repeat(2048).try_into().unwrap(),
        ] {
            let (flood, _) = flood(&chunk);
            assert!(flood.len() <= BURST as usize, "{}", flood.len());
            assert!(flood.len() > BURST as usize / 2, "{}", flood.len());
        }
    }
}
