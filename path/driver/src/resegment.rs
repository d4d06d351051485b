//! Resegmenting to RX credit: splits aggregates to the slots that a guest accepts per packet, and
//! to its posted buffers. If one part of an aggregate is lost, only the packets of that part must
//! be retransmitted.

use net::packet::segment::split;
use nic::Frame;
use vif::grants::GrantMechanism;
use vif::netback::{DeliveryReport, Netback};

/// Splits frames for one guest.
#[derive(Debug, Default)]
pub struct Resegmenter {
    fit: Vec<Frame>,
    pick: Vec<u32>,
    /// Frames made by splitting larger ones.
    pub split: u64,
}

impl Resegmenter {
    /// Like [`Netback::to_guest_while_posted`], but delivers aggregates above the guest's slot
    /// limit in parts.
    pub fn to_guest_while_posted<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        frames: &[Frame],
        pick: &[u32],
    ) -> (DeliveryReport, usize) {
        let most = netback.bytes_for(u32::MAX);
        let is_long = |frame: &Frame| frame.offload.gso.is_some() && frame.len() > most;
        let chosen = |index: &u32| frames.get(*index as usize);
        if !pick.iter().filter_map(chosen).any(is_long) {
            return netback.to_guest_while_posted(frames, pick);
        }
        let mut left = netback.posted(u32::MAX);
        let fits = |index: &&u32| {
            let slots = chosen(index).map_or(0, |frame| slots_for(netback, frame));
            let rest = left.checked_sub(slots);
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let handled = pick.iter().take_while(fits).count();
        let pick = pick.get(..handled).unwrap_or(&[]);
        (self.to_guest(netback, frames, pick), handled)
    }

    /// Like [`Netback::to_guest`], but delivers frames that are too large for the guest in parts.
    pub fn to_guest<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        frames: &[Frame],
        pick: &[u32],
    ) -> DeliveryReport {
        let chosen = || pick.iter().filter_map(|&index| frames.get(index as usize));
        // Only aggregates can be split.
        if !chosen().any(|frame| frame.offload.gso.is_some()) {
            return netback.to_guest(frames, pick);
        }
        let most = netback.bytes_for(u32::MAX);
        let is_long = |frame: &Frame| frame.offload.gso.is_some() && frame.len() > most;
        let slots = chosen().map(|frame| netback.slots_for(frame)).sum();
        if netback.posted(slots) >= slots && !chosen().any(is_long) {
            return netback.to_guest(frames, pick);
        }
        self.fit.clear();
        let mut left = netback.posted(u32::MAX);
        for frame in chosen() {
            let first = self.fit.len();
            let slots = netback.slots_for(frame);
            let fits = frame.offload.gso.is_none() || slots <= left && !is_long(frame);
            // The netback counts a frame that cannot be split as one without buffers.
            if fits || split(frame, netback.bytes_for(left), &mut self.fit).is_err() {
                self.fit.push(frame.clone());
            } else {
                self.split += (self.fit.len() - first) as u64;
            }
            for frame in self.fit.iter().skip(first) {
                left = left.checked_sub(netback.slots_for(frame)).unwrap_or(left);
            }
        }
        self.pick.clear();
        self.pick.extend(0..self.fit.len() as u32);
        let report = netback.to_guest(&self.fit, &self.pick);
        // Parts must not outlive the frames whose memory they reference.
        self.fit.clear();
        report
    }
}

/// Returns the number of receive buffers that a frame needs; if it is split at the guest's slot
/// limit, those of all its parts.
pub fn slots_for<G: GrantMechanism>(netback: &Netback<G>, frame: &Frame) -> u32 {
    let slots = netback.slots_for(frame);
    let at_once = u32::from(netback.peer().max_slots).max(1);
    match frame.offload.gso {
        // Each part is slightly shorter than the maximum, and may have an extra info.
        Some(_) if slots > at_once => slots + 2 * slots.div_ceil(at_once),
        _ => slots,
    }
}

#[cfg(test)]
mod tests;
