//! Programs that run beside a test, and their output.

use crate::{ChildGuard, TIMEOUT, output_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Output};
use std::time::Duration;

/// Deadline for the exit of a program, including experiments, and for each line of its output.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(15 * TIMEOUT.as_secs());

/// The exit status and output of a program.
#[derive(Debug)]
pub struct ProgramOutput {
    /// The exit status, or -1 if a signal has killed the program.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl ProgramOutput {
    /// Waits until the program exits, and returns its output.
    ///
    /// # Panics
    ///
    /// Panics if the program does not exit in time.
    #[track_caller]
    #[must_use]
    pub fn of(child: Child) -> Self {
        output_of(child, PROGRAM_TIMEOUT).into()
    }

    /// Returns whether the program has succeeded.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.code == 0
    }
}

impl From<Output> for ProgramOutput {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

/// A running program, which is killed when this value is dropped, or when the tests exit.
///
/// # Panics
///
/// All methods panic if the program does not do in time what they wait for.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    /// The file to which the program writes its standard output; `None` if that is a pipe.
    out: Option<PathBuf>,
    _guard: ChildGuard,
}

impl Running {
    /// Wraps a child whose standard output, if captured, is a pipe.
    #[must_use]
    pub fn new(child: Child) -> Self {
        Self {
            _guard: ChildGuard::new(child.id()),
            child: Some(child),
            out: None,
        }
    }

    /// Wraps a child that writes its standard output to the file `out`.
    #[must_use]
    pub fn writing_to(child: Child, out: PathBuf) -> Self {
        let mut running = Self::new(child);
        running.out = Some(out);
        running
    }

    fn child(&self) -> &Child {
        self.child.as_ref().expect("a running program")
    }

    fn child_mut(&mut self) -> &mut Child {
        self.child.as_mut().expect("a running program")
    }

    /// Returns the process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Returns whether the program has exited.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        let exited = self.child_mut().try_wait();
        exited.expect("a child").is_some()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child());
        kill_process(pid, signal).expect("a running program");
    }

    /// Sends SIGTERM and waits for the exit.
    #[track_caller]
    pub fn terminate(self) -> ProgramOutput {
        self.signal(Signal::TERM);
        self.finish()
    }

    /// Sends SIGINT, after which many programs write their results, and waits for the exit.
    #[track_caller]
    pub fn interrupt(self) -> ProgramOutput {
        self.signal(Signal::INT);
        self.finish()
    }

    /// Sends SIGKILL and waits for the exit.
    #[track_caller]
    pub fn kill(self) -> ProgramOutput {
        self.signal(Signal::KILL);
        self.finish()
    }

    /// Waits until the program exits by itself.
    #[track_caller]
    #[must_use]
    pub fn finish(mut self) -> ProgramOutput {
        let child = self.child.take().expect("a running program");
        let mut output = ProgramOutput::of(child);
        if self.out.is_some() {
            output.out = self.written();
        }
        output
    }

    /// Waits until the program exits by itself, and returns the bytes of its pipes.
    #[track_caller]
    #[must_use]
    pub fn output(mut self) -> Output {
        let child = self.child.take().expect("a running program");
        output_of(child, PROGRAM_TIMEOUT)
    }

    /// Returns the content of the file to which the program writes its standard output.
    #[must_use]
    pub fn written(&self) -> String {
        let out = self.out.as_ref().expect("a file with its output");
        fs::read_to_string(out).expect("a file with its output")
    }

    fn stdin(&mut self) -> &mut Option<ChildStdin> {
        &mut self.child_mut().stdin
    }

    fn stdout(&mut self) -> &mut ChildStdout {
        let stdout = self.child_mut().stdout.as_mut();
        stdout.expect("a pipe for its output")
    }

    /// Writes a text to the program's input.
    pub fn write(&mut self, text: &str) {
        let stdin = self.stdin().as_mut().expect("a pipe for its input");
        stdin.write_all(text.as_bytes()).expect("an open input");
    }

    /// Closes the program's input.
    pub fn end_of_input(&mut self) {
        drop(self.stdin().take());
    }

    /// Waits for the next line of the program's output and returns it, or returns an empty text if
    /// the program has closed its output. Reads no byte after the line, so that [`Running::output`]
    /// returns the rest.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let longest = Timespec::try_from(PROGRAM_TIMEOUT).expect("a short time");
        let stdout = self.stdout();
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            let mut ready = [PollFd::new(&*stdout, PollFlags::IN)];
            let ready = poll(&mut ready, Some(&longest));
            assert_ne!(ready, Ok(0), "the program prints nothing");
            if stdout.read(&mut byte).expect("its output") == 0 || byte == *b"\n" {
                break;
            }
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// Reads lines up to one that contains a text, and returns that line.
    #[track_caller]
    pub fn line_with(&mut self, part: &str) -> String {
        for _ in 0..200 {
            let line = self.line();
            if line.contains(part) {
                return line;
            }
        }
        panic!("no line contains {part:?}, or the program has ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[test]
    fn lines_and_output_of_a_program_are_returned() {
        let script =
            "read -r name; echo hello; echo $name; read -r _; echo end; echo oops >&2; exit 3";
        let mut running = Running::new(shell(script).spawn().unwrap());
        running.write("world\n");
        assert_eq!(running.line(), "hello");
        assert_eq!(running.line_with("wor"), "world");
        assert!(!running.is_over());
        running.end_of_input();
        let ProgramOutput { code, out, err } = running.finish();
        assert_eq!((code, &*out, &*err), (3, "end\n", "oops\n"));
    }

    #[test]
    fn output_in_a_file_is_returned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut command = shell("echo ready; exec sleep 1000");
        let child = command.stdout(fs::File::create(&path).unwrap()).spawn();
        let running = Running::writing_to(child.unwrap(), path);
        crate::wait_until("nothing is written", || running.written() == "ready\n");
        let ProgramOutput { code, out, .. } = running.terminate();
        assert_eq!((code, &*out), (-1, "ready\n"));
    }
}
