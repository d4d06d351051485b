//! RX completions: the only code that makes responses to the guest.
//!
//! A frame in the guest's buffers, whether copied (also on the fast path) or written by a device
//! (posted and lent buffers), becomes one [`RxCompletion`] per buffer, in order.
//! [`RxResponseWriter`] describes the frame in the first response and in an extra info behind it.

use super::buffers::check;
use crate::counters::{DropCounts, VifDrop};
use crate::netif::rings::RX_RESPONSE;
use crate::netif::{ExtraInfo, Negotiated, RxResponse, rsp, rxf};
use nic::{Checksum, Frame, GsoKind};
use shmem::Span;
use smallvec::SmallVec;
use std::ops::AddAssign;

/// Result of delivering frames to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryReport {
    /// Delivered frames.
    pub delivered: u32,
    /// Bytes in the delivered frames.
    pub bytes: u64,
    /// Dropped frames.
    pub drops: DropCounts,
}

impl AddAssign for DeliveryReport {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.bytes += other.bytes;
        self.drops += other.drops;
    }
}

impl DeliveryReport {
    /// Counts a delivered frame.
    #[inline]
    pub(super) fn deliver(&mut self, bytes: usize) {
        self.delivered += 1;
        self.bytes += bytes as u64;
    }
}

/// Completion of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RxCompletion {
    /// The request's id.
    pub(super) request: u16,
    /// First byte within the page.
    pub(super) offset: u16,
    /// Length in bytes, or one of [`rsp`]'s errors.
    pub(super) len: i16,
}

impl RxCompletion {
    #[inline]
    pub(super) const fn new(request: u16, offset: u16, len: i16) -> Self {
        Self {
            request,
            offset,
            len,
        }
    }

    /// Returns the response without frame flags.
    #[inline]
    pub(super) const fn plain_response(self) -> [u32; RX_RESPONSE] {
        self.encode(self.request, 0)
    }

    /// Returns the response for a whole frame without offloads, whose transport checksum may be
    /// verified.
    #[inline]
    pub(super) const fn whole_frame_response(self, is_valid: bool) -> [u32; RX_RESPONSE] {
        let flags = if is_valid { rxf::DATA_VALIDATED } else { 0 };
        self.encode(self.request, flags)
    }

    #[inline]
    const fn encode(self, id: u16, flags: u16) -> [u32; RX_RESPONSE] {
        let response = RxResponse {
            id,
            offset: self.offset,
            flags,
            status: self.len,
        };
        response.encode()
    }
}

/// Writer of the responses of one frame, buffer by buffer.
pub(super) struct RxResponseWriter {
    /// Fields of the first response that describe the frame: a replacement for the id, and flags.
    head: (Option<u16>, u16),
    /// Extra info behind the first response.
    extra: Option<ExtraInfo>,
    parts: usize,
    made: usize,
}

impl RxResponseWriter {
    /// Creates the writer for `frame`, which occupies `parts` buffers.
    #[inline]
    pub(super) fn new(
        frame: &Frame,
        negotiated: &Negotiated,
        extra: Option<ExtraInfo>,
        parts: usize,
    ) -> Self {
        Self {
            head: describe(frame, negotiated),
            extra,
            parts,
            made: 0,
        }
    }

    /// Makes the response of the next part, and the extra info if it is the first.
    #[inline(always)]
    pub(super) fn respond(
        &mut self,
        completion: RxCompletion,
        mut write: impl FnMut([u32; RX_RESPONSE]),
    ) {
        self.made += 1;
        let more = if self.made < self.parts {
            rxf::MORE_DATA
        } else {
            0
        };
        if self.made > 1 {
            return write(completion.encode(completion.request, more));
        }
        let (id, flags) = self.head;
        write(completion.encode(id.unwrap_or(completion.request), flags | more));
        if let Some(extra) = self.extra {
            write(extra.encode());
        }
    }
}

/// Returns the fields of the first response that describe the frame: a replacement for the id
/// (NETIF-21), and flags.
#[inline]
fn describe(frame: &Frame, negotiated: &Negotiated) -> (Option<u16>, u16) {
    let flags = match frame.offload.checksum {
        Checksum::Unknown => 0,
        // A blank checksum counts as validated: the bytes never left this machine.
        Checksum::Blank { .. } => rxf::CSUM_BLANK | rxf::DATA_VALIDATED,
        Checksum::Valid => rxf::DATA_VALIDATED,
    };
    match frame.offload.gso {
        None => (None, flags),
        Some(_) if !negotiated.rx_meta => (None, flags | rxf::EXTRA_INFO),
        Some(gso) => {
            let kind = match gso.kind {
                GsoKind::Tcp4 => rxf::GSO_TCPV4,
                GsoKind::Tcp6 => rxf::GSO_TCPV6,
            };
            (Some(gso.size), flags | kind)
        }
    }
}

/// Turns the responses of one frame into errors, except the extra info.
pub(super) fn refuse(responses: &mut [[u32; RX_RESPONSE]]) {
    let mut extra = false;
    for words in responses {
        if std::mem::take(&mut extra) {
            continue;
        }
        let response = RxResponse::decode(*words);
        extra = response.has(rxf::EXTRA_INFO);
        *words = RxResponse {
            status: rsp::ERROR,
            ..response
        }
        .encode();
    }
}

/// A part of a frame that a device has written into a guest's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenPart {
    /// The request's id.
    pub(super) request: u16,
    /// First byte of the buffer within its page.
    pub(super) offset: u16,
    /// The buffer.
    pub(super) buffer: Span,
    /// The part.
    pub(super) piece: Span,
}

impl WrittenPart {
    #[inline]
    fn completion(&self) -> Result<RxCompletion, VifDrop> {
        let within = self.piece.addr().checked_sub(self.buffer.addr());
        let inside = |&within: &usize| self.buffer.sub(within, self.piece.len()).is_some();
        let within = within.filter(inside).ok_or(VifDrop::CrossesPage)?;
        let offset = self.offset + within as u16;
        Ok(RxCompletion::new(
            self.request,
            offset,
            self.piece.len() as i16,
        ))
    }
}

/// Returns the completions of a frame that a device has written to `parts`. Returns an error if the
/// frame is invalid or a part is `None`: a piece outside the device's buffers.
#[inline]
pub(super) fn completions(
    frame: &Frame,
    negotiated: &Negotiated,
    parts: impl ExactSizeIterator<Item = Option<WrittenPart>>,
) -> Result<SmallVec<[RxCompletion; 1]>, VifDrop> {
    check(frame, negotiated)?;
    if parts.len() == 0 {
        return Err(VifDrop::ZeroSize);
    }
    // Without `rx-meta` a segment size needs an extra slot behind the first slot, which only a
    // packet of several parts has.
    let sized = negotiated.rx_meta || frame.offload.gso.is_some() == (parts.len() > 1);
    if parts.len() != frame.pieces.len() || !sized {
        return Err(VifDrop::BadOffload);
    }
    if parts.len() > usize::from(negotiated.to_guest.max_slots) {
        return Err(VifDrop::TooManySlots);
    }
    let mut completions = SmallVec::new();
    let mut bytes = 0;
    for part in parts {
        let part = part.ok_or(VifDrop::BadOffload)?;
        bytes += part.piece.len();
        completions.push(part.completion()?);
    }
    // The guest would not receive header bytes that lie in no part.
    if bytes != frame.len() {
        return Err(VifDrop::BadOffload);
    }
    Ok(completions)
}

/// Writes the snapshot of a multi-buffer frame to the start of its first part, so that the guest
/// gets the header that was checked and merged.
pub(super) fn put_merged_header(frame: &Frame) -> Result<(), VifDrop> {
    match frame.pieces.as_slice() {
        [first, _, ..] => first.span.write(frame.header()).map_err(|_| VifDrop::Fault),
        _ => Ok(()),
    }
}
