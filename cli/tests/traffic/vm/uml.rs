//! User-Mode Linux as a virtual machine. Its kernel is a program.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testing::wait_until;

pub(super) const INIT: &str = include_str!("init.sh");
const REGSET: &str = include_str!("../../../../lab/experiments/peers/uml-regset.c");
const ROOT: &str = include_str!("../../../../lab/experiments/peers/uml-root.sh");
const PAIRS: &str = include_str!("pairs.c");

/// A running virtual machine, which is killed when this value is dropped.
pub(super) struct Uml {
    folder: PathBuf,
    pid: u64,
}

/// Runs a script in a folder.
pub(super) fn sh(folder: &Path, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder);
    let run = command.output().unwrap();
    assert!(run.status.success(), "{script}: {run:?}");
}

impl Uml {
    /// Boots a virtual machine whose interface is connected to `socket`. No other program may use
    /// `folder`.
    pub(super) fn boot(folder: PathBuf, socket: &Path, words: &[&str]) -> Self {
        fs::create_dir_all(folder.join("root/bin")).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write("root/init", INIT);
        write("regset.c", REGSET);
        write("pairs.c", PAIRS);
        sh(&folder, "cc -static -O1 -o root/bin/pairs pairs.c");
        sh(&folder, ROOT);
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut command = Command::new("linux.uml");
        command
            .args(["mem=192M", "initrd=initrd", "rdinit=/init"])
            .args(["con=null", "con0=null,fd:1", "umid=vm"])
            .arg(format!("uml_dir={}", folder.display()))
            .arg(format!("virtio_uml.device={}:1", socket.display()))
            .args(words)
            .env("LD_PRELOAD", folder.join("regset.so"))
            .env("TMPDIR", "/dev/shm")
            .current_dir(&folder)
            // The kernel's helpers share its descriptors and outlive it, so the whole process group
            // is killed.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let pid = child.id().into();
        let machine = Self { folder, pid };
        wait_until("the virtual machine does not boot", || {
            machine.log().contains("network up") || child.try_wait().unwrap().is_some()
        });
        assert!(machine.log().contains("network up"), "{}", machine.log());
        machine
    }

    fn log(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Returns the process id of the kernel.
    pub(super) fn pid(&self) -> u64 {
        self.pid
    }
}

impl Drop for Uml {
    fn drop(&mut self) {
        let group = format!("-{}", self.pid);
        let kill = Command::new("kill").args(["-KILL", "--", &group]).status();
        assert!(kill.unwrap().success());
    }
}
