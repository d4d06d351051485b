//! Devices: what yields and takes frames.
//!
//! One trait serves both ends of the path: the driver domain's NICs, and a guest's endpoints
//! (what stands behind its netfront).

use crate::buffer::{Buffers, Piece};
use crate::frame::Frame;
use crate::offload::Checksum;
use crate::vmq::Vmq;

/// What a device can do by itself. Its user does the rest in software, before [`Nic::tx`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Fills in [`crate::Checksum::Blank`] of frames it is given (and may yield such frames).
    pub checksum: bool,
    /// Takes frames with [`crate::Gso`] (and may yield such frames).
    pub tso: bool,
    /// Bytes of the largest frame without [`crate::Gso`], Ethernet header included, a VLAN tag
    /// ([`Frame::tag_bytes`]) not counted.
    pub max_frame: usize,
}

impl Caps {
    /// Whether a device with these takes `frame` as it is.
    #[must_use]
    pub fn takes(&self, frame: &Frame) -> bool {
        let blank = matches!(frame.offload.checksum, Checksum::Blank { .. });
        let fits = match frame.offload.gso {
            Some(_) => self.tso && !frame.fixed_id,
            None => frame.len() <= self.max_frame.saturating_add(frame.tag_bytes()),
        };
        fits && (self.checksum || !blank)
    }
}

/// What became of the frames given to [`Nic::tx`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxReport {
    /// Frames that were sent.
    pub sent: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Frames dropped because the device had no room.
    pub full: u32,
    /// Frames dropped because their memory was not there any more.
    pub fault: u32,
    /// Frames dropped because the device refused them (too long, an offload it lacks, an error).
    pub refused: u32,
}

impl std::ops::AddAssign for TxReport {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.bytes += other.bytes;
        self.full += other.full;
        self.fault += other.fault;
        self.refused += other.refused;
    }
}

/// A device.
pub trait Nic {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Takes up to `budget` frames that have arrived, each in buffers of `buffers`, and appends
    /// them to `out` with their snapshots made; how many. Never blocks. `now_ns` is the monotonic
    /// clock.
    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize;

    /// Sends those of `frames` whose indexes are in `pick`, in order. The frames stay the
    /// caller's: nothing of them is referenced after the call. Never blocks.
    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport;

    /// When the device wants [`Nic::rx`] to be called although no descriptor will say so (a
    /// source, a token bucket, a simulated cable): monotonic nanoseconds; none: never.
    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let _ = now_ns;
        None
    }

    /// Whether the last [`Nic::rx`] ended because the supply had too few buffers: then it is
    /// useless to call it again before some have come back.
    fn starved(&self) -> bool {
        false
    }

    /// Why the device is of no use any more, if it is not: who has it had better end.
    fn failure(&self) -> Option<&'static str> {
        None
    }

    /// Gives back the buffers that the device keeps ready for its next frames, before the supply
    /// that they are from goes away.
    fn release(&mut self, buffers: &mut dyn Buffers) {
        let _ = buffers;
    }

    /// Counters of its own, by name, beyond what its user counts.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Its queues for single guests, if it has any. Then [`Nic::rx`] is its shared queue.
    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        None
    }

    /// The fast path in and out, if the device has one. Frames that pass there could also pass by
    /// [`Nic::rx`] and [`Nic::tx`].
    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        None
    }
}

/// A device with a fast path: of a frame it takes and yields nothing but its address.
pub trait SmallFrames {
    /// [`Nic::rx`] of such frames, one piece each.
    fn rx_small_frames(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Piece>,
    ) -> usize;

    /// [`Nic::tx`] of such frames, one piece each.
    fn tx_small_frames(&mut self, now_ns: u64, frames: &[Piece]) -> TxReport;
}

impl<N: Nic + ?Sized> Nic for Box<N> {
    fn caps(&self) -> Caps {
        (**self).caps()
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        (**self).rx(now_ns, budget, buffers, out)
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        (**self).tx(now_ns, frames, pick)
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        (**self).next_due(now_ns)
    }

    fn starved(&self) -> bool {
        (**self).starved()
    }

    fn failure(&self) -> Option<&'static str> {
        (**self).failure()
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        (**self).release(buffers);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        (**self).counters()
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        (**self).vmq()
    }

    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        (**self).small_frames()
    }
}
