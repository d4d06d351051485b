//! The copies of a batch: frames are split at the ends of buffers and pieces.

use crate::counters::VifDrop;
use crate::grants::{CopyOut, CopySource, GrantAccess};
use abi::{GrantRef, GrantStatus};
use nic::Frame;
use shmem::Span;

/// Pending copies to the guest.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) planned: Vec<PlannedFrame>,
    pub(super) list: Vec<CopyOut>,
    /// Destinations of small frames.
    pub(super) destinations: Vec<GrantAccess>,
}

/// One frame of the batch: the ranges of its copies and responses in the batch's lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedFrame {
    copies: (u32, u32),
    pub(super) responses: (u32, u32),
    pub(super) bytes: u32,
    /// Whether a posted buffer was invalid, so that nothing is copied.
    bad: bool,
}

impl PlannedFrame {
    /// Returns why the frame is dropped, or `None` if all its `copies` have succeeded.
    #[inline]
    pub(super) fn verdict(&self, copies: &[CopyOut]) -> Option<VifDrop> {
        let (from, to) = self.copies;
        let copies = copies.get(from as usize..to as usize).unwrap_or(&[]);
        let failed = copies.iter().any(|copy| copy.status != GrantStatus::Okay);
        let reason = if self.bad {
            VifDrop::BadRequest
        } else {
            VifDrop::Grant
        };
        (self.bad || failed).then_some(reason)
    }
}

impl Copies {
    /// Adds a frame whose copies, and whose `responses` responses, are the last ones in their
    /// lists. Discards the copies of a `bad` frame.
    #[inline]
    pub(super) fn plan(
        &mut self,
        frame: &Frame,
        first_copy: usize,
        responses: (usize, usize),
        bad: bool,
    ) {
        if bad {
            self.list.truncate(first_copy);
        }
        self.planned.push(PlannedFrame {
            copies: (first_copy as u32, self.list.len() as u32),
            responses: (responses.0 as u32, responses.1 as u32),
            bytes: frame.len() as u32,
            bad,
        });
    }

    /// Plans the copies of frame number `index` of the batch, which fits one buffer.
    #[inline]
    pub(super) fn plan_whole_frame(
        &mut self,
        index: u32,
        frame: &Frame,
        gref: GrantRef,
        offset: usize,
    ) {
        let mut copy = |at: usize, source, len: usize| {
            self.list.push(CopyOut::new(source, gref, at, len));
            at + len
        };
        let header = CopySource::Header {
            frame: index,
            from: 0,
        };
        let behind = copy(offset, header, frame.header_len());
        let payload = frame.payload().filter(|span| !span.is_empty());
        payload.fold(behind, |at, span| {
            copy(at, CopySource::Span(span), span.len())
        });
    }
}

/// Scatter-gather cursor: splits a frame into copies, the snapshot first, then the payload.
pub(super) struct ScatterCursor<'a> {
    frame: &'a Frame,
    index: u32,
    header: usize,
    pieces: usize,
    current: Span,
    skip: usize,
    /// Bytes that no copy covers yet.
    left: usize,
}

impl<'a> ScatterCursor<'a> {
    pub(super) fn new(index: u32, frame: &'a Frame) -> Self {
        Self {
            frame,
            index,
            header: 0,
            pieces: 0,
            current: Span::EMPTY,
            skip: frame.covered(),
            left: frame.len(),
        }
    }

    /// Plans the copies that fill a buffer and returns their total length.
    pub(super) fn fill(
        &mut self,
        gref: GrantRef,
        offset: usize,
        room: usize,
        copies: &mut Vec<CopyOut>,
    ) -> usize {
        let mut done = 0;
        let room = room.min(self.left);
        while done < room {
            let (source, bytes) = if self.header < self.frame.header().len() {
                let bytes = (self.frame.header().len() - self.header).min(room - done);
                let from = self.header as u16;
                self.header += bytes;
                let frame = self.index;
                (CopySource::Header { frame, from }, bytes)
            } else {
                let Some(span) = self.payload(room - done) else {
                    break;
                };
                (CopySource::Span(span), span.len())
            };
            copies.push(CopyOut::new(source, gref, offset + done, bytes));
            done += bytes;
        }
        self.left -= done;
        done
    }

    /// Returns up to `want` contiguous bytes of payload.
    fn payload(&mut self, want: usize) -> Option<Span> {
        while self.current.is_empty() {
            let piece = self.frame.pieces.get(self.pieces)?;
            self.pieces += 1;
            let here = self.skip.min(piece.span.len());
            self.skip -= here;
            self.current = piece.span.skip(here);
        }
        let span = self.current.take(want);
        self.current = self.current.skip(span.len());
        Some(span)
    }
}
