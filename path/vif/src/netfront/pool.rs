//! Pools of granted buffers. The last returned buffer is taken first, so the buffers in use stay in
//! the cache. Headers start at different cache lines of their pages, so that they do not all
//! compete for two cache sets.

use crate::netif::{MIN_PACKET, TxRequest};
use abi::{GrantRef, PAGE};
use nic::{Buffer, BufferId, Buffers, Piece};
use shmem::Span;

/// Bytes of a small transmit buffer: half a page minus the space for its colour.
pub const TX_SMALL_BYTES: usize = PAGE / 2 - (COLOURS - 1) * COLOUR_BYTES;
const COLOURS: usize = 8;
const COLOUR_BYTES: usize = 64;

/// First id of receive buffers. It keeps them distinct from transmit buffers.
pub(super) const RX_BASE: u32 = 1 << 31;

/// Returns the receive buffer that an id names, if any.
pub(super) fn rx_index(id: BufferId) -> Option<usize> {
    (id != BufferId::NONE)
        .then(|| id.0.checked_sub(RX_BASE))
        .flatten()
        .map(|n| n as usize)
}

/// Owner of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferState {
    /// In the pool.
    Free,
    /// With a device or a frame.
    Out,
    /// With the peer.
    InFlight,
    /// Its page is not granted.
    Away,
}

/// One granted buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolBuffer {
    /// Its bytes.
    pub(super) span: Span,
    /// Grant of its page.
    pub(super) gref: GrantRef,
    /// First byte within the page.
    pub(super) offset: u16,
}

impl PoolBuffer {
    /// Returns the buffer at `offset` of the granted page `page`.
    pub(super) fn new(page: Span, gref: GrantRef, offset: usize, bytes: usize) -> Self {
        let span = page.sub(offset, bytes).unwrap_or(Span::EMPTY);
        Self {
            span,
            gref,
            offset: offset as u16,
        }
    }

    /// Returns `bytes` bytes of the page from `offset` if they lie within the buffer.
    #[inline]
    pub(super) fn part(&self, offset: u16, bytes: usize) -> Option<Span> {
        let within = offset.checked_sub(self.offset)?;
        self.span.sub(within.into(), bytes)
    }

    /// Returns the offset of a non-empty piece within the buffer, or `None` if it lies elsewhere.
    #[inline]
    pub(super) fn find(&self, piece: &Piece) -> Option<u16> {
        let within = piece.span.addr().checked_sub(self.span.addr())?;
        let inside = !piece.span.is_empty() && self.span.sub(within, piece.span.len()).is_some();
        inside.then_some(within as u16)
    }
}

/// Location of a request's bytes, and its id.
pub(super) struct RequestLocation {
    pub(super) gref: GrantRef,
    pub(super) offset: u16,
    pub(super) id: u16,
}

/// Buffers, and which of them are free.
#[derive(Debug)]
pub(super) struct FreeBuffers {
    slots: Vec<PoolBuffer>,
    /// State of each slot. Separate from the slots, because loading a slot after a byte store to it
    /// stalls on store forwarding.
    states: Vec<BufferState>,
    free: Vec<u16>,
}

impl FreeBuffers {
    /// Creates buffers of which the first `granted` are free and the others not granted.
    pub(super) fn new(slots: Vec<PoolBuffer>, granted: usize) -> Self {
        let free = (0..slots.len().min(granted).min(usize::from(u16::MAX)) as u16)
            .rev()
            .collect();
        let state = |index| match index < granted {
            true => BufferState::Free,
            false => BufferState::Away,
        };
        Self {
            states: (0..slots.len()).map(state).collect(),
            slots,
            free,
        }
    }

    /// Creates buffers that are all free.
    fn all(slots: Vec<PoolBuffer>) -> Self {
        let granted = slots.len();
        Self::new(slots, granted)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn available(&self) -> usize {
        self.free.len()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&PoolBuffer> {
        self.slots.get(index)
    }

    /// Returns the free buffers; the last one is taken next.
    pub(super) fn free(&self) -> &[u16] {
        &self.free
    }

    /// Free → away, for all buffers for which `leaves` returns true: their pages are no longer
    /// granted.
    pub(super) fn withdraw(&mut self, leaves: impl Fn(u16) -> bool) {
        let states = &mut self.states;
        self.free.retain(|&index| {
            let leaving = leaves(index);
            if leaving && let Some(state) = states.get_mut(usize::from(index)) {
                *state = BufferState::Away;
            }
            !leaving
        });
    }

    /// Away → free: the page was granted again, with a new reference.
    pub(super) fn restore(&mut self, index: u16, gref: GrantRef) {
        if self.move_state(usize::from(index), BufferState::Away, BufferState::Free)
            && let Some(slot) = self.slots.get_mut(usize::from(index))
        {
            slot.gref = gref;
            self.free.push(index);
        }
    }

    /// Free → out.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u16, PoolBuffer)> {
        let index = self.free.pop()?;
        *self.states.get_mut(usize::from(index))? = BufferState::Out;
        Some((index, *self.slots.get(usize::from(index))?))
    }

    /// Free → out, for up to `most` buffers; appends them to `out`.
    fn take_many(&mut self, most: usize, out: &mut Vec<Piece>) {
        let kept = self.free.len().saturating_sub(most);
        for index in self.free.drain(kept..).rev() {
            let at = usize::from(index);
            if let (Some(state), Some(slot)) = (self.states.get_mut(at), self.slots.get(at)) {
                *state = BufferState::Out;
                out.push(Piece {
                    span: slot.span,
                    buffer: BufferId(index.into()),
                });
            }
        }
    }

    /// Out → in flight; returns whether it was out.
    #[inline]
    pub(super) fn launch(&mut self, index: usize) -> bool {
        self.move_state(index, BufferState::Out, BufferState::InFlight)
    }

    /// In flight → out; returns whether it was in flight.
    #[inline]
    pub(super) fn complete_request(&mut self, index: usize) -> bool {
        self.move_state(index, BufferState::InFlight, BufferState::Out)
    }

    /// In flight → free; returns whether it was in flight.
    #[inline]
    fn reclaim(&mut self, index: usize) -> bool {
        self.free_from(index, BufferState::InFlight)
    }

    /// Out → free; returns whether it was out.
    #[inline]
    pub(super) fn put(&mut self, index: usize) -> bool {
        self.free_from(index, BufferState::Out)
    }

    #[inline]
    fn free_from(&mut self, index: usize, from: BufferState) -> bool {
        let freed = self.move_state(index, from, BufferState::Free);
        if freed {
            self.free.push(index as u16);
        }
        freed
    }

    #[inline]
    fn move_state(&mut self, index: usize, from: BufferState, to: BufferState) -> bool {
        match self.states.get_mut(index) {
            Some(state) if *state == from => {
                *state = to;
                true
            }
            _ => false,
        }
    }
}

/// The transmit pool: an endpoint reads its frames straight into granted pages.
///
/// A buffer's index is also the id of the request that sends it.
#[derive(Debug)]
pub struct TxPool {
    small: FreeBuffers,
    large: FreeBuffers,
}

impl TxPool {
    pub(super) fn new(small: Vec<PoolBuffer>, large: Vec<PoolBuffer>) -> Self {
        Self {
            small: FreeBuffers::all(small),
            large: FreeBuffers::all(large),
        }
    }

    /// Returns the number of buffers, which is also the first id that names no buffer.
    pub(super) fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Returns the number of free small buffers.
    #[must_use]
    pub fn available(&self) -> usize {
        self.small.available()
    }

    /// Returns the number of free large buffers.
    #[must_use]
    pub fn available_large(&self) -> usize {
        self.large.available()
    }

    /// Returns the stack that holds buffer `index`, and its index there.
    #[inline]
    fn of(&mut self, index: usize) -> (&mut FreeBuffers, usize) {
        let small = self.small.len();
        if index < small {
            (&mut self.small, index)
        } else {
            (&mut self.large, index - small)
        }
    }

    #[inline]
    pub(super) fn get(&self, id: BufferId) -> Option<&PoolBuffer> {
        let index = id.0 as usize;
        let small = self.small.len();
        if index < small {
            self.small.get(index)
        } else {
            self.large.get(index - small)
        }
    }

    /// Returns the request that sends the packet of `bytes` bytes in `piece` without offloads.
    /// Returns `None` if the packet is invalid or lies in no transmit buffer.
    #[inline]
    pub(super) fn request(&self, piece: &Piece, bytes: usize) -> Option<TxRequest> {
        let slot = self.get(piece.buffer)?;
        let within = slot.find(piece)?;
        (MIN_PACKET..=PAGE).contains(&bytes).then(|| TxRequest {
            gref: slot.gref.0,
            offset: slot.offset + within,
            flags: 0,
            id: piece.buffer.0 as u16,
            size: bytes as u16,
        })
    }

    #[inline]
    pub(super) fn launch(&mut self, id: BufferId) -> bool {
        let (stack, index) = self.of(id.0 as usize);
        stack.launch(index)
    }

    /// Takes a buffer back from the peer; returns false if the peer did not have it.
    #[inline]
    pub(super) fn complete_request(&mut self, id: u16) -> bool {
        let (stack, index) = self.of(usize::from(id));
        stack.reclaim(index)
    }
}

impl Buffers for TxPool {
    #[inline]
    fn take(&mut self) -> Option<Buffer> {
        let (index, slot) = self.small.take()?;
        Some(Buffer {
            id: BufferId(u32::from(index)),
            span: slot.span,
        })
    }

    fn take_many(&mut self, most: usize, out: &mut Vec<Piece>) {
        self.small.take_many(most, out);
    }

    #[inline]
    fn free(&self) -> Option<usize> {
        Some(self.available())
    }

    #[inline]
    fn take_large(&mut self) -> Option<Buffer> {
        let (index, slot) = self.large.take()?;
        let id = BufferId(u32::from(index) + self.small.len() as u32);
        Some(Buffer {
            id,
            span: slot.span,
        })
    }

    #[inline]
    fn put(&mut self, id: BufferId) {
        if id != BufferId::NONE {
            let (stack, index) = self.of(id.0 as usize);
            stack.put(index);
        }
    }
}

/// Returns the small transmit buffers of a page, in order, coloured.
pub(super) fn small_slots(page: Span, gref: GrantRef, number: usize) -> [PoolBuffer; 2] {
    let colour = (number % COLOURS) * COLOUR_BYTES;
    [colour, PAGE / 2 + colour].map(|offset| PoolBuffer::new(page, gref, offset, TX_SMALL_BYTES))
}
