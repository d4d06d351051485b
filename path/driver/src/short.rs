//! The short way through the driver domain ([`nic::small_frame`]): small frames from guest to guest, which are
//! most of those that come in great numbers. Whatever asks for more – an offload, a rule, a station that has
//! to be learned, a port that is no guest – takes the other way, with all of its batch.

use crate::port::Port;
use crate::turn::Driver;
use nic::{Frame, SmallBatch, SmallFrame};
use runtime::ledger::Hop;
use vif::netback::Taken;

/// Batches of a guest's that are not tried after one that had to take the other way: whoever talks to a wire goes on
/// to.
const UNTRIED: u8 = 31;

/// Which guests' batches may go the short way, and room for the work.
#[derive(Debug, Default)]
pub struct Short {
    /// By port, batches that are not to be tried.
    untried: Vec<u8>,
    /// Empty between two batches: what they lie in is in use no longer.
    small_frames: SmallBatch,
    /// Where each of them goes.
    routes: Vec<u16>,
}

impl Short {
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

    /// A batch could not go the short way: the next ones are not tried.
    fn put_off(&mut self, port: usize) {
        if self.untried.len() <= port {
            self.untried.resize(port + 1, 0);
        }
        if let Some(left) = self.untried.get_mut(port) {
            *left = UNTRIED;
        }
    }
}

impl Driver {
    /// A batch from the guest at port `index`, as far as it is small frames: what was taken. Nothing: it goes the
    /// other way.
    pub(crate) fn serve_small_frames(&mut self, index: usize, now_ns: u64, budget: usize) -> Taken {
        let Some(Port::Vif(vif)) = self.ports.get_mut(index) else {
            return Taken::default();
        };
        // What is followed has a record of what happens to it.
        if self.trace.is_wanted() || !self.bridge.has_routes(index) || self.short.is_untried(index)
        {
            return Taken::default();
        }
        let mut short = std::mem::take(&mut self.short);
        let before = self.ledger.enter(Hop::Netback);
        let taken = vif.take_small_frames(budget, &mut short.small_frames);
        if !short.small_frames.is_empty() && !self.give_small_frames(index, now_ns, &mut short) {
            short.put_off(index);
            self.forward_small_frames(index, now_ns, &short.small_frames);
        }
        if taken.requests > 0 {
            if let Some(Port::Vif(vif)) = self.ports.get_mut(index) {
                vif.done(&mut self.frames, &self.ledger);
            }
            self.news.mark(index);
        }
        self.ledger.enter(before);
        short.small_frames.clear();
        self.short = short;
        taken
    }

    /// Gives each frame to the guest that it is for; whether all of them could go so. If not, none went.
    fn give_small_frames(&mut self, in_port: usize, now_ns: u64, short: &mut Short) -> bool {
        let Short {
            small_frames,
            routes,
            ..
        } = short;
        self.ledger.enter(Hop::Bridge);
        let routed = self.bridge.routes(small_frames, in_port, now_ns, routes);
        self.ledger.enter(Hop::Netback);
        if !routed {
            return false;
        }
        match routes.first() {
            // As most batches: one look for all.
            Some(first) if routes.iter().all(|route| route == first) => {
                self.picks
                    .add((*first).into(), 0..small_frames.len() as u32);
            }
            _ => {
                for (frame, route) in (0..).zip(&*routes) {
                    self.picks.add((*route).into(), [frame]);
                }
            }
        }
        let longest = small_frames.iter().map(SmallFrame::len).max().unwrap_or(0);
        let takes = |port: Option<&Port>| match port {
            Some(Port::Vif(vif)) => longest <= vif.longest_small_frame(),
            _ => false,
        };
        let fits = self
            .picks
            .all()
            .all(|(port, _)| takes(self.ports.get(port)));
        if fits {
            for (number, pick) in self.picks.all() {
                if let Some(Port::Vif(vif)) = self.ports.get_mut(number) {
                    vif.give_small_frames(small_frames, pick);
                    self.news.mark(number);
                }
            }
        }
        self.picks.clear();
        fits
    }

    /// The other way: as frames that can be anything.
    fn forward_small_frames(&mut self, in_port: usize, now_ns: u64, small_frames: &[SmallFrame]) {
        let mut frames: Vec<Frame> = std::mem::take(&mut self.frames);
        for small_frame in small_frames {
            match small_frame.to_frame() {
                Ok(frame) => frames.push(frame),
                Err(_) => self.outbox.unfit.fault += 1,
            }
        }
        self.forward(in_port, now_ns, &mut frames);
        frames.clear();
        self.frames = frames;
    }
}
