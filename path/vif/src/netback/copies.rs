//! The copies of a batch: frames are cut where buffers and pieces end.

use crate::counters::Drop;
use crate::grants::{Access, CopyOut, Source};
use abi::{GrantRef, GrantStatus};
use nic::Frame;
use shmem::Span;

/// What is to be copied to the guest.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) planned: Vec<Planned>,
    pub(super) list: Vec<CopyOut>,
    /// Where small frames are put.
    pub(super) places: Vec<Access>,
}

/// One frame of the batch: where its copies and its responses lie in the batch's lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    copies: (u32, u32),
    pub(super) responses: (u32, u32),
    pub(super) bytes: u32,
    /// A buffer of the guest's was no buffer: nothing was copied.
    bad: bool,
}

impl Planned {
    /// Why the guest does not get the frame, now that `copies` are done.
    #[inline]
    pub(super) fn verdict(&self, copies: &[CopyOut]) -> Option<Drop> {
        let (from, to) = self.copies;
        let copies = copies.get(from as usize..to as usize).unwrap_or(&[]);
        let failed = copies.iter().any(|copy| copy.status != GrantStatus::Okay);
        let reason = if self.bad {
            Drop::BadRequest
        } else {
            Drop::Grant
        };
        (self.bad || failed).then_some(reason)
    }
}

impl Copies {
    /// Adds a frame, whose copies and responses (`responses` of all) are the last ones of their
    /// lists. The copies of a `bad` one are left out.
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
        self.planned.push(Planned {
            copies: (first_copy as u32, self.list.len() as u32),
            responses: (responses.0 as u32, responses.1 as u32),
            bytes: frame.len() as u32,
            bad,
        });
    }

    /// Plans the copies of a frame, number `index` of the batch, that fits one buffer.
    #[inline]
    pub(super) fn whole(&mut self, index: u32, frame: &Frame, gref: GrantRef, offset: usize) {
        let mut copy = |at: usize, source, len: usize| {
            self.list.push(CopyOut::new(source, gref, at, len));
            at + len
        };
        let header = Source::Header {
            frame: index,
            from: 0,
        };
        let behind = copy(offset, header, frame.header_len());
        let payload = frame.payload().filter(|span| !span.is_empty());
        payload.fold(behind, |at, span| copy(at, Source::Span(span), span.len()));
    }
}

/// Cuts a frame into copies: first its snapshot, then the payload behind it.
pub(super) struct Cut<'a> {
    frame: &'a Frame,
    index: u32,
    header: usize,
    pieces: usize,
    current: Span,
    skip: usize,
    /// Bytes that are not in any copy yet.
    left: usize,
}

impl<'a> Cut<'a> {
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

    /// Plans the copies that fill a buffer; how many bytes.
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
                (Source::Header { frame, from }, bytes)
            } else {
                let Some(span) = self.payload(room - done) else {
                    break;
                };
                (Source::Span(span), span.len())
            };
            copies.push(CopyOut::new(source, gref, offset + done, bytes));
            done += bytes;
        }
        self.left -= done;
        done
    }

    /// At most `want` bytes of payload that lie together.
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
