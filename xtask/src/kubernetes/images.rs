//! Images of pods: archives that are imported on every node, because the cluster has no registry.

use super::programs::Components;
use crate::workspace;
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image for pods that only use the network.
pub(super) const BUSYBOX: &str = "localhost/busybox:1";

/// Packs both images. Returns the archives.
pub(super) fn ready(home: &Path, programs: &Components) -> Result<[PathBuf; 2]> {
    let roots = home.join("roots");
    if roots.exists() {
        fs::remove_dir_all(&roots)?;
    }
    let scripts = workspace::root().join("xtask/kubernetes");
    let mut copy = Command::new("sh");
    copy.arg(scripts.join("roots.sh")).args([
        &programs.grantway,
        &workspace::root().join("contrib/kubernetes"),
        &roots,
    ]);
    workspace::output(&mut copy)?;
    let pack = |name: &str, root: &str| -> Result<PathBuf> {
        let file = home.join(format!("{root}.tar"));
        let mut pack = Command::new("sh");
        pack.arg(scripts.join("image.sh")).arg(name);
        pack.args([&roots.join(root), &file]);
        workspace::output(&mut pack)?;
        Ok(file)
    };
    let images = [
        pack(BUSYBOX, "busybox")?,
        pack("docker.io/library/grantway:0.1.0", "grantway")?,
    ];
    fs::remove_dir_all(&roots)?;
    Ok(images)
}
