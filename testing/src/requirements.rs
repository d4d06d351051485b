//! Needs of tests: each function checks one, and returns an error that names what is missing.

use netdev::netns::Namespace;
use netdev::tool_setup::open_tap;
use netdev::{NetError, TapSpec, xdp};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folders in which distributions install CNI plugins.
pub const CNI_PLUGINS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// A missing need.
type Missing = String;

/// Checks that the user is root.
///
/// # Errors
///
/// Returns an error if the user is not root.
pub fn root() -> Result<(), Missing> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err("root".into()),
    }
}

/// Checks that network namespaces can be created.
///
/// # Errors
///
/// Returns the kernel's error.
pub fn netns() -> Result<(), Missing> {
    fresh_netns().map(drop)
}

fn fresh_netns() -> Result<Namespace, Missing> {
    Namespace::new().map_err(|error| format!("network namespaces: {error}"))
}

/// Checks that the sysfs of a new network namespace can be mounted, which containers usually
/// forbid.
///
/// # Errors
///
/// Returns an error if network namespaces are missing or the mount fails.
pub fn sysfs() -> Result<(), Missing> {
    let namespace = fresh_netns()?;
    let mount = ["--mount", "mount", "-t", "sysfs", "sysfs", "/sys"];
    let run = || Command::new("unshare").args(mount).output();
    match namespace.enter(run) {
        Ok(Ok(run)) if run.status.success() => Ok(()),
        Ok(Ok(run)) => Err(String::from_utf8_lossy(&run.stderr).trim().to_owned()),
        Ok(Err(error)) => Err(format!("unshare: {error}")),
        Err(error) => Err(format!("network namespaces: {error}")),
    }
}

/// Checks that network namespaces and TAPs in them can be created.
///
/// # Errors
///
/// Returns an error if network namespaces or the TAP driver are missing. The test itself reports
/// any other failure.
pub fn tap() -> Result<(), Missing> {
    let namespace = fresh_netns()?;
    let spec = TapSpec {
        ifname: "probe".into(),
        netns: Some(namespace.path().display().to_string()),
        mtu: 1500,
        ..TapSpec::default()
    };
    match open_tap(&spec) {
        Err(error @ NetError::NoTun { .. }) => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Checks that AF_XDP sockets and their programs can be used.
///
/// # Errors
///
/// Returns an error if the kernel does not permit them.
///
/// # Panics
///
/// Panics on any other failure, which is a bug in the project.
pub fn af_xdp() -> Result<(), Missing> {
    let Err(error) = xdp::probe() else {
        return Ok(());
    };
    let error = error.to_string();
    assert!(error.contains("not permitted"), "{error}");
    Err(format!("AF_XDP: {error}"))
}

/// Checks that unprivileged users can create user namespaces.
///
/// # Errors
///
/// Returns an error if they are disabled.
pub fn userns() -> Result<(), Missing> {
    let mut command = Command::new("unshare");
    let probe = command.args(["-Ur", "true"]).stderr(Stdio::null());
    match probe.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("user namespaces: disabled".into()),
        Err(error) => Err(format!("user namespaces: `unshare`: {error}")),
    }
}

/// Checks for VXLAN tunnels.
///
/// # Errors
///
/// Returns an error if the kernel has no VXLAN, or the program `ip` is missing.
pub fn vxlan() -> Result<(), Missing> {
    let namespace = fresh_netns()?;
    tool("ip")?;
    let words = [
        "link", "add", "probe", "type", "vxlan", "id", "1", "dstport", "4789",
    ];
    let add = || {
        Command::new("ip")
            .args(words)
            .stderr(Stdio::null())
            .status()
    };
    match namespace.enter(add) {
        Ok(Ok(status)) if status.success() => Ok(()),
        _ => Err("vxlan: the kernel creates no tunnel".into()),
    }
}

/// Checks for limits on process ids per PID namespace (Linux 6.14).
///
/// # Errors
///
/// Returns an error if the kernel is older than Linux 6.14.
pub fn pid_limits() -> Result<(), Missing> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || {
        numbers
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    };
    let version: (u32, u32) = (next(), next());
    match version >= (6, 14) {
        true => Ok(()),
        false => Err("Linux 6.14".into()),
    }
}

/// Checks for everything that confines a domain, above all seccomp user notification.
///
/// # Errors
///
/// Returns the feature that the kernel lacks.
pub fn seccomp_notify() -> Result<(), Missing> {
    confine::probe()
}

/// Checks for Landlock.
///
/// # Errors
///
/// Returns an error if the kernel has no Landlock, or it is disabled.
pub fn landlock() -> Result<(), Missing> {
    match confine::has_landlock() {
        true => Ok(()),
        false => Err("Landlock".into()),
    }
}

/// Checks for a kernel that an emulated machine can boot.
///
/// # Errors
///
/// Returns an error if no kernel is installed, or its modules are compressed.
pub fn kernel() -> Result<(), Missing> {
    let missing = "an installed kernel (linux-image-cloud-amd64)";
    crate::kernel().map(drop).ok_or_else(|| missing.into())
}

/// Checks for a program of the system.
///
/// # Errors
///
/// Returns an error if no folder of `PATH` has it.
pub fn tool(name: &str) -> Result<(), Missing> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&paths).any(|folder| folder.join(name).is_file()) {
        true => Ok(()),
        false => Err(format!("the program {name}")),
    }
}

/// A root folder for `systemd-nspawn` that contains only busybox.
#[derive(Debug)]
pub struct Root(tempfile::TempDir);

impl Root {
    /// Creates the folder.
    ///
    /// # Errors
    ///
    /// Returns an error if Busybox is missing, or the folder cannot be created.
    pub fn new() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in ["bin", "usr"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let mut programs = std::env::split_paths(&paths).map(|folder| folder.join("busybox"));
        let program = programs.find(|program| program.is_file());
        let program = program.ok_or(std::io::ErrorKind::NotFound)?;
        fs::copy(program, folder.path().join("bin/busybox"))?;
        Ok(Self(folder))
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns a command that starts a container in the folder, with a separate network. The caller
    /// adds a command of busybox as arguments.
    #[must_use]
    pub fn nspawn(&self) -> Command {
        let mut command = Command::new("systemd-nspawn");
        // Works even if systemd is not the first process.
        command.args(["--quiet", "--keep-unit", "--register=no"]);
        command.args(["--private-network", "--pipe", "--directory"]);
        command.arg(self.path()).arg("/bin/busybox");
        command
    }
}

/// Checks that containers of `systemd-nspawn` can be started.
///
/// # Errors
///
/// Returns the message of `systemd-nspawn`.
pub fn nspawn() -> Result<(), Missing> {
    root()?;
    tool("busybox")?;
    let words = |error| format!("systemd-nspawn: {error}");
    let root = Root::new().map_err(|error| words(error.to_string()))?;
    let run = root.nspawn().arg("true").stdin(Stdio::null()).output();
    match run {
        Ok(run) if run.status.success() => Ok(()),
        Ok(run) => Err(words(String::from_utf8_lossy(&run.stderr).into_owned())),
        Err(error) => Err(words(error.to_string())),
    }
}

/// Environment variable that names a folder with the root file system of Debian 13, for tests of
/// its programs. `.ci/run` creates one.
pub const DEBIAN_13: &str = "GRANTWAY_DEBIAN_13";

/// Returns the folder that [`DEBIAN_13`] names, if it is set.
pub(crate) fn debian_13_root() -> Option<PathBuf> {
    let root = std::env::var_os(DEBIAN_13).filter(|root| !root.is_empty())?;
    PathBuf::from(root).canonicalize().ok()
}

/// Checks for a root file system of Debian 13 with this program.
///
/// # Errors
///
/// Returns an error if [`DEBIAN_13`] names no such folder.
pub fn debian_13(program: &str) -> Result<(), Missing> {
    root()?;
    let found = debian_13_root().filter(|root| root.join(program).is_file());
    match found {
        Some(_) => Ok(()),
        None => Err(format!(
            "a root file system of Debian 13 with {program}, in the folder {DEBIAN_13}"
        )),
    }
}

/// Checks for a CNI plugin of the system.
///
/// # Errors
///
/// Returns an error if no folder in which distributions install plugins has it.
pub fn cni_plugin(name: &str) -> Result<(), Missing> {
    match CNI_PLUGINS
        .iter()
        .any(|folder| Path::new(folder).join(name).is_file())
    {
        true => Ok(()),
        false => Err(format!("the CNI plugin {name}")),
    }
}

/// Checks for a program of this workspace from the same build, one folder above the test. `cargo
/// test` builds all programs, but for a single package only that package's.
///
/// # Errors
///
/// Returns an error if the program is not built.
pub fn program(name: &str) -> Result<(), Missing> {
    let test = std::env::current_exe().unwrap_or_default();
    let built = test
        .ancestors()
        .nth(2)
        .map_or_else(PathBuf::new, |folder| folder.join(name));
    match built.is_file() {
        true => Ok(()),
        false => Err(format!(
            "{} (`cargo xtask test` builds it)",
            built.display()
        )),
    }
}

/// The programs of a machine; `grantway` starts them from its own folder.
pub const MACHINE: [&str; 5] = [
    "grantwayd",
    "grantway-netd",
    "grantway-manager",
    "driver",
    "guest",
];

/// Checks for a machine with TAPs: its programs, and a TAP driver.
///
/// # Errors
///
/// Returns the errors of [`program`] and [`tap`].
pub fn machine() -> Result<(), Missing> {
    for name in MACHINE {
        program(name)?;
    }
    tap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        assert_eq!(tool("sh"), Ok(()));
        assert_eq!(tool("no-such-tool"), Err("the program no-such-tool".into()));
        let missing = program("no-such-program").unwrap_err();
        assert!(missing.contains("/no-such-program ("), "{missing}");
    }
}
