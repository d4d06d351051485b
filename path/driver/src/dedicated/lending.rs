//! Lends the guest's posted buffers to a device or the kernel, and returns them to the guest.

use nic::BufferId;
use vif::grants::GrantMechanism;
use vif::netback::{DeviceBuffer, Netback, Returned};

/// Number of requests that remain in the guest's ring for copied frames, if the guest's pool is
/// large enough.
const REQUESTS_FOR_COPIES: usize = 64;
/// Minimum number of buffers lent at a time while other buffers are lent.
const BATCH_MIN: usize = 16;
/// Polling interval while a queue waits for the device, or for buffers of the guest. The guest
/// sends no notifications of new buffers.
pub(super) const RETRY_INTERVAL_NS: u64 = 100_000;
/// Reason why a guest's buffers cannot be lent.
pub(super) const UNSUITABLE: &str = "the frontend requires its buffers back in posting order, or \
                                     supports no offsets; the guest uses the shared queue";

/// The lending of one guest's buffers.
#[derive(Debug)]
pub(super) struct Lending {
    /// Maximum number of lent buffers.
    max_lent: usize,
    /// Number of requests that remain in the guest's ring.
    reserved: usize,
    // Scratch lists of a turn; empty between turns.
    buffers: Vec<DeviceBuffer>,
    failed: Vec<BufferId>,
}

impl Lending {
    /// Creates the lending of a guest with a pool of `buffers` buffers.
    pub(super) fn new(buffers: usize) -> Self {
        Self {
            max_lent: buffers - buffers / 4,
            reserved: REQUESTS_FOR_COPIES.min(buffers / 4),
            buffers: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Passes up to `room` posted buffers to `post`, and returns the buffers that `post` rejects to
    /// the guest. `outstanding` buffers are lent already. Returns whether it passed any buffer.
    pub(super) fn lend<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        (outstanding, room): (usize, usize),
        mut post: impl FnMut(DeviceBuffer) -> bool,
    ) -> bool {
        let room = self.max_lent.saturating_sub(outstanding).min(room);
        if room < BATCH_MIN && outstanding > 0 {
            return false;
        }
        netback.post_to_device(room, self.reserved, &mut self.buffers);
        let has_buffers = !self.buffers.is_empty();
        for buffer in self.buffers.drain(..) {
            let id = buffer.id;
            if !post(buffer) {
                netback.return_buffer(id, Returned::Failed);
            }
        }
        has_buffers
    }

    /// Receives frames by a call of `receive`, which lists the buffers that the device has returned
    /// without a frame. Returns these buffers to the guest, and returns the result of `receive`.
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
