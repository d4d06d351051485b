//! Frames on their way to one port: what the port cannot do by itself is done here.

use net::packet::checksum::{FinishError, finish};
use net::packet::segment::{SegmentError, segment};
use nic::{Caps, Checksum, Frame};

/// Why a frame could not be made fit for its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Unfit {
    /// It is longer than the port takes and says nothing about how to cut it.
    pub too_long: u64,
    /// It asks for a segmentation or checksum that its own header contradicts.
    pub bad_offload: u64,
    /// Its memory is gone.
    pub fault: u64,
}

/// Makes frames fit for ports.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Frames made by software, in order, with everything that goes to the same port.
    fit: Vec<Frame>,
    pick: Vec<u32>,
    segments: Vec<Frame>,
    /// Frames that were dropped.
    pub unfit: Unfit,
    /// Segments that software cut.
    pub segmented: u64,
    /// Checksums that software filled in.
    pub checksummed: u64,
}

/// Whether the port with `caps` takes `frame` as it is.
fn fits(frame: &Frame, caps: Caps) -> bool {
    let checksum = caps.checksum || !matches!(frame.offload.checksum, Checksum::Blank { .. });
    let length = match frame.offload.gso {
        Some(_) => caps.tso,
        None => frame.len() <= caps.max_frame + tag_bytes(frame),
    };
    checksum && length
}

/// Bytes of a VLAN tag, which do not count to a frame's length.
fn tag_bytes(frame: &Frame) -> usize {
    match frame.header().get(12..14) {
        Some([0x81, 0x00] | [0x88, 0xa8]) => 4,
        _ => 0,
    }
}

impl Outbox {
    /// Hands those of `frames` that are in `pick` to `send`, all in one call and in order.
    pub fn deliver(
        &mut self,
        frames: &[Frame],
        pick: &[u32],
        caps: Caps,
        send: impl FnOnce(&[Frame], &[u32]),
    ) {
        let chosen = || pick.iter().filter_map(|&index| frames.get(index as usize));
        if chosen().all(|frame| fits(frame, caps)) {
            send(frames, pick);
            return;
        }
        self.fit.clear();
        for frame in chosen() {
            self.make_fit(frame, caps);
        }
        self.pick.clear();
        self.pick.extend(0..self.fit.len() as u32);
        send(&self.fit, &self.pick);
        self.fit.clear();
    }

    fn make_fit(&mut self, frame: &Frame, caps: Caps) {
        if fits(frame, caps) {
            self.fit.push(frame.clone());
        } else if frame.offload.gso.is_some() && !caps.tso {
            self.segment(frame, caps);
        } else if frame.len() > caps.max_frame + tag_bytes(frame) && frame.offload.gso.is_none() {
            self.unfit.too_long += 1;
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
            Err(SegmentError::Fault) => self.unfit.fault += 1,
            Err(_) => self.unfit.bad_offload += 1,
        }
    }

    fn fill_in(&mut self, mut frame: Frame) {
        match finish(&mut frame) {
            Ok(()) => {
                self.checksummed += 1;
                self.fit.push(frame);
            }
            Err(FinishError::Fault(_)) => self.unfit.fault += 1,
            Err(_) => self.unfit.bad_offload += 1,
        }
    }
}
