//! Granted buffers. Last in, first out, so that the buffers in use stay in the cache; headers
//! start at different cache lines of their pages, so that they do not compete for two sets of it.

use crate::netif::{MIN_PACKET, TxRequest};
use abi::{GrantRef, PAGE};
use nic::{Buffer, BufferId, Buffers, Piece};
use shmem::Span;

/// Bytes of a small transmit buffer: half a page without the room for its colour.
pub const TX_SMALL_BYTES: usize = PAGE / 2 - (COLOURS - 1) * COLOUR_BYTES;
const COLOURS: usize = 8;
const COLOUR_BYTES: usize = 64;

/// Numbers of receive buffers start here, so that they are told from transmit buffers.
pub(super) const RX_BASE: u32 = 1 << 31;

/// Which receive buffer a number means, if it does.
pub(super) fn rx_index(id: BufferId) -> Option<usize> {
    (id != BufferId::NONE)
        .then(|| id.0.checked_sub(RX_BASE))
        .flatten()
        .map(|n| n as usize)
}

/// Where a buffer is.
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
pub(super) struct Slot {
    /// Its bytes.
    pub(super) span: Span,
    /// Its page's grant.
    pub(super) gref: GrantRef,
    /// Its first byte within the page.
    pub(super) offset: u16,
}

impl Slot {
    /// The buffer at `offset` of the granted page `page`.
    pub(super) fn new(page: Span, gref: GrantRef, offset: usize, bytes: usize) -> Self {
        let span = page.sub(offset, bytes).unwrap_or(Span::EMPTY);
        Self {
            span,
            gref,
            offset: offset as u16,
        }
    }

    /// The `bytes` bytes from `offset` of the page on, if they lie inside.
    #[inline]
    pub(super) fn part(&self, offset: u16, bytes: usize) -> Option<Span> {
        let within = offset.checked_sub(self.offset)?;
        self.span.sub(within.into(), bytes)
    }

    /// How far into the buffer a piece starts, if it has bytes and lies inside.
    #[inline]
    pub(super) fn find(&self, piece: &Piece) -> Option<u16> {
        let within = piece.span.addr().checked_sub(self.span.addr())?;
        let inside = !piece.span.is_empty() && self.span.sub(within, piece.span.len()).is_some();
        inside.then_some(within as u16)
    }
}

/// What a request says of where its bytes lie, and its number.
pub(super) struct Located {
    pub(super) gref: GrantRef,
    pub(super) offset: u16,
    pub(super) id: u16,
}

/// Buffers and which of them are free.
#[derive(Debug)]
pub(super) struct Stack {
    slots: Vec<Slot>,
    /// Of each slot; apart, because a slot that is read right after a byte of it was written has
    /// to wait for that byte.
    states: Vec<BufferState>,
    free: Vec<u16>,
}

impl Stack {
    /// Buffers of which the first `granted` are free and the others away.
    pub(super) fn new(slots: Vec<Slot>, granted: usize) -> Self {
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

    /// Buffers that are all free.
    fn all(slots: Vec<Slot>) -> Self {
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
    pub(super) fn get(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// The free buffers, the one that is taken next last.
    pub(super) fn free(&self) -> &[u16] {
        &self.free
    }

    /// Free → away, for all buffers that `leaves` names: their pages are the domain's alone now.
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

    /// Away → free: a page was granted anew, by another reference.
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
    pub(super) fn take(&mut self) -> Option<(u16, Slot)> {
        let index = self.free.pop()?;
        *self.states.get_mut(usize::from(index))? = BufferState::Out;
        Some((index, *self.slots.get(usize::from(index))?))
    }

    /// Free → out, for up to `most` of them.
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

    /// Out → in flight; whether it was out.
    #[inline]
    pub(super) fn launch(&mut self, index: usize) -> bool {
        self.move_state(index, BufferState::Out, BufferState::InFlight)
    }

    /// In flight → out; whether it was in flight.
    #[inline]
    pub(super) fn land(&mut self, index: usize) -> bool {
        self.move_state(index, BufferState::InFlight, BufferState::Out)
    }

    /// In flight → free; whether it was in flight.
    #[inline]
    fn reclaim(&mut self, index: usize) -> bool {
        self.free_from(index, BufferState::InFlight)
    }

    /// Out → free; whether it was out.
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

/// The pool that a guest sends from: an endpoint reads its frames straight into granted pages.
///
/// A buffer's number is also the id of the request that sends it.
#[derive(Debug)]
pub struct TxPool {
    small: Stack,
    large: Stack,
}

impl TxPool {
    pub(super) fn new(small: Vec<Slot>, large: Vec<Slot>) -> Self {
        Self {
            small: Stack::all(small),
            large: Stack::all(large),
        }
    }

    /// Buffers, and so the first number that means none.
    pub(super) fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Small buffers that can be taken now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.small.available()
    }

    /// Large buffers that can be taken now.
    #[must_use]
    pub fn available_large(&self) -> usize {
        self.large.available()
    }

    /// Which stack buffer `index` is in, and where.
    #[inline]
    fn of(&mut self, index: usize) -> (&mut Stack, usize) {
        let small = self.small.len();
        if index < small {
            (&mut self.small, index)
        } else {
            (&mut self.large, index - small)
        }
    }

    #[inline]
    pub(super) fn get(&self, id: BufferId) -> Option<&Slot> {
        let index = id.0 as usize;
        let small = self.small.len();
        if index < small {
            self.small.get(index)
        } else {
            self.large.get(index - small)
        }
    }

    /// The request that sends a packet of `bytes` bytes which lies in `piece` and asks for nothing,
    /// if it is one and lies in a buffer.
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

    /// The peer gave a buffer back; whether it had it.
    #[inline]
    pub(super) fn land(&mut self, id: u16) -> bool {
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

/// Buffers that a page holds, one after the other: small transmit buffers, coloured.
pub(super) fn small_slots(page: Span, gref: GrantRef, number: usize) -> [Slot; 2] {
    let colour = (number % COLOURS) * COLOUR_BYTES;
    [colour, PAGE / 2 + colour].map(|offset| Slot::new(page, gref, offset, TX_SMALL_BYTES))
}
