//! The kernel's files of PCI devices, through which a device is bound to another driver.

use super::registers::{Registers, TRANSITIONAL_NET, kind};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Driver through which a process accesses a device.
const DRIVER: &str = "vfio-pci";
/// The kernel's name of a group without an IOMMU.
const NO_IOMMU: &str = "vfio-noiommu";
/// Reason for the refusal of a device that cannot be reset.
pub(super) const NO_RESET: &str = "it cannot be reset, so the next domain could not take it over";
/// The class of bridges, which may share a group.
const BRIDGE: u32 = 0x06;

/// Reason why a PCI device cannot be given to a domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PciError {
    /// The text is not an address.
    #[error("`{0}` is not the address of a PCI device: write it like 0000:00:03.0")]
    Address(String),
    /// The device does not exist.
    #[error("PCI device {0} does not exist: `lspci -D` lists all devices")]
    NoDevice(String),
    /// The device has an unsupported type.
    #[error(
        "PCI device {address} ({vendor:04x}:{device:04x}) is neither a virtio-net device nor an \
         Intel 82574, the only kinds that are supported"
    )]
    Kind {
        /// The device.
        address: String,
        /// The vendor's id.
        vendor: u16,
        /// The device's id.
        device: u16,
    },
    /// The device could write to all memory.
    #[error(
        "PCI device {0} is not behind an IOMMU, so it could access all memory of this system: \
         enable the IOMMU in the firmware and, on Intel, boot with intel_iommu=on"
    )]
    NoIommu(String),
    /// The system may be using the device.
    #[error(
        "PCI device {address} is in use by the driver {driver}: unbind it first (`echo {address} \
         >/sys/bus/pci/devices/{address}/driver/unbind`)"
    )]
    InUse {
        /// The device.
        address: String,
        /// The driver.
        driver: String,
    },
    /// The IOMMU does not isolate the device from another device.
    #[error(
        "PCI device {address} is in IOMMU group {group} with {other}, which the driver {driver} \
         uses: a machine can only get a whole group"
    )]
    Group {
        /// The device.
        address: String,
        /// The IOMMU group.
        group: u32,
        /// The other device.
        other: String,
        /// The driver.
        driver: String,
    },
    /// The driver is missing.
    #[error("PCI device {0}: the driver vfio-pci is missing: `modprobe vfio-pci` loads it")]
    NoDriver(String),
    /// The driver did not accept the device.
    #[error(
        "PCI device {0} was not accepted by the driver vfio-pci: the kernel's log has the reason"
    )]
    NotBound(String),
    /// The device has no usable registers or interrupt.
    #[error("PCI device {address}: {what}")]
    Unusable {
        /// The device.
        address: String,
        /// The reason.
        what: &'static str,
    },
    /// The system refused.
    #[error("PCI device {address}: {what}: {error}")]
    System {
        /// The device.
        address: String,
        /// The step.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

/// The kernel's files of PCI devices.
#[derive(Debug)]
pub struct PciBus {
    root: PathBuf,
    nodes: PathBuf,
}

impl Default for PciBus {
    fn default() -> Self {
        Self {
            root: "/sys/bus/pci".into(),
            nodes: "/dev/vfio".into(),
        }
    }
}

impl PciBus {
    /// Checks whether a device can be given to a domain. Some obstacles are detectable only after
    /// the device is bound to the driver.
    ///
    /// # Errors
    /// Returns the reason why the device cannot be given to a domain.
    pub fn inspect(&self, address: &str) -> Result<(), PciError> {
        self.check(address)?;
        let is_bound = self.driver(address).as_deref() == Some(DRIVER);
        if !is_bound && !self.root.join("drivers").join(DRIVER).exists() {
            return Err(PciError::NoDriver(address.to_owned()));
        }
        let unusable = |what| PciError::Unusable {
            address: address.to_owned(),
            what,
        };
        let device = self.path(address);
        if !device.join("reset").exists() {
            return Err(unusable(NO_RESET));
        }
        // Only root can read the capabilities.
        let config = fs::read(device.join("config")).unwrap_or_default();
        if let Some(config) = config.first_chunk() {
            Registers::find(config).map_err(unusable)?;
        }
        Ok(())
    }

    /// Binds a device to the driver, and opens its group. Does not change a device that has another
    /// driver. Unbinds the device again if its group cannot be opened.
    ///
    /// # Errors
    /// Returns an error if the device is unsuitable or in use, or the system rejects a call.
    pub fn bind(&self, address: &str) -> Result<OwnedFd, PciError> {
        let group = self.check(address)?;
        let node = self.nodes.join(group.to_string());
        let open = || open(&node).map_err(system(address, "opening its IOMMU group"));
        if self.driver(address).as_deref() == Some(DRIVER) {
            return open();
        }
        let opened = self.set_driver(address).and_then(|()| open());
        opened.inspect_err(|_| {
            // The caller receives the error of opening.
            let _unreported = self.unbind(address);
        })
    }

    /// Unbinds a device from the driver. The device then has no driver.
    ///
    /// # Errors
    /// Returns an error if the system rejects the call.
    pub fn unbind(&self, address: &str) -> Result<(), PciError> {
        let device = self.device(address)?;
        let what = "taking it from the driver vfio-pci";
        let choice = device.join("driver_override");
        if fs::read_to_string(&choice).is_ok_and(|choice| choice.trim() == DRIVER) {
            put(&choice, "\n").map_err(system(address, what))?;
        }
        if self.driver(address).as_deref() != Some(DRIVER) {
            return Ok(());
        }
        put(&device.join("driver/unbind"), address).map_err(system(address, what))
    }

    /// Opens a VFIO container, to which groups and an I/O page table are added.
    ///
    /// # Errors
    /// Returns an error if the system rejects the call.
    pub fn container(&self) -> io::Result<OwnedFd> {
        open(&self.nodes.join("vfio"))
    }

    /// Checks whether a device can be given to a domain, and returns its group.
    ///
    /// # Errors
    /// Returns the reason why the device cannot be given to a domain.
    fn check(&self, address: &str) -> Result<u32, PciError> {
        let device = self.device(address)?;
        let number = |name: &str| number(&device.join(name)).unwrap_or(0);
        let (vendor, id) = (number("vendor") as u16, number("device") as u16);
        // A transitional virtio device has its type in the subsystem id.
        let is_net = id != TRANSITIONAL_NET || number("subsystem_device") == 1;
        if kind(vendor, id).is_none() || !is_net {
            return Err(PciError::Kind {
                address: address.to_owned(),
                vendor,
                device: id,
            });
        }
        let no_iommu = || PciError::NoIommu(address.to_owned());
        let group = link_name(&device.join("iommu_group")).ok_or_else(no_iommu)?;
        let name = fs::read_to_string(device.join("iommu_group/name")).unwrap_or_default();
        let group = match name.trim() == NO_IOMMU {
            true => return Err(no_iommu()),
            false => group.parse().map_err(|_| no_iommu())?,
        };
        match self.driver(address) {
            Some(driver) if driver != DRIVER => Err(PciError::InUse {
                address: address.to_owned(),
                driver,
            }),
            _ => self.check_group(address, group).map(|()| group),
        }
    }

    /// Checks that no other device of the group is in use.
    fn check_group(&self, address: &str, group: u32) -> Result<(), PciError> {
        let members = self.device(address)?.join("iommu_group/devices");
        let members = fs::read_dir(members).map_err(system(address, "reading its IOMMU group"))?;
        let names = members.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for other in names.filter(|other| other != address) {
            let class = number(&self.path(&other).join("class")).unwrap_or(0);
            if let Some(driver) = self.driver(&other)
                && driver != DRIVER
                && class >> 16 != BRIDGE
            {
                return Err(PciError::Group {
                    address: address.to_owned(),
                    group,
                    other,
                    driver,
                });
            }
        }
        Ok(())
    }

    fn set_driver(&self, address: &str) -> Result<(), PciError> {
        if !self.root.join("drivers").join(DRIVER).exists() {
            return Err(PciError::NoDriver(address.to_owned()));
        }
        let what = "binding it to the driver vfio-pci";
        let choice = self.path(address).join("driver_override");
        put(&choice, DRIVER).map_err(system(address, what))?;
        put(&self.root.join("drivers_probe"), address).map_err(system(address, what))?;
        match self.driver(address).as_deref() {
            Some(DRIVER) => Ok(()),
            _ => Err(PciError::NotBound(address.to_owned())),
        }
    }

    /// Returns the name of a device's driver.
    fn driver(&self, address: &str) -> Option<String> {
        link_name(&self.path(address).join("driver"))
    }

    fn path(&self, address: &str) -> PathBuf {
        self.root.join("devices").join(address)
    }

    /// Returns the folder of a device that exists.
    fn device(&self, address: &str) -> Result<PathBuf, PciError> {
        if !abi::pci::is_address(address) {
            return Err(PciError::Address(address.to_owned()));
        }
        let device = self.path(address);
        match device.exists() {
            true => Ok(device),
            false => Err(PciError::NoDevice(address.to_owned())),
        }
    }
}

pub(super) fn system(address: &str, what: &'static str) -> impl FnOnce(io::Error) -> PciError {
    let address = address.to_owned();
    move |error| PciError::System {
        address,
        what,
        error,
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    Ok(file.into())
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    File::options()
        .write(true)
        .open(path)?
        .write_all(text.as_bytes())
}

/// Returns the number in a file, like 0x1af4.
fn number(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Returns the last part of a link's target.
fn link_name(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests;
