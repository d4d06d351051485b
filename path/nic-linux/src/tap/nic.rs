//! A TAP as a NIC.

use super::queues::TapQueues;
use super::{length, rx, tx};
use nic::vmq::{MultiQueue, Steering, Vmq};
use nic::{Buffers, Caps, Frame, Nic, TxReport};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A TAP. What [`Nic::rx`] has ready for the next frame (a small buffer, and with segmentation
/// some large ones) is kept between calls, so that a call that finds no frame costs the pool
/// nothing.
#[derive(Debug)]
pub struct TapNic {
    fd: OwnedFd,
    vnet_header: bool,
    checksum: bool,
    tso: bool,
    mtu: usize,
    rx: rx::Receiver,
    tx: tx::Sender,
    queues: Option<MultiQueue<Box<dyn Steering>, TapQueues>>,
}

impl TapNic {
    /// A data path over `fd`. The other arguments must be what the TAP was set up with:
    /// `vnet_header` whether frames carry a virtio-net header of 10 bytes; `checksum` and `tso`
    /// which offloads both sides may leave to the other (without `vnet_header` there are none,
    /// and without `checksum` no `tso`); `mtu` in bytes of IP.
    #[must_use]
    pub fn new(fd: OwnedFd, vnet_header: bool, checksum: bool, tso: bool, mtu: usize) -> Self {
        let checksum = checksum && vnet_header;
        Self {
            fd,
            vnet_header,
            checksum,
            tso: tso && checksum,
            mtu,
            rx: rx::Receiver::default(),
            tx: tx::Sender::default(),
            queues: None,
        }
    }

    /// Gives the TAP the queues that it was set up with beside its own, one descriptor each, and
    /// what steers frames to them.
    #[must_use]
    pub fn with_queues(mut self, fds: Vec<OwnedFd>, steering: Box<dyn Steering>) -> Self {
        let queues = TapQueues::new(fds, self.limits());
        self.queues = Some(MultiQueue::new(steering, queues));
        self
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

    /// Bytes of the largest frame that the kernel's end may send.
    fn rx_max(&self) -> usize {
        if self.tso {
            length::GSO_FRAME_MAX
        } else {
            self.mtu.saturating_add(length::ETHERNET + length::VLAN_TAG)
        }
    }
}

impl AsFd for TapNic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
        self.rx.batch(self.fd.as_fd(), limits, budget, buffers, out)
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let limits = tx::TxLimits {
            vnet_header: self.vnet_header,
            checksum: self.checksum,
            tso: self.tso,
            max_frame: self.mtu.saturating_add(length::ETHERNET),
        };
        let mut report = TxReport::default();
        for &index in pick {
            match frames.get(index as usize) {
                Some(frame) => self.tx.one(self.fd.as_fd(), limits, frame, &mut report),
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
        all.extend(self.queues.iter().flat_map(|queues| queues.counters()));
        all
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        self.queues.as_mut().map(|queues| queues as _)
    }
}
