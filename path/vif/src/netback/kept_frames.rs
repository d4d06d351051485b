//! Received frames that outlive their batch: large receive offload holds them to merge them with
//! later ones.
//!
//! ```text
//!   post ──► frame ── keep ──► held ── deliver ───────► response with the frame
//!                                   ── return_buffer ─► response without one
//! ```
//!
//! A kept frame's request is outstanding: consumed, and answered in any order (NETIF-27). Its page
//! stays in use. [`Netback::reserve`] reserves requests for the segment sizes of held frames, which
//! copied frames do not use.

use super::interface::Netback;
use super::outstanding::{OutstandingRequest, Returned};
use super::zero_copy_batch::PostState;
use crate::counters::VifDrop;
use crate::grants::{GrantAccess, GrantMechanism};
use crate::netif::RxRequest;
use abi::GrantRef;
use nic::{BufferId, Frame};

impl<G: GrantMechanism> Netback<G> {
    /// Returns whether received frames can be [kept](Netback::keep) after their batch.
    #[must_use]
    pub fn can_keep(&self) -> bool {
        self.negotiated.any_order && self.negotiated.rx_offset && self.grants.can_hold()
    }

    /// Keeps the frames of the batch until [`Netback::deliver`] or [`Netback::return_buffer`], and
    /// renames their buffers for these calls. Drops frames in pages that the guest has revoked;
    /// [`Netback::post_end`], which must follow, answers their requests.
    pub fn keep(&mut self, frames: &mut Vec<Frame>) {
        if frames.is_empty() {
            return;
        }
        let mut accesses = std::mem::take(&mut self.outstanding.accesses);
        let mut numbers = std::mem::take(&mut self.outstanding.frames);
        let pieces = frames.iter().flat_map(|frame| &frame.pieces);
        accesses.extend(pieces.map(|piece| self.kept_access(piece.buffer)));
        self.grants.hold(&mut accesses, &mut numbers);
        let mut held = accesses.iter();
        frames.retain_mut(|frame| {
            let pieces = frame.pieces.as_mut_slice().iter_mut();
            let mut all = pieces.zip(&mut held).map(|(piece, access)| {
                let kept = self.keep_buffer(piece.buffer, access);
                piece.buffer = kept.unwrap_or(BufferId::NONE);
                kept.is_some()
            });
            // Every piece is kept or dropped, so that each access has an owner.
            let is_kept = all.by_ref().fold(true, |all, one| all & one);
            if !is_kept {
                for piece in &frame.pieces {
                    self.return_buffer(piece.buffer, Returned::Failed);
                }
            }
            is_kept
        });
        accesses.clear();
        numbers.clear();
        self.outstanding.accesses = accesses;
        self.outstanding.frames = numbers;
    }

    /// Returns an access like that of a buffer of the batch, which outlives the batch.
    fn kept_access(&self, id: BufferId) -> GrantAccess {
        let access = self.zero_copy.accesses.get(id.0 as usize);
        access.map_or(GrantAccess::new(GrantRef(0), 0, 0), |access| {
            GrantAccess::new(access.gref, access.offset, access.len)
        })
    }

    /// Makes the request of a buffer of the batch outstanding. Returns the buffer's new id, or
    /// `None` if its page is not held.
    fn keep_buffer(&mut self, id: BufferId, access: &GrantAccess) -> Option<BufferId> {
        let posted = self.zero_copy.list.get_mut(id.0 as usize);
        let in_use = posted.filter(|posted| posted.state == PostState::InUse);
        let Ok(span) = access.result else {
            if let Some(posted) = in_use {
                posted.state = PostState::Failed(VifDrop::Grant);
            }
            return None;
        };
        let Some(posted) = in_use else {
            self.grants.hold_end(access.gref);
            return None;
        };
        posted.state = PostState::Kept;
        let request = RxRequest {
            id: posted.request,
            offset: posted.offset,
            gref: access.gref.0,
        };
        Some(self.outstanding.put(OutstandingRequest { request, span }))
    }

    /// Reserves up to `requests` requests of the ring for the segment sizes of merged frames, which
    /// are not delivered yet. Returns the number reserved.
    pub fn reserve(&mut self, requests: u32) -> u32 {
        self.reserved = self.ready(requests);
        self.reserved
    }

    /// Returns the number of requests that [`Netback::reserve`] could reserve, up to `want`.
    pub fn reservable(&mut self, want: u32) -> u32 {
        self.ready(want)
    }

    /// Returns the guest's count of [announced revocations](GrantMechanism::revocations).
    #[must_use]
    pub fn revocations(&self) -> u64 {
        self.grants.revocations()
    }
}
