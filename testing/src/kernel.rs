//! The kernel of an emulated machine.

use std::fs;
use std::path::PathBuf;

/// An installed kernel, which need not be the running one.
#[derive(Debug)]
pub struct Kernel {
    /// The image.
    pub image: PathBuf,
    /// The folder of its modules, which are not compressed.
    pub modules: PathBuf,
}

/// Returns an installed kernel with a module of virtio-net.
#[must_use]
pub fn kernel() -> Option<Kernel> {
    let mut releases = fs::read_dir("/lib/modules").ok()?.flatten();
    releases.find_map(|release| {
        let mut image = std::ffi::OsString::from("/boot/vmlinuz-");
        image.push(release.file_name());
        let kernel = Kernel {
            image: image.into(),
            modules: release.path(),
        };
        let module = kernel.modules.join("kernel/drivers/net/virtio_net.ko");
        (kernel.image.exists() && module.exists()).then_some(kernel)
    })
}
