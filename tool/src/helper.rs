//! Helper processes, which answer each request line with one JSON object on a line.
//!
//! A helper exits when its standard input closes, so it never outlives the process that started it.
//! A program is its own helper, through its hidden subcommand `internal`.

use crate::failure::{CANNOT_RUN, Failure, exit_code};
use crate::interrupt;
use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the command that runs this program with one of its hidden subcommands.
///
/// # Errors
///
/// Returns an error if the path of the program is unknown.
pub fn own(subcommand: &str) -> anyhow::Result<Command> {
    let path: PathBuf = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(path);
    command.arg("internal").arg(subcommand);
    Ok(command)
}

/// A running helper.
#[derive(Debug)]
pub struct LineChild {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    pending: Vec<u8>,
}

impl LineChild {
    /// Starts `command` and waits for its first answer, which must not be an error.
    ///
    /// # Errors
    ///
    /// Returns an error if the command cannot be started or answers with an error.
    pub fn start(name: &str, mut command: Command, wait: Duration) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal reaches only this process, which then ends its helpers.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("no pipe")?;
        let mut this = Self {
            name: name.to_owned(),
            child,
            stdin,
            stdout,
            pending: Vec::new(),
        };
        this.answer(wait)?;
        Ok(this)
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends a line without waiting for an answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the helper has exited.
    pub fn send_line(&mut self, line: &str) -> anyhow::Result<()> {
        let name = &self.name;
        let stdin = self.stdin.as_mut().context("closed")?;
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("{name} has exited"))
    }

    /// Sends a line and waits for the answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the helper has exited, does not answer in time, or answers `{"error":
    /// …}`.
    pub fn request(&mut self, line: &str, wait: Duration) -> anyhow::Result<Value> {
        self.send_line(line)?;
        self.answer(wait)
    }

    /// Waits for an answer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`LineChild::request`].
    pub fn answer(&mut self, wait: Duration) -> anyhow::Result<Value> {
        let line = self.line(wait)?;
        let value: Value = serde_json::from_str(&line)
            .with_context(|| format!("{} answered `{line}`", self.name))?;
        if let Some(error) = value.get("error").and_then(Value::as_str) {
            let text = format!("{}: {error}", self.name);
            let status = value.get("exit").and_then(Value::as_u64);
            bail!(if status == Some(u64::from(CANNOT_RUN)) {
                Failure::CannotRun(text)
            } else {
                Failure::Failed(text)
            });
        }
        Ok(value)
    }

    fn line(&mut self, wait: Duration) -> anyhow::Result<String> {
        let end = Instant::now() + wait;
        loop {
            if let Some(at) = self.pending.iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.pending.drain(..=at).collect();
                line.pop();
                return String::from_utf8(line).context("not text");
            }
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "{} did not answer within {:.1} s",
                    self.name,
                    wait.as_secs_f64()
                );
            }
            if read_some(&mut self.stdout, left, &mut self.pending)? == Some(0) {
                let status = self.child.wait()?;
                bail!("{} ended early ({status})", self.name);
            }
        }
    }
}

/// Appends the next output of a program; returns the number of bytes, 0 at the end of the output.
/// Returns `None` if the program prints nothing within `wait` or within 50 ms. The caller can then
/// check whether the user has requested a stop.
///
/// # Errors
///
/// Returns an error if the output is unreadable.
pub fn read_some(
    stdout: &mut ChildStdout,
    wait: Duration,
    into: &mut Vec<u8>,
) -> std::io::Result<Option<usize>> {
    let step = Timespec {
        tv_sec: 0,
        tv_nsec: wait.min(Duration::from_millis(50)).subsec_nanos().into(),
    };
    let mut set = [PollFd::new(stdout, PollFlags::IN)];
    if poll(&mut set, Some(&step)).unwrap_or(0) == 0 {
        return Ok(None);
    }
    let mut bytes = [0u8; 4096];
    let count = stdout.read(&mut bytes)?;
    into.extend_from_slice(bytes.get(..count).unwrap_or_default());
    Ok(Some(count))
}

impl Drop for LineChild {
    /// Ends the helper by closing its input, or by force if that takes too long.
    fn drop(&mut self) {
        drop(self.stdin.take());
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Implements the helper's side of [`LineChild`]: answers lines of standard input until the input
/// ends. Then ends the process regardless of its other threads.
pub fn serve(mut answer: impl FnMut(&str) -> Option<Value>) {
    let mut line = String::new();
    let stdin = std::io::stdin();
    loop {
        line.clear();
        match stdin.read_line(&mut line) {
            Ok(0) | Err(_) => std::process::exit(0),
            Ok(_) => {}
        }
        if let Some(value) = answer(line.trim_end()) {
            reply(&value);
        }
    }
}

/// Prints one answer.
pub fn reply(value: &Value) {
    let mut stdout = std::io::stdout().lock();
    if writeln!(stdout, "{value}")
        .and_then(|()| stdout.flush())
        .is_err()
    {
        std::process::exit(0);
    }
}

/// Prints a helper's error on standard output, for the process that waits for an answer, and
/// returns the result unchanged.
///
/// # Errors
///
/// Returns the error of `done`.
pub fn report(done: anyhow::Result<()>) -> anyhow::Result<()> {
    if let Err(error) = &done {
        let exit = exit_code(error);
        reply(&serde_json::json!({ "error": format!("{error:#}"), "exit": exit }));
    }
    done
}

/// Parses a helper's argument.
///
/// # Errors
///
/// Returns [`Failure::Usage`] if the helper does not expect it.
pub fn parse<T: DeserializeOwned>(spec: &str) -> anyhow::Result<T> {
    serde_json::from_str(spec).map_err(|error| Failure::Usage(error.to_string()).into())
}
