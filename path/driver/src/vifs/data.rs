//! Frames from and to a connected guest.

use super::queues::GuestNetback;
use super::{ConnectedVif, VifPort};
use crate::dedicated::queue::DedicatedQueue;
use crate::egress_queue::{PostedBuffers, Queued};
use crate::resegment::slots_for;
use net::packet::segment::packets;
use net::queue::QueueDropReason;
use nic::frame::SNAPSHOT_MAX;
use nic::{Caps, Frame, SmallBatch};
use runtime::ledger::{Hop, Ledger};
use vif::netback::{DeliveryReport, Netback, SmallFramesTaken};
use vif::ring::RingWatch;

/// Bytes of Ethernet, IPv4 and TCP headers without options.
const HEADERS_MIN: usize = 54;

impl VifPort {
    /// Takes at most `budget` frames that the guest has sent. The port owns them until
    /// [`VifPort::release_taken`].
    pub fn take(&mut self, budget: usize, out: &mut Vec<Frame>, ledger: &Ledger) -> usize {
        let Some(link) = &mut self.link else { return 0 };
        let taken = ledger.charge_to(Hop::Netback, || {
            link.queues.next_sender().from_guest(budget, out)
        });
        match taken {
            Ok(taken) => {
                self.traffic.in_packets += taken as u64;
                self.traffic.in_bytes += out.iter().map(|frame| frame.len() as u64).sum::<u64>();
                taken
            }
            Err(fatal) => {
                self.close(&fatal.to_string());
                0
            }
        }
    }

    /// Takes at most `budget` small frames from the head of the guest's ring, like
    /// [`VifPort::take`].
    pub fn take_small_frames(&mut self, budget: usize, out: &mut SmallBatch) -> SmallFramesTaken {
        out.clear();
        let Some(netback) = self.netback() else {
            return SmallFramesTaken::default();
        };
        match netback.small_frames_from_guest(budget, out) {
            Ok(taken) => {
                self.traffic.in_packets += out.len() as u64;
                self.traffic.in_bytes += taken.bytes;
                taken
            }
            Err(fatal) => {
                self.close(&fatal.to_string());
                SmallFramesTaken::default()
            }
        }
    }

    /// Returns the length of the longest small frame that the guest accepts; 0 if it accepts none.
    #[must_use]
    pub fn longest_small_frame(&self) -> usize {
        let netback = self.link.as_ref().and_then(|link| link.queues.only());
        netback.map_or(0, Netback::longest_small_frame)
    }

    /// Like [`VifPort::send`], for small frames up to [`VifPort::longest_small_frame`]. Does not
    /// use the last `reserved` posted buffers of the guest.
    pub fn send_small_frames(&mut self, small: &SmallBatch, pick: &[u32], reserved: u32) {
        let Some(netback) = self.netback() else {
            return;
        };
        let report = netback.small_frames_to_guest(small, pick, reserved);
        self.delivered(&report);
    }

    /// Answers the requests of the taken frames.
    pub fn release_taken(&mut self, ledger: &Ledger) {
        if let Some(link) = &mut self.link {
            ledger.charge_to(Hop::Netback, || link.queues.last_sender().from_guest_done());
            self.touched = true;
        }
    }

    /// Sends frames to the guest. While the guest is not connected, only counts the frames.
    pub fn send(&mut self, frames: &[Frame], pick: &[u32], ledger: &Ledger) {
        let Some(link) = &mut self.link else {
            self.not_connected += pick.len() as u64;
            return;
        };
        let resegmenter = &mut self.resegmenter;
        let to_queue =
            |queue: &mut GuestNetback, own: &[u32]| resegmenter.to_guest(queue, frames, own);
        let report = ledger.charge_to(Hop::Netback, || link.queues.deliver(frames, pick, to_queue));
        self.delivered(&report);
    }

    /// Sends frames up to the first frame for which the guest lacks buffers. Appends the indices of
    /// this frame and the following ones to `rest`. The guest must be connected and accept the
    /// frames unchanged.
    #[inline]
    pub fn send_while_posted(
        &mut self,
        frames: &[Frame],
        pick: &[u32],
        ledger: &Ledger,
        rest: &mut Vec<u32>,
    ) {
        let Some(link) = &mut self.link else { return };
        let resegmenter = &mut self.resegmenter;
        let to_queue = |queue: &mut GuestNetback, own: &[u32]| {
            let (report, handled) = resegmenter.to_guest_while_posted(queue, frames, own);
            rest.extend(own.iter().skip(handled));
            report
        };
        let report = ledger.charge_to(Hop::Netback, || link.queues.deliver(frames, pick, to_queue));
        self.delivered(&report);
    }

    /// Returns whether the guest has posted enough buffers for all of these frames.
    pub fn has_room<'a>(&mut self, frames: impl Iterator<Item = &'a Frame>) -> bool {
        let Some(posted) = self.posted_room() else {
            return false;
        };
        let mut left = posted.free();
        frames.into_iter().all(|frame| {
            let rest = left.checked_sub(posted.slots(frame));
            left = rest.unwrap_or(left);
            rest.is_some()
        })
    }

    /// Moves up to `most` queued frames or parts of frames that can be sent now to `batch`. Appends
    /// frames that the queue drops to `lost`.
    pub fn take_queued(
        &mut self,
        now_ns: u64,
        most: usize,
        batch: &mut Vec<Box<Queued>>,
        lost: &mut Vec<(QueueDropReason, Box<Queued>)>,
    ) {
        let mut egress = std::mem::take(&mut self.egress);
        if let Some(mut room) = self.posted_room() {
            while batch.len() < most
                && let Some(queued) = egress.take(now_ns, &room, lost)
            {
                room.free = room.free.saturating_sub(room.slots(&queued.frame));
                batch.push(queued);
            }
        }
        self.egress = egress;
    }

    /// Returns the number of posted buffers, at most `want`.
    pub fn posted(&mut self, want: u32) -> u32 {
        let Some(link) = &mut self.link else { return 0 };
        let posted = link.queues.iter_mut().map(|netback| netback.posted(want));
        let posted = posted.min().unwrap_or(0);
        let fatal = link.queues.iter().find_map(Netback::fatal);
        if let Some(fatal) = fatal {
            self.close(&fatal.to_string());
        }
        posted
    }

    fn posted_room(&mut self) -> Option<PostedRoom<'_>> {
        let (free, caps) = (self.posted(u32::MAX), self.caps()?);
        let netback = self.link.as_ref()?.queues.first();
        Some(PostedRoom {
            netback,
            caps,
            free,
        })
    }

    /// Returns the netback of a guest that is connected with one queue, for a NIC that writes to
    /// the guest's pages. The caller passes the results to [`VifPort::delivered`].
    #[inline]
    pub fn netback(&mut self) -> Option<&mut GuestNetback> {
        self.link.as_mut()?.queues.only_mut()
    }

    /// Like [`VifPort::netback`], with the number of the connection. Each connection of the port
    /// has another number.
    pub fn numbered_netback(&mut self) -> Option<(u64, &mut GuestNetback)> {
        Some((self.links, self.link.as_mut()?.queues.only_mut()?))
    }

    /// Returns the dedicated queue and the netback, if the guest is connected.
    pub fn dedicated(&mut self) -> Option<(&mut DedicatedQueue, &mut GuestNetback)> {
        Some((self.queue.as_mut()?, self.link.as_mut()?.queues.only_mut()?))
    }

    /// Counts delivered frames. Closes the link if the netback has detected a fatal error.
    pub fn delivered(&mut self, report: &DeliveryReport) {
        let Some(link) = &self.link else { return };
        let fatal = link.queues.iter().find_map(Netback::fatal);
        self.traffic.out_packets += u64::from(report.delivered);
        self.traffic.out_bytes += report.bytes;
        self.touched = true;
        if let Some(fatal) = fatal {
            self.close(&fatal.to_string());
        }
    }

    /// Returns whether a device can write frames of `bytes` bytes, with the pending offloads of
    /// `caps`, to the guest's pages.
    #[must_use]
    pub fn can_post(&self, bytes: usize, caps: Caps) -> bool {
        let fits = |link: &ConnectedVif| {
            let netback = link.queues.only();
            netback.is_some_and(|netback| netback.buffers_for(bytes).is_some())
        };
        let takes = |own: Caps| (own.checksum || !caps.checksum) && (own.tso || !caps.tso);
        self.link.as_ref().is_some_and(fits) && self.caps().is_some_and(takes)
    }

    /// Returns whether the guest accepts GSO packets of several buffers.
    #[must_use]
    pub fn takes_merged(&self) -> bool {
        self.caps().is_some_and(|caps| caps.tso && caps.checksum)
    }

    /// Publishes the rings if they have changed; returns whether they have.
    pub fn publish(&mut self) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        if !std::mem::take(&mut self.touched) && !link.queues.iter().any(Netback::is_dirty) {
            return false;
        }
        link.queues.iter_mut().for_each(Netback::publish);
        true
    }

    /// Returns whether the guest is so short of receive buffers that it must be notified now.
    pub fn is_short_of_buffers(&mut self) -> bool {
        self.link
            .as_mut()
            .is_some_and(|link| link.queues.iter_mut().any(Netback::is_short_of_buffers))
    }

    /// Notifies the guest of published rings if it has requested notifications.
    pub fn notify(&mut self) {
        if let Some(link) = &mut self.link {
            let doorbell = &self.doorbell;
            link.queues.notify(|queue, rings| {
                if let Some(doorbell) = doorbell {
                    doorbell.ring_for(queue, rings);
                }
            });
        }
    }

    /// Returns the number of 64 KB GSO packets for which the guest has buffers, at most `packets`.
    /// Returns `packets` while the guest is not connected, so that senders do not wait for it.
    pub fn room_for_segments(&mut self, packets: usize) -> usize {
        let Some(link) = &mut self.link else {
            return packets;
        };
        // The queue of the packets is not known yet, so the queue with the most buffers determines
        // the result.
        let room = link.queues.iter_mut().map(|netback| {
            let slots = netback.slots_of_longest();
            let wanted = slots.saturating_mul(packets as u32);
            (netback.posted(wanted) / slots.max(1)) as usize
        });
        room.max().unwrap_or(0)
    }

    /// Before the driver sleeps, requests notifications of frames and of new receive buffers.
    pub fn arm_for_buffers(&mut self) {
        if let Some(link) = &mut self.link {
            link.queues.iter_mut().for_each(|netback| netback.arm(true));
        }
    }

    /// Before the driver sleeps, requests notifications of frames.
    pub fn arm(&mut self) {
        if let Some(link) = &mut self.link {
            link.queues
                .iter_mut()
                .for_each(|netback| netback.arm(false));
        }
    }

    /// Disables notifications, because the driver is awake.
    pub fn disarm(&mut self) {
        if let Some(link) = &mut self.link {
            link.queues.iter_mut().for_each(Netback::disarm);
        }
    }

    /// Returns a check whether the guest may have sent something. It is valid until the next
    /// [`VifPort::take`] or [`VifPort::advance`].
    #[must_use]
    pub fn watch(&self) -> RingWatch {
        let link = self.link.as_ref();
        link.map_or(RingWatch::NONE, |link| link.queues.watch())
    }

    /// Returns whether the guest has sent frames that the driver has not taken.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.queues.iter().any(Netback::has_work))
    }
}

/// The posted buffers of a guest. If the guest has several queues, the queue with the fewest
/// buffers determines the number, because a packet's queue is not known yet.
struct PostedRoom<'a> {
    netback: &'a GuestNetback,
    caps: Caps,
    free: u32,
}

impl PostedRoom<'_> {
    /// Returns the number of buffers that each packet of an aggregate needs, if software must
    /// segment the aggregate for the guest. Returns `None` if the guest accepts the frame
    /// unchanged.
    fn slots_of_packet(&self, frame: &Frame) -> Option<u32> {
        let gso = frame.offload.gso.filter(|_| !self.caps.takes(frame))?;
        let bytes = usize::from(gso.size) + SNAPSHOT_MAX;
        Some(self.netback.slots_for_bytes(bytes))
    }
}

impl PostedBuffers for PostedRoom<'_> {
    fn free(&self) -> u32 {
        self.free
    }

    fn slots(&self, frame: &Frame) -> u32 {
        match self.slots_of_packet(frame) {
            Some(slots) => slots.saturating_mul(packets(frame) as u32),
            None => slots_for(self.netback, frame),
        }
    }

    fn longest_fit(&self, frame: &Frame) -> usize {
        let size = frame.offload.gso.map_or(0, |gso| usize::from(gso.size));
        match self.slots_of_packet(frame) {
            Some(slots) => match (self.free / slots.max(1)) as usize {
                0 => 0,
                packets => packets.saturating_mul(size) + HEADERS_MIN,
            },
            None => match self.netback.bytes_for(self.free) {
                bytes if bytes < SNAPSHOT_MAX + size => 0,
                bytes => bytes,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vif_port;
    use abi::PAGE;
    use shmem::Area;

    #[test]
    fn unconnected_guest_sends_no_stale_small_frames() {
        let stale = Area::anonymous(PAGE).unwrap().at(0, 60).unwrap();
        let mut batch = SmallBatch::default();
        batch.push(stale).unwrap();
        let mut port = vif_port("");
        assert_eq!(
            port.take_small_frames(64, &mut batch),
            SmallFramesTaken::default()
        );
        assert!(batch.is_empty());
        assert_eq!(
            (port.longest_small_frame(), port.traffic.in_packets),
            (0, 0)
        );
    }
}
