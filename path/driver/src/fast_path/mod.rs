//! The fast path through the driver domain: it forwards small frames from guest to guest
//! ([`nic::small_frame`]), the most frequent kind at high packet rates.
//!
//! A [`Frame`] may have many pieces, a separate header, and pending merging, segmentation or
//! checksums. A small frame is a struct of 80 bytes without pending work: a copy of the frame's
//! head, and an address. So the two are different types all the way from the source ring to the
//! destination ring.
//!
//! The driver selects the path for a whole batch. The fast path has three requirements. The frames
//! at the head of the ring are small (netback). Each frame has one egress port, and the bridge has
//! nothing to learn, count or inspect (BR-21). Each egress port is a connected guest that accepts
//! the longest frame. Otherwise the whole batch takes the slow path, [`Switch::forward`], which
//! decides and counts. The fast path only forwards frames. It is separate from
//! [`Switch::forward_from`], whose batches consist of [`Frame`]s, because building [`Frame`]s is
//! most of the cost that the fast path saves.

mod sender_load;

pub use sender_load::SmallFrameRate;

use crate::software_offload::TxError;
use crate::switch::{BatchStats, Switch};
use nic::{Frame, SmallBatch, SmallFrame};
use runtime::ledger::Hop;
use sender_load::SenderLoad;

/// Number of a guest's posted buffers that a sender of many small frames leaves to other senders.
/// Frames of this path do not wait for buffers, so a flood would otherwise displace most frames of
/// other senders, including ARP replies.
const RESERVED_BUFFERS: u32 = 8;

/// Number of a guest's batches that skip the fast path after a batch that needed the slow path. A
/// guest that sends to a wire usually continues to do so, and a failed attempt costs a copy of each
/// frame's head. With 31 skips, one batch in 32 pays for an attempt, and a guest that starts to
/// send to another guest uses the fast path after at most 31 batches.
const SKIPPED_BATCHES: u8 = 31;

/// Scratch lists of the fast path.
#[derive(Debug, Default)]
pub struct FastPath {
    /// The batch; empty between batches, so that it references no buffers.
    small: SmallBatch,
    /// Destination port of each frame.
    routes: Vec<u16>,
    /// Scratch list for a batch that takes the slow path; empty between batches.
    frames: Vec<Frame>,
}

/// A forwarded batch of small frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallFrameBatch {
    /// Number of packets and bytes of the batch.
    pub stats: BatchStats,
    /// Whether the guest's ring had more requests.
    pub more: bool,
}

impl FastPath {
    /// Forwards a batch of up to `budget` small frames from the guest at `in_port`. Returns `None`
    /// if it took no frame and the slow path must handle the ring.
    pub fn forward_from(
        &mut self,
        switch: &mut Switch,
        in_port: usize,
        now_ns: u64,
        budget: usize,
    ) -> Option<SmallFrameBatch> {
        let vif = switch.ports.vif_mut(in_port)?;
        // Traced and captured frames need a verdict, which only the slow path produces.
        if switch.trace.is_wanted()
            || switch.capture.is_on()
            || !switch.bridge.has_routes(in_port)
            || skips(&mut vif.fast_path_skips)
        {
            return None;
        }
        let before = switch.ledger.enter(Hop::Netback);
        let taken = vif.take_small_frames(budget, &mut self.small);
        let reserved = match vif.small_frame_rate.add(now_ns, self.small.len()) {
            SenderLoad::Low => 0,
            SenderLoad::High => RESERVED_BUFFERS,
        };
        if !self.small.is_empty() && !self.send(switch, (in_port, reserved), now_ns) {
            if let Some(vif) = switch.ports.vif_mut(in_port) {
                vif.fast_path_skips = SKIPPED_BATCHES;
            }
            self.take_slow_path(switch, in_port, now_ns);
        }
        if taken.requests > 0 {
            if let Some(vif) = switch.ports.vif_mut(in_port) {
                vif.release_taken(&switch.ledger);
            }
            switch.dirty.mark(in_port);
        }
        switch.ledger.enter(before);
        self.small.clear();
        (taken.requests > 0).then_some(SmallFrameBatch {
            stats: BatchStats {
                packets: taken.requests,
                bytes: taken.bytes,
            },
            more: taken.more,
        })
    }

    /// Sends each frame to its guest if all frames qualify for the fast path. Otherwise returns
    /// false and sends nothing. Does not use the last `reserved` posted buffers of each guest.
    fn send(
        &mut self,
        switch: &mut Switch,
        (in_port, reserved): (usize, u32),
        now_ns: u64,
    ) -> bool {
        let Self { small, routes, .. } = self;
        switch.ledger.enter(Hop::Bridge);
        let routed = switch.bridge.routes(small, in_port, now_ns, routes);
        switch.ledger.enter(Hop::Netback);
        if !routed {
            return false;
        }
        let Switch {
            ports,
            bridge,
            egress,
            dirty,
            ..
        } = switch;
        match routes.first() {
            // In most batches all frames have the same egress port.
            Some(first) if routes.iter().all(|route| route == first) => {
                egress.add((*first).into(), 0..small.len() as u32);
            }
            _ => {
                for (frame, route) in (0..).zip(&*routes) {
                    egress.add((*route).into(), [frame]);
                }
            }
        }
        let longest = small.iter().map(SmallFrame::len).max().unwrap_or(0);
        let bytes = |pick: &[u32]| {
            let chosen = pick.iter().filter_map(|frame| small.get(*frame as usize));
            chosen.map(SmallFrame::len).sum()
        };
        let fits = egress.all().all(|(port, pick)| {
            let vif = ports.vif(port);
            vif.is_some_and(|vif| {
                longest <= vif.longest_small_frame()
                    && vif.egress.can_send_now(now_ns, || bytes(pick))
            })
        });
        if fits {
            bridge.sent(now_ns);
            for (number, pick) in egress.all() {
                if let Some(vif) = ports.vif_mut(number) {
                    vif.egress.charge(now_ns, || bytes(pick));
                    vif.send_small_frames(small, pick, reserved);
                    dirty.mark(number);
                }
            }
        }
        egress.clear();
        fits
    }

    /// Forwards the batch on the slow path, as [`Frame`]s.
    fn take_slow_path(&mut self, switch: &mut Switch, in_port: usize, now_ns: u64) {
        for small in self.small.iter() {
            match small.to_frame() {
                Ok(frame) => self.frames.push(frame),
                Err(_) => switch.software_offload.tx_errors.count(TxError::Fault),
            }
        }
        switch.forward(in_port, now_ns, &mut self.frames);
        self.frames.clear();
    }
}

/// Returns whether the next batch skips the fast path. If so, decrements the number of batches that
/// still skip it.
#[inline]
fn skips(remaining: &mut u8) -> bool {
    let skips = *remaining > 0;
    *remaining = remaining.saturating_sub(1);
    skips
}

#[cfg(test)]
mod tests;
