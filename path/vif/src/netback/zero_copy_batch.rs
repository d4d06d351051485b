//! Zero-copy RX batch: the posted buffers that a device writes to, and the state of each.

use super::completions::{RxCompletion, WrittenPart};
use crate::counters::VifDrop;
use crate::grants::GrantAccess;
use crate::netif::rings::RX_RESPONSE;
use nic::{BufferId, Piece};
use shmem::Span;

/// The batch of [`Netback::post`](super::Netback::post).
#[derive(Debug, Default)]
pub(super) struct ZeroCopyBatch {
    pub(super) list: Vec<PostedRequest>,
    /// The access to each buffer's memory.
    pub(super) accesses: Vec<GrantAccess>,
    /// Index of the next buffer for the device.
    pub(super) next: usize,
    /// Whether the pages are accessible to the device.
    pub(super) running: bool,
    /// Whether requests are left out for the segment sizes of merged frames.
    pub(super) skips_requests: bool,
    /// Whether received frames may be [kept](super::Netback::keep).
    pub(super) keeps: bool,
}

/// One request of the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedRequest {
    /// The request's id.
    pub(super) request: u16,
    pub(super) offset: u16,
    pub(super) state: PostState,
}

/// Owner of a posted buffer, or its pending response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostState {
    /// The buffer's request is in the ring, and the buffer is not in use.
    Free,
    /// The device owns the buffer, or the buffer is part of a frame.
    InUse,
    /// To be answered with an error, for this reason.
    Failed(VifDrop),
    /// The buffer holds a frame that is not for the guest, so the request is answered with an
    /// error.
    Refused,
    /// The buffer holds a frame that outlives the batch. Its request is outstanding.
    Kept,
    /// The request is skipped. It will carry the segment size of a merged frame that begins in the
    /// previous buffer.
    Skipped,
    /// The request carries a part of a frame for the guest, or the frame's segment size. Holds the
    /// response, and for the first part the length of the frame.
    Part {
        response: [u32; RX_RESPONSE],
        whole: u32,
    },
}

impl ZeroCopyBatch {
    /// Takes back buffer `id` if the device has it.
    pub(super) fn take_back(&mut self, id: BufferId, state: PostState) {
        if let Some(posted) = self.list.get_mut(id.0 as usize)
            && posted.state == PostState::InUse
        {
            posted.state = state;
        }
    }

    /// Returns the bytes of buffer number `index` if they are usable.
    pub(super) fn span(&self, index: usize) -> Option<Span> {
        self.accesses.get(index)?.result.ok()
    }

    /// Returns `piece` as a part of a frame, or `None` if it lies in no buffer of the device.
    pub(super) fn written(&self, piece: &Piece) -> Option<WrittenPart> {
        let index = piece.buffer.0 as usize;
        let posted = self.list.get(index)?;
        (posted.state == PostState::InUse).then_some(WrittenPart {
            request: posted.request,
            offset: posted.offset,
            buffer: self.span(index)?,
            piece: piece.span,
        })
    }

    /// Returns the number of requests up to the last used one.
    pub(super) fn used(&self) -> usize {
        let used =
            |posted: &PostedRequest| !matches!(posted.state, PostState::Free | PostState::Skipped);
        self.list.iter().rposition(used).map_or(0, |last| last + 1)
    }
}

impl PostedRequest {
    /// Returns the response of a buffer without a part of a frame.
    pub(super) fn empty_response(&self, status: i16) -> [u32; RX_RESPONSE] {
        RxCompletion::new(self.request, self.offset, status).plain_response()
    }
}
