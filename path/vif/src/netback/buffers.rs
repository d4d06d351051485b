//! Where in a buffer of the guest's a frame is put, and which frames can be.

use crate::counters::Drop;
use crate::netif::{RxRequest, Terms, transport};
use abi::PAGE;
use nic::Frame;

/// Frames start at one of so many different cache lines of their buffers, so that the headers of
/// all frames do not compete for two sets of the cache.
const COLOURS: u32 = 8;
const COLOUR_BYTES: usize = 64;

/// What keeps a frame from being sent to a guest as it is.
pub(super) fn check(frame: &Frame, terms: &Terms) -> Result<(), Drop> {
    transport::check_len(frame.len())?;
    transport::check(frame, &terms.to_guest)
}

/// Offset and length of the buffer that a request posts; none if it does not lie in its page.
#[inline]
pub(super) fn buffer(request: &RxRequest, terms: &Terms) -> Option<(usize, usize)> {
    let bytes = usize::from(terms.rx_buffer);
    let offset = if terms.rx_offset {
        usize::from(request.offset)
    } else {
        0
    };
    (offset + bytes <= PAGE).then_some((offset, bytes))
}

/// [`buffer`] without what is left free in front of a frame of `len` bytes.
#[inline]
pub(super) fn coloured(request: &RxRequest, terms: &Terms, len: usize) -> Option<(usize, usize)> {
    let (offset, room) = buffer(request, terms)?;
    let colour = colour(request.gref, len, room);
    Some((offset + colour, room - colour))
}

/// How far into a buffer of `room` bytes a frame starts: only if it still fits in one piece.
#[inline]
pub(super) fn colour(gref: u32, len: usize, room: usize) -> usize {
    let colour = (gref % COLOURS) as usize * COLOUR_BYTES;
    if len + colour <= room { colour } else { 0 }
}
