//! A frame: a private header snapshot and opaque payload pieces.

mod append;
pub(crate) mod copy;

use crate::buffer::{Buffer, BufferId, Buffers, Piece};
use crate::offload::Offload;
use shmem::{Fault, Span};
use smallvec::SmallVec;

/// Bytes of header that are always copied out: Ethernet with a VLAN tag, IPv6, TCP with timestamps.
/// IPv4 and TCP with timestamps end two bytes behind a cache line.
pub const HOT: usize = 96;
/// Bytes of header that may be copied out: Ethernet with a VLAN tag, IPv6, TCP with all options.
pub const SNAPSHOT: usize = 128;

/// One frame on its way.
///
/// As a device receives it, `pieces` cover the whole frame, header included; the first
/// `header().len()` bytes are nevertheless taken from the snapshot, so that what was checked is
/// what is sent. A frame that was made here ([`Frame::with_header`]) has a *bare* header: bytes of
/// the snapshot that no piece stands behind. A sender therefore sends [`Frame::header`] and then
/// [`Frame::payload`], never the pieces themselves.
#[derive(Clone, Debug)]
pub struct Frame {
    header: [u8; SNAPSHOT],
    header_len: u8,
    /// Bytes of the snapshot, its first ones, that have no piece behind them.
    bare: u8,
    /// Whether the snapshot may differ from what the pieces hold.
    changed: bool,
    len: u32,
    /// Every byte of the frame but those of a bare header, in order.
    pub pieces: SmallVec<[Piece; 3]>,
    /// Offloads.
    pub offload: Offload,
    /// With [`crate::Gso`] over IPv4: every segment has the first one's identification (Linux's
    /// `SKB_GSO_TCP_FIXEDID`), instead of the next number each. No wire format and no ring can
    /// express this: [`crate::Caps::takes`] refuses such a frame, and it is cut in software.
    pub fixed_id: bool,
    /// The source's own mark (a netback: which request chain this is).
    pub token: u32,
}

impl Default for Frame {
    fn default() -> Self {
        Self::empty()
    }
}

impl Frame {
    /// A frame of one piece; `len` of its bytes count. Copies the hot part of the header.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn new(piece: Piece, len: usize) -> Result<Self, Fault> {
        let mut frame = Self::empty();
        frame.push(Piece {
            span: piece.span.take(len),
            buffer: piece.buffer,
        });
        frame.snapshot()?;
        Ok(frame)
    }

    /// A frame without bytes, to [`Frame::push`] pieces onto and then [`Frame::snapshot`].
    #[must_use]
    pub fn empty() -> Self {
        Self {
            header: [0; SNAPSHOT],
            header_len: 0,
            bare: 0,
            changed: false,
            len: 0,
            pieces: SmallVec::new(),
            offload: Offload::default(),
            fixed_id: false,
            token: 0,
        }
    }

    /// A frame of one piece that lies in no pool. `head` is the copy that was made of its first
    /// bytes; they are not read again.
    pub(crate) fn with_head<const N: usize>(span: Span, head: &[u8; N]) -> Result<Self, Fault> {
        let mut frame = Self::empty();
        frame.push(Piece {
            span,
            buffer: BufferId::NONE,
        });
        if let Some(known) = frame.header.first_chunk_mut() {
            *known = *head;
        }
        frame.header_len = N.min(span.len()) as u8;
        frame.need(HOT)?;
        Ok(frame)
    }

    /// A frame that begins with private bytes; payload follows by [`Frame::push`]. None if
    /// `header` is longer than [`SNAPSHOT`].
    #[must_use]
    pub fn with_header(header: &[u8]) -> Option<Self> {
        let mut frame = Self::empty();
        frame
            .header
            .get_mut(..header.len())?
            .copy_from_slice(header);
        frame.header_len = header.len() as u8;
        frame.bare = header.len() as u8;
        frame.len = header.len() as u32;
        Some(frame)
    }

    /// A frame of `len` bytes that was received with its header apart: `header`, its first bytes,
    /// is bare, and the rest lies in `buffer` behind room for the header. None if `header` is
    /// longer than [`SNAPSHOT`], or the frame longer than the buffer.
    #[must_use]
    pub fn split(header: &[u8], buffer: Buffer, len: usize) -> Option<Self> {
        let mut frame = Self::with_header(header)?;
        let rest = len.checked_sub(header.len())?;
        let span = buffer.span.skip(header.len()).take(rest);
        if span.len() < rest {
            return None;
        }
        frame.push(Piece {
            span,
            buffer: buffer.id,
        });
        Some(frame)
    }

    /// Undoes [`Frame::split`]: writes the bare header into the first bytes of `whole`, the buffer
    /// of the frame's first piece, which begins there from then on. A frame without a bare header
    /// stays as it is.
    ///
    /// # Errors
    /// The memory is not there, or not the frame's; the frame is as it was.
    pub fn put_header_back(&mut self, whole: Span) -> Result<(), Fault> {
        let bare = self.bare();
        if bare == 0 {
            return Ok(());
        }
        let Some(piece) = self.pieces.first_mut() else {
            return Err(Fault);
        };
        let whole = whole.take(bare + piece.span.len());
        if whole.skip(bare) != piece.span {
            return Err(Fault);
        }
        whole.write(self.header.get(..bare).unwrap_or(&[]))?;
        piece.span = whole;
        self.bare = 0;
        Ok(())
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
    #[inline]
    pub fn snapshot(&mut self) -> Result<(), Fault> {
        self.header_len = self.bare;
        self.need(HOT)
    }

    /// Makes sure that the snapshot has `bytes` bytes, if the frame has so many and the snapshot
    /// can hold them. Bytes that were copied before are not read again.
    ///
    /// # Errors
    /// The memory is not there.
    #[inline]
    pub fn need(&mut self, bytes: usize) -> Result<(), Fault> {
        let want = bytes.min(self.len as usize).min(SNAPSHOT);
        let mut have = usize::from(self.header_len);
        let mut skip = have.saturating_sub(usize::from(self.bare));
        if have >= want {
            return Ok(());
        }
        // A frame as most NICs receive it.
        if let [piece] = self.pieces.as_slice() {
            let part = piece.span.skip(skip).take(want - have);
            if let Some(dst) = self.header.get_mut(have..have + part.len()) {
                part.read(dst)?;
                self.header_len = (have + part.len()) as u8;
            }
            return Ok(());
        }
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
        self.header
            .get(..usize::from(self.header_len))
            .unwrap_or(&[])
    }

    /// The snapshot, for changes before the frame is sent on.
    pub fn header_mut(&mut self) -> &mut [u8] {
        self.changed = true;
        self.header
            .get_mut(..usize::from(self.header_len))
            .unwrap_or(&mut [])
    }

    /// Whether [`Frame::header_mut`] was called: the pieces may hold other bytes than the snapshot.
    #[must_use]
    #[inline]
    pub const fn is_header_changed(&self) -> bool {
        self.changed
    }

    /// Bytes of the snapshot.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.header_len as usize
    }

    /// All the room of the snapshot, for readers that compare at fixed places. Bytes behind
    /// [`Frame::header`] are private, too, but have no meaning.
    #[must_use]
    #[inline]
    pub const fn snapshot_room(&self) -> &[u8; SNAPSHOT] {
        &self.header
    }

    /// Bytes at the start that have no piece behind them.
    #[must_use]
    #[inline]
    pub const fn bare(&self) -> usize {
        self.bare as usize
    }

    /// Moves the frame out and leaves one without bytes.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let taken = Self {
            header: self.header,
            header_len: self.header_len,
            bare: self.bare,
            changed: self.changed,
            len: self.len,
            pieces: std::mem::take(&mut self.pieces),
            offload: self.offload,
            fixed_id: self.fixed_id,
            token: self.token,
        };
        self.len = 0;
        self.header_len = 0;
        self.bare = 0;
        taken
    }

    /// Bytes that do not count when a frame's length is limited: those of a VLAN tag, if it has
    /// one.
    #[must_use]
    pub fn tag_bytes(&self) -> usize {
        match self.header().get(12..14) {
            Some([0x81, 0x00] | [0x88, 0xa8]) => 4,
            _ => 0,
        }
    }

    /// Bytes of the frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of the pieces, their first ones, that the snapshot stands for: all of the snapshot but
    /// a bare header.
    #[must_use]
    pub fn covered(&self) -> usize {
        usize::from(self.header_len.saturating_sub(self.bare))
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes behind the snapshot, piece by piece.
    pub fn payload(&self) -> impl Iterator<Item = Span> + '_ {
        self.payload_from(0)
    }

    /// The bytes behind the snapshot, and behind the first `offset` bytes of the frame, piece by
    /// piece.
    pub fn payload_from(&self, offset: usize) -> impl Iterator<Item = Span> + '_ {
        let first = offset.max(usize::from(self.header_len));
        let mut skip = first.saturating_sub(usize::from(self.bare));
        self.pieces.iter().filter_map(move |piece| {
            let here = skip.min(piece.span.len());
            skip -= here;
            let rest = piece.span.skip(here);
            (!rest.is_empty()).then_some(rest)
        })
    }

    /// Gives every buffer back to `buffers`, from which they were taken.
    pub fn recycle(&mut self, buffers: &mut dyn Buffers) {
        for piece in &self.pieces {
            buffers.put(piece.buffer);
        }
        self.clear();
    }

    /// Adds an owner to every buffer of the frame: it must be [recycled](Frame::recycle) once
    /// more. Returns false, and keeps nothing, if some of its memory cannot be kept.
    pub fn keep(&self, buffers: &mut dyn Buffers) -> bool {
        for (kept, piece) in self.pieces.iter().enumerate() {
            if !buffers.keep(piece.buffer) {
                let kept = self.pieces.iter().take(kept);
                kept.for_each(|piece| buffers.put(piece.buffer));
                return false;
            }
        }
        true
    }

    /// Forgets every byte and every piece.
    #[inline]
    fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
        self.header_len = 0;
        self.bare = 0;
    }
}
