//! Delivery of frames that a device has received directly into a guest's pages: merges the frames
//! in place, gets the bridge's verdicts, and delivers the frames for this guest. Both kinds of
//! dedicated queues use it: [`crate::vmq`] and [`crate::dedicated`]. They differ in how the guest
//! lends its buffers.

use crate::merge::QueueLro;
use crate::switch::Switch;
use crate::vifs::VifPort;
use config::domain::LroConfig;
use net::bridge::Verdict;
use net::packet::checksum::finish_in_place;
use nic::Frame;
use runtime::ledger::Hop;
use runtime::lro::Sums;
use serde_json::{Map, Value};
use vif::grants::GrantMechanism;
use vif::netback::{DeliveryReport, Netback, Returned};
use vif::netif::{MAX_SLOTS, transport};

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

/// Batch of frames in a guest's pages, with LRO and counters.
#[derive(Debug)]
pub struct InPlace {
    /// The batch; empty between batches.
    pub frames: Vec<Frame>,
    verdicts: Vec<Verdict>,
    lro_stage: QueueLro,
    /// Number of frames received into a guest's pages.
    direct: u64,
    /// Number of these frames that the bridge assigned to other destinations.
    misdirected: u64,
}

impl InPlace {
    /// Creates an empty batch.
    #[must_use]
    pub fn new(lro: &LroConfig) -> Self {
        Self {
            frames: Vec::new(),
            verdicts: Vec::new(),
            lro_stage: QueueLro::new(lro),
            direct: 0,
            misdirected: 0,
        }
    }

    /// Changes the settings of large receive offload.
    pub fn set_lro(&mut self, lro: &LroConfig) {
        self.lro_stage.set(lro);
    }

    /// Adds the counters of large receive offload to `sums`.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.lro_stage.add_to(sums);
    }

    /// Returns whether the driver merges frames for this guest.
    #[must_use]
    pub fn merges_for(&self, vif: &VifPort) -> bool {
        self.lro_stage.is_active() && vif.takes_merged()
    }

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

    /// Returns state and counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Map<String, Value> {
        [
            ("direct_packets", self.direct.into()),
            ("misdirected", self.misdirected.into()),
            ("lro", self.lro_stage.stat()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
    }

    /// Delivers the batch. The caller passes the report to [`VifPort::delivered`].
    pub fn deliver(
        &mut self,
        switch: &mut Switch,
        ports: InPlacePorts,
        buffers: BufferLending,
        merging: bool,
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
        if merging && self.frames.len() > 1 {
            self.merge(switch, ports.guest, buffers, now_ns);
        }
        if !header_last {
            self.decide(switch, ports, buffers, now_ns);
        }
        let report = self.respond(switch, ports.guest, buffers);
        self.frames.clear();
        report
    }

    fn merge(&mut self, switch: &mut Switch, guest: usize, buffers: BufferLending, now_ns: u64) {
        let Self {
            lro_stage, frames, ..
        } = self;
        let Some(netback) = switch.ports.vif_mut(guest).and_then(VifPort::netback) else {
            return;
        };
        switch.ledger.charge_to(Hop::Lro, || match buffers {
            BufferLending::Posted { .. } => lro_stage.merge(netback, now_ns, frames),
            // Merging may produce packets of `MAX_SLOTS` slots, so the guest must accept these.
            BufferLending::Lent if netback.negotiated().to_guest.max_slots >= MAX_SLOTS => {
                lro_stage.merge_any(now_ns, frames);
            }
            BufferLending::Lent => {}
        });
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

    /// Answers the guest's requests with the remaining frames.
    fn respond(&self, switch: &mut Switch, guest: usize, buffers: BufferLending) -> DeliveryReport {
        let mut report = DeliveryReport::default();
        let Some(netback) = switch.ports.vif_mut(guest).and_then(VifPort::netback) else {
            return report;
        };
        switch.ledger.charge_to(Hop::Netback, || match buffers {
            BufferLending::Posted { .. } => {
                for frame in &self.frames {
                    netback.accept(frame);
                }
                netback.post_end()
            }
            BufferLending::Lent => {
                for frame in &self.frames {
                    netback.deliver(frame, &mut report);
                }
                report
            }
        })
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
