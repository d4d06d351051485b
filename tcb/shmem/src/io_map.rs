//! Memory that a device may access through an IOMMU (linux/vfio.h, type 1): a part of a region is
//! mapped in the I/O page table of a VFIO container. The process that opens the container and the
//! device does not need the memory.

use crate::Span;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const VFIO_IOMMU_MAP_DMA: libc::c_ulong = 0x3b71;
const VFIO_IOMMU_UNMAP_DMA: libc::c_ulong = 0x3b72;
/// The device may read and write.
const READ_WRITE: u32 = 3;

/// `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
struct MapRequest {
    size: u32,
    flags: u32,
    address: u64,
    io_address: u64,
    bytes: u64,
}

/// `struct vfio_iommu_type1_dma_unmap`.
#[repr(C)]
struct UnmapRequest {
    size: u32,
    flags: u32,
    io_address: u64,
    bytes: u64,
}

/// A mapping. Dropping it unmaps the memory; the device's later accesses fault.
#[derive(Debug)]
pub struct IoMapping {
    container: OwnedFd,
    io_address: u64,
    bytes: u64,
}

impl IoMapping {
    /// Maps `memory`, for reading and writing, at `io_address`. The memory must consist of whole
    /// pages, and the address must be a multiple of the page size.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a container with an IOMMU, the I/O addresses are
    /// already mapped or do not exist, or too much memory is locked.
    pub fn new(container: OwnedFd, memory: Span, io_address: u64) -> io::Result<Self> {
        let bytes = memory.len() as u64;
        let request = MapRequest {
            size: size_of::<MapRequest>() as u32,
            flags: READ_WRITE,
            address: memory.addr() as u64,
            io_address,
            bytes,
        };
        // SAFETY: the call reads this struct. The memory is reserved for packets and never contains
        // a Rust object. The kernel keeps it until it is unmapped from the I/O page table, even if
        // this process unmaps it.
        let done = unsafe {
            libc::ioctl(
                container.as_raw_fd(),
                VFIO_IOMMU_MAP_DMA,
                &raw const request,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            container,
            io_address,
            bytes,
        })
    }
}

impl Drop for IoMapping {
    fn drop(&mut self) {
        let mut request = UnmapRequest {
            size: size_of::<UnmapRequest>() as u32,
            flags: 0,
            io_address: self.io_address,
            bytes: self.bytes,
        };
        // Fails only if the container has lost its IOMMU, and its mappings with it.
        // SAFETY: the call reads and writes this struct.
        let _ = unsafe {
            libc::ioctl(
                self.container.as_raw_fd(),
                VFIO_IOMMU_UNMAP_DMA,
                &raw mut request,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Area;

    #[test]
    fn only_a_container_maps_memory() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let memory = Area::anonymous(abi::PAGE).unwrap().span();
        let error = IoMapping::new(file.into(), memory, abi::pci::IO_BASE).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
