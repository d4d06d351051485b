//! Network namespaces, each held open by a helper process and removed with it.
//!
//! The helper also runs commands and writes kernel settings inside its namespace, so the namespace
//! needs no mount and no name.

use crate::kernel;
use anyhow::Context as _;
use figures::Failure;
use figures::helper::{self, LineChild};
use netdev::netns as setup;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A network namespace.
#[derive(Debug)]
pub struct NamedNamespace {
    holder: LineChild,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NamespaceCommand {
    Run(Vec<String>),
    Write(PathBuf, String),
}

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

impl NamedNamespace {
    /// Creates an empty namespace.
    ///
    /// # Errors
    /// Returns an error if this user may not create namespaces.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let holder = LineChild::start(name, helper::own("ns")?, REPLY_TIMEOUT)?;
        Ok(Self { holder })
    }

    /// Returns the path that refers to the namespace.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.pid()))
    }

    /// Returns the process that holds the namespace open. `ip link … netns PID` refers to the
    /// namespace by this process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.holder.pid()
    }

    /// Runs a program inside and returns its output.
    ///
    /// # Errors
    /// Returns an error with the program's error output if the program does not exist, or fails.
    pub fn run(&mut self, command: &[&str]) -> anyhow::Result<String> {
        let words = command.iter().map(|&word| word.to_owned()).collect();
        self.order(&NamespaceCommand::Run(words))
            .with_context(|| command.join(" "))
    }

    /// Writes a kernel setting as seen from inside.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&mut self, path: &str, value: &str) -> anyhow::Result<()> {
        self.order(&NamespaceCommand::Write(path.into(), value.to_owned()))
            .with_context(|| format!("{value} > {path}"))
            .map(drop)
    }

    fn order(&mut self, order: &NamespaceCommand) -> anyhow::Result<String> {
        let answer = self
            .holder
            .request(&serde_json::to_string(order)?, REPLY_TIMEOUT)?;
        Ok(answer
            .get("out")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned())
    }
}

/// Moves this thread into the namespace to which a file refers.
///
/// # Errors
/// Returns an error if the file cannot be opened, or this user may not enter the namespace.
pub fn enter(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter {}", path.display()))
}

/// Runs the helper: creates a namespace, reports its creation, and executes commands.
///
/// # Errors
/// Returns an error if this user may not create namespaces.
pub fn main() -> anyhow::Result<()> {
    setup::unshare_net().map_err(|error| {
        Failure::CannotRun(format!("cannot create a network namespace: {error}"))
    })?;
    setup::loopback_up()?;
    // /sys/class/net shows the namespace of the process that mounted it, so this needs a mount
    // namespace with a separate /sys. If that fails, only settings below /sys are unavailable.
    let _no_settings = own_sysfs();
    for name in ["all", "default"] {
        // Router solicitations and duplicate address detection add noise to every figure. Disabling
        // them is best-effort.
        let _noise = netdev::tool_setup::set_sysctl(&format!("ipv6/conf/{name}/accept_dad"), "0");
        let _noise =
            netdev::tool_setup::set_sysctl(&format!("ipv6/conf/{name}/router_solicitations"), "0");
    }
    helper::reply(&json!({"ready": true}));
    helper::serve(|line| {
        Some(match execute(line) {
            Ok(out) => json!({ "out": out }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        })
    });
    Ok(())
}

#[expect(
    deprecated,
    reason = "only the flag FILES, not passed here, makes the call unsafe"
)]
fn own_sysfs() -> rustix::io::Result<()> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)
}

fn execute(line: &str) -> anyhow::Result<String> {
    match serde_json::from_str(line)? {
        NamespaceCommand::Run(words) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            kernel::run(&words)
        }
        NamespaceCommand::Write(path, value) => {
            std::fs::write(&path, value)?;
            Ok(String::new())
        }
    }
}
