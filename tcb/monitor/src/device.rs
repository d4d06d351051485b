//! Devices: descriptors that a domain may attach, what a device can be told beside, and pages of
//! its own that the domain sees.
//!
//! To the monitor all are opaque: it knows whose device it is, passes two words on, and has the
//! pages mapped.

use abi::DomId;
use rustix::io::Errno;
pub use sandbox::DeviceMap;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// What a device does when its domain tells it something.
pub trait DeviceControl: Debug + Send + Sync {
    /// Carries out what the domain's words ask for. They may be anything, and this must not block:
    /// whatever the domain may not have is refused here.
    ///
    /// # Errors
    /// What the domain is told.
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno>;
}

/// One device of a domain.
#[derive(Debug)]
pub struct Device {
    /// What the domain gets when it attaches the device.
    pub fd: OwnedFd,
    /// What it can be told, if anything.
    pub control: Option<Arc<dyn DeviceControl>>,
    /// What of its memory lies in the domain's window, from before the domain's first hypercall is
    /// answered. No grant is ever mapped there, unless the domain itself asks for it.
    pub pages: Vec<DeviceMap>,
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd,
            control: None,
            pages: Vec::new(),
        }
    }
}

/// The controls of every domain's devices.
#[derive(Debug, Default)]
pub struct Controls(Mutex<BTreeMap<(DomId, u64), Arc<dyn DeviceControl>>>);

impl Controls {
    /// From now on device `number` of a domain can be told something.
    pub fn insert(&self, domain: DomId, number: u64, control: Arc<dyn DeviceControl>) {
        self.with(|all| all.insert((domain, number), control));
    }

    /// A domain is no more.
    pub fn forget(&self, domain: DomId) {
        self.with(|all| all.retain(|(of, _), _| *of != domain));
    }

    /// Tells a domain's device something.
    ///
    /// # Errors
    /// ENOENT: it has no such device, or one that can be told nothing; otherwise the device's.
    pub fn tell(&self, domain: DomId, number: u64, words: [u64; 2]) -> Result<u64, Errno> {
        let control = self.with(|all| all.get(&(domain, number)).cloned());
        control.ok_or(Errno::NOENT)?.control(words)
    }

    fn with<T>(
        &self,
        f: impl FnOnce(&mut BTreeMap<(DomId, u64), Arc<dyn DeviceControl>>) -> T,
    ) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
