//! The buffers of a batch that a device writes itself, and what has become of each.

use super::answers::{Answer, Written};
use crate::counters::Drop;
use crate::grants::Access;
use crate::netif::rings::RX_RESPONSE;
use nic::{BufferId, Piece};
use shmem::Span;

/// The batch of [`Netback::post`](super::Netback::post).
#[derive(Debug, Default)]
pub(super) struct Posts {
    pub(super) list: Vec<Posted>,
    /// Where each of them lies.
    pub(super) accesses: Vec<Access>,
    /// The one that goes out next.
    pub(super) next: usize,
    /// Whether pages are within a device's reach.
    pub(super) running: bool,
    /// Whether requests are left out for what merged frames need.
    pub(super) leaves_out: bool,
}

/// One request of the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    /// Its id.
    pub(super) request: u16,
    pub(super) offset: u16,
    pub(super) state: PostState,
}

/// Who has a posted buffer, or how it is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostState {
    /// In the ring.
    Free,
    /// With the device, or with a frame.
    Out,
    /// To be answered with an error, for this reason.
    Failed(Drop),
    /// To be answered with an error, because what it holds is not for the guest.
    Refused,
    /// It was left out, for what a merged frame in the buffer before might need.
    LeftOut,
    /// It holds a part of a frame for the guest, or says how it is to be segmented: the response,
    /// and in the first part the bytes of all.
    Part {
        response: [u32; RX_RESPONSE],
        whole: u32,
    },
}

impl Posts {
    /// Buffer `id` comes back, if it is out.
    pub(super) fn take_back(&mut self, id: BufferId, state: PostState) {
        if let Some(posted) = self.list.get_mut(id.0 as usize)
            && posted.state == PostState::Out
        {
            posted.state = state;
        }
    }

    /// The bytes of buffer number `index`, if they are usable.
    pub(super) fn span(&self, index: usize) -> Option<Span> {
        self.accesses.get(index)?.result.ok()
    }

    /// A part of a frame that lies in a buffer which is out.
    pub(super) fn written(&self, piece: &Piece) -> Option<Written> {
        let index = piece.buffer.0 as usize;
        let posted = self.list.get(index)?;
        (posted.state == PostState::Out).then_some(Written {
            request: posted.request,
            offset: posted.offset,
            buffer: self.span(index)?,
            piece: piece.span,
        })
    }

    /// Requests up to the last one that was used.
    pub(super) fn used(&self) -> usize {
        let used = |posted: &Posted| !matches!(posted.state, PostState::Free | PostState::LeftOut);
        self.list.iter().rposition(used).map_or(0, |last| last + 1)
    }
}

impl Posted {
    /// Its answer, if it does not hold a part of a frame.
    pub(super) fn without(&self, status: i16) -> [u32; RX_RESPONSE] {
        Answer::new(self.request, self.offset, status).plain()
    }
}
