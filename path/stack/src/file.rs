//! A file that a station's programs send from where it lies, as `sendfile` does from the page
//! cache: a frame of it is a header, made in a buffer as ever, and pieces of the file's pages.
//!
//! smoltcp keeps bytes of its own for what is to be sent. For such a stream they mean nothing; they
//! say how many there are, and the sequence number says which of the file's stand for them.

use nic::{BufferId, Piece};
use shmem::{Area, Fault};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of a page, which no piece of a frame may cross.
const PAGE: usize = 4096;
const SYN: u8 = 2;

/// A station's file, and the streams that send it.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Where it lies, once it does.
    memory: Option<Area>,
    streams: Vec<SentFile>,
}

/// A stream that sends the file's first `bytes` bytes over and over.
#[derive(Debug)]
struct SentFile {
    bytes: usize,
    /// The port of its connection.
    port: u16,
    /// A sequence number that was sent, and the place in the stream that it stands for.
    known: Option<(u32, u64)>,
}

/// A program's part in the file.
#[derive(Clone, Debug)]
pub(crate) struct FileStream {
    files: Rc<RefCell<Files>>,
    number: usize,
}

impl FileStream {
    /// A stream that sends the file's first `bytes` bytes over and over.
    pub(crate) fn new(files: &Rc<RefCell<Files>>, bytes: usize) -> Self {
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

    /// From now on its connection is the one from `port`.
    pub(crate) fn connect(&self, port: u16) {
        if let Some(stream) = self.files.borrow_mut().streams.get_mut(self.number) {
            stream.port = port;
            stream.known = None;
        }
    }
}

impl Files {
    /// The file lies in `memory` and fills it: its n-th word is n times [`WORD`].
    pub(crate) fn lie_in(&mut self, memory: Area) -> Result<(), Fault> {
        for at in (0..memory.len()).step_by(8) {
            let word = (at as u64 / 8).wrapping_mul(WORD).to_le_bytes();
            let place = memory.at(at, memory.len().min(at + 8) - at).ok_or(Fault)?;
            place.write(word.get(..place.len()).unwrap_or(&[]))?;
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Whether there is none, so that no frame is of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.is_none() || self.streams.is_empty()
    }

    /// The pieces of the file that a segment's payload stands for; none if it stands for none.
    pub(crate) fn pieces(&mut self, segment: &Segment) -> Option<Pieces> {
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

/// Pieces of a file, none of which crosses a page.
pub(crate) struct Pieces {
    memory: Area,
    bytes: usize,
    /// The next byte, counted through all rounds of the file.
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

/// What a file's word is a multiple of.
pub(crate) const WORD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a frame says of a TCP segment.
pub(crate) struct Segment {
    pub(crate) port: u16,
    pub(crate) sequence: u32,
    pub(crate) flags: u8,
    /// Bytes before the payload.
    pub(crate) header: usize,
    /// Bytes of payload.
    pub(crate) payload: usize,
}
