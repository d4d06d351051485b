//! The driver of a virtio-net device on a PCI bus (virtio 1.2, modern interface, split virtqueues),
//! which accesses memory through an IOMMU. The monitor has mapped the memory of the queues and of
//! the pool, and shows the device's registers in the window.
//!
//! As with the other rings, the driver believes nothing that the device writes ([`ring`]).
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | the device's registers |
//! | [`ring`] | the driver's end of a split virtqueue |
//! | [`nic`] | the NIC |

pub mod nic;
pub mod registers;
pub mod ring;

pub use nic::{CloseReason, PciNic, PciSetup, StartupError};
pub use registers::{Register, RegisterWindow, Registers};
pub use ring::SplitQueue;
