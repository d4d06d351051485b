//! Receive buffers of devices, and the pieces of frames stored in them.

use shmem::{Area, Span};

/// Id of a buffer, unique within the [`Buffers`] that supplied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

impl BufferId {
    /// Id of memory that belongs to no pool and is never returned.
    pub const NONE: Self = Self(u32::MAX);
}

/// A buffer taken from a supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its id.
    pub id: BufferId,
    /// Its bytes.
    pub span: Span,
}

/// A contiguous part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its bytes. A peer may change them at any time.
    pub span: Span,
    /// The buffer that holds the bytes, or [`BufferId::NONE`].
    pub buffer: BufferId,
}

/// A supply of buffers of two sizes: small buffers, which hold a frame of one MTU, and large
/// buffers (whole pages), which hold the rest of longer frames.
pub trait Buffers {
    /// Takes a buffer for the start of a frame.
    fn take(&mut self) -> Option<Buffer>;
    /// Takes a page for the rest of a frame; `None` if the supply has no large buffers.
    fn take_large(&mut self) -> Option<Buffer>;
    /// Returns a buffer to the supply. Ignores [`BufferId::NONE`] and ids that are not in use. Each
    /// call of [`keep`](Buffers::add_owner) requires one more return before the buffer is free.
    fn put(&mut self, id: BufferId);
    /// Adds an owner to a buffer in use. Returns false if the buffer is not in use, or if the
    /// supply cannot share buffers.
    fn add_owner(&mut self, _id: BufferId) -> bool {
        false
    }
    /// Removes up to `most` buffers as [`Buffers::take`] does, and appends each to `out` as a
    /// piece.
    fn take_many(&mut self, most: usize, out: &mut Vec<Piece>) {
        let taken = (0..most).map_while(|_| self.take());
        out.extend(taken.map(|Buffer { id, span }| Piece { span, buffer: id }));
    }
    /// Returns the number of buffers that [`Buffers::take`] can return now, if known.
    fn free(&self) -> Option<usize> {
        None
    }
}

/// A pool of small buffers over one area of memory. It hands out the most recently returned buffer
/// first, so the buffers in use stay in the cache.
#[derive(Debug)]
pub struct Pool {
    area: Area,
    bytes: usize,
    /// Id of the first buffer.
    first: u32,
    free: Vec<u32>,
    /// Number of owners of each buffer; 0 if the buffer is free.
    owners: Vec<u16>,
}

impl Pool {
    /// Creates a pool that divides `area` into buffers of `bytes` bytes.
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

    /// Sets the id of the pool's first buffer, so that its ids differ from those of another pool.
    #[must_use]
    pub fn numbered_from(self, first: u32) -> Self {
        Self { first, ..self }
    }

    /// Returns the number of buffers.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.owners.len()
    }

    /// Returns the number of free buffers.
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

    fn add_owner(&mut self, id: BufferId) -> bool {
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
