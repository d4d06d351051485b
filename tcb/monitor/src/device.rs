//! Devices: descriptors that a domain may attach, what a device can be told beside, and pages of
//! its own that the domain sees.
//!
//! To the monitor all are opaque: it knows whose device it is, passes two words on, has the
//! pages mapped, and exchanges what a device has pinned before it is its owner's alone again.

use crate::pins::Pin;
use abi::DomId;
use rustix::io::Errno;
pub use sandbox::DeviceMap;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

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

/// The slots of each part of a device.
pub(crate) fn slots(pages: &[DeviceMap]) -> Vec<Range<u32>> {
    let range = |part: &DeviceMap| part.slot.0..part.slot.0.saturating_add(part.pages);
    pages.iter().map(range).collect()
}

/// A device that can be told something, and where it is seen.
#[derive(Clone, Debug)]
struct Told {
    control: Arc<dyn DeviceControl>,
    pages: Vec<DeviceMap>,
}

/// Why a device's descriptor cannot be handed out, or the device not ended, at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    /// It is being handed out: soon it is in its domain's table, or it is not.
    Out,
    /// Its domain has done with it.
    Ended,
}

/// The controls of every domain's devices.
#[derive(Debug, Default)]
pub struct Controls(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    told: BTreeMap<(DomId, u64), Told>,
    hands: BTreeMap<(DomId, u64), Hand>,
}

/// A device whose descriptor is being handed out, as long as this lives: it does not end meanwhile.
#[derive(Debug)]
pub struct HandOut<'a> {
    controls: &'a Controls,
    device: (DomId, u64),
}

impl Drop for HandOut<'_> {
    fn drop(&mut self) {
        self.controls.with(|all| all.hands.remove(&self.device));
    }
}

impl Controls {
    /// From now on device `number` of a domain, of which `pages` lie in the domain's window, can be
    /// told something.
    pub fn insert(
        &self,
        domain: DomId,
        number: u64,
        control: Arc<dyn DeviceControl>,
        pages: &[DeviceMap],
    ) {
        let pages = pages.to_vec();
        let told = Told { control, pages };
        self.with(|all| all.told.insert((domain, number), told));
    }

    /// The descriptor of a device is about to be put into its domain's table: one at a time.
    ///
    /// # Errors
    /// ENOENT: its domain has done with the device.
    pub fn hand_out(&self, domain: DomId, number: u64) -> Result<HandOut<'_>, Errno> {
        let device = (domain, number);
        self.with(|all| match all.hands.get(&device) {
            Some(Hand::Ended) => Err(Errno::NOENT),
            _ => {
                all.hands.insert(device, Hand::Out);
                Ok(())
            }
        })?;
        Ok(HandOut {
            controls: self,
            device,
        })
    }

    /// A domain has done with a device for good, which is there in its table or not: what there is
    /// to be ended, and where it sees that. From now on its descriptor is not handed out.
    ///
    /// # Errors
    /// ENOENT: it has no such device. EBUSY: its descriptor is there, or about to
    /// be.
    pub fn begin_end(
        &self,
        domain: DomId,
        number: u64,
        is_there: impl FnOnce() -> bool,
    ) -> Result<(Arc<dyn DeviceControl>, Vec<DeviceMap>), Errno> {
        let device = (domain, number);
        // The look and the mark are one step: a hand-out is seen by one of them.
        self.with(|all| {
            let told = all.told.get(&device).ok_or(Errno::NOENT)?;
            if all.hands.contains_key(&device) || is_there() {
                return Err(Errno::BUSY);
            }
            all.hands.insert(device, Hand::Ended);
            Ok((Arc::clone(&told.control), told.pages.clone()))
        })
    }

    /// A device is no more.
    pub fn remove(&self, domain: DomId, number: u64) {
        self.with(|all| all.told.remove(&(domain, number)));
    }

    /// A domain's process is gone: nothing comes by its devices any more when this returns.
    pub fn end_all(&self, domain: DomId) {
        let all: Vec<_> = self.with(|all| {
            let own = all.told.iter().filter(|((of, _), _)| *of == domain);
            own.map(|(_, told)| Arc::clone(&told.control)).collect()
        });
        for control in all {
            control.end();
        }
    }

    /// A domain is no more.
    pub fn forget(&self, domain: DomId) {
        let gone: Vec<_> = self.with(|all| {
            all.hands.retain(|(of, _), _| *of != domain);
            all.told
                .extract_if(.., |(of, _), _| *of == domain)
                .collect()
        });
        // Outside the lock: to close a socket may take long.
        drop(gone);
    }

    /// Whether a domain has a device that can be told something, or one that is being handed out.
    #[must_use]
    pub fn names(&self, domain: DomId) -> bool {
        self.with(|all| {
            let mut numbered = all.told.keys().chain(all.hands.keys());
            numbered.any(|(of, _)| *of == domain)
        })
    }

    /// Tells a domain's device something.
    ///
    /// # Errors
    /// ENOENT: it has no such device, or one that can be told nothing; otherwise the device's.
    pub fn tell(&self, domain: DomId, number: u64, words: [u64; 2]) -> Result<u64, Errno> {
        let told = self.with(|all| all.told.get(&(domain, number)).cloned());
        told.ok_or(Errno::NOENT)?.control.control(words)
    }

    fn with<T>(&self, f: impl FnOnce(&mut All) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
