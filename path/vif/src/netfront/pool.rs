//! Pools of granted buffers. Headers start at different cache lines of their pages, so that they do
//! not all compete for two cache sets.
//!
//! The two pools may swap memory: a receive buffer that is posted gets the memory of the transmit
//! buffer that returned last, which the driver domain has just read and will write. The guest next
//! writes and sends the memory that it has just read. If frames pass in one direction only,
//! received memory remains in the transmit pool for as long as possible. If the pool is larger than
//! the guest's caches, the caches evict this memory meanwhile. Otherwise each side would write
//! lines that are in the caches of the other side's core.

use crate::netif::{MIN_PACKET, TxRequest};
use abi::{GrantRef, PAGE};
use nic::{Buffer, BufferId, Buffers, Piece};
use shmem::Span;
use std::collections::VecDeque;

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
    /// The buffer is in the pool.
    Free,
    /// A device or a frame has the buffer.
    InUse,
    /// The peer has the buffer.
    InFlight,
    /// The buffer's page is not granted.
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

    /// Returns the coloured part of a half page: a small transmit buffer.
    #[inline]
    fn coloured(&self) -> Self {
        let colour = self.gref.index() as usize % COLOURS * COLOUR_BYTES;
        Self {
            span: self.span.skip(colour).take(TX_SMALL_BYTES),
            gref: self.gref,
            offset: self.offset + colour as u16,
        }
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

/// The indices of free buffers, the longest free first.
pub(super) trait FreeList {
    /// Adds a buffer that was returned.
    fn push(&mut self, index: u16);

    /// Removes the buffer to take next.
    fn pop(&mut self) -> Option<u16>;

    /// Returns the number of buffers.
    fn count(&self) -> usize;
}

/// A list whose last index the pool takes first.
pub(super) type Stack = Vec<u16>;

impl FreeList for Stack {
    #[inline]
    fn push(&mut self, index: u16) {
        self.push(index);
    }

    #[inline]
    fn pop(&mut self) -> Option<u16> {
        self.pop()
    }

    #[inline]
    fn count(&self) -> usize {
        self.len()
    }
}

/// Order in which the pool takes free transmit buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxOrder {
    /// For endpoints that do not access payload: the fewest buffers are in use, and stay in the
    /// driver domain's caches.
    NewestFirst,
    /// For endpoints that write payload: a buffer that the driver domain has just read is slow to
    /// write, because its lines are in the caches of another core.
    OldestFirst,
    /// Like [`TxOrder::OldestFirst`], after small buffers with the memory of receive buffers.
    Swapped,
}

/// Free transmit buffers.
#[derive(Debug)]
pub(super) enum TxFree {
    /// [`TxOrder::NewestFirst`]: the pool takes the last.
    Stack(Stack),
    /// The other orders: the pool takes the first.
    Queue(VecDeque<u16>),
}

impl FreeList for TxFree {
    #[inline]
    fn push(&mut self, index: u16) {
        match self {
            Self::Stack(stack) => stack.push(index),
            Self::Queue(queue) => queue.push_back(index),
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<u16> {
        match self {
            Self::Stack(stack) => stack.pop(),
            Self::Queue(queue) => queue.pop_front(),
        }
    }

    #[inline]
    fn count(&self) -> usize {
        match self {
            Self::Stack(stack) => stack.len(),
            Self::Queue(queue) => queue.len(),
        }
    }
}

/// Buffers, and which of them are free.
#[derive(Debug)]
pub(super) struct FreeBuffers<List> {
    slots: Vec<PoolBuffer>,
    /// State of each slot. Separate from the slots, because loading a slot after a byte store to it
    /// stalls on store forwarding.
    states: Vec<BufferState>,
    free: List,
}

/// Receive buffers. Few are free; the pool takes the one that was returned last. With elastic
/// pages, the others stay unused until the pool gives up their pages.
pub(super) type RxBuffers = FreeBuffers<Stack>;

/// Transmit buffers.
type TxBuffers = FreeBuffers<TxFree>;

impl RxBuffers {
    /// Creates buffers of which the first `granted` are free and the others not granted.
    pub(super) fn new(slots: Vec<PoolBuffer>, granted: usize) -> Self {
        let free = indices(slots.len().min(granted)).rev().collect();
        Self::with_free(slots, granted, free)
    }

    /// Returns the free buffers, longest free first.
    pub(super) fn free(&self) -> &[u16] {
        &self.free
    }

    /// Changes the state from free to away for all buffers for which `leaves` returns true: their
    /// pages are no longer granted.
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

    /// Changes the state from away to free: the page was granted again, with a new reference.
    pub(super) fn restore(&mut self, index: u16, gref: GrantRef) {
        if self.move_state(usize::from(index), BufferState::Away, BufferState::Free)
            && let Some(slot) = self.slots.get_mut(usize::from(index))
        {
            slot.gref = gref;
            self.free.push(index);
        }
    }
}

/// Returns the indices of `count` buffers, at most as many as an index can name.
fn indices(count: usize) -> std::ops::Range<u16> {
    0..count.min(usize::from(u16::MAX)) as u16
}

impl TxBuffers {
    /// Creates buffers that are all free.
    fn all_free(slots: Vec<PoolBuffer>, order: TxOrder) -> Self {
        let (granted, indices) = (slots.len(), indices(slots.len()).rev());
        let free = match order {
            TxOrder::NewestFirst => TxFree::Stack(indices.collect()),
            TxOrder::OldestFirst | TxOrder::Swapped => TxFree::Queue(indices.collect()),
        };
        Self::with_free(slots, granted, free)
    }
}

impl<List: FreeList> FreeBuffers<List> {
    /// Creates buffers of which the first `granted` are granted, and those in `free` free.
    fn with_free(slots: Vec<PoolBuffer>, granted: usize, free: List) -> Self {
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

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn available(&self) -> usize {
        self.free.count()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&PoolBuffer> {
        self.slots.get(index)
    }

    /// Changes the state from free to out.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u16, PoolBuffer)> {
        let index = self.free.pop()?;
        *self.states.get_mut(usize::from(index))? = BufferState::InUse;
        Some((index, *self.slots.get(usize::from(index))?))
    }

    /// Changes the state from out to in flight; returns whether it was out.
    #[inline]
    pub(super) fn mark_in_flight(&mut self, index: usize) -> bool {
        self.move_state(index, BufferState::InUse, BufferState::InFlight)
    }

    /// Changes the state from in flight to out; returns whether it was in flight.
    #[inline]
    pub(super) fn complete_request(&mut self, index: usize) -> bool {
        self.move_state(index, BufferState::InFlight, BufferState::InUse)
    }

    /// Changes the state from in flight to free; returns whether it was in flight.
    #[inline]
    fn reclaim(&mut self, index: usize) -> bool {
        self.free_from(index, BufferState::InFlight)
    }

    /// Changes the state from out to free; returns whether it was out.
    #[inline]
    pub(super) fn put(&mut self, index: usize) -> bool {
        self.free_from(index, BufferState::InUse)
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
    small: TxBuffers,
    large: TxBuffers,
    /// The half pages of the small buffers, if these swap memory with receive buffers.
    halves: Vec<PoolBuffer>,
}

impl TxPool {
    /// Creates a pool of `halves` of pages and whole pages.
    pub(super) fn new(mut halves: Vec<PoolBuffer>, large: Vec<PoolBuffer>, order: TxOrder) -> Self {
        let small = halves.iter().map(PoolBuffer::coloured).collect();
        if order != TxOrder::Swapped {
            halves.clear();
        }
        Self {
            small: TxBuffers::all_free(small, order),
            large: TxBuffers::all_free(large, order),
            halves,
        }
    }

    /// Returns whether small buffers swap memory with receive buffers.
    #[inline]
    pub(super) fn swaps(&self) -> bool {
        !self.halves.is_empty()
    }

    /// Swaps the memory of a receive buffer, which is out, with that of the small buffer that
    /// returned last. Makes this buffer the next to be taken. Returns false if no small buffer is
    /// free, or the receive buffer is not out.
    #[inline]
    pub(super) fn swap(&mut self, receive: &mut RxBuffers, buffer: usize) -> bool {
        let TxFree::Queue(queue) = &mut self.small.free else {
            return false;
        };
        // Memory that the driver domain may write to stays where it is.
        let is_out = receive.states.get(buffer) == Some(&BufferState::InUse);
        let (true, Some(received), Some(&free)) =
            (is_out, receive.slots.get_mut(buffer), queue.back())
        else {
            return false;
        };
        let free_index = usize::from(free);
        let (Some(half), Some(small)) = (
            self.halves.get_mut(free_index),
            self.small.slots.get_mut(free_index),
        ) else {
            return false;
        };
        std::mem::swap(received, half);
        *small = half.coloured();
        queue.pop_back();
        queue.push_front(free);
        true
    }

    /// [Swaps](Self::swap) the memory of these receive buffers with that of distinct small buffers,
    /// until no small buffer remains.
    pub(super) fn swap_all(
        &mut self,
        receive: &mut RxBuffers,
        buffers: impl Iterator<Item = usize>,
    ) {
        for buffer in buffers.take(self.available()) {
            if !self.swap(receive, buffer) {
                break;
            }
        }
    }

    /// Returns the number of buffers. The ids of buffers are below this number.
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

    /// Returns the buffers that contain buffer `index`, and its index there.
    #[inline]
    fn of(&mut self, index: usize) -> (&mut TxBuffers, usize) {
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
    pub(super) fn mark_in_flight(&mut self, id: BufferId) -> bool {
        let (stack, index) = self.of(id.0 as usize);
        stack.mark_in_flight(index)
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

/// Returns the halves of a page, in order.
pub(super) fn halves(page: Span, gref: GrantRef) -> [PoolBuffer; 2] {
    [0, PAGE / 2].map(|offset| PoolBuffer::new(page, gref, offset, PAGE / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(n: u32) -> PoolBuffer {
        PoolBuffer::new(Span::EMPTY, GrantRef(n), 0, 0)
    }

    fn buffers(count: u32) -> Vec<PoolBuffer> {
        (0..count).map(buffer).collect()
    }

    fn take_all<List: FreeList>(pool: &mut FreeBuffers<List>) -> Vec<u16> {
        std::iter::from_fn(|| pool.take().map(|(index, _)| index)).collect()
    }

    #[test]
    fn transmit_buffers_rest_if_endpoints_write_them() {
        fn reused<List: FreeList>(mut pool: FreeBuffers<List>) -> Vec<u16> {
            take_all(&mut pool);
            assert!([2, 0, 3, 1].iter().all(|&index| pool.put(index)));
            take_all(&mut pool)
        }
        let transmit = |order| reused(TxBuffers::all_free(buffers(4), order));
        assert_eq!(transmit(TxOrder::OldestFirst), [2, 0, 3, 1]);
        assert_eq!(transmit(TxOrder::Swapped), [2, 0, 3, 1]);
        assert_eq!(transmit(TxOrder::NewestFirst), [1, 3, 0, 2]);
        assert_eq!(reused(RxBuffers::new(buffers(4), 4)), [1, 3, 0, 2]);
    }

    #[test]
    fn swaps_end_with_the_last_free_buffer() {
        let mut tx = TxPool::new(buffers(3), Vec::new(), TxOrder::Swapped);
        let mut rx = RxBuffers::new((10..15).map(buffer).collect(), 5);
        let out = take_all(&mut rx);
        tx.swap_all(&mut rx, out.iter().map(|&index| index.into()));
        let posted: Vec<u32> = out
            .iter()
            .map(|&index| rx.slots[usize::from(index)].gref.0)
            .collect();
        assert_eq!(posted, [0, 1, 2, 13, 14]);
        let sent = std::iter::from_fn(|| tx.small.take());
        let sent: Vec<u32> = sent.map(|(_, slot)| slot.gref.0).collect();
        assert_eq!(sent, [12, 11, 10]);
    }

    #[test]
    fn batches_have_the_order_of_single_buffers() {
        let mut pool = TxPool::new(buffers(4), Vec::new(), TxOrder::OldestFirst);
        let mut batch = Vec::new();
        pool.take_many(3, &mut batch);
        assert_eq!(pool.available(), 1);
        batch.drain(..).for_each(|piece| pool.put(piece.buffer));
        pool.take_many(9, &mut batch);
        let ids: Vec<_> = batch.iter().map(|piece| piece.buffer.0).collect();
        assert_eq!(ids, [0, 3, 2, 1]);
    }
}
