//! Page frames that a device has pinned: the kernel or hardware can write to them whatever the page
//! tables say. Before the owner of a pinned frame regains sole access to it, the monitor exchanges
//! the frame for another one.
//!
//! A dead domain's frames cannot be freed while another domain's device has them pinned. That
//! device must end within [`UNPIN_TIMEOUT_NS`]; otherwise the monitor kills the domain that uses
//! it.

use abi::DomId;
use shmem::lock;
use std::sync::Mutex;

/// The maximum time for which a device may outlive the owner of the frames that it has pinned.
pub const UNPIN_TIMEOUT_NS: u64 = 5_000_000_000;

/// Page frames of another domain that a device has pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The domain that owns the frames.
    pub owner: DomId,
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
    /// Whether each frame was exchanged after the device had pinned it; the pinned page then
    /// belongs to no domain.
    exchanged: Vec<bool>,
    /// Deadline by which the device must end; set once the owner of the frames is dead.
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

    /// Removes a device that no longer exists.
    pub fn remove(&self, user: DomId, number: u64) {
        lock(&self.0).retain(|device| (device.user, device.number) != (user, number));
    }

    /// Removes all devices of a dead domain.
    pub fn forget(&self, user: DomId) {
        lock(&self.0).retain(|device| device.user != user);
    }

    /// Returns whether a frame must be exchanged before its owner regains sole access, and records
    /// the exchange.
    pub fn release(&self, of: DomId, frame: u32) -> bool {
        let mut pinned = false;
        for device in lock(&self.0)
            .iter_mut()
            .filter(|device| device.pin.owner == of)
        {
            let at = frame.checked_sub(device.pin.first);
            let place = at.and_then(|at| device.exchanged.get_mut(at as usize));
            pinned |= place.is_some_and(|exchanged| !std::mem::replace(exchanged, true));
        }
        pinned
    }

    /// Returns whether a device of this domain has pinned frames, or a device has pinned frames of
    /// this domain.
    #[must_use]
    pub fn refers_to(&self, id: DomId) -> bool {
        let all = lock(&self.0);
        all.iter()
            .any(|device| device.user == id || device.pin.owner == id)
    }

    /// Returns the living domains whose devices have kept frames of a dead domain pinned beyond the
    /// deadline, and the time of the next check.
    pub fn overdue(
        &self,
        is_dead: impl Fn(DomId) -> bool,
        now_ns: u64,
    ) -> (Vec<DomId>, Option<u64>) {
        let (mut late, mut next) = (Vec::new(), None);
        let of_dead_owner =
            |device: &&mut PinningDevice| is_dead(device.pin.owner) && !is_dead(device.user);
        for device in lock(&self.0).iter_mut().filter(of_dead_owner) {
            let due = *device
                .due_ns
                .get_or_insert(now_ns.saturating_add(UNPIN_TIMEOUT_NS));
            match now_ns >= due {
                true => late.push(device.user),
                false => next = next.into_iter().chain([due]).min(),
            }
        }
        (late, next)
    }
}
