//! The first process of the command's namespaces. It sets up the command's view of the system,
//! starts the command, forwards signals, and waits. When it exits, the kernel kills all other
//! processes of the namespace.

use super::exit::{self, NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE};
use super::messages::Messages;
use super::{processes, signals};
use crate::parent;
use anyhow::Context;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_bind, mount_change, move_mount, open_tree, unmount,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal, wait,
};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;

/// The hidden subcommand of the first process.
pub(crate) const SUBCOMMAND: &str = "run-pid1";

/// The task of the first process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pid1Spec {
    /// The process id of `grantway run` as `/proc` shows it.
    pub(super) parent: u32,
    /// The command's resolv.conf, or `None` for the system's.
    pub(super) resolver: Option<String>,
    /// A folder on which a file system can be mounted temporarily.
    pub(super) scratch: PathBuf,
    /// Whether to wait for all processes that the command leaves running.
    pub(super) wait: bool,
    /// Maximum number of processes and threads; 0 means unlimited.
    pub(super) processes: u32,
    pub(super) quiet: bool,
}

impl Pid1Spec {
    /// Returns the command line that starts the first process.
    pub(super) fn command(&self, command: &[OsString]) -> anyhow::Result<Command> {
        let own = std::env::current_exe().context("find this program's file")?;
        let mut pid1 = Command::new(own);
        pid1.args([SUBCOMMAND, &serde_json::to_string(self)?, "--"])
            .args(command);
        Ok(pid1)
    }
}

/// Main function of the first process.
pub(crate) fn main(spec: &str, command: &[OsString]) -> ExitCode {
    exit::finish(run(spec, command))
}

fn run(spec: &str, command: &[OsString]) -> anyhow::Result<u8> {
    let spec: Pid1Spec = tool::helper::parse(spec)?;
    let messages = Messages { quiet: spec.quiet };
    // At this point /proc still shows the outer namespace.
    if !parent::follow(spec.parent, Signal::KILL)? {
        return Ok(OWN_FAILURE);
    }
    let down = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", down).context("keep mounts inside the namespace")?;
    if let Some(text) = &spec.resolver
        && let Err(error) = bind_resolver(text, &spec.scratch)
    {
        messages.write(&format!(
            "cannot replace resolv.conf, so the command has the system's: {error}"
        ));
    }
    // A container may forbid these mounts. The command then sees the processes and interfaces of
    // the outer namespaces, but has no access to them.
    let _ = mount_over("proc", "/proc");
    let _ = mount_sysfs();
    if let Err(error) = processes::limit(spec.processes) {
        messages.write(&format!("cannot limit the command's processes: {error}"));
    }
    let mut signals = signals::watch().context("signals")?;
    let (program, args) = command.split_first().context("no command")?;
    let child = match Command::new(program).args(args).spawn() {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            let not_there = error.kind() == ErrorKind::NotFound;
            // The error is reported even with --quiet, because the command has no other result.
            let messages = Messages { quiet: false };
            messages.write(&format!("{}: {error}", program.display()));
            return Ok(if not_there { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    let to = pidfd_open(child, PidfdFlags::empty()).context("watch the command")?;
    thread::spawn(move || {
        for signal in signals::signals_to_forward(&mut signals) {
            let is_gone = pidfd_send_signal(&to, signal).is_err();
            // After the command's exit, the signal is for the processes that it left running.
            if is_gone && spec.wait {
                std::process::exit(exit::by_signal(signal.as_raw()).into());
            }
        }
    });
    let status = wait_for(child)?;
    while spec.wait && wait_any_child().is_some() {}
    Ok(status)
}

/// Waits for the command and returns its exit status. Also reaps orphans.
fn wait_for(command: Pid) -> anyhow::Result<u8> {
    loop {
        let (pid, status) =
            wait_any_child().context("the command is not a child of this process")?;
        if pid == command {
            return Ok(exit::status(ExitStatus::from_raw(status.as_raw())));
        }
    }
}

/// Waits until a child exits. Returns `None` if no child exists.
fn wait_any_child() -> Option<(Pid, WaitStatus)> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some(ended)) => return Some(ended),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Mounts a new file system of this type, which shows this process's namespaces.
fn mount_over(kind: &str, place: &str) -> rustix::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(kind, place, kind, flags, None)
}

/// Mounts a /sys that shows the interfaces of this network namespace, and keeps the control groups
/// mounted.
fn mount_sysfs() -> rustix::io::Result<()> {
    const CGROUPS: &str = "/sys/fs/cgroup";
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let cgroups = open_tree(CWD, CGROUPS, flags);
    mount_over("sysfs", "/sys")?;
    move_mount(
        cgroups?,
        "",
        CWD,
        CGROUPS,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
}

/// Replaces resolv.conf by a file with this text, in this mount namespace. When this function
/// returns, the file's file system has no other mount point.
fn bind_resolver(text: &str, scratch: &Path) -> std::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", scratch, "tmpfs", flags, c"mode=0755,size=64k")?;
    let file = scratch.join("resolv.conf");
    let bound = fs::write(&file, text)
        .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o644)))
        .and_then(|()| Ok(mount_bind(&file, "/etc/resolv.conf")?));
    unmount(scratch, UnmountFlags::DETACH)?;
    bound
}
