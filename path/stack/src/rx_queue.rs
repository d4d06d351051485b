//! Queues received frames for the stack.

use crate::tcp;
use nic::{Checksum, Frame, TxReport};
use std::collections::VecDeque;

/// Maximum number of frames that wait for the stack.
const WAITING_FRAMES: usize = 1024;
/// Maximum total length of waiting frames in bytes.
const WAITING_BYTES: usize = 4 << 20;

/// Received frames in private memory that wait for the stack.
#[derive(Debug, Default)]
pub(crate) struct RxQueue {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    bad_checksum: u64,
}

impl RxQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Copies a frame out of memory that a peer can write, and checks its TCP checksum. It skips
    /// the check if the frame was never on a wire, or the checksum was already verified.
    pub(crate) fn add(&mut self, frame: &Frame, report: &mut TxReport) {
        if self.waiting.len() >= WAITING_FRAMES || self.bytes >= WAITING_BYTES {
            report.full += 1;
            return;
        }
        if frame.len() > crate::FRAME_MAX {
            report.refused += 1;
            return;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(frame.len(), 0);
        if frame.prefix(&mut bytes).is_err() {
            report.fault += 1;
            self.spare.push(bytes);
            return;
        }
        report.sent += 1;
        report.bytes += frame.len() as u64;
        if frame.offload.checksum == Checksum::Unknown && !tcp::checksum_is_right(&bytes) {
            self.bad_checksum += 1;
            self.spare.push(bytes);
            return;
        }
        self.bytes += bytes.len();
        self.waiting.push_back(bytes);
    }

    /// Removes and returns the oldest frame.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        let bytes = self.waiting.pop_front()?;
        self.bytes -= bytes.len();
        Some(bytes)
    }

    /// Reuses the memory of a frame.
    pub(crate) fn recycle(&mut self, bytes: Vec<u8>) {
        self.spare.push(bytes);
    }

    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("stack_bad_checksum", self.bad_checksum)]
    }
}
