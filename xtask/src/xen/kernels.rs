//! Xen and Linux in the form that the emulator loads fastest: uncompressed.

use super::packages::Packages;
use crate::workspace;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The paths of the hypervisor and the kernel.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// The hypervisor: an ELF file for multiboot.
    pub(crate) xen: PathBuf,
    /// The kernel of dom0 and of the guests.
    pub(crate) linux: PathBuf,
}

/// The bytes that start a kernel image's payload, which xz has compressed.
const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];

/// Unpacks both if they are missing.
pub(crate) fn ready(home: &Path, packages: &Packages) -> Result<Kernels> {
    let kernels = Kernels {
        xen: home.join("xen.elf"),
        linux: home.join(format!("linux-{}.elf", packages.release)),
    };
    let boot = packages.root.join("boot");
    if !kernels.xen.exists() {
        unpack(
            &["gzip", "-dc"],
            &boot.join("xen-4.17-amd64.gz"),
            &kernels.xen,
        )?;
    }
    if !kernels.linux.exists() {
        let image = boot.join(format!("vmlinuz-{}", packages.release));
        let bytes = fs::read(&image).with_context(|| format!("{}", image.display()))?;
        let at = bytes.windows(XZ.len()).position(|window| window == XZ);
        let at = at.with_context(|| format!("{} is not packed by xz", image.display()))?;
        let payload = home.join("linux.xz");
        fs::write(&payload, bytes.get(at..).unwrap_or_default())?;
        // The image continues after the payload, so xz must stop after a single stream.
        unpack(&["xz", "--single-stream", "-dc"], &payload, &kernels.linux)?;
        fs::remove_file(payload)?;
    }
    Ok(kernels)
}

/// Unpacks a file atomically.
fn unpack(with: &[&str], from: &Path, to: &Path) -> Result<()> {
    let part = to.with_extension("part");
    let [program, arguments @ ..] = with else {
        return Ok(());
    };
    let mut command = Command::new(program);
    command.args(arguments).arg(from).stdin(Stdio::null());
    let out = File::create(&part).with_context(|| format!("{}", part.display()))?;
    workspace::output(command.stdout(out))?;
    Ok(fs::rename(&part, to)?)
}
