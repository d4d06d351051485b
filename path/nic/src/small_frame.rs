//! Small frames, for the fast path. Each has one piece and no pending offload.
//!
//! A [`Frame`] can have many pieces, a bare header and pending offloads. A small frame consists
//! only of a private copy of its first bytes, an address and a length.

use crate::frame::Frame;
use shmem::{Fault, Span};
use std::ops::{Deref, DerefMut};

/// Number of leading bytes that the fast path copies: the Ethernet header and the fields that
/// identify protocols.
pub const HEAD_BYTES: usize = 64;

/// Number of leading bytes after [`SmallFrame::lengthen`]. They include the flags of TCP over IPv6.
const LONG_HEAD_BYTES: usize = 79;

/// A frame in one piece without offloads, in transit through the driver domain.
#[derive(Clone, Copy, Debug)]
pub struct SmallFrame {
    head: [u8; LONG_HEAD_BYTES],
    /// Whether the copy in `head` extends beyond [`HEAD_BYTES`] bytes.
    is_long: bool,
    span: Span,
}

impl SmallFrame {
    const NONE: Self = Self {
        head: [0; LONG_HEAD_BYTES],
        is_long: false,
        span: Span::EMPTY,
    };

    /// Stores the frame in `span`, with a copy of its head.
    #[inline]
    fn read(&mut self, span: Span) -> Result<(), Fault> {
        let head = self.head.first_chunk_mut::<HEAD_BYTES>().ok_or(Fault)?;
        if span.len() < HEAD_BYTES {
            *head = [0; HEAD_BYTES];
        }
        span.read(head)?;
        self.is_long = false;
        self.span = span;
        Ok(())
    }

    /// Extends the copy of the frame's first bytes to 79 bytes, or to the end of the frame. Bytes
    /// that are already copied are not read again.
    ///
    /// # Errors
    /// The memory is inaccessible; the copy keeps its length.
    pub fn lengthen(&mut self) -> Result<(), Fault> {
        if !self.is_long && self.len() > HEAD_BYTES {
            let rest = self.head.get_mut(HEAD_BYTES..).ok_or(Fault)?;
            self.span.skip(HEAD_BYTES).read(rest)?;
            self.is_long = true;
        }
        Ok(())
    }

    /// Returns the copy of its first [`HEAD_BYTES`] bytes, padded with zeros after the end of the
    /// frame.
    #[must_use]
    #[inline]
    pub const fn head(&self) -> &[u8; HEAD_BYTES] {
        match self.head.first_chunk() {
            Some(head) => head,
            None => &[0; HEAD_BYTES],
        }
    }

    /// Returns the copied bytes without padding: [`HEAD_BYTES`], or more after
    /// [`SmallFrame::lengthen`].
    #[must_use]
    #[inline]
    pub fn header(&self) -> &[u8] {
        let copied = if self.is_long {
            LONG_HEAD_BYTES
        } else {
            HEAD_BYTES
        };
        self.head.get(..copied.min(self.len())).unwrap_or(&[])
    }

    /// Returns its length in bytes.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a frame has bytes")]
    pub const fn len(&self) -> usize {
        self.span.len()
    }

    /// Writes the frame to `dst`: the private copy of its first bytes, then the rest from memory.
    /// With `prefetch`, fetches all lines of `dst` first, because the caches of another CPU
    /// probably hold them. If none does, this costs a third of a copy from cache to cache.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible, or `dst` is shorter than the frame.
    #[inline]
    pub fn copy_to(&self, dst: Span, prefetch: bool) -> Result<(), Fault> {
        if dst.len() < self.len() {
            return Err(Fault);
        }
        if self.len() <= HEAD_BYTES {
            return dst.take(self.len()).write(self.head());
        }
        let rest = dst.skip(HEAD_BYTES);
        if prefetch {
            rest.prefetch_write();
        }
        if self.is_long {
            return self.copy_long(dst);
        }
        dst.write(self.head())?;
        shmem::copy(rest, self.span.skip(HEAD_BYTES))
    }

    /// Like [`SmallFrame::copy_to`], for a frame that was [lengthened](SmallFrame::lengthen).
    fn copy_long(&self, dst: Span) -> Result<(), Fault> {
        let header = self.header();
        dst.write(header)?;
        shmem::copy(dst.skip(header.len()), self.span.skip(header.len()))
    }

    /// Converts the frame for the slow path.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn to_frame(&self) -> Result<Frame, Fault> {
        Frame::with_head(self.span, self.head())
    }
}

/// A batch of small frames, in order. A frame stays at its position until the batch is cleared, and
/// a cleared batch keeps its memory.
#[derive(Debug, Default)]
pub struct SmallBatch {
    storage: Vec<SmallFrame>,
    count: usize,
}

impl SmallBatch {
    /// Empties the batch.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Appends the frame in `span`, with a copy of its head.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible; the batch is then unchanged.
    #[inline]
    pub fn push(&mut self, span: Span) -> Result<(), Fault> {
        if self.count == self.storage.len() {
            self.storage.push(SmallFrame::NONE);
        }
        let place = self.storage.get_mut(self.count).ok_or(Fault)?;
        place.read(span)?;
        self.count += 1;
        Ok(())
    }

    /// Removes the last frame.
    #[inline]
    pub fn pop(&mut self) {
        self.count = self.count.saturating_sub(1);
    }
}

impl Deref for SmallBatch {
    type Target = [SmallFrame];

    #[inline]
    fn deref(&self) -> &[SmallFrame] {
        self.storage.get(..self.count).unwrap_or(&[])
    }
}

impl DerefMut for SmallBatch {
    #[inline]
    fn deref_mut(&mut self) -> &mut [SmallFrame] {
        self.storage.get_mut(..self.count).unwrap_or(&mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    fn memory(bytes: &[u8]) -> Span {
        let area = Area::anonymous(4096).unwrap();
        area.span().write(bytes).unwrap();
        area.at(0, bytes.len()).unwrap()
    }

    #[test]
    fn the_copied_head_is_sent() {
        let mut batch = SmallBatch::default();
        for len in [1514, 14, 60, 63, 64, 65, 13] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
            let from = memory(&bytes);
            batch.clear();
            batch.push(from).unwrap();
            let [small_frame] = *batch else {
                panic!("one frame");
            };
            assert_eq!(small_frame.len(), len);
            assert_eq!(
                small_frame.head()[..len.min(HEAD_BYTES)],
                bytes[..len.min(HEAD_BYTES)]
            );
            assert!(small_frame.head().iter().skip(len).all(|byte| *byte == 0));
            // The peer overwrites its bytes after the copy.
            from.take(HEAD_BYTES).fill(0xff).unwrap();
            let to = memory(&[0xee; 2048]);
            small_frame.copy_to(to, len % 2 == 0).unwrap();
            let mut copied = vec![0; len + 1];
            to.read(&mut copied).unwrap();
            assert_eq!(copied[..len], bytes);
            assert_eq!(copied[len], 0xee, "the copy exceeds the frame");
            assert_eq!(small_frame.to_frame().unwrap().to_vec().unwrap(), bytes);
            assert!(small_frame.copy_to(to.take(len - 1), false).is_err());
        }
    }

    #[test]
    fn a_lengthened_head_is_sent() {
        let mut batch = SmallBatch::default();
        for len in [1514, 14, 64, 65, 74, 78, 79, 80, 60] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
            let from = memory(&bytes);
            batch.clear();
            batch.push(from).unwrap();
            batch[0].lengthen().unwrap();
            // The peer overwrites its bytes after the copy. They are not read again.
            let private = len.min(LONG_HEAD_BYTES);
            from.take(private).fill(0xff).unwrap();
            batch[0].lengthen().unwrap();
            assert_eq!(batch[0].header(), &bytes[..private]);
            let to = memory(&[0xee; 2048]);
            batch[0].copy_to(to, len % 2 == 0).unwrap();
            let mut copied = vec![0; len + 1];
            to.read(&mut copied).unwrap();
            assert_eq!(copied[..len], bytes);
            assert_eq!(copied[len], 0xee, "the copy exceeds the frame");
        }
        // The next frame at this position has a short head.
        batch.clear();
        batch.push(memory(&[7; 100])).unwrap();
        assert_eq!(batch[0].header(), [7; HEAD_BYTES]);
    }
}
