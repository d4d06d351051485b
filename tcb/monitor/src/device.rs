//! Devices: descriptors that a domain may attach, what a device can be told beside, and pages of
//! its own that the domain sees.
//!
//! To the monitor all are opaque: it knows whose device it is, passes two words on, has the
//! pages mapped, and exchanges what a device has pinned before it is its owner's alone again.

use crate::pins::Pin;
use abi::DomId;
use rustix::event::epoll;
use rustix::io::Errno;
pub use sandbox::DeviceMap;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a device does when its domain tells it something.
pub trait DeviceControl: Debug + Send + Sync {
    /// Carries out what the domain's words ask for. They may be anything, and this must not block,
    /// but for a grace period of the kernel's: what the domain may not have is refused here.
    ///
    /// # Errors
    /// What the domain is told.
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno>;

    /// Its domain has done with the device for good: when this returns nothing comes by it any
    /// more. May take as long as a grace period of the kernel's; only the domain itself waits.
    fn end(&self) {}
}

/// One device of a domain.
#[derive(Debug)]
pub struct Device {
    /// What the domain gets when it attaches the device.
    pub fd: OwnedFd,
    /// What it can be told, if anything.
    pub control: Option<Arc<dyn DeviceControl>>,
    /// What of its memory lies in the domain's window, from before the domain's first hypercall is
    /// answered. These slots are no grant's until the device ends.
    pub pages: Vec<DeviceMap>,
    /// What it has pinned of another domain's memory, if anything.
    pub pin: Option<Pin>,
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd,
            control: None,
            pages: Vec::new(),
            pin: None,
        }
    }
}

/// A device that is to be seen where its domain's window has no free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {0} has no place in the window")]
pub struct NoRoom(pub u64);

/// The slots of each part of a device; none: they end behind the last number.
#[must_use]
pub fn slots(pages: &[DeviceMap]) -> Option<Vec<Range<u32>>> {
    let range = |part: &DeviceMap| Some(part.slot.0..part.slot.0.checked_add(part.pages)?);
    pages.iter().map(range).collect()
}

/// A device of a domain's, under a number that is never another one's.
#[derive(Debug)]
struct Owned {
    device: Arc<Device>,
    /// The domain's epoll set.
    epoll: Arc<OwnedFd>,
    /// The domain has got its descriptor.
    is_given: bool,
    /// Its descriptor is being handed out by the main thread, or its domain has done with it: the
    /// other does not happen meanwhile.
    is_taken: bool,
}

/// Every domain's devices, by number.
#[derive(Debug, Default)]
pub struct Devices(Mutex<BTreeMap<(DomId, u64), Owned>>);

impl Devices {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(DomId, u64), Owned>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A domain has a device now, which is waited for by its epoll set once it is handed out.
    pub fn insert(&self, domain: DomId, number: u64, device: Device, epoll: &Arc<OwnedFd>) {
        let owned = Owned {
            device: Arc::new(device),
            epoll: Arc::clone(epoll),
            is_given: false,
            is_taken: false,
        };
        self.lock().insert((domain, number), owned);
    }

    /// Every device of a domain's.
    #[must_use]
    pub fn of(&self, domain: DomId) -> Vec<Arc<Device>> {
        let all = self.lock();
        let own = all.range((domain, 0)..=(domain, u64::MAX));
        own.map(|(_, owned)| Arc::clone(&owned.device)).collect()
    }

    /// Puts the descriptor of a device into its domain's table, which `give` does, and the device
    /// into the domain's epoll set: once, and one at a time. It does not end meanwhile.
    ///
    /// # Errors
    /// ENOENT: there is no such device, or its domain has done with it. EEXIST: the domain has got
    /// it. Otherwise `give`'s, or the kernel has no room in the set.
    pub fn hand_out(
        &self,
        domain: DomId,
        number: u64,
        give: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (device, epoll) = {
            let mut all = self.lock();
            let owned = all.get_mut(&(domain, number));
            let owned = owned.filter(|owned| !owned.is_taken).ok_or(Errno::NOENT)?;
            if owned.is_given {
                return Err(Errno::EXIST);
            }
            owned.is_taken = true;
            (Arc::clone(&owned.device), Arc::clone(&owned.epoll))
        };
        let data = epoll::EventData::new_u64(number);
        let given = match epoll::add(&epoll, &device.fd, data, epoll::EventFlags::IN) {
            // A file is always ready, so it cannot be waited for; and a call whose answer
            // failed may have come this far before.
            Ok(()) | Err(Errno::PERM | Errno::EXIST) => give(device.fd.as_fd()),
            Err(errno) => Err(errno),
        };
        if let Some(owned) = self.lock().get_mut(&(domain, number)) {
            (owned.is_taken, owned.is_given) = (false, given.is_ok());
        }
        given
    }

    /// Marks a device as given up by its domain. Its descriptor is not handed out any more.
    ///
    /// # Errors
    /// ENOENT: the domain has no such device. EBUSY: the domain has its descriptor, or is about to
    /// get it.
    pub fn begin_end(
        &self,
        domain: DomId,
        number: u64,
        is_there: impl FnOnce() -> bool,
    ) -> Result<Arc<Device>, Errno> {
        // The look and the mark are one step: a hand-out is seen by one of them.
        let mut all = self.lock();
        let owned = all.get_mut(&(domain, number)).ok_or(Errno::NOENT)?;
        if owned.is_taken || is_there() {
            return Err(Errno::BUSY);
        }
        owned.is_taken = true;
        Ok(Arc::clone(&owned.device))
    }

    /// A device is no more: it is closed, and its domain's epoll set knows it no longer.
    pub fn remove(&self, domain: DomId, number: u64) {
        let gone = self.lock().remove(&(domain, number));
        if let Some(Owned { device, epoll, .. }) = gone {
            // As long as anybody has a descriptor of the same file the set would tell of it.
            let _ = epoll::delete(&epoll, &device.fd);
        }
    }

    /// A domain's process is gone: nothing comes by its devices any more when this returns.
    pub fn end_all(&self, domain: DomId) {
        let all = self.of(domain).into_iter();
        let told = all.filter_map(|device| device.control.clone());
        told.for_each(|control| control.end());
    }

    /// A domain is no more.
    pub fn forget(&self, domain: DomId) {
        let gone: Vec<_> = self
            .lock()
            .extract_if((domain, 0)..=(domain, u64::MAX), |_, _| true)
            .collect();
        // Outside the lock: to close a socket may take long.
        drop(gone);
    }

    /// Whether a domain has a device.
    #[must_use]
    pub fn names(&self, domain: DomId) -> bool {
        !self.of(domain).is_empty()
    }

    /// Tells a domain's device something.
    ///
    /// # Errors
    /// ENOENT: it has no such device, or one that can be told nothing; otherwise the device's.
    pub fn tell(&self, domain: DomId, number: u64, words: [u64; 2]) -> Result<u64, Errno> {
        let all = self.lock();
        let owned = all.get(&(domain, number));
        let control = owned.and_then(|owned| owned.device.control.clone());
        drop(all);
        control.ok_or(Errno::NOENT)?.control(words)
    }
}
