//! Placement of frames in a guest's buffers, and the check whether the guest accepts a frame.

use crate::counters::VifDrop;
use crate::netif::{Negotiated, RxRequest, transport};
use abi::PAGE;
use nic::Frame;

/// Number of cache lines over which the starts of frames in their buffers are spread. Otherwise the
/// headers of all frames would compete for two cache sets.
const COLOURS: u32 = 8;
const COLOUR_BYTES: usize = 64;

/// Returns an error if the guest cannot take the frame unchanged.
pub(super) fn check(frame: &Frame, negotiated: &Negotiated) -> Result<(), VifDrop> {
    transport::check_len(frame.len())?;
    transport::check(frame, &negotiated.to_guest)
}

/// Returns offset and length of the posted buffer, or `None` if it does not lie within its page.
#[inline]
pub(super) fn buffer(request: &RxRequest, negotiated: &Negotiated) -> Option<(usize, usize)> {
    let bytes = usize::from(negotiated.rx_buffer);
    let offset = if negotiated.rx_offset {
        usize::from(request.offset)
    } else {
        0
    };
    (offset + bytes <= PAGE).then_some((offset, bytes))
}

/// Like [`buffer`], but skips the space left free before a frame of `len` bytes.
#[inline]
pub(super) fn coloured(
    request: &RxRequest,
    negotiated: &Negotiated,
    len: usize,
) -> Option<(usize, usize)> {
    let (offset, room) = buffer(request, negotiated)?;
    let colour = colour(request.gref, len, room);
    Some((offset + colour, room - colour))
}

/// Returns the offset of a frame within a buffer of `room` bytes, or 0 if the frame would not fit
/// behind it.
#[inline]
pub(super) fn colour(gref: u32, len: usize, room: usize) -> usize {
    let colour = (gref % COLOURS) as usize * COLOUR_BYTES;
    if len + colour <= room { colour } else { 0 }
}
