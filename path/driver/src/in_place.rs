//! Delivery of frames that a device has received directly into a guest's pages: merges the frames
//! in place, gets the bridge's verdicts, and delivers the frames for this guest. Both kinds of
//! dedicated queues use it: [`crate::vmq`] and [`crate::dedicated`]. They differ in how the guest
//! lends its buffers.

use crate::merge::{QueueLro, QueuePoll};
use crate::nics::NicPort;
use crate::switch::Switch;
use crate::vifs::VifPort;
use net::bridge::Verdict;
use net::packet::checksum::finish_in_place;
use nic::Frame;
use runtime::ledger::Hop;
use serde_json::{Map, Value};
use std::rc::Rc;
use vif::grants::GrantMechanism;
use vif::netback::{DeliveryReport, Netback, Returned};
use vif::netif::transport;

/// How a guest lends the buffers of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferLending {
    /// The guest lends the buffers for one batch. The netback answers the requests in order.
    Posted {
        /// Whether the driver writes the headers into the guest's pages only after the verdict.
        header_last: bool,
    },
    /// The guest lends the buffers to the device across batches. The netback answers the requests
    /// in any order.
    Lent,
}

/// Ports of the NIC and of the guest whose pages contain the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlacePorts {
    /// The NIC's port.
    pub nic: usize,
    /// The guest's port.
    pub guest: usize,
}

impl InPlacePorts {
    /// Returns whether a verdict forwards a frame to the guest alone.
    pub(crate) fn is_for_guest(self, verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Unicast(to) if *to == self.guest)
    }
}

/// Batch of frames in a guest's pages, with counters.
#[derive(Debug, Default)]
pub struct InPlace {
    /// The batch; empty between batches.
    pub frames: Vec<Frame>,
    verdicts: Vec<Verdict>,
    /// Number of frames received into a guest's pages.
    direct: u64,
    /// Number of these frames that the bridge assigned to other destinations.
    misdirected: u64,
}

impl InPlace {
    /// Counts frames that were received into a guest's pages, and those among them that the bridge
    /// forwarded elsewhere.
    pub(crate) fn count(&mut self, direct: u64, misdirected: u64) {
        self.direct += direct;
        self.misdirected += misdirected;
    }

    /// Returns the number of frames that the bridge assigned to other destinations. They are not
    /// delivered.
    #[must_use]
    pub fn misdirected(&self) -> u64 {
        self.misdirected
    }

    /// Returns the counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Map<String, Value> {
        [
            ("direct_packets", self.direct.into()),
            ("misdirected", self.misdirected.into()),
        ]
        .map(|(name, value): (&str, Value)| (name.to_owned(), value))
        .into_iter()
        .collect()
    }

    /// Delivers the batch. If `lro` is given, merges frames, and may hold some. The caller passes
    /// the report to [`VifPort::delivered`].
    pub fn deliver(
        &mut self,
        switch: &mut Switch,
        ports: InPlacePorts,
        buffers: BufferLending,
        lro: Option<&mut QueueLro>,
        now_ns: u64,
    ) -> DeliveryReport {
        self.direct += self.frames.len() as u64;
        self.frames
            .iter_mut()
            .for_each(|frame| fill_in_checksum(frame, buffers));
        // If headers are written last, merging must follow the verdicts. Otherwise frames are
        // merged first, so that a merged frame needs only one verdict.
        let header_last = buffers == BufferLending::Posted { header_last: true };
        if header_last {
            self.decide(switch, ports, buffers, now_ns);
        }
        let Some(lro) = lro else {
            if !header_last {
                self.decide(switch, ports, buffers, now_ns);
            }
            return self.respond(switch, ports.guest, buffers);
        };
        let (mut report, buffers) = self.merge(switch, ports, (buffers, lro), now_ns);
        if !header_last {
            self.decide(switch, ports, buffers, now_ns);
        }
        report += self.respond(switch, ports.guest, buffers);
        reserve(switch, ports.guest, lro);
        report
    }

    /// Merges the batch with held frames, or its own frames if the guest's frames cannot be held.
    /// Returns the report on dropped frames, and how the guest lends the buffers of the remaining
    /// ones.
    fn merge(
        &mut self,
        switch: &mut Switch,
        ports: InPlacePorts,
        (buffers, lro): (BufferLending, &mut QueueLro),
        now_ns: u64,
    ) -> (DeliveryReport, BufferLending) {
        let mut report = DeliveryReport::default();
        let counts = switch
            .ports
            .nic(ports.nic)
            .is_some_and(NicPort::counts_polls);
        let vif = switch.ports.vif_mut(ports.guest);
        let Some((connection, netback)) = vif.and_then(VifPort::numbered_netback) else {
            return (report, buffers);
        };
        let frames = &mut self.frames;
        match buffers {
            BufferLending::Posted { .. } if !netback.can_keep() => {
                if frames.len() > 1 {
                    let ledger = &switch.ledger;
                    ledger.charge_to(Hop::Lro, || lro.merge_runs(netback, now_ns, frames));
                }
                return (report, buffers);
            }
            BufferLending::Posted { .. } => {
                switch.ledger.charge_to(Hop::Netback, || {
                    netback.keep(frames);
                    report = netback.post_end();
                });
            }
            BufferLending::Lent => {}
        }
        if frames.is_empty() && !(counts && lro.holds()) {
            return (report, BufferLending::Lent);
        }
        let poll = QueuePoll {
            now_ns,
            counts,
            connection,
            decided: buffers == BufferLending::Posted { header_last: true },
        };
        let ledger = &switch.ledger;
        ledger.charge_to(Hop::Lro, || lro.pass(netback, poll, frames));
        (report, BufferLending::Lent)
    }

    /// Delivers the frames that `lro` holds for the guest if they are due. `is_open` states whether
    /// the queue still receives the guest's frames; if not, all are due. Returns the number of
    /// delivered frames.
    pub fn flush_due(
        &mut self,
        switch: &mut Switch,
        ports: InPlacePorts,
        lro: &mut QueueLro,
        is_open: bool,
        now_ns: u64,
    ) -> usize {
        if !lro.holds() {
            return 0;
        }
        let ledger = Rc::clone(&switch.ledger);
        let guest = switch.ports.vif_mut(ports.guest);
        let guest = guest.and_then(VifPort::numbered_netback);
        let frames = &mut self.frames;
        ledger.charge_to(Hop::Lro, || lro.flush_due(guest, is_open, now_ns, frames));
        let flushed = self.frames.len();
        if flushed > 0 {
            if !lro.is_decided() {
                self.decide(switch, ports, BufferLending::Lent, now_ns);
            }
            let report = self.respond(switch, ports.guest, BufferLending::Lent);
            reserve(switch, ports.guest, lro);
            if let Some(vif) = switch.ports.vif_mut(ports.guest) {
                vif.delivered(&report);
                switch.dirty.mark(ports.guest);
            }
        }
        flushed
    }

    /// Gets the verdict on each frame. Keeps the frames for the guest in the batch, and writes
    /// their headers if these are written last. Drops the other frames.
    fn decide(
        &mut self,
        switch: &mut Switch,
        ports: InPlacePorts,
        buffers: BufferLending,
        now_ns: u64,
    ) {
        if self.frames.is_empty() {
            return;
        }
        let before = switch.ledger.enter(Hop::Bridge);
        switch.decide(ports.nic, now_ns, &mut self.frames, &mut self.verdicts);
        switch.ledger.enter(Hop::Netback);
        let is_for_guest = |verdict: &Verdict| ports.is_for_guest(verdict);
        if self.verdicts.first().is_some_and(is_for_guest) {
            let name = switch.ports.name(ports.guest).unwrap_or("");
            let received = || format!("lies in a page of {name}");
            switch.trace.step(Hop::Netback, received);
        }
        if switch.capture.is_on()
            && let Some(port) = switch.ports.get(ports.guest)
        {
            let all = self.frames.iter().zip(&self.verdicts);
            for (frame, _) in all.filter(|(_, verdict)| is_for_guest(verdict)) {
                switch.capture.sent_by(port.name(), frame, None, now_ns);
            }
        }
        if let Some(netback) = switch.ports.vif_mut(ports.guest).and_then(VifPort::netback) {
            let mut verdicts = self.verdicts.iter();
            self.frames.retain_mut(|frame| {
                match verdicts.next() {
                    Some(verdict) if is_for_guest(verdict) => match buffers {
                        BufferLending::Posted { header_last: true } => {
                            return netback.put_header(frame);
                        }
                        _ => return true,
                    },
                    Some(Verdict::Drop(_)) => {}
                    _ => self.misdirected += 1,
                }
                refuse(netback, frame, buffers);
                false
            });
        }
        switch.ledger.enter(before);
        switch.trace.end();
    }

    /// Answers the guest's requests with the remaining frames, and clears the batch.
    fn respond(
        &mut self,
        switch: &mut Switch,
        guest: usize,
        buffers: BufferLending,
    ) -> DeliveryReport {
        let mut report = DeliveryReport::default();
        if let Some(netback) = switch.ports.vif_mut(guest).and_then(VifPort::netback) {
            switch.ledger.charge_to(Hop::Netback, || match buffers {
                BufferLending::Posted { .. } => {
                    for frame in &self.frames {
                        netback.accept(frame);
                    }
                    report = netback.post_end();
                }
                BufferLending::Lent => {
                    for frame in &self.frames {
                        netback.deliver(frame, &mut report);
                    }
                }
            });
        }
        self.frames.clear();
        report
    }
}

/// Reserves requests of the guest for the frames that `lro` holds.
fn reserve(switch: &mut Switch, guest: usize, lro: &QueueLro) {
    if let Some(netback) = switch.ports.vif_mut(guest).and_then(VifPort::netback) {
        lro.reserve(netback);
    }
}

/// Computes a pending checksum if its field is not at the position that the guest expects. The
/// delivery of the frame reports failures.
fn fill_in_checksum(frame: &mut Frame, buffers: BufferLending) {
    if transport::has_standard_checksum(frame) || finish_in_place(frame).is_err() {
        return;
    }
    // A header that is written last is written only after the verdict.
    if buffers != (BufferLending::Posted { header_last: true })
        && let Some(first) = frame.pieces.first()
    {
        // If the page is revoked, its next use detects this.
        let _ = first.span.write(frame.header());
    }
}

/// Drops a frame, and returns its buffers to the guest.
fn refuse<G: GrantMechanism>(netback: &mut Netback<G>, frame: &Frame, buffers: BufferLending) {
    for piece in &frame.pieces {
        match buffers {
            BufferLending::Posted { .. } => netback.refuse(piece.buffer),
            BufferLending::Lent => netback.return_buffer(piece.buffer, Returned::Failed),
        }
    }
}

#[cfg(test)]
mod tests;
