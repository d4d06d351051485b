//! Small frames, for the fast path. Each has one piece and no pending offload.
//!
//! A [`Frame`] can have many pieces, a bare header and pending offloads. A small frame consists
//! only of a private copy of its first bytes, an address and a length.

use crate::frame::Frame;
use shmem::{Fault, Span};
use std::ops::Deref;

/// Number of leading bytes that the fast path copies: the Ethernet header and the fields that
/// identify protocols.
pub const HEAD_BYTES: usize = 64;

/// Number of leading bytes after [`SmallBatch::lengthen`]. They include the flags of TCP over IPv6.
const LONG_HEAD_BYTES: usize = 79;

/// A frame in one piece without offloads, in transit through the driver domain.
#[derive(Clone, Copy, Debug)]
pub struct SmallFrame {
    head: [u8; HEAD_BYTES],
    span: Span,
}

// With 96 bytes, the netback takes two cycles more per frame.
const _: () = assert!(size_of::<SmallFrame>() == 80);

impl SmallFrame {
    const NONE: Self = Self {
        head: [0; HEAD_BYTES],
        span: Span::EMPTY,
    };

    /// Stores the frame in `span`, with a copy of its head.
    #[inline]
    fn read(&mut self, span: Span) -> Result<(), Fault> {
        if span.len() < HEAD_BYTES {
            self.head = [0; HEAD_BYTES];
        }
        span.read(&mut self.head)?;
        self.span = span;
        Ok(())
    }

    /// Returns the copy of its first [`HEAD_BYTES`] bytes, padded with zeros after the end of the
    /// frame.
    #[must_use]
    #[inline]
    pub const fn head(&self) -> &[u8; HEAD_BYTES] {
        &self.head
    }

    /// Returns its length in bytes.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a frame has bytes")]
    pub const fn len(&self) -> usize {
        self.span.len()
    }

    /// See [`SmallBatch::copy_to`].
    #[inline]
    fn copy_to(&self, dst: Span, prefetch: bool) -> Result<(), Fault> {
        if dst.len() < self.len() {
            return Err(Fault);
        }
        if self.len() <= HEAD_BYTES {
            return dst.take(self.len()).write(&self.head);
        }
        let rest = dst.skip(HEAD_BYTES);
        if prefetch {
            rest.prefetch_write();
        }
        dst.write(&self.head)?;
        shmem::copy(rest, self.span.skip(HEAD_BYTES))
    }

    /// Converts the frame for the slow path.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn to_frame(&self) -> Result<Frame, Fault> {
        Frame::with_head(self.span, &self.head)
    }
}

/// A longer copy of a frame's first bytes. Few batches have any, and a smaller [`SmallFrame`] makes
/// all batches faster.
#[derive(Debug)]
struct LongHead {
    /// The frame's position in its batch.
    frame: usize,
    bytes: [u8; LONG_HEAD_BYTES],
}

/// A batch of small frames, in order. A frame stays at its position until the batch is cleared, and
/// a cleared batch keeps its memory.
#[derive(Debug, Default)]
pub struct SmallBatch {
    storage: Vec<SmallFrame>,
    count: usize,
    /// The longer copies, by position.
    long: Vec<LongHead>,
}

impl SmallBatch {
    /// Empties the batch.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
        self.long.clear();
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
        let count = self.count;
        self.long.pop_if(|long| long.frame == count);
    }

    /// Extends the copy of a frame's first bytes to 79 bytes, or to the end of the frame. Bytes
    /// that are already copied are not read again.
    ///
    /// # Errors
    /// The memory is inaccessible, or there is no such frame; the copy keeps its length.
    pub fn lengthen(&mut self, index: usize) -> Result<(), Fault> {
        let frame = self.get(index).ok_or(Fault)?;
        let Err(place) = self.find_long(index) else {
            return Ok(());
        };
        if frame.len() > HEAD_BYTES {
            let mut bytes = [0; LONG_HEAD_BYTES];
            let (head, rest) = bytes.split_first_chunk_mut().ok_or(Fault)?;
            *head = frame.head;
            frame.span.skip(HEAD_BYTES).read(rest)?;
            let long = LongHead {
                frame: index,
                bytes,
            };
            self.long.insert(place, long);
        }
        Ok(())
    }

    fn find_long(&self, index: usize) -> Result<usize, usize> {
        self.long.binary_search_by_key(&index, |long| long.frame)
    }

    /// Returns the copied bytes of a frame without padding: [`HEAD_BYTES`], or more after
    /// [`SmallBatch::lengthen`]. A frame that does not exist has none.
    #[must_use]
    pub fn header(&self, index: usize) -> &[u8] {
        let Some(frame) = self.get(index) else {
            return &[];
        };
        let long = self.find_long(index).ok();
        let copied = match long.and_then(|place| self.long.get(place)) {
            Some(long) => long.bytes.as_slice(),
            None => frame.head.as_slice(),
        };
        copied.get(..frame.len()).unwrap_or(copied)
    }

    /// Writes a frame to `dst`: the private copy of its first bytes, then the rest from memory.
    /// With `prefetch`, fetches all lines of `dst` first, because the caches of another CPU
    /// probably hold them. If none does, this costs a third of a copy from cache to cache.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible, `dst` is shorter than the frame, or there is
    /// no such frame.
    #[inline]
    pub fn copy_to(&self, index: usize, dst: Span, prefetch: bool) -> Result<(), Fault> {
        let frame = self.get(index).ok_or(Fault)?;
        if !self.long.is_empty() {
            return self.copy_long(index, frame, dst);
        }
        frame.copy_to(dst, prefetch)
    }

    /// Like [`SmallBatch::copy_to`], for batches with longer copies.
    #[cold]
    fn copy_long(&self, index: usize, frame: &SmallFrame, dst: Span) -> Result<(), Fault> {
        if dst.len() < frame.len() {
            return Err(Fault);
        }
        let header = self.header(index);
        dst.write(header)?;
        shmem::copy(dst.skip(header.len()), frame.span.skip(header.len()))
    }
}

impl Deref for SmallBatch {
    type Target = [SmallFrame];

    #[inline]
    fn deref(&self) -> &[SmallFrame] {
        self.storage.get(..self.count).unwrap_or(&[])
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
            batch.copy_to(0, to, len % 2 == 0).unwrap();
            let mut copied = vec![0; len + 1];
            to.read(&mut copied).unwrap();
            assert_eq!(copied[..len], bytes);
            assert_eq!(copied[len], 0xee, "the copy exceeds the frame");
            assert_eq!(small_frame.to_frame().unwrap().to_vec().unwrap(), bytes);
            assert!(batch.copy_to(0, to.take(len - 1), false).is_err());
            assert!(batch.copy_to(1, to, false).is_err());
        }
    }

    #[test]
    fn a_lengthened_head_is_sent() {
        let mut batch = SmallBatch::default();
        let lengths = [1514, 14, 64, 65, 74, 78, 79, 80, 60];
        let sent = lengths.map(|len| (0..len).map(|n| n as u8 ^ len as u8).collect::<Vec<_>>());
        let from = sent.each_ref().map(|bytes| memory(bytes));
        for span in from {
            batch.push(span).unwrap();
        }
        // In this order, and one of them twice.
        let lengthened = [3, 0, 8, 0, 5, 7, 2];
        for index in lengthened {
            batch.lengthen(index).unwrap();
            // The peer overwrites its bytes after the copy. They are not read again.
            let private = from[index].len().min(LONG_HEAD_BYTES);
            from[index].take(private).fill(0xff).unwrap();
        }
        for (index, bytes) in sent.iter().enumerate() {
            let is_long = lengthened.contains(&index);
            let copied = if is_long { LONG_HEAD_BYTES } else { HEAD_BYTES };
            assert_eq!(batch.header(index), &bytes[..copied.min(bytes.len())]);
            let to = memory(&[0xee; 2048]);
            batch.copy_to(index, to, index % 2 == 0).unwrap();
            let mut copied = vec![0; bytes.len() + 1];
            to.read(&mut copied).unwrap();
            assert_eq!(copied[..bytes.len()], *bytes, "frame {index}");
            assert_eq!(copied[bytes.len()], 0xee, "the copy exceeds the frame");
            let short = to.take(bytes.len() - 1);
            assert!(batch.copy_to(index, short, false).is_err());
        }
        assert!(batch.lengthen(sent.len()).is_err());
    }

    #[test]
    fn the_next_frame_at_a_position_has_a_short_head() {
        let mut batch = SmallBatch::default();
        let remove: [fn(&mut SmallBatch); 2] = [SmallBatch::clear, SmallBatch::pop];
        for remove in remove {
            batch.push(memory(&[1; 100])).unwrap();
            batch.lengthen(0).unwrap();
            assert_eq!(batch.header(0), [1; LONG_HEAD_BYTES]);
            remove(&mut batch);
            batch.push(memory(&[7; 100])).unwrap();
            assert_eq!(batch.header(0), [7; HEAD_BYTES]);
            batch.clear();
        }
    }
}
