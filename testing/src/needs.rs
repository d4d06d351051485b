//! What a test may need. Each is there, or it is told what is missing.

use netdev::netns::Namespace;
use netdev::own::open_tap;
use netdev::{SetupError, TapSpec, xdp};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where distributions put plugins of containers' networks.
pub const CNI_PLUGINS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// What is missing.
type Missing = String;

/// The user may do everything.
///
/// # Errors
/// Another user than root.
pub fn root() -> Result<(), Missing> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err("root".into()),
    }
}

/// Network namespaces can be made.
///
/// # Errors
/// The kernel's reason.
pub fn netns() -> Result<(), Missing> {
    fresh_netns().map(drop)
}

fn fresh_netns() -> Result<Namespace, Missing> {
    Namespace::new().map_err(|error| format!("network namespaces: {error}"))
}

/// Network namespaces, and TAPs in them.
///
/// # Errors
/// Without the one, or without a TAP driver. Everything else is a fault of ours, for the test to
/// find.
pub fn tap() -> Result<(), Missing> {
    let namespace = fresh_netns()?;
    let spec = TapSpec {
        ifname: "probe".into(),
        netns: Some(namespace.path().display().to_string()),
        mtu: 1500,
        ..TapSpec::default()
    };
    match open_tap(&spec) {
        Err(error @ SetupError::NoTun { .. }) => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// AF_XDP sockets and their programs.
///
/// # Errors
/// The kernel does not permit them.
///
/// # Panics
/// Everything else that goes wrong is a fault of ours.
pub fn af_xdp() -> Result<(), Missing> {
    let Err(error) = xdp::probe() else {
        return Ok(());
    };
    let error = error.to_string();
    assert!(error.contains("not permitted"), "{error}");
    Err(format!("AF_XDP: {error}"))
}

/// User namespaces for those without privileges.
///
/// # Errors
/// They are switched off.
pub fn userns() -> Result<(), Missing> {
    let mut command = Command::new("unshare");
    let probe = command.args(["-Ur", "true"]).stderr(Stdio::null());
    match probe.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("user namespaces: switched off".into()),
        Err(error) => Err(format!("user namespaces: `unshare`: {error}")),
    }
}

/// VXLAN tunnels.
///
/// # Errors
/// The kernel has none, or there is no `ip` to make one with.
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
        _ => Err("vxlan: the kernel makes no tunnel".into()),
    }
}

/// All that confining a domain stands on, seccomp's user notification above all.
///
/// # Errors
/// What the kernel lacks.
pub fn seccomp_notify() -> Result<(), Missing> {
    confine::probe()
}

/// Landlock.
///
/// # Errors
/// The kernel has none, or it is switched off.
pub fn landlock() -> Result<(), Missing> {
    match confine::has_landlock() {
        true => Ok(()),
        false => Err("Landlock".into()),
    }
}

/// A program of the system's.
///
/// # Errors
/// It is in no folder of `PATH`.
pub fn tool(name: &str) -> Result<(), Missing> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&paths).any(|folder| folder.join(name).is_file()) {
        true => Ok(()),
        false => Err(format!("the program {name}")),
    }
}

/// A folder that `systemd-nspawn` takes for a system: busybox, and nothing else.
#[derive(Debug)]
pub struct Root(tempfile::TempDir);

impl Root {
    /// Makes one.
    ///
    /// # Errors
    /// Without busybox, or where no folder can be made.
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

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A container in it, with a network of its own; what is added is a command of busybox.
    #[must_use]
    pub fn nspawn(&self) -> Command {
        let mut command = Command::new("systemd-nspawn");
        // Also where systemd is not the first process.
        command.args(["--quiet", "--keep-unit", "--register=no"]);
        command.args(["--private-network", "--pipe", "--directory"]);
        command.arg(self.path()).arg("/bin/busybox");
        command
    }
}

/// Containers of `systemd-nspawn`.
///
/// # Errors
/// Its own words.
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

/// A CNI plugin of the system's.
///
/// # Errors
/// It is not where distributions put them.
pub fn cni_plugin(name: &str) -> Result<(), Missing> {
    match CNI_PLUGINS
        .iter()
        .any(|folder| Path::new(folder).join(name).is_file())
    {
        true => Ok(()),
        false => Err(format!("the CNI plugin {name}")),
    }
}

/// A program of this workspace, built as the test was: it lies a folder above. `cargo test` builds
/// them all, of a single package only that package's.
///
/// # Errors
/// It is not built.
pub fn program(name: &str) -> Result<(), Missing> {
    let test = std::env::current_exe().unwrap_or_default();
    let built = test
        .ancestors()
        .nth(2)
        .map_or_else(PathBuf::new, |folder| folder.join(name));
    match built.is_file() {
        true => Ok(()),
        false => Err(format!(
            "{} (`cargo test` of the workspace builds it)",
            built.display()
        )),
    }
}

/// The programs that a machine consists of; `grantway` starts them from its own folder.
pub const MACHINE: [&str; 5] = [
    "grantwayd",
    "grantway-netd",
    "grantway-manager",
    "driver",
    "guest",
];

/// A machine with TAPs: the programs that it consists of, and a TAP driver.
///
/// # Errors
/// As [`program`] and [`tap`].
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
    fn what_is_missing_is_named() {
        assert_eq!(tool("sh"), Ok(()));
        assert_eq!(tool("no-such-tool"), Err("the program no-such-tool".into()));
        let missing = program("no-such-program").unwrap_err();
        assert!(missing.contains("/no-such-program ("), "{missing}");
    }
}
