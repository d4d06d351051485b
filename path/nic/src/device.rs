//! Devices, which receive and send frames.
//!
//! One trait serves both ends of the path: the driver domain's NICs, and a guest's endpoints.

use crate::buffer::{Buffers, Piece};
use crate::dma::RemoteQueue;
use crate::frame::Frame;
use crate::offload::Checksum;
use crate::vmq::Vmq;

/// Offloads and limits of a device. The caller of [`Nic::tx`] first performs missing offloads in
/// software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Whether the device completes [`crate::Checksum::Blank`] in sent frames, and may return
    /// received frames with it.
    pub checksum: bool,
    /// Whether the device segments sent frames with [`crate::Gso`], and may return received frames
    /// with it.
    pub tso: bool,
    /// Maximum packet length in bytes, including the Ethernet header but not a VLAN tag
    /// ([`Frame::tag_bytes`]). It limits each segment of a frame with [`crate::Gso`].
    pub max_frame: usize,
}

impl Caps {
    /// Returns whether a device with these capabilities can send `frame` unchanged.
    #[must_use]
    pub fn takes(&self, frame: &Frame) -> bool {
        let blank = matches!(frame.offload.checksum, Checksum::Blank { .. });
        let is_cut = match frame.offload.gso {
            Some(_) => self.tso && !frame.fixed_id,
            None => true,
        };
        is_cut && !self.is_too_long(frame) && (self.checksum || !blank)
    }

    /// Returns whether the frame, or one of its segments, exceeds the maximum length.
    #[must_use]
    #[inline]
    pub fn is_too_long(&self, frame: &Frame) -> bool {
        frame.longest_packet() > self.max_frame.saturating_add(frame.tag_bytes())
    }
}

/// Result of [`Nic::tx`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxReport {
    /// Frames sent.
    pub sent: u32,
    /// Bytes in the sent frames.
    pub bytes: u64,
    /// Frames dropped because the device's queue was full.
    pub full: u32,
    /// Frames dropped because their memory was no longer accessible.
    pub fault: u32,
    /// Frames dropped because the device rejected them (too long, an unsupported offload, an
    /// error).
    pub refused: u32,
    /// Frames at the end of the batch that were not sent because the queue of a [`Notified`] device
    /// is full for a short time. The caller keeps them and sends them again, before all other
    /// frames.
    pub waiting: u32,
}

impl TxReport {
    /// Returns the report of a device that rejects all frames of `pick`.
    #[must_use]
    pub fn all_refused(pick: &[u32]) -> Self {
        Self {
            refused: pick.len() as u32,
            ..Self::default()
        }
    }
}

impl std::ops::AddAssign for TxReport {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.bytes += other.bytes;
        self.full += other.full;
        self.fault += other.fault;
        self.refused += other.refused;
        self.waiting += other.waiting;
    }
}

/// A network device, real or simulated.
pub trait Nic {
    /// Returns its offloads and limits.
    fn caps(&self) -> Caps;

    /// Receives up to `budget` frames into buffers from `buffers`, takes their snapshots, appends
    /// them to `out`, and returns their number. Never blocks. `now_ns` is the monotonic time.
    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize;

    /// Sends the frames of `frames` whose indexes are in `pick`, in order. The caller keeps the
    /// frames; the device holds no reference to them after the call. Never blocks.
    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport;

    /// Returns the monotonic time in nanoseconds at which to call [`Nic::rx`]. Devices without a
    /// descriptor that signals frames (a source, a token bucket, a simulated cable) need this call.
    /// `None` means that no call is due.
    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let _ = now_ns;
        None
    }

    /// Returns whether the last [`Nic::rx`] ran out of buffers. Another call has no effect until
    /// the caller returns buffers.
    fn starved(&self) -> bool {
        false
    }

    /// Returns why the device has failed permanently, or `None` if it works. A domain whose device
    /// has failed should exit.
    fn failure(&self) -> Option<&'static str> {
        None
    }

    /// Returns the buffers that the device holds for its next frames to their supply. The caller
    /// must do this before it drops the supply.
    fn release(&mut self, buffers: &mut dyn Buffers) {
        let _ = buffers;
    }

    /// Continues the handshake with a device in another domain after its connection may have
    /// changed. `buffers` is the supply of [`Nic::rx`].
    fn connection_changed(&mut self, buffers: &mut dyn Buffers) {
        let _ = buffers;
    }

    /// Returns the device's own counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns the device's dedicated queues, if it has any. [`Nic::rx`] then serves its shared
    /// queue.
    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        None
    }

    /// Returns the driver's end of dedicated queue `number` (the first is 1). Returns `None` if the
    /// device is not in another domain or does not have this queue. The caller must call this
    /// before the device connects.
    fn dedicated(&mut self, number: u32) -> Option<RemoteQueue> {
        let _ = number;
        None
    }

    /// Returns the device's fast path, if it has one. [`Nic::rx`] and [`Nic::tx`] also accept small
    /// frames.
    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        None
    }

    /// Returns the notification interface of a device whose peer shares memory with it.
    fn notified(&mut self) -> Option<&mut dyn Notified> {
        None
    }
}

/// A device whose peer is a program that notifies it. The device suppresses notifications while its
/// user is awake. Its descriptors are edge-triggered, so a user that ignores an event loses
/// nothing, and the same event does not wake it again.
pub trait Notified {
    /// Serves the peer's control requests, which move no frame, and returns whether it served any.
    /// The user calls this in each turn, even while it cannot forward frames.
    fn serve(&mut self, now_ns: u64) -> bool;

    /// Sets whether the user can forward frames. The device may report this to the peer as its link
    /// state, after a delay: see [`Nic::next_due`].
    fn set_link(&mut self, is_up: bool, now_ns: u64);

    /// Enables notifications. The user calls this before it sleeps.
    fn arm(&mut self);

    /// Suppresses notifications. The user calls this after it wakes.
    fn disarm(&mut self);

    /// Returns whether the peer has sent frames, or has freed space for waiting frames
    /// ([`TxReport::waiting`]). To miss no notification, the user calls [`Notified::arm`], executes
    /// a full fence, and sleeps only if this method then returns false.
    fn has_work(&mut self) -> bool;
}

/// A device with a fast path, which passes a frame as an address and a length.
pub trait SmallFrames {
    /// Receives frames like [`Nic::rx`], but stops before the first frame that has offloads or
    /// several pieces.
    fn rx_small_frames(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Piece>,
    ) -> usize;

    /// Returns whether the last [`SmallFrames::rx_small_frames`] stopped at a frame that only
    /// [`Nic::rx`] returns.
    fn has_other(&self) -> bool {
        false
    }

    /// Sends frames like [`Nic::tx`]. Each frame is one piece without offloads, and not longer than
    /// the maximum.
    fn tx_small_frames(&mut self, now_ns: u64, frames: &[Piece]) -> TxReport;
}

/// A device that wraps another one. A middleware overrides some calls and forwards the others. By
/// default it hides dedicated queues and the fast path, because their frames would bypass it.
pub trait Middleware {
    /// The inner device.
    type Inner: Nic + ?Sized;

    /// Returns the inner device.
    fn inner(&self) -> &Self::Inner;

    /// Returns the inner device.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// See [`Nic::rx`].
    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        self.inner_mut().rx(now_ns, budget, buffers, out)
    }

    /// See [`Nic::tx`].
    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.inner_mut().tx(now_ns, frames, pick)
    }

    /// See [`Nic::next_due`].
    fn next_due(&self, now_ns: u64) -> Option<u64> {
        self.inner().next_due(now_ns)
    }

    /// See [`Nic::release`].
    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.inner_mut().release(buffers);
    }

    /// See [`Nic::connection_changed`].
    fn connection_changed(&mut self, buffers: &mut dyn Buffers) {
        self.inner_mut().connection_changed(buffers);
    }

    /// See [`Nic::counters`].
    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner().counters()
    }

    /// See [`Nic::vmq`].
    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        None
    }

    /// See [`Nic::dedicated`].
    fn dedicated(&mut self, number: u32) -> Option<RemoteQueue> {
        let _ = number;
        None
    }

    /// See [`Nic::small_frames`].
    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        None
    }

    /// See [`Nic::notified`].
    fn notified(&mut self) -> Option<&mut dyn Notified> {
        self.inner_mut().notified()
    }
}

impl<M: Middleware> Nic for M {
    fn caps(&self) -> Caps {
        self.inner().caps()
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        Middleware::rx(self, now_ns, budget, buffers, out)
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        Middleware::tx(self, now_ns, frames, pick)
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        Middleware::next_due(self, now_ns)
    }

    fn starved(&self) -> bool {
        self.inner().starved()
    }

    fn failure(&self) -> Option<&'static str> {
        self.inner().failure()
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        Middleware::release(self, buffers);
    }

    fn connection_changed(&mut self, buffers: &mut dyn Buffers) {
        Middleware::connection_changed(self, buffers);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Middleware::counters(self)
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        Middleware::vmq(self)
    }

    fn dedicated(&mut self, number: u32) -> Option<RemoteQueue> {
        Middleware::dedicated(self, number)
    }

    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        Middleware::small_frames(self)
    }

    fn notified(&mut self) -> Option<&mut dyn Notified> {
        Middleware::notified(self)
    }
}

impl<N: Nic + ?Sized> Middleware for Box<N> {
    type Inner = N;

    fn inner(&self) -> &N {
        self
    }

    fn inner_mut(&mut self) -> &mut N {
        self
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        (**self).vmq()
    }

    fn dedicated(&mut self, number: u32) -> Option<RemoteQueue> {
        (**self).dedicated(number)
    }

    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        (**self).small_frames()
    }
}
