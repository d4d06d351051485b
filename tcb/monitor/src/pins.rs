//! Page frames that a device has pinned: the kernel, or hardware, writes to them whatever page
//! tables say. A frame that is to be its owner's alone again is exchanged for another one first.
//!
//! A device over another domain's frames ends before long once that domain is over, or its user is
//! killed: as long as it is there the frames cannot be given back.

use abi::DomId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A device whose owner is over has to end within this time.
pub const PATIENCE_NS: u64 = 5_000_000_000;

/// Page frames of another domain's that a device has pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Whose they are.
    pub of: DomId,
    /// The first one.
    pub first: u32,
    /// How many.
    pub frames: u32,
}

#[derive(Debug)]
struct PinningDevice {
    user: DomId,
    number: u64,
    pin: Pin,
    /// Frames that were exchanged since: what is pinned of these belongs to no domain.
    exchanged: Vec<bool>,
    /// When it is to have ended.
    due_ns: Option<u64>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Pins(Mutex<Vec<PinningDevice>>);

impl Pins {
    fn lock(&self) -> MutexGuard<'_, Vec<PinningDevice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Device `number` of `user` has frames of another domain pinned.
    pub fn insert(&self, user: DomId, number: u64, pin: Pin) {
        self.lock().push(PinningDevice {
            user,
            number,
            pin,
            exchanged: vec![false; pin.frames as usize],
            due_ns: None,
        });
    }

    /// A device is no more.
    pub fn remove(&self, user: DomId, number: u64) {
        self.lock()
            .retain(|device| (device.user, device.number) != (user, number));
    }

    /// A domain is no more: none of its devices is.
    pub fn forget(&self, user: DomId) {
        self.lock().retain(|device| device.user != user);
    }

    /// Whether a frame has to be exchanged before it is its owner's alone, which it is then.
    pub fn release(&self, of: DomId, frame: u32) -> bool {
        let mut pinned = false;
        for device in self.lock().iter_mut().filter(|device| device.pin.of == of) {
            let at = frame.checked_sub(device.pin.first);
            let place = at.and_then(|at| device.exchanged.get_mut(at as usize));
            pinned |= place.is_some_and(|exchanged| !std::mem::replace(exchanged, true));
        }
        pinned
    }

    /// Whether a domain's device has pinned something, or something of its own is pinned.
    #[must_use]
    pub fn names(&self, id: DomId) -> bool {
        let all = self.lock();
        all.iter()
            .any(|device| device.user == id || device.pin.of == id)
    }

    /// Domains that keep a device over frames of one that is over, for too long, and are not over
    /// themselves; and when to look for more.
    pub fn overdue(
        &self,
        is_over: impl Fn(DomId) -> bool,
        now_ns: u64,
    ) -> (Vec<DomId>, Option<u64>) {
        let (mut late, mut next) = (Vec::new(), None);
        let kept = |device: &&mut PinningDevice| is_over(device.pin.of) && !is_over(device.user);
        for device in self.lock().iter_mut().filter(kept) {
            let due = *device
                .due_ns
                .get_or_insert(now_ns.saturating_add(PATIENCE_NS));
            match now_ns >= due {
                true => late.push(device.user),
                false => next = next.into_iter().chain([due]).min(),
            }
        }
        (late, next)
    }
}
