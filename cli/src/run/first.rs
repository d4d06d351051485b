//! The first process of the command's namespaces: arranges what it sees of the system, starts it,
//! hands signals on, and waits. With its end the kernel ends all others.

use super::exit::{self, NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE};
use super::note::Note;
use super::signals;
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

/// Its hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "run-first";

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    /// `grantway run`, by the number that `/proc` shows.
    pub(super) parent: u32,
    /// The command's resolv.conf; none: the system's.
    pub(super) resolver: Option<String>,
    /// A folder to hide something in for a moment.
    pub(super) scratch: PathBuf,
    /// Whether everything that the command leaves running is waited for.
    pub(super) wait: bool,
    pub(super) quiet: bool,
}

impl Spec {
    /// How it is started.
    pub(super) fn command(&self, command: &[OsString]) -> anyhow::Result<Command> {
        let own = std::env::current_exe().context("find the own program")?;
        let mut first = Command::new(own);
        first
            .args([SUBCOMMAND, &serde_json::to_string(self)?, "--"])
            .args(command);
        Ok(first)
    }
}

/// The process.
pub(crate) fn main(spec: &str, command: &[OsString]) -> ExitCode {
    exit::finish(run(spec, command))
}

fn run(spec: &str, command: &[OsString]) -> anyhow::Result<u8> {
    let spec: Spec = figures::helper::parse(spec)?;
    let note = Note { quiet: spec.quiet };
    // The processes of its own namespace are still those that are shown.
    if !parent::follow(spec.parent, Signal::KILL)? {
        return Ok(OWN_FAILURE);
    }
    let down = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", down).context("keep mounts from the system")?;
    if let Some(text) = &spec.resolver
        && let Err(error) = bind_resolver(text, &spec.scratch)
    {
        note.write(&format!(
            "the command has the system's resolv.conf: {error}"
        ));
    }
    // A container may not allow these. Then the command sees the processes and interfaces of the
    // namespaces around it there, and can do nothing with them.
    let _ = mount_over("proc", "/proc");
    let _ = mount_sysfs();
    let mut signals = signals::watch().context("signals")?;
    let (program, args) = command.split_first().context("no command")?;
    let child = match Command::new(program).args(args).spawn() {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            let not_there = error.kind() == ErrorKind::NotFound;
            // Not a note: it is the whole result.
            let note = Note { quiet: false };
            note.write(&format!("{}: {error}", program.display()));
            return Ok(if not_there { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    let to = pidfd_open(child, PidfdFlags::empty()).context("watch the command")?;
    thread::spawn(move || {
        for signal in signals::to_hand_on(&mut signals) {
            let is_gone = pidfd_send_signal(&to, signal).is_err();
            // Then it is for what the command has left, and ends with this process.
            if is_gone && spec.wait {
                std::process::exit(exit::by_signal(signal.as_raw()).into());
            }
        }
    });
    let status = wait_for(child)?;
    while spec.wait && next_end().is_some() {}
    Ok(status)
}

/// The exit status of the command. Others that end here, because their parents have, are let go.
fn wait_for(command: Pid) -> anyhow::Result<u8> {
    loop {
        let (pid, status) = next_end().context("the command is no child of this process")?;
        if pid == command {
            return Ok(exit::status(ExitStatus::from_raw(status.as_raw())));
        }
    }
}

/// A child that has ended; none: there is no child.
fn next_end() -> Option<(Pid, WaitStatus)> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some(ended)) => return Some(ended),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// A new file system of this kind, which shows this process's namespaces.
fn mount_over(kind: &str, place: &str) -> rustix::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(kind, place, kind, flags, None)
}

/// The interfaces of this network namespace in /sys, and the control groups that were there.
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

/// Puts a file with this text in the place of resolv.conf, for this mount namespace. It is on a
/// file system of its own that has no other name when this returns.
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
