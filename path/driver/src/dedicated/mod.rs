//! Dedicated queues that each belong to one guest. The kernel ([`socket`]) or a device in another
//! domain ([`device`]) writes frames into the guest's pages; the driver delivers them in place.
//! [`queue`] is a queue of either kind.

pub mod device;
mod lending;
pub mod queue;
mod small_frames;
pub mod socket;
#[cfg(test)]
mod testing;

use crate::in_place::{BufferLending, InPlace, InPlacePorts};
use crate::merge::QueueLro;
use crate::nics::PollResult;
use crate::switch::Switch;
use config::domain::LroConfig;
use nic::Frame;
use queue::DedicatedQueue;
use runtime::ledger::Hop;
use small_frames::SmallFrames;
use vif::netback::DeliveryReport;

/// Receives the frames of one guest's dedicated queue.
#[derive(Debug)]
pub struct DedicatedReceiver {
    /// Ports of the wire and of the guest.
    pub ports: InPlacePorts,
    /// Batch of frames in the guest's pages.
    pub in_place: InPlace,
    /// Large receive offload.
    pub lro: QueueLro,
    small: SmallFrames,
}

impl DedicatedReceiver {
    /// Creates the receiver of a queue between these ports.
    #[must_use]
    pub fn new(ports: InPlacePorts, lro: &LroConfig) -> Self {
        Self {
            ports,
            in_place: InPlace::default(),
            lro: QueueLro::new(lro),
            small: SmallFrames::default(),
        }
    }

    /// Returns the time at which held frames are due.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.lro.due_ns()
    }

    /// Delivers held frames that are due. Must precede newer frames for the guest in the wire's
    /// shared queue. Returns the number of delivered frames.
    pub fn flush_due(&mut self, switch: &mut Switch, now_ns: u64) -> usize {
        let Self {
            ports,
            in_place,
            lro,
            ..
        } = self;
        let vif = switch.ports.vif(ports.guest);
        let queue = vif.and_then(|vif| vif.queue.as_ref());
        let is_open = queue.is_some_and(DedicatedQueue::is_open);
        in_place.flush_due(switch, *ports, lro, is_open, now_ns)
    }

    /// Delivers the received frames of the queue, and lends newly posted buffers to the kernel or
    /// the device. The caller has served the wire's shared queue before. Returns the number of
    /// received buffers.
    pub fn serve(&mut self, switch: &mut Switch, now_ns: u64, budget: usize) -> usize {
        let InPlacePorts { nic, guest } = self.ports;
        let fast = SmallFrames::may_take_fast_path(switch, nic);
        let Some((wire, vif)) = switch.ports.nic_and_vif(nic, guest) else {
            return 0;
        };
        if wire.poll_result() == PollResult::Nothing {
            return 0;
        }
        let merging = self.lro.is_active() && vif.takes_merged();
        let ticks = merging && self.lro.holds() && wire.counts_polls();
        let Some((queue, netback)) = vif.dedicated() else {
            return 0;
        };
        let before = switch.ledger.enter(Hop::Nic);
        let (mut small, mut bytes) = (0, 0);
        if fast {
            (small, bytes) = self.small.receive(queue, netback, merging, budget);
        }
        let mut taken = small;
        let frames = &mut self.in_place.frames;
        if small == 0 {
            taken = queue.receive(budget, netback, frames);
            bytes = frames.iter().map(Frame::len).sum();
        }
        if taken == 0 && !ticks {
            queue.post_to_device(netback);
            switch.ledger.enter(before);
            // The calls above may have detected a corrupt ring, or returned buffers of a dead
            // device.
            if netback.fatal().is_some() || netback.is_dirty() {
                vif.delivered(&DeliveryReport::default());
                switch.dirty.mark(guest);
            }
            return 0;
        }
        wire.traffic.in_packets += (small + frames.len()) as u64;
        wire.traffic.in_bytes += bytes as u64;
        if taken >= budget || queue.has_more() {
            wire.has_more();
        }
        // The rest is charged to the netback, so that changes of hop within it need no time stamps.
        switch.ledger.enter(Hop::Netback);
        let lro = merging.then_some(&mut self.lro);
        let report = match small {
            0 => self
                .in_place
                .deliver(switch, self.ports, BufferLending::Lent, lro, now_ns),
            _ => {
                let delivery = self.small.deliver(switch, self.ports, now_ns);
                self.in_place.count(small as u64, delivery.misdirected);
                delivery.report
            }
        };
        if let Some(vif) = switch.ports.vif_mut(guest) {
            if let Some((queue, netback)) = vif.dedicated() {
                queue.post_to_device(netback);
            }
            vif.delivered(&report);
            switch.dirty.mark(guest);
        }
        switch.ledger.enter(before);
        taken
    }
}

#[cfg(test)]
mod tests;
