//! Frames that a device has received straight into a guest's pages: they are merged where they lie,
//! decided on by the bridge, and those that are for this very guest are answered with. It is the
//! same for both kinds of queues, [`crate::vmq`] and [`crate::dedicated`], but for whom the buffers
//! are lent to.

use crate::merge::QueueMerger;
use crate::switch::Switch;
use crate::vifs::VifPort;
use config::domain::Lro;
use net::bridge::Verdict;
use net::packet::checksum::finish_in_place;
use nic::Frame;
use runtime::ledger::Hop;
use runtime::lro::Sums;
use serde_json::{Map, Value};
use vif::grants::Grants;
use vif::netback::{Netback, Returned, ToGuest};
use vif::netif::{MAX_SLOTS, transport};

/// Whose the buffers are that frames lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// They are of the netback's batch, which is answered in order.
    Posted {
        /// Headers are put into the guest's pages only when they have been decided on.
        header_last: bool,
    },
    /// They are lent to the device from batch to batch, and answered in any order.
    Lent,
}

/// Which way frames come: the port of the NIC, and of the guest in whose pages they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// The NIC.
    pub nic: usize,
    /// The guest.
    pub guest: usize,
}

/// What a queue needs to deliver frames in place.
#[derive(Debug)]
pub struct InPlace {
    /// The batch; empty between batches.
    pub frames: Vec<Frame>,
    verdicts: Vec<Verdict>,
    merger: QueueMerger,
    /// Frames that came into a guest's pages.
    direct: u64,
    /// Those of them that the bridge sent elsewhere.
    misdirected: u64,
}

impl InPlace {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(lro: &Lro) -> Self {
        Self {
            frames: Vec::new(),
            verdicts: Vec::new(),
            merger: QueueMerger::new(lro),
            direct: 0,
            misdirected: 0,
        }
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, lro: &Lro) {
        self.merger.set(lro);
    }

    /// Adds what large receive offload has counted.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.merger.add_to(sums);
    }

    /// Whether frames for this guest are merged.
    #[must_use]
    pub fn merges_for(&self, vif: &VifPort) -> bool {
        self.merger.is_active() && vif.takes_merged()
    }

    /// Frames that the bridge sent elsewhere.
    #[must_use]
    pub fn misdirected(&self) -> u64 {
        self.misdirected
    }

    /// What it does and has done, as JSON.
    #[must_use]
    pub fn stat(&self) -> Map<String, Value> {
        [
            ("direct_packets", self.direct.into()),
            ("misdirected", self.misdirected.into()),
            ("lro", self.merger.stat()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
    }

    /// Delivers the batch. [`VifPort::delivered`] takes what comes of it.
    pub fn deliver(
        &mut self,
        switch: &mut Switch,
        way: Direct,
        buffers: Buffers,
        merging: bool,
        now_ns: u64,
    ) -> ToGuest {
        self.direct += self.frames.len() as u64;
        self.frames
            .iter_mut()
            .for_each(|frame| fill_in_checksum(frame, buffers));
        // A header that comes last is there for the merger only when the bridge has decided on its
        // frame. Otherwise merging comes first: a merged frame is decided on once.
        let header_last = buffers == Buffers::Posted { header_last: true };
        if header_last {
            self.decide(switch, way, buffers, now_ns);
        }
        if merging && self.frames.len() > 1 {
            self.merge(switch, way.guest, buffers, now_ns);
        }
        if !header_last {
            self.decide(switch, way, buffers, now_ns);
        }
        let report = self.respond(switch, way.guest, buffers);
        self.frames.clear();
        report
    }

    fn merge(&mut self, switch: &mut Switch, guest: usize, buffers: Buffers, now_ns: u64) {
        let Self { merger, frames, .. } = self;
        let Some(netback) = switch.ports.vif_mut(guest).and_then(VifPort::netback) else {
            return;
        };
        switch.ledger.at(Hop::Lro, || match buffers {
            Buffers::Posted { .. } => merger.merge(netback, now_ns, frames),
            // A packet has at most as many slots as the merger puts frames into one.
            Buffers::Lent if netback.terms().to_guest.max_slots >= MAX_SLOTS => {
                merger.merge_any(now_ns, frames);
            }
            Buffers::Lent => {}
        });
    }

    /// Decides on each frame: those stay that are for the guest, with their headers where they
    /// belong. The buffers of the others are refused.
    fn decide(&mut self, switch: &mut Switch, way: Direct, buffers: Buffers, now_ns: u64) {
        if self.frames.is_empty() {
            return;
        }
        let before = switch.ledger.enter(Hop::Bridge);
        switch.decide(way.nic, now_ns, &mut self.frames, &mut self.verdicts);
        switch.ledger.enter(Hop::Netback);
        let is_for_it =
            |verdict: &Verdict| matches!(verdict, Verdict::Unicast(to) if *to == way.guest);
        if self.verdicts.first().is_some_and(is_for_it) {
            let name = switch.ports.name(way.guest).unwrap_or("");
            let lies = || format!("lies in a page of {name}");
            switch.trace.step(Hop::Netback, lies);
        }
        if switch.capture.is_on()
            && let Some(port) = switch.ports.get(way.guest)
        {
            let all = self.frames.iter().zip(&self.verdicts);
            for (frame, _) in all.filter(|(_, verdict)| is_for_it(verdict)) {
                switch.capture.went_out(port.name(), frame, None, now_ns);
            }
        }
        if let Some(netback) = switch.ports.vif_mut(way.guest).and_then(VifPort::netback) {
            let mut verdicts = self.verdicts.iter();
            self.frames.retain_mut(|frame| {
                match verdicts.next() {
                    Some(verdict) if is_for_it(verdict) => match buffers {
                        Buffers::Posted { header_last: true } => return netback.put_header(frame),
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

    /// Answers the guest's requests with the frames that stayed.
    fn respond(&self, switch: &mut Switch, guest: usize, buffers: Buffers) -> ToGuest {
        let mut report = ToGuest::default();
        let Some(netback) = switch.ports.vif_mut(guest).and_then(VifPort::netback) else {
            return report;
        };
        switch.ledger.at(Hop::Netback, || match buffers {
            Buffers::Posted { .. } => {
                for frame in &self.frames {
                    netback.accept(frame);
                }
                netback.post_end()
            }
            Buffers::Lent => {
                for frame in &self.frames {
                    netback.deliver(frame, &mut report);
                }
                report
            }
        })
    }
}

/// Fills in a checksum that the guest would not find. A frame that cannot be mended is refused
/// later, for that reason.
fn fill_in_checksum(frame: &mut Frame, buffers: Buffers) {
    if transport::is_placed(frame) || finish_in_place(frame).is_err() {
        return;
    }
    // A header that comes last is written when the bridge has decided.
    if buffers != (Buffers::Posted { header_last: true })
        && let Some(first) = frame.pieces.first()
    {
        // A page that was revoked is found by the next one that uses it.
        let _ = first.span.write(frame.header());
    }
}

/// The guest does not get a frame; its buffers are the guest's again.
fn refuse<G: Grants>(netback: &mut Netback<G>, frame: &Frame, buffers: Buffers) {
    for piece in &frame.pieces {
        match buffers {
            Buffers::Posted { .. } => netback.refuse(piece.buffer),
            Buffers::Lent => netback.give_back(piece.buffer, Returned::Failed),
        }
    }
}

#[cfg(test)]
mod tests;
