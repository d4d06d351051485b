//! Page frames that a device has pinned: the kernel or hardware can write to them whatever the page
//! tables say. Before the owner regains sole access to such a frame, the monitor exchanges it for
//! another one.
//!
//! A dead domain's frames cannot be freed while another domain's device has them pinned. That
//! device must end within [`PATIENCE_NS`]; otherwise its user is killed.

use abi::DomId;
use shmem::lock;
use std::sync::Mutex;

/// How long a device may outlive the owner of the frames that it has pinned.
pub const PATIENCE_NS: u64 = 5_000_000_000;

/// Page frames of another domain that a device has pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The domain that owns the frames.
    pub of: DomId,
    /// The first frame.
    pub first: u32,
    /// The number of frames.
    pub frames: u32,
}

#[derive(Debug)]
struct PinningDevice {
    user: DomId,
    number: u64,
    pin: Pin,
    /// Frames that were exchanged since; their pinned pages belong to no domain.
    exchanged: Vec<bool>,
    /// The deadline for the device's end, set once the frames' owner is dead.
    due_ns: Option<u64>,
}

/// All devices that have frames pinned.
#[derive(Debug, Default)]
pub struct Pins(Mutex<Vec<PinningDevice>>);

impl Pins {
    /// Records that device `number` of `user` has frames of another domain pinned.
    pub fn insert(&self, user: DomId, number: u64, pin: Pin) {
        lock(&self.0).push(PinningDevice {
            user,
            number,
            pin,
            exchanged: vec![false; pin.frames as usize],
            due_ns: None,
        });
    }

    /// Removes a device that has ended.
    pub fn remove(&self, user: DomId, number: u64) {
        lock(&self.0).retain(|device| (device.user, device.number) != (user, number));
    }

    /// Removes all devices of a domain that has ended.
    pub fn forget(&self, user: DomId) {
        lock(&self.0).retain(|device| device.user != user);
    }

    /// Returns whether a frame must be exchanged before its owner regains sole access, and records
    /// the exchange.
    pub fn release(&self, of: DomId, frame: u32) -> bool {
        let mut pinned = false;
        for device in lock(&self.0)
            .iter_mut()
            .filter(|device| device.pin.of == of)
        {
            let at = frame.checked_sub(device.pin.first);
            let place = at.and_then(|at| device.exchanged.get_mut(at as usize));
            pinned |= place.is_some_and(|exchanged| !std::mem::replace(exchanged, true));
        }
        pinned
    }

    /// Returns whether a device of the domain has pinned frames, or some of the domain's frames are
    /// pinned.
    #[must_use]
    pub fn names(&self, id: DomId) -> bool {
        let all = lock(&self.0);
        all.iter()
            .any(|device| device.user == id || device.pin.of == id)
    }

    /// Returns the living domains whose devices have outlived the owner of the pinned frames for
    /// too long, and when to check again.
    pub fn overdue(
        &self,
        is_over: impl Fn(DomId) -> bool,
        now_ns: u64,
    ) -> (Vec<DomId>, Option<u64>) {
        let (mut late, mut next) = (Vec::new(), None);
        let kept = |device: &&mut PinningDevice| is_over(device.pin.of) && !is_over(device.user);
        for device in lock(&self.0).iter_mut().filter(kept) {
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
