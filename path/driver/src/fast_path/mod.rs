//! The fast path through the driver domain ([`nic::small_frame`]): small frames from guest to
//! guest. Most frames that come in great numbers are such frames.
//!
//! A [`Frame`] can be many pieces, half private, still to be merged, cut or summed up. A small
//! frame is 80 bytes, a copy of its head and where it lies, and asks for nothing. So the two are
//! different types all the way, from the ring that a frame comes from to the ring that it goes to.
//!
//! Which path a batch takes is decided once for the whole batch. The decision needs three answers:
//! of the netback (the frames at the head of the ring are small), of the bridge (each goes out by
//! one port, with nothing to learn, count or look into: BR-21), and of the ports that they go to
//! (each is a connected guest with room for the longest). If an answer is no, the whole batch takes
//! the slow path, [`Switch::forward`], which decides and counts. The fast path has no verdict but
//! *goes*. It is not a variant of [`Switch::carry`]'s batch: that would be made of frames already,
//! and making frames is most of the cost that this path saves.

use crate::switch::{Carried, Switch};
use nic::{Frame, SmallBatch, SmallFrame};
use runtime::ledger::Hop;

/// Batches of a guest that are not tried after one that had to take the slow path. A guest that
/// talks to a wire goes on doing so, and a try that fails costs a copy of each frame's head. With
/// 31 that is paid for one batch in 32, and a guest that turns to another guest is on the fast path
/// again within 32 batches.
const UNTRIED: u8 = 31;

/// Which guests' batches are tried, and room for the work.
#[derive(Debug, Default)]
pub struct FastPath {
    /// By port, batches that are not to be tried.
    untried: Vec<u8>,
    /// The batch; empty between two, because its buffers are in use no longer.
    small: SmallBatch,
    /// Where each of them goes.
    routes: Vec<u16>,
    /// Room for a batch that takes the slow path; empty between two.
    frames: Vec<Frame>,
}

/// A batch of small frames that was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Small {
    /// What it was.
    pub carried: Carried,
    /// Whether the guest had more requests behind it.
    pub more: bool,
}

impl FastPath {
    /// Carries a batch of up to `budget` small frames from the guest at `in_port`. None: nothing
    /// was taken, and the slow path gets what there is.
    pub fn carry(
        &mut self,
        switch: &mut Switch,
        in_port: usize,
        now_ns: u64,
        budget: usize,
    ) -> Option<Small> {
        let vif = switch.ports.vif_mut(in_port)?;
        // A frame that is followed or captured has a record of what happens to it, which takes a
        // verdict.
        if switch.trace.is_wanted()
            || switch.capture.is_on()
            || !switch.bridge.has_routes(in_port)
            || self.is_untried(in_port)
        {
            return None;
        }
        let before = switch.ledger.enter(Hop::Netback);
        let taken = vif.take_small_frames(budget, &mut self.small);
        if !self.small.is_empty() && !self.send(switch, in_port, now_ns) {
            self.put_off(in_port);
            self.take_slow_path(switch, in_port, now_ns);
        }
        if taken.requests > 0 {
            if let Some(vif) = switch.ports.vif_mut(in_port) {
                vif.done(&switch.ledger);
            }
            switch.dirty.mark(in_port);
        }
        switch.ledger.enter(before);
        self.small.clear();
        (taken.requests > 0).then_some(Small {
            carried: Carried {
                packets: taken.requests,
                bytes: taken.bytes,
            },
            more: taken.more,
        })
    }

    /// Whether the batch that comes now is not to be tried.
    #[inline]
    fn is_untried(&mut self, port: usize) -> bool {
        match self.untried.get_mut(port) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// A batch had to take the slow path: the next ones are not tried.
    fn put_off(&mut self, port: usize) {
        if self.untried.len() <= port {
            self.untried.resize(port + 1, 0);
        }
        if let Some(left) = self.untried.get_mut(port) {
            *left = UNTRIED;
        }
    }

    /// Sends each frame to the guest that it is for, if all of them can take this path; whether
    /// they can. If not, none was sent.
    fn send(&mut self, switch: &mut Switch, in_port: usize, now_ns: u64) -> bool {
        let Self { small, routes, .. } = self;
        switch.ledger.enter(Hop::Bridge);
        let routed = switch.bridge.routes(small, in_port, now_ns, routes);
        switch.ledger.enter(Hop::Netback);
        if !routed {
            return false;
        }
        let Switch {
            ports,
            egress,
            dirty,
            ..
        } = switch;
        match routes.first() {
            // As in most batches, all go to one port.
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
                longest <= vif.longest_small_frame() && vif.egress.affords(now_ns, || bytes(pick))
            })
        });
        if fits {
            for (number, pick) in egress.all() {
                if let Some(vif) = ports.vif_mut(number) {
                    vif.egress.charge(now_ns, || bytes(pick));
                    vif.send_small_frames(small, pick);
                    dirty.mark(number);
                }
            }
        }
        egress.clear();
        fits
    }

    /// Forwards the batch as frames that can be anything.
    fn take_slow_path(&mut self, switch: &mut Switch, in_port: usize, now_ns: u64) {
        for small in self.small.iter() {
            match small.to_frame() {
                Ok(frame) => self.frames.push(frame),
                Err(_) => switch.outbox.unfit.fault += 1,
            }
        }
        switch.forward(in_port, now_ns, &mut self.frames);
        self.frames.clear();
    }
}

#[cfg(test)]
mod tests;
