//! Checks of devices, against a tree of files like the kernel's.

use super::*;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const ADDRESS: &str = "0000:00:03.0";

/// A tree with one virtio-net device in group 7, without a driver.
struct Tree {
    folder: TempDir,
    bus: PciBus,
}

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bus = PciBus {
            root: folder.path().join("pci"),
            nodes: folder.path().join("vfio"),
        };
        let tree = Self { folder, bus };
        tree.write("pci/drivers/vfio-pci/new_id", "");
        tree.write("pci/drivers_probe", "");
        tree.write("vfio/7", "");
        tree.add(ADDRESS, ["0x1af4", "0x1041", "0x020000"]);
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.folder.path().join(target), path).unwrap();
    }

    /// Adds a device to group 7.
    fn add(&self, address: &str, [vendor, device, class]: [&str; 3]) {
        let of = |name: &str| format!("pci/devices/{address}/{name}");
        self.write(&of("vendor"), vendor);
        self.write(&of("device"), device);
        self.write(&of("class"), class);
        self.write(&of("driver_override"), "");
        self.write(&format!("groups/7/devices/{address}"), "");
        self.link(&of("iommu_group"), "groups/7");
    }

    fn set_driver(&self, address: &str, driver: &str) {
        self.write(&format!("pci/drivers/{driver}/unbind"), "");
        let path = format!("pci/devices/{address}/driver");
        self.link(&path, &format!("pci/drivers/{driver}"));
    }

    fn remove(&self, path: &str) {
        let path = self.folder.path().join(path);
        fs::remove_file(&path)
            .or_else(|_| fs::remove_dir_all(&path))
            .unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.folder.path().join(path)).unwrap()
    }

    fn refusal(&self) -> String {
        self.bus.check(ADDRESS).unwrap_err().to_string()
    }
}

#[test]
fn suitable_device_has_a_group() {
    let tree = Tree::new();
    assert_eq!(tree.bus.check(ADDRESS).unwrap(), 7);
    // A bridge with its driver may share the group, and so may a device without a driver.
    tree.add("0000:00:02.0", ["0x1b36", "0x000c", "0x060400"]);
    tree.set_driver("0000:00:02.0", "pcieport");
    tree.add("0000:00:03.1", ["0x8086", "0x10d3", "0x020000"]);
    assert_eq!(tree.bus.check(ADDRESS).unwrap(), 7);
}

#[test]
fn transitional_device_must_be_a_network_device() {
    let tree = Tree::new();
    tree.write(&format!("pci/devices/{ADDRESS}/device"), "0x1000\n");
    tree.write(
        &format!("pci/devices/{ADDRESS}/subsystem_device"),
        "0x0001\n",
    );
    tree.bus.check(ADDRESS).unwrap();
    tree.write(
        &format!("pci/devices/{ADDRESS}/subsystem_device"),
        "0x0002\n",
    );
    assert!(
        tree.refusal()
            .contains("(1af4:1000) is neither a virtio-net")
    );
}

#[test]
fn addresses_are_checked_before_they_become_paths() {
    let tree = Tree::new();
    for text in [
        "",
        "00:03.0",
        "0000:00:03.0/",
        "../../../..0",
        "0000:00:03.A",
    ] {
        let error = tree.bus.bind(text).unwrap_err();
        assert!(matches!(error, PciError::Address(_)), "{text}: {error}");
    }
    let error = tree.bus.check("0000:00:1f.7").unwrap_err();
    assert!(matches!(error, PciError::NoDevice(_)), "{error}");
}

#[test]
fn device_of_another_kind_is_refused() {
    let tree = Tree::new();
    tree.write(&format!("pci/devices/{ADDRESS}/vendor"), "0x8086\n");
    let error = tree.refusal();
    assert!(error.contains("(8086:1041) is neither"), "{error}");
    tree.write(&format!("pci/devices/{ADDRESS}/device"), "0x10d3\n");
    assert_eq!(tree.bus.check(ADDRESS).unwrap(), 7);
}

#[test]
fn no_device_is_bound_without_an_iommu() {
    let tree = Tree::new();
    tree.write("groups/7/name", "vfio-noiommu\n");
    assert!(tree.refusal().contains("is not behind an IOMMU"));
    tree.remove(&format!("pci/devices/{ADDRESS}/iommu_group"));
    assert!(tree.refusal().contains("is not behind an IOMMU"));
    tree.bus.bind(ADDRESS).unwrap_err();
    assert_eq!(tree.read("pci/drivers_probe"), "");
}

#[test]
fn a_device_in_use_is_not_changed() {
    let tree = Tree::new();
    tree.set_driver(ADDRESS, "virtio-pci");
    let error = tree.bus.bind(ADDRESS).unwrap_err().to_string();
    assert!(error.contains("in use by the driver virtio-pci"), "{error}");
    tree.bus.unbind(ADDRESS).unwrap();
    assert_eq!(tree.read("pci/drivers/virtio-pci/unbind"), "");
}

#[test]
fn group_with_a_device_in_use_is_refused() {
    let tree = Tree::new();
    tree.add("0000:00:03.1", ["0x8086", "0x10d3", "0x020000"]);
    tree.set_driver("0000:00:03.1", "e1000e");
    let error = tree.refusal();
    assert!(
        error.contains("group 7 with 0000:00:03.1, which the driver e1000e uses"),
        "{error}"
    );
}

#[test]
fn inspection_finds_errors_of_binding_and_opening() {
    let tree = Tree::new();
    let of = |name: &str| format!("pci/devices/{ADDRESS}/{name}");
    let inspect = || tree.bus.inspect(ADDRESS).map_err(|error| error.to_string());
    assert!(inspect().unwrap_err().contains("cannot be reset"));
    tree.write(&of("reset"), "");
    // Users other than root can read only the first bytes.
    tree.write(&of("config"), &"\0".repeat(64));
    inspect().unwrap();
    tree.write(&of("config"), &"\0".repeat(256));
    assert!(inspect().unwrap_err().contains("no registers"));
    tree.remove(&of("config"));
    tree.remove("pci/drivers/vfio-pci");
    assert!(inspect().unwrap_err().contains("modprobe vfio-pci"));
    tree.set_driver(ADDRESS, "virtio-pci");
    assert!(inspect().unwrap_err().contains("in use by the driver"));
    assert_eq!(tree.read("pci/drivers_probe"), "");
    assert_eq!(tree.read(&of("driver_override")), "");
}

#[test]
fn device_is_bound_and_unbound() {
    let tree = Tree::new();
    // The kernel would now probe the driver; the test's tree has no kernel.
    let error = tree.bus.bind(ADDRESS).unwrap_err();
    assert!(matches!(error, PciError::NotBound(_)), "{error}");
    let choice = format!("pci/devices/{ADDRESS}/driver_override");
    assert_eq!(tree.read("pci/drivers_probe"), ADDRESS);
    // The kernel clears the choice on a line feed; in the test's file, only the first byte changes.
    assert_eq!(tree.read(&choice), "\nfio-pci");
    tree.write(&choice, "vfio-pci");
    tree.set_driver(ADDRESS, "vfio-pci");
    tree.bus.bind(ADDRESS).unwrap();
    assert_eq!(tree.read(&choice), "vfio-pci");
    tree.bus.unbind(ADDRESS).unwrap();
    assert_eq!(tree.read("pci/drivers/vfio-pci/unbind"), ADDRESS);
    assert_eq!(tree.read(&choice), "\nfio-pci");
}

#[test]
fn missing_driver_has_a_remedy() {
    let tree = Tree::new();
    tree.remove("pci/drivers/vfio-pci");
    let error = tree.bus.bind(ADDRESS).unwrap_err().to_string();
    assert!(error.contains("modprobe vfio-pci"), "{error}");
}
