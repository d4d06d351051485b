//! Frames that lie in pages outside the pool: their pages are granted on demand, and stay granted
//! while they are used again (Ram's thesis, 4.6).
//!
//! Such a frame begins in a buffer of the pool, as every one does whose header was made here; what
//! follows lies in the domain's own pages and is not copied. A request of such a page has a number
//! of its own, because the same page may be in flight more than once.

use super::interface::Netfront;
use super::table::Granter;
use super::track::Tracking;
use super::transmit::{Held, Transmitted};
use crate::counters::Drop;
use crate::fatal::Fatal;
use nic::{BufferId, Frame};

impl Netfront {
    /// Whether frames may lie in pages outside the pool, so that there is any use in
    /// [`Netfront::transmit_tracked`].
    #[must_use]
    #[inline]
    pub fn tracks(&self) -> bool {
        self.tracked.is_some()
    }

    /// What the table of grants that stay has done.
    #[must_use]
    pub fn tracking(&self) -> Tracking {
        let tracked = self.tracked.as_ref();
        tracked.map_or(Tracking::default(), |tracked| tracked.table.tracking)
    }

    /// Pages outside the pool that are granted now, and entries for them.
    #[must_use]
    pub fn tracked_pages(&self) -> (usize, usize) {
        let tracked = self.tracked.as_ref();
        tracked.map_or((0, 0), |own| (own.table.granted(), own.table.len()))
    }

    /// [`Netfront::transmit`] of frames that may lie in pages outside the pool. Those are sent from
    /// where they lie, too; a frame whose pages cannot be granted waits for those in flight, and is
    /// copied if there are none.
    ///
    /// # Errors
    /// [`Fatal`]: the interface is disabled.
    pub fn transmit_tracked(
        &mut self,
        frames: &mut Vec<Frame>,
        granter: &mut dyn Granter,
    ) -> Result<Transmitted, Fatal> {
        self.transmit_by(frames, |front, frame| front.send_tracked(frame, granter))
    }

    fn send_tracked(&mut self, frame: &mut Frame, granter: &mut dyn Granter) -> Result<(), Held> {
        if !self.lies_outside(frame) {
            return self.send(frame);
        }
        self.check(frame).map_err(Held::Never)?;
        let slots = frame.pieces.len() as u32 + u32::from(frame.offload.gso.is_some());
        let fits = frame.pieces.len() <= usize::from(self.peer().max_slots);
        if !fits || !put_header(frame).map_err(|()| Held::Never(Drop::Fault))? {
            return self.send_copy(frame);
        }
        if self.tx.free() < slots {
            return Err(Held::Later);
        }
        let tracked = self.tracked.as_mut();
        let Some(uses) = tracked.and_then(|own| own.take(&frame.pieces, granter)) else {
            return match self.tracked.as_ref().is_some_and(|own| !own.is_idle()) {
                true => Err(Held::Later),
                false => self.send_copy(frame),
            };
        };
        let mut uses = uses.into_iter();
        self.request(frame, |front, piece| match piece.buffer {
            BufferId::NONE => front.tracked.as_mut()?.launch(&uses.next()?),
            _ => front.launch(piece),
        });
        Ok(())
    }

    fn send_copy(&mut self, frame: &mut Frame) -> Result<(), Held> {
        self.copy_in(frame, u32::from(frame.offload.gso.is_some()))?;
        if let Some(tracked) = &mut self.tracked {
            tracked.table.tracking.copied += 1;
        }
        self.request(frame, Self::launch);
        Ok(())
    }

    /// Whether a frame lies in pages outside the pool behind a first piece that is the pool's.
    fn lies_outside(&self, frame: &Frame) -> bool {
        let Some(tracked) = &self.tracked else {
            return false;
        };
        let Some((first, rest)) = frame.pieces.split_first() else {
            return false;
        };
        let in_pool = self.tx_pool.get(first.buffer);
        !rest.is_empty()
            && in_pool.is_some_and(|slot| slot.find(first).is_some())
            && rest.iter().all(|piece| tracked.find(piece).is_some())
    }
}

/// Writes a snapshot that was changed into the frame's first piece; whether all that was changed
/// lies there.
fn put_header(frame: &Frame) -> Result<bool, ()> {
    if !frame.is_header_changed() {
        return Ok(true);
    }
    let Some((first, rest)) = frame.pieces.split_first() else {
        return Ok(true);
    };
    let (own, mut behind) = match frame.header().split_at_checked(first.span.len()) {
        Some(parts) => parts,
        None => (frame.header(), &[][..]),
    };
    for piece in rest {
        let mut there = [0; nic::frame::SNAPSHOT];
        let bytes = behind.len().min(piece.span.len());
        let there = there.get_mut(..bytes).ok_or(())?;
        piece.span.take(bytes).read(there).map_err(|_| ())?;
        if behind.get(..bytes) != Some(&*there) {
            return Ok(false);
        }
        behind = behind.get(bytes..).unwrap_or(&[]);
    }
    first.span.write(own).map_err(|_| ())?;
    Ok(true)
}

#[cfg(test)]
mod tests;
