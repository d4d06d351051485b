//! What becomes of receive requests: the responses to the guest are made here and nowhere else.
//!
//! A frame was copied into buffers, or a device has written it there (posted and lent buffers, and
//! small frames). Whichever it was, it ends as one [`Answer`] for each of its buffers, in order,
//! and [`Responder`] says in the first of them, and in an extra info behind it, what the frame is.

use super::buffers::check;
use crate::counters::{Drop, Drops};
use crate::netif::rings::RX_RESPONSE;
use crate::netif::{ExtraInfo, RxResponse, Terms, rsp, rxf};
use nic::{Checksum, Frame, GsoKind};
use shmem::Span;
use smallvec::SmallVec;

/// What became of frames for the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToGuest {
    /// Frames that the guest will get.
    pub delivered: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that it will not.
    pub drops: Drops,
}

impl ToGuest {
    /// Counts a frame that the guest will get.
    #[inline]
    pub(super) fn deliver(&mut self, bytes: usize) {
        self.delivered += 1;
        self.bytes += bytes as u64;
    }
}

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The request's id.
    pub(super) request: u16,
    /// First byte within the page.
    pub(super) offset: u16,
    /// Bytes that lie there, or one of [`rsp`]'s errors.
    pub(super) len: i16,
}

impl Answer {
    #[inline]
    pub(super) const fn new(request: u16, offset: u16, len: i16) -> Self {
        Self {
            request,
            offset,
            len,
        }
    }

    /// The response that says no more than this.
    #[inline]
    pub(super) const fn plain(self) -> [u32; RX_RESPONSE] {
        self.encode(self.request, 0)
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

/// Makes the responses of one frame, answer by answer.
pub(super) struct Responder {
    /// What the first response says of all of the frame: what takes the place of its id, and its
    /// flags.
    head: (Option<u16>, u16),
    /// What comes behind the first one.
    extra: Option<ExtraInfo>,
    parts: usize,
    made: usize,
}

impl Responder {
    /// For `frame`, which lies in so many `parts`.
    #[inline]
    pub(super) fn new(
        frame: &Frame,
        terms: &Terms,
        extra: Option<ExtraInfo>,
        parts: usize,
    ) -> Self {
        Self {
            head: describe(frame, terms),
            extra,
            parts,
            made: 0,
        }
    }

    /// Makes the response of the next part, and the extra info.
    #[inline(always)]
    pub(super) fn respond(&mut self, answer: Answer, mut write: impl FnMut([u32; RX_RESPONSE])) {
        self.made += 1;
        let more = if self.made < self.parts {
            rxf::MORE_DATA
        } else {
            0
        };
        if self.made > 1 {
            return write(answer.encode(answer.request, more));
        }
        let (id, flags) = self.head;
        write(answer.encode(id.unwrap_or(answer.request), flags | more));
        if let Some(extra) = self.extra {
            write(extra.encode());
        }
    }
}

/// What a frame's first response says of all of it: its flags, and what takes the place of its id
/// (NETIF-21).
#[inline]
fn describe(frame: &Frame, terms: &Terms) -> (Option<u16>, u16) {
    let flags = match frame.offload.checksum {
        Checksum::Unknown => 0,
        // A blank checksum is as good as checked: nothing can have happened to the bytes.
        Checksum::Blank { .. } => rxf::CSUM_BLANK | rxf::DATA_VALIDATED,
        Checksum::Valid => rxf::DATA_VALIDATED,
    };
    match frame.offload.gso {
        None => (None, flags),
        Some(_) if !terms.rx_meta => (None, flags | rxf::EXTRA_INFO),
        Some(gso) => {
            let kind = match gso.kind {
                GsoKind::Tcp4 => rxf::GSO_TCPV4,
                GsoKind::Tcp6 => rxf::GSO_TCPV6,
            };
            (Some(gso.size), flags | kind)
        }
    }
}

/// Turns the responses of one frame into errors; the extra info among them stays.
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

/// A part of a frame that a device has written into a buffer of the guest's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// The request's id.
    pub(super) request: u16,
    /// First byte of the buffer within its page.
    pub(super) offset: u16,
    /// The buffer.
    pub(super) buffer: Span,
    /// The part.
    pub(super) piece: Span,
}

impl Written {
    #[inline]
    fn answer(&self) -> Result<Answer, Drop> {
        let within = self.piece.addr().checked_sub(self.buffer.addr());
        let inside = |&within: &usize| self.buffer.sub(within, self.piece.len()).is_some();
        let within = within.filter(inside).ok_or(Drop::CrossesPage)?;
        let offset = self.offset + within as u16;
        Ok(Answer::new(self.request, offset, self.piece.len() as i16))
    }
}

/// The answers of a frame that a device has written to `parts`, if nothing is wrong with it; a part
/// that lies in no buffer of the device's is none.
#[inline]
pub(super) fn answers(
    frame: &Frame,
    terms: &Terms,
    parts: impl ExactSizeIterator<Item = Option<Written>>,
) -> Result<SmallVec<[Answer; 1]>, Drop> {
    check(frame, terms)?;
    if parts.len() == 0 {
        return Err(Drop::ZeroSize);
    }
    // Without `rx-meta` a segment size needs a place that there is behind a packet's first part
    // alone, and only packets of several parts have it.
    let sized = terms.rx_meta || frame.offload.gso.is_some() == (parts.len() > 1);
    if parts.len() != frame.pieces.len() || !sized {
        return Err(Drop::BadOffload);
    }
    if parts.len() > usize::from(terms.to_guest.max_slots) {
        return Err(Drop::TooManySlots);
    }
    let mut answers = SmallVec::new();
    let mut bytes = 0;
    for part in parts {
        let part = part.ok_or(Drop::BadOffload)?;
        bytes += part.piece.len();
        answers.push(part.answer()?);
    }
    // A header that lies in no part would not be sent.
    if bytes != frame.len() {
        return Err(Drop::BadOffload);
    }
    Ok(answers)
}

/// Writes the header of a frame in several of the guest's buffers to where its first part lies:
/// what was checked, and changed by merging, is what is sent.
pub(super) fn put_merged_header(frame: &Frame) -> Result<(), Drop> {
    match frame.pieces.as_slice() {
        [first, _, ..] => first.span.write(frame.header()).map_err(|_| Drop::Fault),
        _ => Ok(()),
    }
}
