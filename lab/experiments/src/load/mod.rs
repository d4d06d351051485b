//! TCP loads with ordinary sockets. Each is a helper process in one network namespace on one core.
//!
//! Lines on standard input control a load: `go` and `stop` start and stop its work, and `mark`
//! returns its counters since the last mark. The parent reads exact CPU times from outside, so no
//! measurement depends on another process's clock.

mod client;
mod echo;
mod sink;
mod source;
mod spec;
mod state;
mod visitor;

pub use spec::{CHUNK, LoadRole, LoadSpec, Mark, TAKE_MAX};

use crate::ns;
use crate::peers::process;
use figures::helper::{self, LineChild};
use figures::measure::pin;
use state::{LoadState, Totals};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A running load.
#[derive(Debug)]
pub struct Load {
    child: LineChild,
}

/// Timeout for an answer, longer than the time for which a load tries to connect.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

impl Load {
    /// Starts a load. Returns when it listens, or when all of its connections are established.
    ///
    /// # Errors
    /// Returns an error if the process cannot be started, or no socket answers at the address for
    /// some seconds.
    pub fn start(spec: &LoadSpec) -> anyhow::Result<Self> {
        let mut command = helper::own("load")?;
        command.arg(serde_json::to_string(spec)?);
        let name = format!("{:?} {}", spec.role, spec.address).to_lowercase();
        let child = LineChild::start(&name, command, REPLY_TIMEOUT)?;
        Ok(Self { child })
    }

    /// Starts a load in a virtual machine whose address the namespace `netns` reaches.
    /// [`Load::pid`] is the process of this system that controls it.
    ///
    /// # Errors
    /// See [`Load::start`].
    pub fn start_in_vm(spec: &LoadSpec, netns: &Path, vm: IpAddr) -> anyhow::Result<Self> {
        // The script sends the argument as the first line, then everything that this process
        // writes.
        let script = "{ printf '%s\\n' \"$1\"; exec cat; } | exec busybox nc \"$2\" 6000";
        let mut command = process::killed_with_parent("nsenter");
        command
            .arg(format!("--net={}", netns.display()))
            .args(["sh", "-c", script, "sh"])
            .arg(serde_json::to_string(spec)?)
            .arg(vm.to_string());
        let name = format!("{:?} {} in {vm}", spec.role, spec.address).to_lowercase();
        let child = LineChild::start(&name, command, REPLY_TIMEOUT)?;
        Ok(Self { child })
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Starts the load's work.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn go(&mut self) -> anyhow::Result<()> {
        self.child.send_line("go")
    }

    /// Stops the load after the current operation. Connections stay open.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.child.send_line("stop")
    }

    /// Sets the maximum number of bytes per call of a sink, at most [`TAKE_MAX`].
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn set_receive_size(&mut self, bytes: usize) -> anyhow::Result<()> {
        self.child.send_line(&format!("take {bytes}"))
    }

    /// Sets the number of bytes per call of a source, at most [`CHUNK`].
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn set_send_size(&mut self, bytes: usize) -> anyhow::Result<()> {
        self.child.send_line(&format!("give {bytes}"))
    }

    /// Returns the counters since the last mark.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn mark(&mut self) -> anyhow::Result<Mark> {
        let answer = self.child.request("mark", REPLY_TIMEOUT)?;
        Ok(serde_json::from_value(answer)?)
    }
}

/// Runs the helper process.
///
/// # Errors
/// Returns an error if the namespace, core or address is not available.
pub fn main(spec: &LoadSpec) -> anyhow::Result<()> {
    if let Some(path) = &spec.netns {
        ns::enter(path)?;
    }
    if let Some(cpu) = spec.cpu {
        pin(cpu)?;
    }
    let state = LoadState::new()?;
    match spec.role {
        LoadRole::Sink => sink::start(spec, &state)?,
        LoadRole::Source | LoadRole::Pushed | LoadRole::File => source::start(spec, &state)?,
        LoadRole::Echo => echo::start(spec, &state)?,
        LoadRole::Client => client::start(spec, &state)?,
        LoadRole::Visitor => visitor::start(spec, &state)?,
    }
    helper::reply(&serde_json::json!({"ready": true}));
    let mut last = Totals::now(&state);
    helper::serve(|line| match line {
        "go" | "stop" => {
            state.set(line == "go");
            None
        }
        _ if line.contains(' ') => {
            let (what, bytes) = line.split_once(' ').unwrap_or_default();
            let size = match what {
                "take" => &state.take,
                _ => &state.give,
            };
            if let Ok(bytes) = bytes.parse() {
                size.store(bytes, Ordering::Relaxed);
            }
            None
        }
        _ => {
            let now = Totals::now(&state);
            let latency = state.take_latency();
            let mark = Mark {
                ns: now.ns - last.ns,
                bytes: now.bytes - last.bytes,
                operations: now.operations - last.operations,
                cpu_ns: now.cpu_ns - last.cpu_ns,
                segments: now.segments - last.segments,
                sent_segments: now.sent_segments - last.sent_segments,
                frames: now.frames.saturating_sub(last.frames),
                frame_bytes: now.frame_bytes.saturating_sub(last.frame_bytes),
                p50_us: latency.map(|(p50, _)| p50),
                p99_us: latency.map(|(_, p99)| p99),
            };
            last = now;
            Some(serde_json::to_value(mark).unwrap_or_default())
        }
    });
    Ok(())
}
