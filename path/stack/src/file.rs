//! A file that a station's programs send in place, as `sendfile` does from the page cache. A frame
//! with bytes of the file consists of a header in a buffer, and of pieces of the file's pages.
//!
//! smoltcp buffers the bytes to send. For a stream of a file only the number of buffered bytes
//! matters, because a sequence number determines the bytes of the file.

use nic::{BufferId, Piece};
use shmem::{Area, Fault};
use std::cell::RefCell;
use std::rc::Rc;

/// Size of a page in bytes. No piece of a frame may cross a page boundary.
const PAGE: usize = 4096;
const SYN: u8 = 2;

/// A station's file, and the streams that send it.
#[derive(Debug, Default)]
pub(crate) struct SentFiles {
    /// Memory of the file; `None` before [`SentFiles::store_in`].
    memory: Option<Area>,
    streams: Vec<SentFile>,
}

/// A stream that repeatedly sends the first `bytes` bytes of the file.
#[derive(Debug)]
struct SentFile {
    bytes: usize,
    /// Local port of the stream's connection.
    port: u16,
    /// A sequence number that was sent, and its offset in the stream.
    known: Option<(u32, u64)>,
}

/// A program's handle of its stream of the file.
#[derive(Clone, Debug)]
pub(crate) struct FileStream {
    files: Rc<RefCell<SentFiles>>,
    number: usize,
}

impl FileStream {
    /// Creates a stream that repeatedly sends the first `bytes` bytes of the file.
    pub(crate) fn new(files: &Rc<RefCell<SentFiles>>, bytes: usize) -> Self {
        let streams = &mut files.borrow_mut().streams;
        streams.push(SentFile {
            bytes: bytes.max(1),
            port: 0,
            known: None,
        });
        Self {
            number: streams.len() - 1,
            files: Rc::clone(files),
        }
    }

    /// Sets the local port of the stream's connection.
    pub(crate) fn connect(&self, port: u16) {
        if let Some(stream) = self.files.borrow_mut().streams.get_mut(self.number) {
            stream.port = port;
            stream.known = None;
        }
    }
}

impl SentFiles {
    /// Writes the file to `memory`. Its n-th word is n times [`WORD`].
    pub(crate) fn store_in(&mut self, memory: Area) -> Result<(), Fault> {
        for at in (0..memory.len()).step_by(8) {
            let word = (at as u64 / 8).wrapping_mul(WORD).to_le_bytes();
            let place = memory.at(at, memory.len().min(at + 8) - at).ok_or(Fault)?;
            place.write(word.get(..place.len()).unwrap_or(&[]))?;
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Returns whether no stream sends the file.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.is_none() || self.streams.is_empty()
    }

    /// Returns the pieces of the file that are a segment's payload, or `None` if the segment
    /// belongs to no stream of the file.
    pub(crate) fn pieces(&mut self, segment: &FileSegment) -> Option<Pieces> {
        let memory = self.memory?;
        let mut streams = self.streams.iter_mut();
        let stream = streams.find(|stream| stream.port == segment.port)?;
        if segment.flags & SYN != 0 {
            stream.known = Some((segment.sequence.wrapping_add(1), 0));
            return None;
        }
        let (known, place) = stream.known?;
        let ahead = segment.sequence.wrapping_sub(known) as i32;
        let place = place.checked_add_signed(ahead.into())?;
        if ahead > 0 {
            stream.known = Some((segment.sequence, place));
        }
        (segment.payload > 0).then_some(Pieces {
            memory,
            bytes: stream.bytes.min(memory.len()),
            place,
            left: segment.payload,
        })
    }
}

/// Iterator over pieces of a file. No piece crosses a page.
pub(crate) struct Pieces {
    memory: Area,
    bytes: usize,
    /// Offset of the next byte in the stream, including all repetitions.
    place: u64,
    left: usize,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let at = self.place.checked_rem(self.bytes as u64)? as usize;
        let part = self.left.min(self.bytes - at).min(PAGE - at % PAGE);
        let span = self.memory.at(at, part).filter(|span| !span.is_empty())?;
        self.left -= part;
        self.place += part as u64;
        Some(Piece {
            span,
            buffer: BufferId::NONE,
        })
    }
}

/// Each word of the file is its index times this factor.
pub(crate) const WORD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A TCP segment in a frame.
pub(crate) struct FileSegment {
    pub(crate) port: u16,
    pub(crate) sequence: u32,
    pub(crate) flags: u8,
    /// Number of bytes before the payload.
    pub(crate) header: usize,
    /// Number of payload bytes.
    pub(crate) payload: usize,
}
