//! A frame: a private header snapshot and opaque payload pieces.

use crate::buffer::{Buffer, BufferId, Buffers};
use crate::single::HEAD;
use shmem::{Fault, Span};
use smallvec::SmallVec;

/// Bytes of header that are always copied out: Ethernet with a VLAN tag, IPv6, TCP with timestamps. IPv4
/// and TCP with timestamps end two bytes behind a cache line.
pub const HOT: usize = 96;
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
/// As a device receives it, `pieces` cover the whole frame, header included; the first
/// `header().len()` bytes are nevertheless taken from the snapshot, so that what was checked is
/// what is sent. A frame that was made here ([`Frame::with_header`]) has a *bare* header: bytes of
/// the snapshot that no piece stands behind. Who sends a frame therefore sends
/// [`Frame::header`] and then [`Frame::payload`], never the pieces themselves.
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
    /// With [`Gso`] over IPv4: every segment has the first one's identification (Linux's
    /// `SKB_GSO_TCP_FIXEDID`), instead of the next number each. Nothing on a wire or a ring can
    /// say so: [`crate::Caps::takes`] refuses such a frame, and it is cut in software.
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

    /// A frame of one piece that lies in no pool, whose first bytes were copied out before.
    pub(crate) fn of_single(span: Span, head: &[u8; HEAD]) -> Result<Self, Fault> {
        let mut frame = Self::empty();
        frame.push(Piece {
            span,
            buffer: BufferId::NONE,
        });
        if let Some(known) = frame.header.first_chunk_mut() {
            *known = *head;
        }
        frame.header_len = HEAD.min(span.len()) as u8;
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

    /// A frame of `len` bytes that was received with its header apart: `header`, its first bytes, is
    /// bare, and the rest lies in `buffer` behind the place that is left for it. None if `header` is
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

    /// The other way: puts the bare header where it was left out, into the first bytes of `whole`,
    /// which is the frame's one piece from then on. A frame that has no bare header stays as it is.
    ///
    /// # Errors
    /// The memory is not there, or not the frame's; the frame is as it was.
    pub fn put_header_back(&mut self, whole: Span) -> Result<(), Fault> {
        let (bare, whole) = (self.bare(), whole.take(self.len()));
        if bare == 0 {
            return Ok(());
        }
        let [piece] = self.pieces.as_mut_slice() else {
            return Err(Fault);
        };
        if whole.skip(bare) != piece.span {
            return Err(Fault);
        }
        whole.write(self.header.get(..bare).unwrap_or(&[]))?;
        piece.span = whole;
        self.bare = 0;
        Ok(())
    }

    /// A frame that holds `bytes` in memory of its own, in as many of `buffers` as it takes.
    ///
    /// # Errors
    /// The supply is exhausted, or its memory is not there; every buffer has been given back.
    pub fn from_bytes(bytes: &[u8], buffers: &mut dyn Buffers) -> Result<Self, CopyError> {
        let mut frame = Self::empty();
        let done = frame.fill(bytes.len(), buffers, |at, span| {
            span.write(bytes.get(at..).unwrap_or(&[]))
        });
        let done = done.and_then(|()| Ok(frame.snapshot()?));
        frame.settled(done, buffers)
    }

    /// A copy of this frame in memory of its own, in as many of `buffers` as it takes, with the
    /// same snapshot and offloads.
    ///
    /// # Errors
    /// The supply is exhausted, or memory is not there; every buffer taken has been given back.
    pub fn copied(&self, buffers: &mut dyn Buffers) -> Result<Self, CopyError> {
        let mut frame = Self::empty();
        frame.offload = self.offload;
        frame.fixed_id = self.fixed_id;
        frame.token = self.token;
        let done = frame.fill(self.len(), buffers, |at, span| {
            let head = self.header().get(at..).unwrap_or(&[]);
            span.write(head)?;
            let mut rest = span.skip(head.len());
            for part in self.payload_from(at) {
                if rest.is_empty() {
                    break;
                }
                let count = part.len().min(rest.len());
                shmem::copy(rest.take(count), part.take(count))?;
                rest = rest.skip(count);
            }
            Ok(())
        });
        frame.header = self.header;
        frame.header_len = self.header_len;
        frame.settled(done, buffers)
    }

    /// Takes buffers for `len` bytes and has each filled: `write(offset in the frame, where)`.
    fn fill(
        &mut self,
        len: usize,
        buffers: &mut dyn Buffers,
        mut write: impl FnMut(usize, Span) -> Result<(), Fault>,
    ) -> Result<(), CopyError> {
        while self.len() < len {
            let at = self.len();
            let taken = if at == 0 {
                buffers.take()
            } else {
                buffers.take_large()
            };
            let buffer = taken
                .or_else(|| buffers.take())
                .ok_or(CopyError::NoBuffer)?;
            let span = buffer.span.take(len - at);
            self.push(Piece {
                span,
                buffer: buffer.id,
            });
            if span.is_empty() {
                return Err(CopyError::NoBuffer);
            }
            write(at, span)?;
        }
        Ok(())
    }

    fn settled(
        mut self,
        done: Result<(), CopyError>,
        buffers: &mut dyn Buffers,
    ) -> Result<Self, CopyError> {
        if done.is_err() {
            self.recycle(buffers);
        }
        done.map(|()| self)
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

    /// The snapshot, to be changed before it is sent on.
    pub fn header_mut(&mut self) -> &mut [u8] {
        self.changed = true;
        self.header
            .get_mut(..usize::from(self.header_len))
            .unwrap_or(&mut [])
    }

    /// Whether the snapshot was given away to be changed: the pieces may hold other bytes.
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

    /// All the room of the snapshot, for readers that compare at fixed places. What lies behind
    /// [`Frame::header`] is private, too, but means nothing.
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

    /// Makes the first `len` bytes of the snapshot, which has them, the bare header, and the rest
    /// payload that only pieces hold. Every buffer stays a piece of the frame, without bytes if
    /// need be. Nothing happens if more than `len` bytes are bare already.
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

    /// Appends pieces of payload, as [`Frame::append_payload`] does those of a frame, and leaves none.
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

    /// Forgets every byte.
    #[inline]
    fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
        self.header_len = 0;
        self.bare = 0;
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
        // What could be lengthened stays last.
        if join && span.is_empty() && self.pieces.len() > 1 {
            let last = self.pieces.len() - 1;
            self.pieces.swap(last - 1, last);
        }
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

    /// Copies the first bytes of the frame, snapshot first, into `dst`; how many there were.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn prefix(&self, dst: &mut [u8]) -> Result<usize, Fault> {
        let mut done = self.header().len().min(dst.len());
        if let (Some(to), Some(from)) = (dst.get_mut(..done), self.header().get(..done)) {
            to.copy_from_slice(from);
        }
        for span in self.payload() {
            let Some(to) = dst.get_mut(done..).filter(|to| !to.is_empty()) else {
                break;
            };
            span.read(to)?;
            done += span.len().min(to.len());
        }
        Ok(done)
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
        self.bare = 0;
    }
}

/// Why a frame could not be put into memory of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The supply of buffers is exhausted.
    #[error("no buffer is free")]
    NoBuffer,
    /// Memory is not there.
    #[error(transparent)]
    Fault(#[from] Fault),
}
