//! A frame: a private header snapshot and opaque payload pieces.

use crate::buffer::{BufferId, Buffers};
use shmem::{Fault, Span};
use smallvec::SmallVec;

/// Bytes of header that are always copied out: one cache line holds Ethernet, IPv4 and TCP.
pub const HOT: usize = 64;
/// Bytes of header that may be copied out: Ethernet with a VLAN tag, IPv6, TCP with all options.
pub const SNAPSHOT: usize = 128;

/// A contiguous part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where its bytes are. A peer may change them at any time.
    pub span: Span,
    /// The buffer that it lies in, if it has to be given back.
    pub buffer: BufferId,
}

/// What is known about a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: the bytes say what they say.
    #[default]
    Unknown,
    /// The field holds the pseudo-header's sum; the sum from `start` to the end of the frame has
    /// still to be put at `start + offset` (virtio's NEEDS_CSUM, netif's `csum_blank`).
    Blank {
        /// First byte that the checksum covers, from the start of the frame.
        start: u16,
        /// Where the checksum field is, from `start`.
        offset: u16,
    },
    /// It was found right (netif's `data_validated`).
    Valid,
}

/// Kinds of segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// How a frame that exceeds the MTU is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The kind.
    pub kind: GsoKind,
    /// Payload bytes of a segment.
    pub size: u16,
}

/// What travels beside a frame's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum's state.
    pub checksum: Checksum,
    /// Segmentation that is still to be done.
    pub gso: Option<Gso>,
}

/// One frame on its way.
///
/// `pieces` cover the whole frame, header included; the first `header().len()` bytes are
/// nevertheless taken from the snapshot, so that what was checked is what is sent.
#[derive(Clone, Debug)]
pub struct Frame {
    header: [u8; SNAPSHOT],
    header_len: u8,
    len: u32,
    /// Every byte of the frame, in order.
    pub pieces: SmallVec<[Piece; 3]>,
    /// Offloads.
    pub offload: Offload,
    /// The source's own mark (a netback: which request chain this is).
    pub token: u32,
}

impl Frame {
    /// A frame of one piece; `len` of its bytes count. Copies the hot part of the header.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn new(piece: Piece, len: usize) -> Result<Self, Fault> {
        let mut frame = Self::empty();
        frame.push(Piece { span: piece.span.take(len), buffer: piece.buffer });
        frame.snapshot()?;
        Ok(frame)
    }

    /// A frame without bytes, to [`Frame::push`] pieces onto and then [`Frame::snapshot`].
    #[must_use]
    pub fn empty() -> Self {
        Self {
            header: [0; SNAPSHOT],
            header_len: 0,
            len: 0,
            pieces: SmallVec::new(),
            offload: Offload::default(),
            token: 0,
        }
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: Piece) {
        self.len = self.len.saturating_add(piece.span.len() as u32);
        self.pieces.push(piece);
    }

    /// Copies the hot part of the header out of the pieces. Called once, when the pieces are
    /// complete.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn snapshot(&mut self) -> Result<(), Fault> {
        self.header_len = 0;
        self.need(HOT)
    }

    /// Makes sure that the snapshot has `bytes` bytes, if the frame has so many and the snapshot
    /// can hold them. Bytes that were copied before are not read again.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn need(&mut self, bytes: usize) -> Result<(), Fault> {
        let want = bytes.min(self.len as usize).min(SNAPSHOT);
        let mut have = usize::from(self.header_len);
        let mut skip = have;
        for piece in &self.pieces {
            if have >= want {
                break;
            }
            if skip >= piece.span.len() {
                skip -= piece.span.len();
                continue;
            }
            let part = piece.span.skip(skip).take(want - have);
            skip = 0;
            if let Some(dst) = self.header.get_mut(have..have + part.len()) {
                part.read(dst)?;
                have += part.len();
            }
        }
        self.header_len = have as u8;
        Ok(())
    }

    /// The snapshot.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header.get(..usize::from(self.header_len)).unwrap_or(&[])
    }

    /// The snapshot, to be changed before it is sent on.
    pub fn header_mut(&mut self) -> &mut [u8] {
        self.header.get_mut(..usize::from(self.header_len)).unwrap_or(&mut [])
    }

    /// Bytes of the frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes behind the snapshot, piece by piece.
    pub fn payload(&self) -> impl Iterator<Item = Span> + '_ {
        let mut skip = usize::from(self.header_len);
        self.pieces.iter().filter_map(move |piece| {
            let here = skip.min(piece.span.len());
            skip -= here;
            let rest = piece.span.skip(here);
            (!rest.is_empty()).then_some(rest)
        })
    }

    /// Copies the whole frame (snapshot, then payload) into `dst`, as far as it fits; how many
    /// bytes were copied.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn copy_to(&self, dst: Span) -> Result<usize, Fault> {
        let head = self.header().len().min(dst.len());
        dst.write(self.header())?;
        let mut rest = dst.skip(head);
        let mut done = head;
        for span in self.payload() {
            let n = span.len().min(rest.len());
            shmem::copy(rest.take(n), span.take(n))?;
            rest = rest.skip(n);
            done += n;
        }
        Ok(done)
    }

    /// The whole frame as bytes of our own (tests, traces, slow paths).
    ///
    /// # Errors
    /// The memory is not there.
    pub fn to_vec(&self) -> Result<Vec<u8>, Fault> {
        let mut bytes = self.header().to_vec();
        for span in self.payload() {
            let at = bytes.len();
            bytes.resize(at + span.len(), 0);
            if let Some(dst) = bytes.get_mut(at..) {
                span.read(dst)?;
            }
        }
        Ok(bytes)
    }

    /// Gives every buffer back to where it came from.
    pub fn recycle(&mut self, buffers: &mut dyn Buffers) {
        for piece in self.pieces.drain(..) {
            buffers.put(piece.buffer);
        }
        self.len = 0;
        self.header_len = 0;
    }
}
