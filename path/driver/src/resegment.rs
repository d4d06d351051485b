//! Resegmenting to receive credit: splits aggregates to the number of slots that a guest accepts
//! per packet, and to the guest's posted buffers. If one part of an aggregate is lost, the sender
//! must retransmit only the packets of this part.

use net::packet::segment::split;
use nic::Frame;
use vif::grants::GrantMechanism;
use vif::netback::{DeliveryReport, Netback};

/// Splits frames for one guest.
#[derive(Debug, Default)]
pub struct Resegmenter {
    fit: Vec<Frame>,
    pick: Vec<u32>,
    /// Number of frames made by splitting larger frames.
    pub resegmented_frames: u64,
}

impl Resegmenter {
    /// Like [`Netback::to_guest_while_posted`], but splits aggregates that exceed the guest's slot
    /// limit, and delivers their parts.
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

    /// Like [`Netback::to_guest`], but splits aggregates that exceed the guest's slot limit or its
    /// posted buffers, and delivers their parts.
    pub fn to_guest<G: GrantMechanism>(
        &mut self,
        netback: &mut Netback<G>,
        frames: &[Frame],
        pick: &[u32],
    ) -> DeliveryReport {
        let chosen = || pick.iter().filter_map(|&index| frames.get(index as usize));
        // Frames that are not aggregates cannot be split.
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
            // The netback drops a frame that cannot be split, and counts it as a frame without
            // buffers.
            if fits || split(frame, netback.bytes_for(left), &mut self.fit).is_err() {
                self.fit.push(frame.clone());
            } else {
                self.resegmented_frames += (self.fit.len() - first) as u64;
            }
            for frame in self.fit.iter().skip(first) {
                left = left.checked_sub(netback.slots_for(frame)).unwrap_or(left);
            }
        }
        self.pick.clear();
        self.pick.extend(0..self.fit.len() as u32);
        let report = netback.to_guest(&self.fit, &self.pick);
        // The parts reference memory of `frames`, which may be invalid after this call.
        self.fit.clear();
        report
    }
}

/// Returns the number of receive buffers that a frame needs. If the frame must be split at the
/// guest's slot limit, this is the sum for all parts.
pub fn slots_for<G: GrantMechanism>(netback: &Netback<G>, frame: &Frame) -> u32 {
    let slots = netback.slots_for(frame);
    let max_slots = u32::from(netback.peer().max_slots).max(1);
    match frame.offload.gso {
        // Each part is slightly shorter than the limit, and may have an additional slot for an
        // extra info.
        Some(_) if slots > max_slots => slots + 2 * slots.div_ceil(max_slots),
        _ => slots,
    }
}

#[cfg(test)]
mod tests;
