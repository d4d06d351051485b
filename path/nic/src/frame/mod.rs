//! A frame: a private header snapshot and opaque payload pieces.

mod append;
pub(crate) mod copy;
mod cut;

use crate::buffer::{Buffer, BufferId, Buffers, Piece};
use crate::offload::Offload;
use shmem::{Fault, Span};
use smallvec::SmallVec;

/// Bytes of an Ethernet header, the shortest frame.
pub(crate) const ETHERNET_BYTES: usize = 14;
/// Bytes of a VLAN tag.
pub(crate) const TAG_BYTES: usize = 4;
/// Number of header bytes that are always copied: enough for Ethernet with a VLAN tag, IPv6, and
/// TCP with timestamps. One cache line is two bytes too short, even for IPv4 and TCP with
/// timestamps.
pub const SNAPSHOT_MIN: usize = 96;
/// Maximum number of copied header bytes: enough for Ethernet with a VLAN tag, IPv6, and TCP with
/// all options.
pub const SNAPSHOT_MAX: usize = 128;

/// A frame in transit.
///
/// The `pieces` of a received frame cover the whole frame, including the header. A device
/// nevertheless sends the first `header().len()` bytes from the snapshot, so that it sends exactly
/// the checked bytes. A locally built frame ([`Frame::with_header`]) has a *bare* header: snapshot
/// bytes without a piece. A device therefore sends [`Frame::header`] and then [`Frame::payload`],
/// never the pieces themselves.
#[derive(Clone, Debug)]
pub struct Frame {
    header: [u8; SNAPSHOT_MAX],
    header_len: u8,
    /// Number of leading snapshot bytes without a piece.
    bare: u8,
    /// Whether the snapshot may differ from the bytes in the pieces.
    changed: bool,
    len: u32,
    /// The frame's bytes in order, without the bare header.
    pub pieces: SmallVec<[Piece; 3]>,
    /// Offloads.
    pub offload: Offload,
    /// With [`crate::Gso`] over IPv4: whether all segments have the same identification (Linux's
    /// `SKB_GSO_TCP_FIXEDID`) instead of consecutive identifications. No wire format or ring can
    /// express this: [`crate::Caps::takes`] rejects this kind of frame, and software segments it.
    pub fixed_id: bool,
    /// Value that the frame's source has assigned; a netback stores its request chain here.
    pub token: u32,
}

impl Default for Frame {
    fn default() -> Self {
        Self::empty()
    }
}

impl Frame {
    /// Creates a frame of the first `len` bytes of one piece, and takes its snapshot.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn new(piece: Piece, len: usize) -> Result<Self, Fault> {
        let mut frame = Self::empty();
        frame.push(Piece {
            span: piece.span.take(len),
            buffer: piece.buffer,
        });
        frame.snapshot()?;
        Ok(frame)
    }

    /// Returns an empty frame, for [`Frame::push`] and then [`Frame::snapshot`].
    #[must_use]
    pub fn empty() -> Self {
        Self {
            header: [0; SNAPSHOT_MAX],
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

    /// Creates a frame of one piece that belongs to no pool. `head` is a copy of its first bytes,
    /// so the snapshot does not read these again.
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
        frame.extend_snapshot(SNAPSHOT_MIN)?;
        Ok(frame)
    }

    /// Creates a frame that begins with the private bytes of `header`; the caller adds payload with
    /// [`Frame::push`]. Returns `None` if `header` is longer than [`SNAPSHOT_MAX`].
    #[must_use]
    pub fn with_header(header: &[u8]) -> Option<Self> {
        let mut frame = Self::empty();
        frame.put_header(header).then_some(frame)
    }

    /// Gives an empty frame these bytes, as [`Frame::with_header`] does. Returns false if they are
    /// more than [`SNAPSHOT_MAX`].
    #[inline]
    #[must_use]
    pub fn put_header(&mut self, header: &[u8]) -> bool {
        let Some(snapshot) = self.header.get_mut(..header.len()) else {
            return false;
        };
        snapshot.copy_from_slice(header);
        self.header_len = header.len() as u8;
        self.bare = header.len() as u8;
        self.len = header.len() as u32;
        true
    }

    /// Creates a frame of `len` bytes that was received with a split header. Its first bytes,
    /// `header`, become the bare header; `buffer` begins with space for the header and holds the
    /// rest after that. Returns `None` if `header` is longer than [`SNAPSHOT_MAX`], or the frame
    /// longer than the buffer.
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
    /// of the frame's first piece. The piece then begins there. A frame without a bare header stays
    /// unchanged.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible or does not belong to the frame; the frame is
    /// then unchanged.
    pub fn undo_split(&mut self, whole: Span) -> Result<(), Fault> {
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

    /// Copies the first [`SNAPSHOT_MIN`] header bytes out of the pieces. The caller does this once,
    /// when the pieces are complete.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    #[inline]
    pub fn snapshot(&mut self) -> Result<(), Fault> {
        self.header_len = self.bare;
        self.extend_snapshot(SNAPSHOT_MIN)
    }

    /// Extends the snapshot to `bytes` bytes, or to the frame's length or [`SNAPSHOT_MAX`] if these
    /// are smaller. Does not reread bytes that it already holds.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    #[inline]
    pub fn extend_snapshot(&mut self, bytes: usize) -> Result<(), Fault> {
        let want = bytes.min(self.len as usize).min(SNAPSHOT_MAX);
        let mut have = usize::from(self.header_len);
        let mut skip = have.saturating_sub(usize::from(self.bare));
        if have >= want {
            return Ok(());
        }
        // Most NICs receive a frame into a single piece.
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

    /// Returns the snapshot.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header
            .get(..usize::from(self.header_len))
            .unwrap_or(&[])
    }

    /// Returns the snapshot, so that the caller can change it before it forwards the frame.
    pub fn header_mut(&mut self) -> &mut [u8] {
        self.changed = true;
        self.header
            .get_mut(..usize::from(self.header_len))
            .unwrap_or(&mut [])
    }

    /// Returns whether the snapshot may differ from the pieces, because [`Frame::header_mut`] was
    /// called.
    #[must_use]
    #[inline]
    pub const fn is_header_changed(&self) -> bool {
        self.changed
    }

    /// Returns the length of the snapshot in bytes.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.header_len as usize
    }

    /// Returns the whole snapshot array, for comparisons at fixed offsets. Bytes after the end of
    /// [`Frame::header`] are private but undefined.
    #[must_use]
    #[inline]
    pub const fn snapshot_array(&self) -> &[u8; SNAPSHOT_MAX] {
        &self.header
    }

    /// Returns the length of the bare header in bytes.
    #[must_use]
    #[inline]
    pub const fn bare(&self) -> usize {
        self.bare as usize
    }

    /// Returns the frame and leaves an empty one in its place.
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

    /// Returns the number of bytes that do not count towards length limits: those of the VLAN tag,
    /// if any.
    #[must_use]
    pub fn tag_bytes(&self) -> usize {
        match self.header().get(12..14) {
            Some([0x81, 0x00] | [0x88, 0xa8]) => 4,
            _ => 0,
        }
    }

    /// Returns the length of the frame in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the number of leading piece bytes that the snapshot replaces: its length without the
    /// bare header.
    #[must_use]
    pub fn covered(&self) -> usize {
        usize::from(self.header_len.saturating_sub(self.bare))
    }

    /// Returns whether the frame is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns an iterator over the bytes after the snapshot, piece by piece.
    pub fn payload(&self) -> impl Iterator<Item = Span> + '_ {
        self.payload_from(0)
    }

    /// Returns an iterator over the pieces of the frame, without bytes before `offset` and without
    /// the bytes in the snapshot.
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

    /// Returns every buffer to its supply, `buffers`.
    pub fn recycle(&mut self, buffers: &mut dyn Buffers) {
        for piece in &self.pieces {
            buffers.put(piece.buffer);
        }
        self.clear();
    }

    /// Adds an owner to every buffer of the frame. The caller must then [recycle](Frame::recycle)
    /// the frame once more. Returns false, without effect, if the supply cannot share one of the
    /// buffers.
    pub fn add_owner(&self, buffers: &mut dyn Buffers) -> bool {
        for (kept, piece) in self.pieces.iter().enumerate() {
            if !buffers.add_owner(piece.buffer) {
                let kept = self.pieces.iter().take(kept);
                kept.for_each(|piece| buffers.put(piece.buffer));
                return false;
            }
        }
        true
    }

    /// Removes all bytes and pieces.
    #[inline]
    fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
        self.header_len = 0;
        self.bare = 0;
    }
}
