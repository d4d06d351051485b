//! Buffers: where a device puts the frames it receives, and the pieces of frames that lie in them.

use shmem::{Area, Span};

/// Number of a buffer within the [`Buffers`] it was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

impl BufferId {
    /// Memory that belongs to no pool: nothing is to be given back.
    pub const NONE: Self = Self(u32::MAX);
}

/// One buffer, taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its number.
    pub id: BufferId,
    /// Its bytes.
    pub span: Span,
}

/// A contiguous part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where its bytes are. A peer may change them at any time.
    pub span: Span,
    /// The buffer that it lies in, if it has to be given back.
    pub buffer: BufferId,
}

/// A supply of buffers of two sizes: small ones for frames of an MTU, large ones (whole pages)
/// that continue a frame which does not fit.
pub trait Buffers {
    /// A buffer for the start of a frame.
    fn take(&mut self) -> Option<Buffer>;
    /// A page that continues a frame; a supply without any answers none.
    fn take_large(&mut self) -> Option<Buffer>;
    /// Gives a buffer back. [`BufferId::NONE`] and numbers that are not out are ignored. A buffer
    /// that was [kept](Buffers::keep) is free when it was given back once more for each time.
    fn put(&mut self, id: BufferId);
    /// Adds an owner to a buffer that is out; false: it is not, or the supply cannot share buffers.
    fn keep(&mut self, _id: BufferId) -> bool {
        false
    }
    /// [`Buffers::take`] for up to `most` frames at once; every buffer is appended to `out` as a
    /// piece.
    fn take_many(&mut self, most: usize, out: &mut Vec<Piece>) {
        let taken = (0..most).map_while(|_| self.take());
        out.extend(taken.map(|Buffer { id, span }| Piece { span, buffer: id }));
    }
    /// Buffers that [`Buffers::take`] could hand out now, if the supply can tell.
    fn free(&self) -> Option<usize> {
        None
    }
}

/// A pool over one area of memory: last in, first out, so that the buffers in use stay in the
/// cache. Only small buffers.
#[derive(Debug)]
pub struct Pool {
    area: Area,
    bytes: usize,
    /// Number of the first buffer.
    first: u32,
    free: Vec<u32>,
    /// Owners of each buffer; 0: it is free.
    owners: Vec<u16>,
}

impl Pool {
    /// A pool of as many buffers of `bytes` bytes as fit into `area`.
    #[must_use]
    pub fn new(area: Area, bytes: usize) -> Self {
        let count = area
            .len()
            .checked_div(bytes)
            .unwrap_or(0)
            .min(u32::MAX as usize - 1) as u32;
        Self {
            area,
            bytes,
            first: 0,
            free: (0..count).rev().collect(),
            owners: vec![0; count as usize],
        }
    }

    /// The same pool with its buffers numbered from `first` on, so that they are told from those
    /// of another one.
    #[must_use]
    pub fn numbered_from(self, first: u32) -> Self {
        Self { first, ..self }
    }

    /// Buffers in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.owners.len()
    }

    /// Buffers that can be taken now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }
}

impl Buffers for Pool {
    fn take(&mut self) -> Option<Buffer> {
        let index = self.free.pop()?;
        let span = self.area.at(index as usize * self.bytes, self.bytes)?;
        if let Some(owners) = self.owners.get_mut(index as usize) {
            *owners = 1;
        }
        Some(Buffer {
            id: BufferId(self.first + index),
            span,
        })
    }

    fn free(&self) -> Option<usize> {
        Some(self.available())
    }

    fn take_large(&mut self) -> Option<Buffer> {
        None
    }

    fn put(&mut self, id: BufferId) {
        if let Some(index) = id.0.checked_sub(self.first)
            && let Some(owners) = self.owners.get_mut(index as usize)
            && let Some(left) = owners.checked_sub(1)
        {
            *owners = left;
            if left == 0 {
                self.free.push(index);
            }
        }
    }

    fn keep(&mut self, id: BufferId) -> bool {
        let index = id.0.checked_sub(self.first);
        let owners = index.and_then(|index| self.owners.get_mut(index as usize));
        let Some(owners) = owners.filter(|owners| **owners > 0) else {
            return false;
        };
        let more = owners.checked_add(1);
        *owners = more.unwrap_or(*owners);
        more.is_some()
    }
}
