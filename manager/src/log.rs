//! The log: one line each, to a file or to standard error, by a thread of its own: who writes lines
//! never waits for a disk or a terminal.
//!
//! A file is bounded: one that has reached [`FILE_MAX`] is copied to a second one (`FILE.1`), whose
//! bytes are lost then, and begins anew. The core has opened both, so that rotating takes no right
//! to a folder.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Bytes of each of the two files.
pub(crate) const FILE_MAX: u64 = 4 << 20;
/// Bytes that may wait for the thread; lines beyond are lost, and counted.
const WAITING_MAX: usize = 1 << 20;
/// How long the end waits for lines that are not written yet.
const END: Duration = Duration::from_secs(1);

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Log {
    /// None at the end.
    lines: Option<Sender<String>>,
    /// Bytes that wait.
    waiting: Arc<AtomicUsize>,
    lost: u64,
    /// Closed when the thread has written everything.
    written: Receiver<()>,
}

impl Log {
    /// To a file and the one before it, or to standard error.
    pub(crate) fn start(files: Option<[File; 2]>) -> io::Result<Self> {
        let files = files.map(|[now, before]| Files { now, before });
        let (lines, to_write) = channel();
        let (until_dropped, written) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let of_thread = Arc::clone(&waiting);
        thread::Builder::new().name("log".into()).spawn(move || {
            write_all(files, &to_write, &of_thread);
            drop(until_dropped);
        })?;
        Ok(Self {
            lines: Some(lines),
            waiting,
            lost: 0,
            written,
        })
    }

    /// Writes one line, soon. A log that cannot be written is no reason to end.
    pub(crate) fn line(&mut self, who: &str, text: &str) {
        let Some(lines) = &self.lines else { return };
        let line = match self.lost {
            0 => format!("{who}: {text}\n"),
            lost => format!("[{lost} lines lost]\n{who}: {text}\n"),
        };
        let bytes = line.len();
        if self.waiting.load(Ordering::Relaxed) + bytes > WAITING_MAX {
            self.lost += 1;
            return;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        if lines.send(line).is_ok() {
            self.lost = 0;
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.recv_timeout(END);
    }
}

fn write_all(mut files: Option<Files>, to_write: &Receiver<String>, waiting: &AtomicUsize) {
    while let Ok(line) = to_write.recv() {
        let _ = match &mut files {
            Some(files) => files.write(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
        waiting.fetch_sub(line.len(), Ordering::Relaxed);
    }
}

/// A file that is appended to, and the one before it.
#[derive(Debug)]
struct Files {
    now: File,
    before: File,
}

impl Files {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        // Asked for, not counted: another process may append, too.
        let bytes = self.now.metadata()?.len();
        if bytes.saturating_add(line.len() as u64) > FILE_MAX {
            self.rotate()?;
        }
        self.now.write_all(line)
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.before.set_len(0)?;
        self.before.rewind()?;
        self.now.rewind()?;
        io::copy(
            &mut Read::by_ref(&mut self.now).take(FILE_MAX),
            &mut self.before,
        )?;
        self.now.set_len(0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// As the core opens them.
    pub(crate) fn files(path: &Path) -> [File; 2] {
        let mut options = File::options();
        options.create(true).read(true).append(true);
        let before = path.with_extension("1");
        [path, &before].map(|path| options.open(path).unwrap())
    }

    #[test]
    fn a_log_is_rotated_and_has_a_fixed_total() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let [now, before] = files(&path);
        let mut files = Files { now, before };
        let line = [b'x'; 4096];
        let lines = FILE_MAX / line.len() as u64;
        for _ in 0..lines {
            files.write(&line).unwrap();
        }
        let bytes = |name: &str| fs::metadata(dir.path().join(name)).unwrap().len();
        assert_eq!((bytes("log"), bytes("log.1")), (FILE_MAX, 0));
        files.write(b"one\n").unwrap();
        assert_eq!((bytes("log"), bytes("log.1")), (4, FILE_MAX));
        for _ in 0..3 * lines {
            files.write(&line).unwrap();
            assert!(bytes("log") <= FILE_MAX && bytes("log.1") <= FILE_MAX);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn lines_are_written_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::start(Some(files(&path))).unwrap();
        for n in 0..100 {
            log.line("d", &n.to_string());
        }
        drop(log);
        let text = fs::read_to_string(path).unwrap();
        assert!(text.starts_with("d: 0\nd: 1\n") && text.ends_with("d: 99\n"));
    }

    #[test]
    fn who_writes_does_not_wait_for_a_log_that_is_stuck() {
        let (lines, to_write) = channel();
        let (_until_dropped, written) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut log = Log {
            lines: Some(lines),
            waiting: Arc::clone(&waiting),
            lost: 0,
            written,
        };
        let text = "x".repeat(1000);
        for _ in 0..2 * WAITING_MAX / text.len() {
            log.line("d", &text);
        }
        let kept: Vec<String> = to_write.try_iter().collect();
        let bytes: usize = kept.iter().map(String::len).sum();
        assert!(
            bytes <= WAITING_MAX && bytes > WAITING_MAX - 2000,
            "{bytes}"
        );
        let lost = 2 * WAITING_MAX / text.len() - kept.len();
        waiting.store(0, Ordering::Relaxed);
        log.line("d", "again");
        let next = to_write.try_recv().unwrap();
        assert_eq!(next, format!("[{lost} lines lost]\nd: again\n"));
    }
}
