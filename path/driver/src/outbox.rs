//! Frames on their way to one port: what the port cannot do by itself is done here.

use net::packet::checksum::{FinishError, finish};
use net::packet::segment::{SegmentError, segment};
use nic::{Caps, Frame};
use vif::netif::transport;

/// Frames made by software that are handed over at once: what one packet of a guest may become is
/// bounded, what a whole batch may is not to be kept.
const AT_ONCE: usize = 512;

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

impl Unfit {
    /// Name, meaning and count of each reason, for a frame's trace.
    #[must_use]
    pub fn reasons(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            (
                "too_long",
                "Longer than the port takes, and nothing says how to cut it.",
                self.too_long,
            ),
            (
                "bad_offload",
                "Its header contradicts the offload that it asks for.",
                self.bad_offload,
            ),
            ("fault", "Its memory is not there any more.", self.fault),
        ]
    }
}

/// What a port takes as it is.
#[derive(Clone, Copy, Debug)]
pub struct Takes {
    /// What it does by itself.
    pub caps: Caps,
    /// Whether its other end looks for a blank checksum behind the outer IP header, as a netfront
    /// does, instead of where the frame says that it is.
    pub finds_checksum: bool,
}

impl Takes {
    /// What the netfront of a guest takes whose netback has these capabilities.
    #[must_use]
    pub const fn of_guest(caps: Caps) -> Self {
        Self {
            caps,
            finds_checksum: true,
        }
    }

    /// Whether the port takes the frame unchanged.
    #[must_use]
    pub fn takes(&self, frame: &Frame) -> bool {
        self.caps.takes(frame) && (!self.finds_checksum || transport::is_placed(frame))
    }
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

impl Outbox {
    /// Hands those of `frames` that are in `pick` to `send`, in order: in one call, unless
    /// software cuts them into very many.
    pub fn deliver(
        &mut self,
        frames: &[Frame],
        pick: &[u32],
        takes: Takes,
        mut send: impl FnMut(&[Frame], &[u32]),
    ) {
        let chosen = || pick.iter().filter_map(|&index| frames.get(index as usize));
        if chosen().all(|frame| takes.takes(frame)) {
            send(frames, pick);
            return;
        }
        self.fit.clear();
        for frame in chosen() {
            self.make_fit(frame, takes);
            if self.fit.len() >= AT_ONCE {
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

    fn make_fit(&mut self, frame: &Frame, takes: Takes) {
        let caps = takes.caps;
        if takes.takes(frame) {
            self.fit.push(frame.clone());
        } else if frame.offload.gso.is_some() {
            // Also where only the checksum is the port's trouble: each segment has its own.
            self.segment(frame, caps);
        } else if frame.len() > caps.max_frame.saturating_add(frame.tag_bytes()) {
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

#[cfg(test)]
mod tests;
