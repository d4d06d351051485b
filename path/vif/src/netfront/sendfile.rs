//! Frames in pages outside the pool, which are granted on demand and stay granted for reuse (Ram's
//! thesis, 4.6).
//!
//! The header of the frame is built in a buffer of the pool. The payload stays in the domain's
//! other pages and is not copied. Each request for a payload page has a separate id, because one
//! page may be in flight several times.

use super::interface::Netfront;
use super::table::Granter;
use super::track::Tracking;
use super::transmit::{SendError, TransmitReport};
use crate::counters::VifDrop;
use crate::fatal::Fatal;
use nic::{BufferId, Frame};

impl Netfront {
    /// Returns whether frames may lie in pages outside the pool, which
    /// [`Netfront::transmit_tracked`] handles.
    #[must_use]
    #[inline]
    pub fn tracks(&self) -> bool {
        self.tracked.is_some()
    }

    /// Returns the counters of the grant table for outside pages.
    #[must_use]
    pub fn tracking(&self) -> Tracking {
        let tracked = self.tracked.as_ref();
        tracked.map_or(Tracking::default(), |tracked| tracked.table.tracking)
    }

    /// Returns the number of granted pages outside the pool, and the number of table entries for
    /// them.
    #[must_use]
    pub fn tracked_pages(&self) -> (usize, usize) {
        let tracked = self.tracked.as_ref();
        tracked.map_or((0, 0), |own| (own.table.granted(), own.table.len()))
    }

    /// Like [`Netfront::transmit`], but also sends frames in pages outside the pool in place. A
    /// frame whose pages cannot be granted now waits until requests in flight are answered; if none
    /// are in flight, it is copied.
    ///
    /// # Errors
    /// Returns [`Fatal`]; the interface is then disabled.
    pub fn transmit_tracked(
        &mut self,
        frames: &mut Vec<Frame>,
        granter: &mut dyn Granter,
    ) -> Result<TransmitReport, Fatal> {
        self.transmit_by(frames, |front, frame| front.send_tracked(frame, granter))
    }

    fn send_tracked(
        &mut self,
        frame: &mut Frame,
        granter: &mut dyn Granter,
    ) -> Result<(), SendError> {
        if !self.lies_outside(frame) {
            return self.send(frame);
        }
        self.check(frame).map_err(SendError::Rejected)?;
        let slots = frame.pieces.len() as u32 + u32::from(frame.offload.gso.is_some());
        let fits = frame.pieces.len() <= usize::from(self.peer().max_slots);
        if !fits || !put_header(frame).map_err(|()| SendError::Rejected(VifDrop::Fault))? {
            return self.send_copy(frame);
        }
        if self.tx.free() < slots {
            return Err(SendError::NoSpace);
        }
        let tracked = self.tracked.as_mut();
        let Some(uses) = tracked.and_then(|own| own.take(&frame.pieces, granter)) else {
            return match self.tracked.as_ref().is_some_and(|own| !own.is_idle()) {
                true => Err(SendError::NoSpace),
                false => self.send_copy(frame),
            };
        };
        let mut uses = uses.into_iter();
        self.request(frame, |front, piece| match piece.buffer {
            BufferId::NONE => front.tracked.as_mut()?.allocate_request(&uses.next()?),
            _ => front.mark_in_flight(piece),
        });
        Ok(())
    }

    fn send_copy(&mut self, frame: &mut Frame) -> Result<(), SendError> {
        self.copy_in(frame, u32::from(frame.offload.gso.is_some()))?;
        if let Some(tracked) = &mut self.tracked {
            tracked.table.tracking.copied += 1;
        }
        self.request(frame, Self::mark_in_flight);
        Ok(())
    }

    /// Returns whether a frame consists of a first piece in the pool and further pieces outside it.
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

/// Writes a changed snapshot into the frame's first piece; returns whether that covers all changes.
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
        let mut there = [0; nic::frame::SNAPSHOT_MAX];
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
