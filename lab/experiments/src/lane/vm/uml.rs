//! User-Mode Linux as a virtual machine. Its kernel is a program, which needs no hardware
//! virtualization.

use crate::kernel::require_programs;
use crate::lane::ends::{GUEST, PREFIX};
use crate::lane::running::family;
use crate::peers::process::{ForeignProgram, killed_with_parent, output, wait};
use anyhow::{Context as _, bail};
use figures::Failure;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const INIT: &str = include_str!("../../../peers/uml-init.sh");
const REGSET: &str = include_str!("../../../peers/uml-regset.c");
/// Script that creates its root file system. `cli/tests/traffic/vm` also uses this file.
const ROOT: &str = include_str!("../../../peers/uml-root.sh");
/// Line on its console after which loads can be started.
const READY: &str = "network up";

/// The network device of a virtual machine.
pub(super) enum Device<'a> {
    /// A network device behind a vhost-user socket.
    VhostUser(&'a Path),
    /// A TAP that it creates in a namespace.
    Tap { netns: &'a Path, ifname: &'a str },
}

/// A running virtual machine, killed on drop.
pub(super) struct Uml {
    program: ForeignProgram,
    _folder: TempDir,
}

/// Checks that virtual machines can run here.
///
/// # Errors
/// Returns [`Failure::CannotRun`] with the missing part.
pub(super) fn possible() -> Result<(), Failure> {
    if require_programs(&["linux.uml"]).is_err() {
        let why = "User-Mode Linux is not installed: package user-mode-linux";
        return Err(Failure::CannotRun(why.to_owned()));
    }
    require_programs(&[
        "busybox", "cc", "sh", "cpio", "nsenter", "setpriv", "taskset", "ip",
    ])
}

impl Uml {
    /// Boots a virtual machine on a core, with the address [`GUEST`].
    ///
    /// # Errors
    /// Returns an error if it does not boot.
    pub(super) fn boot(device: &Device<'_>, core: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        prepare(folder.path())?;
        let own = std::env::current_exe()?;
        let (own_folder, name) = own.parent().zip(own.file_name()).context("no own file")?;
        let (interface, word) = match device {
            Device::VhostUser(socket) => {
                ("eth0", format!("virtio_uml.device={}:1", socket.display()))
            }
            Device::Tap { ifname, .. } => (
                "vec0",
                format!("vec0:transport=tap,ifname={ifname},depth=128,gro=1"),
            ),
        };
        let core = core.to_string();
        let mut command = match device {
            Device::VhostUser(_) => killed_with_parent("taskset"),
            Device::Tap { netns, .. } => {
                let mut command = killed_with_parent("nsenter");
                command
                    .arg(format!("--net={}", netns.display()))
                    .arg("taskset");
                command
            }
        };
        command
            .args(["-c", &core, "linux.uml"])
            .args(["mem=256M", "initrd=initrd", "rdinit=/init"])
            .args(["con=null", "con0=null,fd:1", "umid=vm"])
            .arg(format!("uml_dir={}", folder.path().display()))
            .arg(word)
            .arg(format!("interface={interface}"))
            .arg(format!("address={GUEST}/{PREFIX}"))
            .arg(format!("folder={}", own_folder.display()))
            .arg(format!("program={}", name.display()))
            .env("LD_PRELOAD", folder.path().join("regset.so"))
            .env("TMPDIR", "/dev/shm")
            .current_dir(folder.path())
            .stdout(File::create(folder.path().join("log"))?);
        let log_path = folder.path().join("log");
        // Its helpers outlive the kernel, so a failed boot must also kill them.
        let mut vm = Self {
            program: ForeignProgram::start(&mut command)?,
            _folder: folder,
        };
        let log = || {
            let bytes = fs::read(&log_path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        wait("the virtual machine", || {
            if let Some(status) = vm.program.0.try_wait()? {
                let output = log();
                let last = output.lines().last().unwrap_or_default();
                bail!("User-Mode Linux has exited ({status}): {last}");
            }
            Ok(log().contains(READY))
        })?;
        Ok(vm)
    }

    /// Returns its processes: the kernel, its helpers, and those that hold the address spaces of
    /// its programs.
    pub(super) fn processes(&self) -> Vec<i32> {
        family(self.program.pid())
    }
}

impl Drop for Uml {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.program.pid());
        let _gone_already = group.map(|group| kill_process_group(group, Signal::KILL));
    }
}

/// Creates its root file system, and the library that it needs on CPUs with AMX.
fn prepare(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder.join("root/bin"))?;
    fs::write(folder.join("root/init"), INIT)?;
    fs::write(folder.join("regset.c"), REGSET)?;
    let mut shell = Command::new("sh");
    shell.args(["-c", ROOT]).current_dir(folder);
    let made = output(&mut shell);
    made.map_err(|error| Failure::CannotRun(format!("no root file system of a VM: {error}")))?;
    Ok(())
}
