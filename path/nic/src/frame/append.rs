//! How a frame grows by the payload of others: what large receive offload does.

use super::Frame;
use crate::buffer::{BufferId, Piece};
use shmem::Span;

impl Frame {
    /// Makes the first `len` bytes of the snapshot the bare header; the pieces then hold only what
    /// follows. Every buffer stays a piece of the frame, perhaps one without bytes. Nothing happens
    /// if the snapshot is shorter, or if more than `len` bytes are bare already.
    pub fn shed_header(&mut self, len: usize) {
        if len > usize::from(self.header_len) || len < self.bare() {
            return;
        }
        let mut shed = len - self.bare();
        for piece in &mut self.pieces {
            let here = shed.min(piece.span.len());
            piece.span = piece.span.skip(here);
            shed -= here;
        }
        self.header_len = len as u8;
        self.bare = len as u8;
    }

    /// Appends what `other` has behind its first `at` bytes, and leaves `other` without bytes.
    /// Every buffer of `other` becomes a piece of this frame, without bytes if it held only what
    /// was left out. With `join`, memory that continues the last piece lengthens it instead.
    ///
    /// Whether it happened: not if bytes behind `at` are bare.
    pub fn append_payload(&mut self, other: &mut Self, at: usize, join: bool) -> bool {
        let Some(mut skip) = at.checked_sub(other.bare()) else {
            return false;
        };
        for piece in &other.pieces {
            let here = skip.min(piece.span.len());
            skip -= here;
            self.append_piece(piece.span.skip(here), piece.buffer, join);
        }
        other.clear();
        true
    }

    /// Appends pieces of payload, as [`Frame::append_payload`] does those of a frame, and empties
    /// `pieces`.
    pub fn append_pieces(&mut self, pieces: &mut Vec<Piece>, join: bool) {
        if join {
            self.pieces.reserve(pieces.len());
            for piece in pieces.drain(..) {
                self.append_piece(piece.span, piece.buffer, join);
            }
            return;
        }
        let bytes: usize = pieces.iter().map(|piece| piece.span.len()).sum();
        self.len = self.len.saturating_add(bytes as u32);
        self.pieces.extend_from_slice(pieces);
        pieces.clear();
    }

    #[inline]
    fn append_piece(&mut self, mut span: Span, buffer: BufferId, join: bool) {
        self.len = self.len.saturating_add(span.len() as u32);
        if join
            && let Some(last) = self.pieces.last_mut()
            && let Some(joined) = last.span.join(span)
        {
            last.span = joined;
            span = Span::EMPTY;
        }
        if span.is_empty() && buffer == BufferId::NONE {
            return;
        }
        self.pieces.push(Piece { span, buffer });
        // The piece that could be lengthened stays last.
        if join && span.is_empty() && self.pieces.len() > 1 {
            let last = self.pieces.len() - 1;
            self.pieces.swap(last - 1, last);
        }
    }
}
