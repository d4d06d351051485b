//! Open vSwitch with its data path in DPDK: one bridge, one vhost-user port, one flow.

use super::process::{self, ForeignProgram};
use super::testpmd::number_after;
use crate::kernel;
use anyhow::{Context as _, bail};
use figures::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian's daemon with DPDK. Debian also installs a daemon without DPDK.
const DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const PROGRAMS: &[&str] = &[
    "ovsdb-tool",
    "ovsdb-server",
    "ovs-vsctl",
    "ovs-ofctl",
    "ovs-appctl",
];

/// Returns whether it is installed.
#[must_use]
pub fn is_installed() -> bool {
    kernel::require_programs(PROGRAMS).is_ok()
        && [DAEMON, SCHEMA]
            .iter()
            .all(|file| Path::new(file).is_file())
}

/// A running Open vSwitch.
#[derive(Debug)]
pub struct Ovs {
    folder: PathBuf,
    daemon: ForeignProgram,
    _database: ForeignProgram,
}

impl Ovs {
    /// Starts database and daemon in `folder`, the poll loop on core `core` and everything else on
    /// `other`. Its port listens at `socket`, which must be in `folder`.
    ///
    /// # Errors
    /// Returns an error if they do not start.
    pub fn start(folder: &Path, other: usize, core: usize, socket: &Path) -> anyhow::Result<Self> {
        let at = |name: &str| folder.join(name).display().to_string();
        run(folder, "ovsdb-tool", &["create", &at("conf.db"), SCHEMA])?;
        let quiet = ["-vconsole:off", "-vsyslog:off", "-vfile:off"];
        let mut database = process::killed_with_parent("ovsdb-server");
        database
            .arg(at("conf.db"))
            .arg(format!("--remote=punix:{}", at("db.sock")))
            .arg(format!("--unixctl={}", at("db.ctl")))
            .args(quiet);
        let database = ForeignProgram::start(home(&mut database, folder))?;
        process::wait_for_listener(&folder.join("db.sock"))?;
        let set =
            |setting: String| vsctl(folder, &["--no-wait", "set", "Open_vSwitch", ".", &setting]);
        vsctl(folder, &["--no-wait", "init"])?;
        set("other_config:dpdk-init=true".to_owned())?;
        set(format!("other_config:dpdk-lcore-mask={:#x}", 1u64 << other))?;
        set(format!("other_config:pmd-cpu-mask={:#x}", 1u64 << core))?;
        set("other_config:dpdk-socket-mem=512".to_owned())?;
        set("other_config:dpdk-extra=\"--no-pci --in-memory --single-file-segments\"".to_owned())?;
        let mut daemon = process::killed_with_parent(DAEMON);
        daemon
            .arg(format!("unix:{}", at("db.sock")))
            .arg(format!("--unixctl={}", at("vs.ctl")))
            .args(quiet)
            .arg("--disable-system");
        let daemon = ForeignProgram::start(home(&mut daemon, folder))?;
        process::wait_for_listener(&folder.join("vs.ctl"))?;
        let this = Self {
            folder: folder.to_owned(),
            daemon,
            _database: database,
        };
        let port = socket.file_name().and_then(|name| name.to_str());
        let port = port.context("a socket without a name")?;
        vsctl(
            folder,
            &[
                "add-br",
                "br0",
                "--",
                "set",
                "bridge",
                "br0",
                "datapath_type=netdev",
                "fail_mode=secure",
            ],
        )?;
        vsctl(
            folder,
            &[
                "add-port",
                "br0",
                port,
                "--",
                "set",
                "interface",
                port,
                "type=dpdkvhostuser",
            ],
        )?;
        run(
            folder,
            "ovs-ofctl",
            &["add-flow", &at("br0.mgmt"), "actions=in_port"],
        )?;
        Ok(this)
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// Waits until the poll loop polls the port.
    ///
    /// # Errors
    /// Returns an error if the wait times out.
    pub fn wait_for_port(&mut self) -> anyhow::Result<()> {
        process::wait("Open vSwitch's port", || {
            Ok(self.ask("dpif-netdev/pmd-rxq-show")?.contains("(enabled)"))
        })
    }

    /// Resets the statistics.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn clear(&mut self) -> anyhow::Result<()> {
        self.ask("dpif-netdev/pmd-stats-clear").map(drop)
    }

    /// Returns the cycles of the time stamp counter per packet since [`Ovs::clear`], without empty
    /// polls.
    ///
    /// # Errors
    /// Returns an error if the process has exited, or forwarded no packets.
    pub fn cycles(&mut self) -> anyhow::Result<f64> {
        let output = self.ask("dpif-netdev/pmd-stats-show")?;
        cycles(&output).with_context(|| format!("Open vSwitch: no statistics in `{output}`"))
    }

    fn ask(&self, question: &str) -> anyhow::Result<String> {
        let control = self.folder.join("vs.ctl").display().to_string();
        run(&self.folder, "ovs-appctl", &["-t", &control, question])
    }
}

/// Parses the cycles per packet of the poll loop's thread, which are the first in the output.
fn cycles(output: &str) -> Option<f64> {
    let pmd = output.split("main thread").next()?;
    number_after(pmd, "avg processing cycles per packet:")
}

fn vsctl(folder: &Path, words: &[&str]) -> anyhow::Result<()> {
    let database = format!("--db=unix:{}", folder.join("db.sock").display());
    let all: Vec<&str> = ["--timeout=20", database.as_str()]
        .into_iter()
        .chain(words.iter().copied())
        .collect();
    run(folder, "ovs-vsctl", &all).map(drop)
}

/// Runs a tool until it exits, and returns its output.
fn run(folder: &Path, program: &str, words: &[&str]) -> anyhow::Result<String> {
    let mut command = process::killed_with_parent(program);
    command
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = home(&mut command, folder).output()?;
    if !output.status.success() {
        bail!(Failure::Failed(format!(
            "{program} {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sets the folder for the files of a command and of DPDK.
fn home<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    for name in [
        "OVS_RUNDIR",
        "OVS_LOGDIR",
        "OVS_DBDIR",
        "OVS_SYSCONFDIR",
        "RUNTIME_DIRECTORY",
    ] {
        command.env(name, folder);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_those_of_the_poll_loop() {
        let output = "\
pmd thread numa_id 0 core_id 1:
  packets received: 10650000
  avg cycles per packet: 244.10 (2600000000/10650000)
  avg processing cycles per packet: 240.25 (2559000000/10650000)
main thread:
  packets received: 1
  avg processing cycles per packet: 9000.00 (9000/1)
";
        assert_eq!(cycles(output), Some(240.25));
        assert_eq!(cycles("pmd thread\nmain thread:"), None);
    }
}
