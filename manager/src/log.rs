//! The log: a thread writes lines to a file or to standard error, so that no caller waits for a
//! disk or a terminal.
//!
//! A line has the time (UTC), the level, the program, and the text. The system's journal adds the
//! time, so a line for it begins with the priority instead.
//!
//! A file is bounded: at [`FILE_MAX`] bytes the thread copies it over a second file (`FILE.1`) and
//! truncates it. The first manager opens both files, so rotation needs no access to the folder.

use abi::core::JOURNAL_VAR;
use abi::journal::{self, Level};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

/// Maximum bytes of each of the two files.
pub(crate) const FILE_MAX: u64 = 4 << 20;
/// Maximum bytes queued for the thread. Further lines are dropped and counted.
const WAITING_MAX: usize = 1 << 20;
/// Maximum time that a dropped log waits for unwritten lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a line's stamp: "2026-11-23T10:20:30.456Z info  ".
pub(crate) const STAMP_BYTES: usize = 31;

/// The sending end of the log.
#[derive(Debug)]
pub(crate) struct LogSender {
    /// `None` while the log is being dropped.
    lines: Option<Sender<LogLine>>,
    /// Number of queued bytes.
    waiting: Arc<AtomicUsize>,
    /// Number of lost lines that no line has reported yet.
    lost: Arc<AtomicU64>,
    /// Whether the lines are written to the journal.
    is_journal: bool,
    /// Closed when the thread has written all lines.
    written: Receiver<()>,
}

/// A line, and the number of lost lines that its text reports.
#[derive(Debug)]
struct LogLine {
    text: String,
    lost: u64,
}

impl LogSender {
    /// Starts a log that writes to a file and its predecessor, or to standard error.
    pub(crate) fn start(files: Option<[File; 2]>) -> io::Result<Self> {
        let is_journal = files.is_none() && is_journal();
        let files = files.map(|[now, before]| LogFiles { now, before });
        let (lines, to_write) = channel();
        let (until_dropped, written) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let lost = Arc::default();
        let (of_thread, lost_there) = (Arc::clone(&waiting), Arc::clone(&lost));
        thread::Builder::new().name("log".into()).spawn(move || {
            write_all(files, &to_write, &of_thread, &lost_there);
            drop(until_dropped);
        })?;
        Ok(Self {
            lines: Some(lines),
            waiting,
            lost,
            is_journal,
            written,
        })
    }

    /// Queues one line. An unwritable log does not stop the program.
    pub(crate) fn line(&mut self, level: Level, program: &str, text: &str) {
        let Some(lines) = &self.lines else { return };
        let mut text = format!("{}{program}: {text}\n", self.stamp(level));
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let stamp = self.stamp(Level::Warning);
            text.insert_str(0, &format!("{stamp}grantwayd: [{lost} lines lost]\n"));
        }
        let bytes = text.len();
        if self.waiting.load(Ordering::Relaxed) + bytes > WAITING_MAX {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
            return;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let _ = lines.send(LogLine { text, lost });
    }

    /// Returns the beginning of a line.
    fn stamp(&self, level: Level) -> String {
        if self.is_journal {
            return level.prefix().to_owned();
        }
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        format!("{now} {:<5} ", level.word())
    }
}

/// Returns whether standard error is the system's journal.
fn is_journal() -> bool {
    let stream = std::env::var(JOURNAL_VAR).unwrap_or_default();
    let stderr = rustix::fs::fstat(io::stderr());
    stderr.is_ok_and(|file| journal::identifies_file(&stream, file.st_dev, file.st_ino))
}

impl Drop for LogSender {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.recv_timeout(FLUSH_TIMEOUT);
    }
}

fn write_all(
    mut files: Option<LogFiles>,
    to_write: &Receiver<LogLine>,
    waiting: &AtomicUsize,
    all_lost: &AtomicU64,
) {
    while let Ok(LogLine { text, lost }) = to_write.recv() {
        let written = match &mut files {
            Some(files) => files.write(text.as_bytes()),
            None => io::stderr().write_all(text.as_bytes()),
        };
        // A full disk may have space again later.
        if written.is_err() {
            all_lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
        waiting.fetch_sub(text.len(), Ordering::Relaxed);
    }
}

/// The current file, and its predecessor.
#[derive(Debug)]
struct LogFiles {
    now: File,
    before: File,
}

impl LogFiles {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        // The length is read from the file, because another process may append as well.
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

    /// Opens the files as the first manager does.
    pub(crate) fn files(path: &Path) -> [File; 2] {
        let mut options = File::options();
        options.create(true).read(true).append(true);
        let before = path.with_extension("1");
        [path, &before].map(|path| options.open(path).unwrap())
    }

    /// Checks the lines' stamps, and returns the lines without them.
    pub(crate) fn without_stamps(text: &str) -> String {
        let line = |line: &str| {
            let (stamp, rest) = line.split_at(STAMP_BYTES);
            let (time, level) = stamp.split_once(' ').unwrap();
            let time = humantime::parse_rfc3339(time).unwrap();
            assert!(
                time.elapsed().unwrap() < Duration::from_secs(3600),
                "{stamp}"
            );
            assert!(["info  ", "warn  ", "error "].contains(&level), "{stamp}");
            format!("{rest}\n")
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn lines_that_a_full_disk_has_lost_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let [now, before] = files(&path);
        let full = File::options().append(true).open("/dev/full").unwrap();
        let kept = before.try_clone().unwrap();
        let mut log = LogSender::start(Some([full, kept])).unwrap();
        for text in ["a", "b", "c"] {
            log.line(Level::Info, "who", text);
            let lost = text.as_bytes()[0] - b'a' + 1;
            testing::wait_until("the line was not lost", || {
                log.lost.load(Ordering::Relaxed) == u64::from(lost)
            });
        }
        let lost = Arc::clone(&log.lost);
        let mut log = LogSender::start(Some([now, before])).unwrap();
        log.lost = lost;
        log.line(Level::Info, "who", "there is room");
        drop(log);
        let text = without_stamps(&fs::read_to_string(&path).unwrap());
        assert_eq!(text, "grantwayd: [3 lines lost]\nwho: there is room\n");
    }

    #[test]
    fn a_log_is_rotated_and_has_a_fixed_total() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let [now, before] = files(&path);
        let mut files = LogFiles { now, before };
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
        let mut log = LogSender::start(Some(files(&path))).unwrap();
        for n in 0..100 {
            log.line(Level::Info, "d", &n.to_string());
        }
        drop(log);
        let text = without_stamps(&fs::read_to_string(path).unwrap());
        assert!(text.starts_with("d: 0\nd: 1\n") && text.ends_with("d: 99\n"));
    }

    #[test]
    fn a_stuck_log_does_not_block_writers() {
        let (lines, to_write) = channel();
        let (_until_dropped, written) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut log = LogSender {
            lines: Some(lines),
            waiting: Arc::clone(&waiting),
            lost: Arc::default(),
            is_journal: true,
            written,
        };
        let text = "x".repeat(1000);
        for _ in 0..2 * WAITING_MAX / text.len() {
            log.line(Level::Info, "d", &text);
        }
        let kept: Vec<String> = to_write.try_iter().map(|line| line.text).collect();
        let bytes: usize = kept.iter().map(String::len).sum();
        assert!(
            bytes <= WAITING_MAX && bytes > WAITING_MAX - 2000,
            "{bytes}"
        );
        let lost = 2 * WAITING_MAX / text.len() - kept.len();
        waiting.store(0, Ordering::Relaxed);
        log.line(Level::Info, "d", "again");
        let next = to_write.try_recv().unwrap().text;
        let expected = format!("<4>grantwayd: [{lost} lines lost]\n<6>d: again\n");
        assert_eq!(next, expected);
    }
}
