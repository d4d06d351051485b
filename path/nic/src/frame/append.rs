//! Appends payload of other frames, for large receive offload.

use super::Frame;
use crate::buffer::{BufferId, Piece};
use shmem::Span;

impl Frame {
    /// Makes the first `len` bytes of the snapshot the bare header and removes them from the
    /// pieces. Every buffer stays a piece of the frame, even if it becomes empty. Has no effect if
    /// the snapshot is shorter than `len`, or if more than `len` bytes are already bare.
    pub fn make_header_bare(&mut self, len: usize) {
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

    /// Appends the bytes of `other` starting at offset `at`, and leaves `other` empty. Every buffer
    /// of `other` becomes a piece of this frame; the piece is empty if it held only skipped bytes.
    /// With `join`, a piece that follows the last piece in memory extends that piece instead.
    ///
    /// Returns false, without effect, if the byte at offset `at` is part of the bare header.
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

    /// Appends pieces of payload like [`Frame::append_payload`], and empties `pieces`.
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
        // The extended piece must stay last, because the next piece can extend it again.
        if join && span.is_empty() && self.pieces.len() > 1 {
            let last = self.pieces.len() - 1;
            self.pieces.swap(last - 1, last);
        }
    }
}
