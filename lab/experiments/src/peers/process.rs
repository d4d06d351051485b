//! A third-party process, which is killed when its parent exits.

use anyhow::{Context as _, bail};
use figures::{Failure, interrupt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for a process to become ready.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns a command whose process is killed when this process exits for any reason.
#[must_use]
pub fn killed_with_parent(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", program])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in a terminal reaches only this process, which then stops its helpers.
        .process_group(0);
    command
}

/// Runs a program until it exits, and returns its output, or its error output if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match done.status.success() {
        true => Ok(text(&done.stdout)),
        false => Err(text(&done.stderr)),
    }
}

/// A running process, killed on drop.
#[derive(Debug)]
pub struct ForeignProgram(pub Child);

impl ForeignProgram {
    /// Starts the process.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self(child))
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for ForeignProgram {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Waits until `ready` returns true.
///
/// # Errors
/// Returns an error if the wait times out, or the user interrupted the run.
pub fn wait(what: &str, mut ready: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let end = Instant::now() + TIMEOUT;
    while !ready()? {
        if Instant::now() > end {
            bail!(Failure::Failed(format!("{what}: timed out")));
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(())
}

/// Waits until a process listens at this socket. The file may exist earlier.
///
/// # Errors
/// See [`wait`].
pub fn wait_for_listener(path: &Path) -> anyhow::Result<()> {
    let listens = || Ok(UnixStream::connect(path).is_ok());
    wait(&path.display().to_string(), listens)
}

/// Waits until this file exists.
///
/// # Errors
/// See [`wait`].
pub fn wait_for(path: &Path) -> anyhow::Result<()> {
    wait(&path.display().to_string(), || Ok(path.exists()))
}
