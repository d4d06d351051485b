//! PCI network devices for a domain, through VFIO. This module binds a device to the kernel's
//! driver `vfio-pci`, resets, starts and stops it. It supports only virtio-net devices and the
//! Intel 82574, and only behind an IOMMU.
//!
//! ```text
//!   broker   PciBus: checks device and group, binds the driver, opens group and container
//!   netd     Function: adds the group to the container, finds registers, sets the interrupt and
//!            the bus master
//!   core     maps a domain's frames in the container's I/O page table
//!   domain   registers (window) and an eventfd
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`PciBus`] | the kernel's files of PCI devices |
//! | `registers` | kinds of devices, and the locations of their registers |
//! | [`Function`] | an open device |
//! | `calls` | VFIO's system calls |

mod bus;
mod calls;
mod function;
mod registers;

pub use bus::{PciBus, PciError};
pub use function::Function;
