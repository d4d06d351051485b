//! The contents of dom0's and a guest's file systems.

use super::archive::Archive;
use super::kernels::Kernels;
use super::packages::Packages;
use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of this tree that run inside the machine.
pub(crate) struct Programs {
    /// `grantway-xen`: in dom0 and in driver domains.
    pub(crate) driver: PathBuf,
    /// `grantway`: in dom0.
    pub(crate) cli: PathBuf,
    /// `hostile-front`: in a hostile guest.
    pub(crate) hostile: PathBuf,
    /// `xen-window`: in dom0.
    pub(crate) window: PathBuf,
}

/// Xen's programs in dom0.
const TOOLS: [&str; 6] = [
    "xl",
    "xentrace",
    "xenstored",
    "xenconsoled",
    "xen-init-dom0",
    "libxl-save-helper",
];
/// Client programs for the xenstore.
const STORE_TOOLS: [&str; 6] = ["ls", "read", "write", "list", "rm", "exists"];

/// Kernel modules of dom0.
const DOM0_MODULES: [&str; 12] = [
    "drivers/xen/xen-privcmd",
    "drivers/xen/xenfs/xenfs",
    "drivers/xen/xen-gntdev",
    "drivers/xen/xen-gntalloc",
    "drivers/xen/xen-evtchn",
    "net/llc/llc",
    "net/802/stp",
    "net/bridge/bridge",
    "drivers/net/tun",
    "drivers/net/veth",
    "drivers/net/ethernet/intel/e1000/e1000",
    "drivers/net/xen-netback/xen-netback",
];
/// Kernel modules of guests.
const GUEST_MODULES: [&str; 5] = [
    "drivers/net/xen-netfront",
    "drivers/xen/xen-gntdev",
    "drivers/xen/xen-gntalloc",
    "drivers/xen/xen-evtchn",
    "drivers/net/tun",
];

/// Creates dom0's file system, which contains a guest's file system. Returns its path.
pub(crate) fn dom0(
    home: &Path,
    packages: &Packages,
    kernels: &Kernels,
    programs: &Programs,
) -> Result<PathBuf> {
    let mut image = Archive::default();
    let own = [&programs.driver, &programs.cli, &programs.window];
    common(&mut image, packages, &own)?;
    modules(&mut image, packages, &DOM0_MODULES)?;
    let xen = packages.root.join("usr/lib/xen-4.17/bin");
    let tools = TOOLS.map(|tool| xen.join(tool));
    for (name, tool) in TOOLS.iter().zip(&tools) {
        image.copy(&format!("usr/lib/xen-4.17/bin/{name}"), tool)?;
    }
    let store_tools =
        STORE_TOOLS.map(|tool| packages.root.join(format!("usr/bin/xenstore-{tool}")));
    for (name, tool) in STORE_TOOLS.iter().zip(&store_tools) {
        image.copy(&format!("bin/xenstore-{name}"), tool)?;
    }
    let ethtool = ["sbin", "usr/sbin"].map(|folder| packages.root.join(folder).join("ethtool"));
    let ethtool = ethtool.into_iter().find(|place| place.exists());
    let ethtool = ethtool.context("ethtool was not unpacked")?;
    image.copy("sbin/ethtool", &ethtool)?;
    let linked = tools.iter().chain(&store_tools).chain([&ethtool]);
    for library in libraries(packages, linked)? {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        image.copy(&format!("lib/x86_64-linux-gnu/{name}"), &library)?;
    }
    image.copy(
        "lib64/ld-linux-x86-64.so.2",
        Path::new("/lib64/ld-linux-x86-64.so.2"),
    )?;
    for folder in [
        "etc/xen/scripts",
        "run",
        "var/lib/xen",
        "var/log/xen",
        "sys",
        "srv",
    ] {
        image.folder(folder);
    }
    image.link("usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu");
    image.link("var/run", "/run");
    image.file("etc/xen/xl.conf", b"");
    for (name, at) in [
        ("dom0-init", "init"),
        ("tests.sh", "opt/tests.sh"),
        ("exp.sh", "opt/exp.sh"),
        ("vif-none", "etc/xen/scripts/vif-none"),
        ("vif-exp", "etc/xen/scripts/vif-exp"),
        ("xen.toml", "etc/grantway.toml"),
    ] {
        image.copy(at, &ours(name))?;
    }
    image.copy("domu/vmlinux", &kernels.linux)?;
    image.file("domu/guest.img", &guest(packages, programs)?);
    let path = home.join("dom0.img");
    fs::write(&path, image.finish()).with_context(|| format!("{}", path.display()))?;
    Ok(path)
}

/// Returns a guest's file system. Driver domains and hostile guests also use it.
fn guest(packages: &Packages, programs: &Programs) -> Result<Vec<u8>> {
    let mut image = Archive::default();
    common(&mut image, packages, &[&programs.driver, &programs.hostile])?;
    modules(&mut image, packages, &GUEST_MODULES)?;
    image.folder("www/cgi-bin");
    image.folder("run");
    for (name, at) in [
        ("guest-init", "init"),
        ("guest-do", "www/cgi-bin/do"),
        ("xen.toml", "etc/grantway.toml"),
    ] {
        image.copy(at, &ours(name))?;
    }
    Ok(image.finish())
}

/// Returns the path of a file in `xtask/xen`.
fn ours(name: &str) -> PathBuf {
    workspace::root().join("xtask/xen").join(name)
}

fn common(image: &mut Archive, packages: &Packages, programs: &[&PathBuf]) -> Result<()> {
    for folder in ["bin", "sbin", "dev", "proc", "sys", "tmp", "mod", "etc"] {
        image.folder(folder);
    }
    let places = ["bin/busybox", "usr/bin/busybox"].map(|place| packages.root.join(place));
    let busybox = places.iter().find(|place| place.exists());
    image.copy(
        "bin/busybox",
        busybox.context("busybox-static was not unpacked")?,
    )?;
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let stripped = program.with_extension("stripped");
        // Programs are stripped, because they consist mostly of debug information.
        let strip = Command::new("strip")
            .arg("-o")
            .arg(&stripped)
            .arg(program)
            .status();
        let from = match strip.is_ok_and(|status| status.success()) {
            true => &stripped,
            false => program,
        };
        image.copy(&format!("bin/{name}"), from)?;
    }
    Ok(())
}

fn modules(image: &mut Archive, packages: &Packages, paths: &[&str]) -> Result<()> {
    let folder = packages
        .root
        .join(format!("lib/modules/{}/kernel", packages.release));
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        image.copy(
            &format!("mod/{name}.ko"),
            &folder.join(format!("{path}.ko")),
        )?;
    }
    Ok(())
}

/// Returns the shared libraries of the given programs, and the library that they load when a thread
/// is cancelled.
fn libraries<'a>(
    packages: &Packages,
    programs: impl Iterator<Item = &'a PathBuf>,
) -> Result<BTreeSet<PathBuf>> {
    let mut all = BTreeSet::from([PathBuf::from("/lib/x86_64-linux-gnu/libgcc_s.so.1")]);
    let output = Command::new("ldd")
        .args(programs)
        .env("LD_LIBRARY_PATH", library_path(packages))
        .output()
        .context("ldd cannot be run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(!text.contains("not found"), "a library is missing:\n{text}");
    let found = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    all.extend(
        found
            .filter(|path| path.starts_with('/'))
            .map(PathBuf::from),
    );
    Ok(all)
}

/// Returns the folders of the packages' libraries.
pub(crate) fn library_path(packages: &Packages) -> String {
    let of = |folder: &str| packages.root.join(folder).display().to_string();
    [
        of("usr/lib/x86_64-linux-gnu"),
        of("lib/x86_64-linux-gnu"),
        of("usr/lib/xen-4.17/lib/x86_64-linux-gnu"),
    ]
    .join(":")
}
