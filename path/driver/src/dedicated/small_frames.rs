//! The fast path of a dedicated queue of a device: small frames without offloads, whose addresses
//! alone determine the decision of the bridge ([`net::bridge::Bridge::ignores_packets`]).
//!
//! No [`nic::Frame`] is built for them. Frames that large receive offload could merge, and all
//! frames while packets are traced or captured, take the slow path, [`crate::in_place`].

use super::queue::DedicatedQueue;
use crate::in_place::InPlacePorts;
use crate::switch::Switch;
use crate::vifs::VifPort;
use crate::vifs::queues::GuestNetback;
use net::bridge::Verdict;
use net::packet::flow::may_merge;
use nic::dma::ReceivedBuffer;
use nic::{SmallBatch, SmallFrame};
use runtime::ledger::Hop;
use vif::netback::{DeliveryReport, Returned};

/// A batch of small frames, and scratch lists.
#[derive(Debug, Default)]
pub(super) struct SmallFrames {
    frames: SmallBatch,
    /// The buffer of each frame.
    buffers: Vec<ReceivedBuffer>,
    /// The verdict on each frame.
    verdicts: Vec<Verdict>,
}

/// Result of delivering a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SmallDelivery {
    pub(super) report: DeliveryReport,
    /// Number of frames that the bridge forwarded elsewhere.
    pub(super) misdirected: u64,
}

impl SmallFrames {
    /// Returns whether frames of a NIC may take the fast path.
    pub(super) fn may_take_fast_path(switch: &Switch, nic: usize) -> bool {
        !switch.trace.is_wanted() && !switch.capture.is_on() && switch.bridge.ignores_packets(nic)
    }

    /// Receives a batch, which may be empty. With `merging`, excludes frames that may be merged.
    /// Returns the numbers of frames and bytes in the batch.
    pub(super) fn receive(
        &mut self,
        queue: &mut DedicatedQueue,
        netback: &mut GuestNetback,
        merging: bool,
        budget: usize,
    ) -> (usize, usize) {
        let takes = |frame: &SmallFrame| !merging || !may_merge(frame.head());
        let batch = (&mut self.frames, &mut self.buffers);
        queue.receive_small(budget, netback, takes, batch);
        let bytes = self.frames.iter().map(SmallFrame::len).sum();
        (self.frames.len(), bytes)
    }

    /// Gets the bridge's verdicts on the batch, delivers the frames that are for the guest, and
    /// returns the buffers of the others.
    pub(super) fn deliver(
        &mut self,
        switch: &mut Switch,
        ports: InPlacePorts,
        now_ns: u64,
    ) -> SmallDelivery {
        let Self {
            frames,
            buffers,
            verdicts,
        } = self;
        verdicts.clear();
        let before = switch.ledger.enter(Hop::Bridge);
        switch
            .bridge
            .forward_small(frames, ports.nic, now_ns, verdicts);
        switch.ledger.enter(before);
        let mut delivery = SmallDelivery::default();
        let vif = switch.ports.vif_mut(ports.guest);
        let Some(netback) = vif.and_then(VifPort::netback) else {
            return delivery;
        };
        let all = || buffers.iter().zip(frames.iter()).zip(&*verdicts);
        let accepted = all().filter(|(_, verdict)| ports.is_for_guest(verdict));
        delivery.report = netback.deliver_small(
            accepted.map(|((buffer, frame), _)| (buffer.id, frame.len(), buffer.is_valid)),
        );
        for ((buffer, _), verdict) in all().filter(|(_, verdict)| !ports.is_for_guest(verdict)) {
            delivery.misdirected += u64::from(!matches!(verdict, Verdict::Drop(_)));
            netback.return_buffer(buffer.id, Returned::Failed);
        }
        frames.clear();
        delivery
    }
}

#[cfg(test)]
mod tests;
