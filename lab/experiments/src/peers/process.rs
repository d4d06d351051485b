//! A program that is not of this project. It ends with the process that started it.

use anyhow::{Context as _, bail};
use figures::{Failure, interrupt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long one of them may take until it is ready.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A program that is killed when this process dies, in whatever way.
#[must_use]
pub fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", program])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A terminal's Ctrl-C reaches this process only, which then ends its helpers.
        .process_group(0);
    command
}

/// A running program. It ends with the value.
#[derive(Debug)]
pub struct ForeignProgram(pub Child);

impl ForeignProgram {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self(child))
    }

    /// Its process.
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

/// Waits until `ready`.
///
/// # Errors
/// If it does not come true in time, or the user asked to stop.
pub fn wait(what: &str, mut ready: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !ready()? {
        if Instant::now() > end {
            bail!(Failure::Failed(format!("{what}: waited in vain")));
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(())
}

/// Waits until somebody listens at this socket. Its file is there a little earlier.
///
/// # Errors
/// As [`wait`].
pub fn wait_for_listener(path: &Path) -> anyhow::Result<()> {
    let listens = || Ok(UnixStream::connect(path).is_ok());
    wait(&path.display().to_string(), listens)
}

/// Waits until there is such a file.
///
/// # Errors
/// As [`wait`].
pub fn wait_for(path: &Path) -> anyhow::Result<()> {
    wait(&path.display().to_string(), || Ok(path.exists()))
}
