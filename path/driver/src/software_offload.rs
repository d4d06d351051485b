//! Software offloads for an egress port: segmentation and checksums that the port lacks.

use abi::counts::Counts;
use net::packet::checksum::{FinishError, finish};
use net::packet::segment::{SegmentError, segment};
use nic::{Caps, Frame};
use vif::netif::transport;

/// Number of adapted frames at which the driver sends them, before it segments the rest of the
/// batch. It bounds the memory for segments: the segments of a whole batch would be too many.
const FLUSH_FRAMES: usize = 512;

abi::named_enum! {
    /// Reason why a frame is not sent. The driver first adapts a frame that the port cannot send
    /// unchanged, so the cause of each of these drops is the frame, not the port.
    pub enum TxError: u8 {
        /// The frame, or a segment of it, is longer than the port accepts.
        TooLong = "outbox.too_long",
        /// The header contradicts the requested offload.
        BadOffload = "outbox.bad_offload",
        /// Its memory is no longer accessible.
        Fault = "outbox.fault",
    }
}

/// Frames that a port accepts unchanged.
#[derive(Clone, Copy, Debug)]
pub struct PortOffloads {
    /// Capabilities of the port.
    pub caps: Caps,
    /// Whether the receiver ignores the checksum offset in the metadata, and locates a blank
    /// checksum by parsing the headers, as a netfront does.
    pub finds_checksum: bool,
}

impl PortOffloads {
    /// Returns the frames that a netfront accepts, from the capabilities of its port.
    #[must_use]
    pub const fn of_guest(caps: Caps) -> Self {
        Self {
            caps,
            finds_checksum: true,
        }
    }

    /// Returns whether the port accepts the frame unchanged.
    #[must_use]
    pub fn takes(&self, frame: &Frame) -> bool {
        self.caps.takes(frame) && (!self.finds_checksum || transport::has_standard_checksum(frame))
    }
}

/// Adapts frames to ports.
#[derive(Debug, Default)]
pub struct SoftwareOffloads {
    /// Frames for the current port in order, including segments made by software.
    fit: Vec<Frame>,
    pick: Vec<u32>,
    segments: Vec<Frame>,
    /// Number of dropped frames by reason.
    pub tx_errors: Counts<TxError, { TxError::COUNT }>,
    /// Number of segments made by software.
    pub segmented: u64,
    /// Number of checksums computed by software.
    pub checksummed: u64,
}

impl SoftwareOffloads {
    /// Adapts the frames of `frames` whose indices are in `pick` to the port, and passes them to
    /// `send` in order. Calls `send` once, unless segmentation produces more than `FLUSH_FRAMES`
    /// frames.
    pub fn deliver(
        &mut self,
        frames: &[Frame],
        pick: &[u32],
        takes: PortOffloads,
        mut send: impl FnMut(&[Frame], &[u32]),
    ) {
        let chosen = || pick.iter().filter_map(|&index| frames.get(index as usize));
        if chosen().all(|frame| takes.takes(frame)) {
            send(frames, pick);
            return;
        }
        self.fit.clear();
        for frame in chosen() {
            self.adapt(frame, takes);
            if self.fit.len() >= FLUSH_FRAMES {
                self.flush(&mut send);
            }
        }
        self.flush(&mut send);
    }

    fn flush(&mut self, send: &mut impl FnMut(&[Frame], &[u32])) {
        if self.fit.is_empty() {
            return;
        }
        self.pick.clear();
        self.pick.extend(0..self.fit.len() as u32);
        send(&self.fit, &self.pick);
        self.fit.clear();
    }

    fn adapt(&mut self, frame: &Frame, takes: PortOffloads) {
        let caps = takes.caps;
        if takes.takes(frame) {
            self.fit.push(frame.clone());
        } else if frame.offload.gso.is_some() {
            // If the port lacks only checksums, the frame is still segmented, because each segment
            // has a separate checksum.
            self.segment(frame, caps);
        } else if caps.is_too_long(frame) {
            self.tx_errors.count(TxError::TooLong);
        } else {
            self.fill_in(frame.clone());
        }
    }

    fn segment(&mut self, frame: &Frame, caps: Caps) {
        self.segments.clear();
        match segment(frame, caps, &mut self.segments) {
            Ok(()) => {
                self.segmented += self.segments.len() as u64;
                self.fit.append(&mut self.segments);
            }
            Err(SegmentError::Fault) => self.tx_errors.count(TxError::Fault),
            Err(SegmentError::TooLong) => self.tx_errors.count(TxError::TooLong),
            Err(_) => self.tx_errors.count(TxError::BadOffload),
        }
    }

    fn fill_in(&mut self, mut frame: Frame) {
        match finish(&mut frame) {
            Ok(()) => {
                self.checksummed += 1;
                self.fit.push(frame);
            }
            Err(FinishError::Fault(_)) => self.tx_errors.count(TxError::Fault),
            Err(_) => self.tx_errors.count(TxError::BadOffload),
        }
    }
}

#[cfg(test)]
mod tests;
