//! The guest's posted buffers on their way to a device or the kernel, and back.

use nic::BufferId;
use vif::grants::GrantMechanism;
use vif::netback::{DeviceBuffer, Netback, Returned};

/// Requests that stay in the guest's ring for copied frames, if its pool is large enough.
const LEFT: usize = 64;
/// Minimum number of buffers lent at a time, unless none is lent.
const BATCH: usize = 16;
/// Polling interval while a queue waits for the guest, which does not notify of new buffers, or for
/// the device.
pub(super) const RETRY_NS: u64 = 100_000;
/// Why a guest's buffers cannot be lent.
pub(super) const UNSUITABLE: &str = "the frontend requires its buffers back in posting order, or \
                                     supports no offsets; the guest uses the shared queue";

/// Lends the buffers of one guest.
#[derive(Debug)]
pub(super) struct Lending {
    /// Maximum number of lent buffers.
    most: usize,
    /// Requests that stay in the guest's ring.
    left: usize,
    // Scratch lists of a turn; empty between turns.
    buffers: Vec<DeviceBuffer>,
    failed: Vec<BufferId>,
}

impl Lending {
    /// Lends from a pool of this many buffers.
    pub(super) fn new(buffers: usize) -> Self {
        Self {
            most: buffers - buffers / 4,
            left: LEFT.min(buffers / 4),
            buffers: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Passes posted buffers to `post`, up to `room` of them, and returns those that it rejects to
    /// the guest. `outstanding` buffers are lent already. Returns whether there were any.
    pub(super) fn lend<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        (outstanding, room): (usize, usize),
        mut post: impl FnMut(DeviceBuffer) -> bool,
    ) -> bool {
        let room = self.most.saturating_sub(outstanding).min(room);
        if room < BATCH && outstanding > 0 {
            return false;
        }
        netback.post_to_device(room, self.left, &mut self.buffers);
        let some = !self.buffers.is_empty();
        for buffer in self.buffers.drain(..) {
            let id = buffer.id;
            if !post(buffer) {
                netback.return_buffer(id, Returned::Failed);
            }
        }
        some
    }

    /// Receives frames by `receive`, and returns the buffers that it lists to the guest: those
    /// without a frame. Returns what it returns.
    pub(super) fn receive<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        receive: impl FnOnce(&mut Vec<BufferId>) -> usize,
    ) -> usize {
        let taken = receive(&mut self.failed);
        for id in self.failed.drain(..) {
            netback.return_buffer(id, Returned::Failed);
        }
        taken
    }
}
