//! Devices: descriptors that a domain may attach, their control calls, and their pages in the
//! domain's window.
//!
//! Devices are opaque to the monitor. It records a device's domain, forwards the two words of a
//! control call, maps the device's pages, and exchanges frames that the device has pinned before
//! their owner regains sole access.

use crate::pins::Pin;
use abi::DomId;
use rustix::event::epoll;
use rustix::io::Errno;
pub use sandbox::DeviceMap;
use shmem::lock;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// The control interface of a device.
pub trait DeviceControl: Debug + Send + Sync {
    /// Executes a control call of the device's domain. The words may have any value; the
    /// implementation rejects requests that the domain may not make. It must not block, except for
    /// a grace period of the kernel.
    ///
    /// # Errors
    /// Returns the error that the domain receives.
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno>;

    /// Ends the device permanently: after this returns, the device delivers no data. This may take
    /// as long as a grace period of the kernel; only the domain itself waits.
    fn end(&self) {}
}

/// One device of a domain.
#[derive(Debug)]
pub struct DomainDevice {
    /// The descriptor that the domain receives when it attaches the device.
    pub fd: OwnedFd,
    /// Descriptor of the file that contains its pages, if it is not `fd`. The domain does not
    /// receive this descriptor.
    pub pages_fd: Option<OwnedFd>,
    /// Its control interface, if any.
    pub control: Option<Arc<dyn DeviceControl>>,
    /// Its pages in the domain's window. They are mapped before the domain's first hypercall is
    /// answered. No grant can use their slots until the device ends.
    pub pages: Vec<DeviceMap>,
    /// The frames of another domain that it has pinned, if any.
    pub pin: Option<Pin>,
}

impl From<OwnedFd> for DomainDevice {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd,
            pages_fd: None,
            control: None,
            pages: Vec::new(),
            pin: None,
        }
    }
}

/// Error: the device's pages do not fit into free slots of the window, or the domain has too many
/// devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {0} does not fit into the window")]
pub struct WindowFull(pub u64);

/// Returns the slots of each part of a device; `None` if a part exceeds the largest slot number.
#[must_use]
pub fn slots(pages: &[DeviceMap]) -> Option<Vec<Range<u32>>> {
    let range = |part: &DeviceMap| Some(part.slot.0..part.slot.0.checked_add(part.pages)?);
    pages.iter().map(range).collect()
}

/// A device of a domain. Its number is never reused.
#[derive(Debug)]
struct DeviceEntry {
    device: Arc<DomainDevice>,
    /// The domain's epoll set.
    epoll: Arc<OwnedFd>,
    /// Whether the domain has received its descriptor.
    is_handed_out: bool,
    /// Whether the main thread is handing out its descriptor, or its domain has ended it. Each of
    /// the two excludes the other.
    is_busy: bool,
}

/// Every domain's devices, by number.
#[derive(Debug, Default)]
pub struct Devices(Mutex<BTreeMap<(DomId, u64), DeviceEntry>>);

impl Devices {
    /// Adds a device. Its descriptor is added to the domain's epoll set when it is handed out.
    pub fn insert(&self, domain: DomId, number: u64, device: DomainDevice, epoll: &Arc<OwnedFd>) {
        let entry = DeviceEntry {
            device: Arc::new(device),
            epoll: Arc::clone(epoll),
            is_handed_out: false,
            is_busy: false,
        };
        lock(&self.0).insert((domain, number), entry);
    }

    /// Returns every device of a domain.
    #[must_use]
    pub fn of(&self, domain: DomId) -> Vec<Arc<DomainDevice>> {
        let all = lock(&self.0);
        let own = all.range((domain, 0)..=(domain, u64::MAX));
        own.map(|(_, entry)| Arc::clone(&entry.device)).collect()
    }

    /// Hands out a device's descriptor, at most once: `give` puts it into the domain's descriptor
    /// table, and the device is added to the domain's epoll set. The device cannot end meanwhile.
    ///
    /// # Errors
    /// Returns `ENOENT` if the device does not exist or its domain has ended it, `EEXIST` if the
    /// domain already has the descriptor, and otherwise the error of `give` or of the epoll set.
    pub fn pass_descriptor(
        &self,
        domain: DomId,
        number: u64,
        give: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (device, epoll) = {
            let mut all = lock(&self.0);
            let entry = all.get_mut(&(domain, number));
            let entry = entry.filter(|entry| !entry.is_busy).ok_or(Errno::NOENT)?;
            if entry.is_handed_out {
                return Err(Errno::EXIST);
            }
            entry.is_busy = true;
            (Arc::clone(&entry.device), Arc::clone(&entry.epoll))
        };
        let data = epoll::EventData::new_u64(number);
        let given = match epoll::add(&epoll, &device.fd, data, epoll::EventFlags::IN) {
            // epoll rejects regular files, which are always ready. An earlier call whose answer
            // failed may have added the device already.
            Ok(()) | Err(Errno::PERM | Errno::EXIST) => give(device.fd.as_fd()),
            Err(errno) => Err(errno),
        };
        if let Some(entry) = lock(&self.0).get_mut(&(domain, number)) {
            (entry.is_busy, entry.is_handed_out) = (false, given.is_ok());
        }
        given
    }

    /// Marks a device as ended by its domain. Its descriptor is no longer handed out.
    ///
    /// # Errors
    /// Returns `ENOENT` if the domain has no device with this number. Returns `EBUSY` if the domain
    /// has its descriptor, or is about to receive it.
    pub fn begin_end(
        &self,
        domain: DomId,
        number: u64,
        has_descriptor: impl FnOnce() -> bool,
    ) -> Result<Arc<DomainDevice>, Errno> {
        // The lock covers both the check and the mark. So either a concurrent hand-out finds the
        // device marked, or this call finds that the device is being handed out.
        let mut all = lock(&self.0);
        let entry = all.get_mut(&(domain, number)).ok_or(Errno::NOENT)?;
        if entry.is_busy || has_descriptor() {
            return Err(Errno::BUSY);
        }
        entry.is_busy = true;
        Ok(Arc::clone(&entry.device))
    }

    /// Removes a device: closes it, and removes it from its domain's epoll set.
    pub fn remove(&self, domain: DomId, number: u64) {
        let removed = lock(&self.0).remove(&(domain, number));
        if let Some(DeviceEntry { device, epoll, .. }) = removed {
            // Otherwise the set would report events while any descriptor of the same file is open.
            let _ = epoll::delete(&epoll, &device.fd);
        }
    }

    /// Ends the devices of a domain whose process has exited. After this returns, they deliver no
    /// data.
    pub fn end_all(&self, domain: DomId) {
        let all = self.of(domain).into_iter();
        let controls = all.filter_map(|device| device.control.clone());
        controls.for_each(|control| control.end());
    }

    /// Removes all devices of a domain that was torn down.
    pub fn forget(&self, domain: DomId) {
        let removed: Vec<_> = lock(&self.0)
            .extract_if((domain, 0)..=(domain, u64::MAX), |_, _| true)
            .collect();
        // Drop the devices outside the lock, since closing a socket may take a long time.
        drop(removed);
    }

    /// Returns whether a domain has a device.
    #[must_use]
    pub fn refers_to(&self, domain: DomId) -> bool {
        !self.of(domain).is_empty()
    }

    /// Passes a control call to a domain's device.
    ///
    /// # Errors
    /// Returns `ENOENT` if the domain has no device with this number, or the device has no control
    /// interface; otherwise the device's error.
    pub fn control(&self, domain: DomId, number: u64, words: [u64; 2]) -> Result<u64, Errno> {
        let all = lock(&self.0);
        let entry = all.get(&(domain, number));
        let control = entry.and_then(|entry| entry.device.control.clone());
        drop(all);
        control.ok_or(Errno::NOENT)?.control(words)
    }
}
