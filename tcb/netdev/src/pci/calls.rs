//! VFIO's system calls (linux/vfio.h).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const SET_IOMMU: libc::c_ulong = 0x3b66;
const GROUP_GET_STATUS: libc::c_ulong = 0x3b67;
const GROUP_SET_CONTAINER: libc::c_ulong = 0x3b68;
const GROUP_GET_DEVICE_FD: libc::c_ulong = 0x3b6a;
const DEVICE_GET_INFO: libc::c_ulong = 0x3b6b;
const DEVICE_GET_REGION_INFO: libc::c_ulong = 0x3b6c;
const DEVICE_SET_IRQS: libc::c_ulong = 0x3b6e;
const DEVICE_RESET: libc::c_ulong = 0x3b6f;

/// VFIO_TYPE1v2_IOMMU: a mapping can be removed only as a whole.
const TYPE1_V2: libc::c_ulong = 3;
/// VFIO_GROUP_FLAGS_VIABLE.
const VIABLE: u32 = 1;
/// VFIO_DEVICE_FLAGS_RESET.
const HAS_RESET: u32 = 1;
/// VFIO_REGION_INFO_FLAG_MMAP.
const HAS_MMAP: u32 = 4;
/// VFIO_IRQ_SET_DATA_EVENTFD and VFIO_IRQ_SET_ACTION_TRIGGER.
const BY_EVENTFD: u32 = 1 << 2 | 1 << 5;
/// VFIO_IRQ_SET_DATA_NONE and VFIO_IRQ_SET_ACTION_TRIGGER, which disables all vectors.
const NONE: u32 = 1 << 0 | 1 << 5;
/// VFIO_PCI_MSIX_IRQ_INDEX.
const MSIX: u32 = 2;
/// VFIO_PCI_CONFIG_REGION_INDEX.
pub(super) const CONFIG_SPACE: u32 = 7;

/// `struct vfio_group_status`.
#[repr(C)]
struct GroupStatus {
    size: u32,
    flags: u32,
}

/// The first fields of `struct vfio_device_info`.
#[repr(C)]
struct DeviceInfo {
    size: u32,
    flags: u32,
    regions: u32,
    interrupts: u32,
}

/// `struct vfio_region_info`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RegionInfo {
    size: u32,
    flags: u32,
    index: u32,
    capabilities: u32,
    /// Size of the region in bytes.
    pub(super) bytes: u64,
    /// Offset of the region in the device's descriptor.
    pub(super) offset: u64,
}

impl RegionInfo {
    /// Returns whether the region can be mapped.
    pub(super) fn has_mmap(&self) -> bool {
        self.flags & HAS_MMAP != 0
    }
}

/// `struct vfio_irq_set` with at most one descriptor.
#[repr(C)]
struct InterruptRequest {
    size: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    descriptor: i32,
}

/// Returns whether no device of the group is in use.
pub(super) fn is_viable(group: &OwnedFd) -> io::Result<bool> {
    let mut status = GroupStatus {
        size: size_of::<GroupStatus>() as u32,
        flags: 0,
    };
    // SAFETY: the call writes one such struct, whose size it receives.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_STATUS, &raw mut status) })?;
    Ok(status.flags & VIABLE != 0)
}

/// Adds a group to a container, and an I/O page table to the container.
pub(super) fn join(group: &OwnedFd, container: &OwnedFd) -> io::Result<()> {
    let number: libc::c_int = container.as_raw_fd();
    // SAFETY: the call reads one int.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const number) })?;
    // SAFETY: the call takes its argument by value.
    check(unsafe { libc::ioctl(container.as_raw_fd(), SET_IOMMU, TYPE1_V2) }).map(drop)
}

/// Opens a device of a group.
pub(super) fn open_device(group: &OwnedFd, address: &str) -> io::Result<OwnedFd> {
    let name = CString::new(address)?;
    // SAFETY: the call reads a string that ends with a zero.
    let fd = check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the call has returned a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns whether a device can be reset.
pub(super) fn has_reset(device: &OwnedFd) -> io::Result<bool> {
    let mut info = DeviceInfo {
        size: size_of::<DeviceInfo>() as u32,
        flags: 0,
        regions: 0,
        interrupts: 0,
    };
    // SAFETY: the call writes one such struct, whose size it receives.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_GET_INFO, &raw mut info) })?;
    Ok(info.flags & HAS_RESET != 0)
}

/// Returns a region of a device: a BAR by its number, or [`CONFIG_SPACE`].
pub(super) fn region(device: &OwnedFd, index: u32) -> io::Result<RegionInfo> {
    let mut info = RegionInfo {
        size: size_of::<RegionInfo>() as u32,
        flags: 0,
        index,
        capabilities: 0,
        bytes: 0,
        offset: 0,
    };
    // SAFETY: the call writes one such struct, whose size it receives.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_GET_REGION_INFO, &raw mut info) })?;
    Ok(info)
}

/// Makes the first MSI-X vector signal an eventfd, or with `None`, disables all vectors.
pub(super) fn set_interrupt(device: &OwnedFd, eventfd: Option<&OwnedFd>) -> io::Result<()> {
    let request = InterruptRequest {
        size: match eventfd {
            Some(_) => size_of::<InterruptRequest>(),
            None => size_of::<InterruptRequest>() - size_of::<i32>(),
        } as u32,
        flags: if eventfd.is_some() { BY_EVENTFD } else { NONE },
        index: MSIX,
        start: 0,
        count: eventfd.is_some().into(),
        descriptor: eventfd.map_or(-1, AsRawFd::as_raw_fd),
    };
    // SAFETY: the call reads `size` bytes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, &raw const request) }).map(drop)
}

/// Resets a device.
pub(super) fn reset(device: &OwnedFd) -> io::Result<()> {
    // SAFETY: the call has no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_RESET) }).map(drop)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
