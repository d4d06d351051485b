//! A process that the kernel keeps after its death because it is traced.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Traces the process in its argument until its standard input ends.
const SCRIPT: &str = "import ctypes, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
print('held' if libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0 else 'refused', flush=True)
sys.stdin.read()";

/// A tracer of a process. The process stays a zombie after its death until its tracer waits for it.
/// Needs [`crate::requirements::root`] and the tool `python3`.
#[derive(Debug)]
pub struct Tracer(Child);

impl Tracer {
    /// Traces the process with this id.
    ///
    /// # Panics
    ///
    /// Panics if it cannot be traced.
    #[must_use]
    pub fn of(pid: impl Display) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT, &pid.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a tracer");
        let mut word = String::new();
        let words = child.stdout.take().expect("its words");
        BufReader::new(words).read_line(&mut word).expect("a word");
        assert_eq!(word.trim(), "held");
        Self(child)
    }

    /// Releases the process.
    ///
    /// # Panics
    ///
    /// Panics if the tracer cannot be waited for.
    pub fn release(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("waited");
    }
}
