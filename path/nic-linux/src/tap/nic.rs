//! A NIC over a TAP.

use super::queues::TapQueues;
use super::{length, rx, tx};
use nic::vmq::{MultiQueue, Steering, Vmq};
use nic::{Buffers, Caps, Frame, Nic, TxReport};
use std::os::fd::{AsFd, OwnedFd};

/// Removes a TAP's devices from its domain's wait set. [`TapNic`] calls it after it has closed its
/// descriptors.
pub type RemoveCallback = Box<dyn FnOnce()>;

/// A NIC over a TAP. [`Nic::rx`] keeps the buffers for the next frame (a small buffer, and with
/// segmentation some large buffers) between calls, so that a call that receives nothing does not
/// access the pool.
///
/// When its interface is removed, the NIC closes its descriptors. After that it receives nothing
/// and rejects every frame.
pub struct TapNic {
    /// The TAP's descriptor; `None` after the interface was removed.
    fd: Option<OwnedFd>,
    /// Called once, after the interface was removed.
    on_removed: Option<RemoveCallback>,
    vnet_header: bool,
    checksum: bool,
    tso: bool,
    mtu: usize,
    rx: rx::Receiver,
    tx: tx::FrameSender,
    queues: Option<MultiQueue<Box<dyn Steering>, TapQueues>>,
}

impl std::fmt::Debug for TapNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapNic")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl TapNic {
    /// Creates a data path over `fd`, which is `None` if the interface was removed. The other
    /// arguments must match the TAP's set-up. With `vnet_header`, a virtio-net header of 10 bytes
    /// precedes each frame. `checksum` and `tso` are the offloads that each side may leave to the
    /// other; `checksum` requires `vnet_header`, and `tso` requires `checksum`. `mtu` is the
    /// maximum length of an IP packet in bytes.
    #[must_use]
    pub fn new(
        fd: impl Into<Option<OwnedFd>>,
        vnet_header: bool,
        checksum: bool,
        tso: bool,
        mtu: usize,
    ) -> Self {
        let checksum = checksum && vnet_header;
        Self {
            fd: fd.into(),
            on_removed: None,
            vnet_header,
            checksum,
            tso: tso && checksum,
            mtu,
            rx: rx::Receiver::default(),
            tx: tx::FrameSender::default(),
            queues: None,
        }
    }

    /// Adds the TAP's dedicated queues, with one descriptor each, and the agent that steers frames
    /// to them.
    #[must_use]
    pub fn with_queues(mut self, fds: Vec<OwnedFd>, steering: Box<dyn Steering>) -> Self {
        let queues = TapQueues::new(fds, self.limits());
        self.queues = Some(MultiQueue::new(steering, queues));
        self
    }

    /// Sets the callback that runs after the interface was removed.
    #[must_use]
    pub fn on_removed(mut self, removed: RemoveCallback) -> Self {
        self.on_removed = Some(removed);
        self
    }

    /// Returns whether the interface was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.fd.is_none()
    }

    /// Closes the descriptors of a removed interface, and then calls the callback, because the
    /// domain cannot release a device with an open descriptor.
    fn close(&mut self, buffers: &mut dyn Buffers) {
        self.rx.release(buffers);
        self.fd = None;
        if let Some(queues) = &mut self.queues {
            queues.receive_mut().close();
        }
        if let Some(removed) = self.on_removed.take() {
            removed();
        }
    }

    fn limits(&self) -> rx::RxLimits {
        rx::RxLimits {
            vnet_header: self.vnet_header,
            checksum: self.checksum,
            tso: self.tso,
            bytes: self.rx_max(),
            split: false,
            in_order: false,
        }
    }

    /// Returns the maximum length in bytes of a frame that the kernel may send through the
    /// interface.
    fn rx_max(&self) -> usize {
        if self.tso {
            length::GSO_FRAME_MAX
        } else {
            self.mtu.saturating_add(length::ETHERNET + length::VLAN_TAG)
        }
    }
}

impl Nic for TapNic {
    fn caps(&self) -> Caps {
        Caps {
            checksum: self.checksum,
            tso: self.tso,
            max_frame: self.mtu.saturating_add(length::ETHERNET),
        }
    }

    fn rx(
        &mut self,
        _now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let limits = self.limits();
        let Some(fd) = &self.fd else { return 0 };
        let taken = self
            .rx
            .receive_batch(fd.as_fd(), limits, budget, buffers, out);
        if self.rx.removed {
            self.close(buffers);
        }
        taken
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let limits = tx::TxLimits {
            vnet_header: self.vnet_header,
            checksum: self.checksum,
            tso: self.tso,
            max_frame: self.mtu.saturating_add(length::ETHERNET),
        };
        let mut report = TxReport::default();
        let Some(fd) = &self.fd else {
            report.refused = pick.len() as u32;
            return report;
        };
        for &index in pick {
            match frames.get(index as usize) {
                Some(frame) => self.tx.send_frame(fd.as_fd(), limits, frame, &mut report),
                None => report.refused += 1,
            }
        }
        report
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.rx.release(buffers);
    }

    fn starved(&self) -> bool {
        self.rx.starved
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.rx.counters.list().to_vec();
        all.push(("no_device", u64::from(self.is_removed())));
        all.extend(self.queues.iter().flat_map(|queues| queues.counters()));
        all
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        self.queues.as_mut().map(|queues| queues as _)
    }
}
