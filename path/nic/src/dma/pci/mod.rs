//! Drivers of PCI network devices, which access memory through an IOMMU. The monitor maps the
//! memory of the queues and the pool for the device, and the device's registers into the domain's
//! window.
//!
//! As with the other rings, a driver trusts nothing that its device writes.
//!
//! | module | contents |
//! |---|---|
//! | [`nic`] | the NIC, for all kinds of devices |
//! | [`device`] | the interface of a kind of device |
//! | [`setup`] | properties of a NIC, and the layout of its memory |
//! | [`registers`] | access to registers |
//! | [`virtio`] | virtio-net devices |
//! | [`intel`] | the Intel 82574 |

pub mod device;
pub mod intel;
pub mod nic;
pub mod registers;
pub mod setup;
pub mod virtio;

pub use device::{CloseReason, PciDevice, StartupError};
pub use intel::Intel82574;
pub use nic::{AnyPciNic, PciNic};
pub use registers::{RegisterWindow, Registers};
pub use setup::PciSetup;
pub use virtio::VirtioNet;
