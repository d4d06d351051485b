//! Packets to the guest: frames → copies into posted buffers → responses.

use super::Netback;
use crate::counters::{Drop, Drops};
use crate::grants::{CopyOut, Grants, Source};
use crate::netif::rings::RX_RESPONSE;
use crate::netif::{
    ExtraInfo, MAX_PACKET, MIN_PACKET, RxRequest, RxResponse, Terms, rsp, rxf, transport,
};
use abi::{GrantRef, GrantStatus, PAGE};
use net::packet::segment::packets;
use nic::{Checksum, Frame, GsoKind};
use shmem::Span;

/// What became of the frames given to [`Netback::to_guest`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToGuest {
    /// Frames that the guest will get.
    pub delivered: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that it will not.
    pub drops: Drops,
}

/// One frame of the batch: where its copies and its responses lie in the batch's lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    copies: (u32, u32),
    responses: (u32, u32),
    bytes: u32,
    /// A buffer of the guest's was no buffer: nothing was copied.
    bad: bool,
}

/// Frames start at one of so many different cache lines of their buffers, so that the headers of
/// all frames do not compete for two sets of the cache.
const COLOURS: u32 = 8;
const COLOUR_BYTES: usize = 64;

impl<G: Grants> Netback<G> {
    /// Gives those of `frames` whose indexes are in `pick` to the guest, in order: copies each
    /// into buffers that the guest has posted and writes the responses. The frames stay the
    /// caller's. [`Netback::publish`] lets the guest see them.
    ///
    /// A frame for which too few buffers are posted is dropped ([`Drop::NoRequest`]); whether
    /// to hold frames back instead is up to the caller, who can ask [`Netback::posted`].
    pub fn to_guest(&mut self, frames: &[Frame], pick: &[u32]) -> ToGuest {
        let mut report = ToGuest::default();
        for &index in pick {
            let Some(frame) = frames.get(index as usize) else {
                continue;
            };
            if let Err(reason) = self.plan(index, frame) {
                // An aggregate is as many packets as somebody has to send again.
                report.drops.add(reason, packets(frame) as u64);
            }
        }
        if !self.copies.is_empty() {
            self.grants.write(&mut self.copies, frames);
        }
        self.answer(&mut report);
        self.counters.to_guest += u64::from(report.delivered);
        self.counters.to_guest_bytes += report.bytes;
        self.counters.to_guest_drops += report.drops;
        report
    }

    /// How many buffers a frame takes, the one for an extra info included.
    #[must_use]
    pub fn slots_for(&self, frame: &Frame) -> u32 {
        let data = frame
            .len()
            .div_ceil(usize::from(self.terms.rx_buffer).max(1)) as u32;
        data.max(1) + u32::from(self.extra(frame).is_some())
    }

    /// What takes a request of its own to say about a frame (NETIF-6).
    pub(super) fn extra(&self, frame: &Frame) -> Option<ExtraInfo> {
        let gso = frame.offload.gso.filter(|_| !self.terms.rx_meta)?;
        Some(ExtraInfo::of(gso))
    }

    /// An extra info that takes the place of request number `ahead`.
    fn placed(&mut self, extra: ExtraInfo, ahead: u32) -> ExtraInfo {
        match self.rx.peek(ahead).filter(|_| self.terms.any_order) {
            Some(words) => extra.in_place_of(RxRequest::decode(words).id),
            None => extra,
        }
    }

    /// Slots that a packet takes besides those of its bytes, if it is still to be segmented.
    fn meta_slots(&self) -> u32 {
        u32::from(!self.terms.rx_meta)
    }

    /// Bytes of the longest frame that is still to be segmented for which `slots` slots do; at most
    /// what the guest takes at once.
    #[must_use]
    pub fn bytes_for(&self, slots: u32) -> usize {
        let data = slots
            .saturating_sub(self.meta_slots())
            .min(self.terms.to_guest.max_slots.into());
        (data as usize * usize::from(self.terms.rx_buffer)).min(MAX_PACKET)
    }

    /// Plans the copies and responses of one frame and consumes its requests.
    pub(super) fn plan(&mut self, index: u32, frame: &Frame) -> Result<(), Drop> {
        if self.fatal.is_some() {
            return Err(Drop::Disabled);
        }
        check(frame, &self.terms)?;
        if frame.offload.gso.is_none() && frame.len() <= usize::from(self.terms.rx_buffer) {
            return self.plan_one(index, frame);
        }
        let slots = self.slots_for(frame);
        let extra = self.extra(frame);
        if slots - u32::from(extra.is_some()) > u32::from(self.terms.to_guest.max_slots) {
            return Err(Drop::TooManySlots);
        }
        self.posted_all(slots)?;

        let first_copy = self.copies.len();
        let first_response = self.rx_responses.len();
        let mut cut = Cut::new(index, frame);
        let mut bad = false;
        let mut slot = 0;
        while slot < slots {
            let Some(words) = self.rx.peek(slot) else {
                break;
            };
            let request = RxRequest::decode(words);
            let buffer = buffer(&request, &self.terms);
            bad |= buffer.is_none();
            let (offset, room) = buffer.unwrap_or((0, usize::from(self.terms.rx_buffer)));
            let colour = colour(request.gref, frame.len(), room);
            let bytes = cut.fill(
                GrantRef(request.gref),
                offset + colour,
                room,
                &mut self.copies,
            );
            let first = slot == 0;
            let mut response = RxResponse {
                id: request.id,
                offset: (offset + colour) as u16,
                flags: 0,
                status: bytes as i16,
            };
            if first {
                say(frame, &self.terms, &mut response);
            }
            if cut.left > 0 {
                response.flags |= rxf::MORE_DATA;
            }
            self.rx_responses.push(response.encode());
            slot += 1;
            if first && let Some(extra) = extra {
                let extra = self.placed(extra, slot);
                self.rx_responses.push(extra.encode());
                self.counters.meta_requests += 1;
                slot += 1;
            }
        }
        self.rx.consume(slots);
        if bad {
            self.copies.truncate(first_copy);
        }
        self.note(frame, first_copy, first_response, bad);
        Ok(())
    }

    /// [`Netback::plan`] for a frame that fits one buffer, as nearly all do.
    #[inline]
    fn plan_one(&mut self, index: u32, frame: &Frame) -> Result<(), Drop> {
        self.posted_all(1)?;
        let words = self.rx.peek(0).ok_or(Drop::NoRequest)?;
        let request = RxRequest::decode(words);
        self.rx.consume(1);
        let (first_copy, first_response) = (self.copies.len(), self.rx_responses.len());
        let buffer = buffer(&request, &self.terms);
        let (offset, room) = buffer.unwrap_or_default();
        let offset = offset + colour(request.gref, frame.len(), room);
        if buffer.is_some() {
            let mut copy = |at: usize, source, len: usize| {
                self.copies.push(CopyOut {
                    source,
                    gref: GrantRef(request.gref),
                    offset: at as u16,
                    len: len as u16,
                    status: GrantStatus::GeneralError,
                });
                at + len
            };
            let header = Source::Header {
                frame: index,
                from: 0,
            };
            let behind = copy(offset, header, frame.header_len());
            let payload = frame.payload().filter(|span| !span.is_empty());
            payload.fold(behind, |at, span| copy(at, Source::Span(span), span.len()));
        }
        let mut response = RxResponse {
            id: request.id,
            offset: offset as u16,
            flags: 0,
            status: frame.len() as i16,
        };
        say(frame, &self.terms, &mut response);
        self.rx_responses.push(response.encode());
        self.note(frame, first_copy, first_response, buffer.is_none());
        Ok(())
    }

    /// Adds a frame to the batch, whose copies and responses are the last ones of their lists.
    #[inline]
    fn note(&mut self, frame: &Frame, first_copy: usize, first_response: usize, bad: bool) {
        self.planned.push(Planned {
            copies: (first_copy as u32, self.copies.len() as u32),
            responses: (first_response as u32, self.rx_responses.len() as u32),
            bytes: frame.len() as u32,
            bad,
        });
    }

    /// Whether the guest has posted so many buffers; if not, why nothing can be given to it.
    #[inline]
    fn posted_all(&mut self, slots: u32) -> Result<(), Drop> {
        match self.rx.ready_for(slots) {
            Ok(ready) if ready >= slots => Ok(()),
            Ok(_) => Err(Drop::NoRequest),
            Err(overrun) => {
                self.fatal = Some(overrun.into());
                Err(Drop::Disabled)
            }
        }
    }

    /// Writes the responses of the batch, whose copies are done.
    fn answer(&mut self, report: &mut ToGuest) {
        for planned in &self.planned {
            let (from, to) = planned.copies;
            let copies = self.copies.get(from as usize..to as usize).unwrap_or(&[]);
            let failed = copies.iter().any(|copy| copy.status != GrantStatus::Okay);
            let (from, to) = planned.responses;
            let responses = self.rx_responses.get_mut(from as usize..to as usize);
            let responses = responses.unwrap_or(&mut []);
            if planned.bad || failed {
                refuse(responses);
                report.drops.count(if planned.bad {
                    Drop::BadRequest
                } else {
                    Drop::Grant
                });
            } else {
                report.delivered += 1;
                report.bytes += u64::from(planned.bytes);
            }
            self.rx.respond_all(responses);
        }
        self.planned.clear();
        self.copies.clear();
        self.rx_responses.clear();
    }
}

/// What keeps a frame from being sent to a guest as it is.
pub(super) fn check(frame: &Frame, terms: &Terms) -> Result<(), Drop> {
    if frame.len() < MIN_PACKET {
        return Err(Drop::TooShort);
    }
    if frame.len() > MAX_PACKET {
        return Err(Drop::TooLong);
    }
    transport::check(frame, &terms.to_guest)
}

/// Offset and length of the buffer that a request posts; none if it does not lie in its page.
pub(super) fn buffer(request: &RxRequest, terms: &Terms) -> Option<(usize, usize)> {
    let bytes = usize::from(terms.rx_buffer);
    let offset = if terms.rx_offset {
        usize::from(request.offset)
    } else {
        0
    };
    (offset + bytes <= PAGE).then_some((offset, bytes))
}

/// How far into a buffer of `room` bytes a frame starts: only if it still fits in one piece.
pub(super) fn colour(gref: u32, len: usize, room: usize) -> usize {
    let colour = (gref % COLOURS) as usize * COLOUR_BYTES;
    if len + colour <= room { colour } else { 0 }
}

/// What a packet's first response says about all of it.
pub(super) fn say(frame: &Frame, terms: &Terms, response: &mut RxResponse) {
    response.flags = match frame.offload.checksum {
        Checksum::Unknown => 0,
        // A blank checksum is as good as checked: nothing can have happened to the bytes.
        Checksum::Blank { .. } => rxf::CSUM_BLANK | rxf::DATA_VALIDATED,
        Checksum::Valid => rxf::DATA_VALIDATED,
    };
    match frame.offload.gso {
        None => {}
        Some(_) if !terms.rx_meta => response.flags |= rxf::EXTRA_INFO,
        Some(gso) => {
            response.flags |= match gso.kind {
                GsoKind::Tcp4 => rxf::GSO_TCPV4,
                GsoKind::Tcp6 => rxf::GSO_TCPV6,
            };
            response.id = gso.size;
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

/// Cuts a frame into copies: first its snapshot, then the payload behind it.
struct Cut<'a> {
    frame: &'a Frame,
    index: u32,
    header: usize,
    pieces: usize,
    current: Span,
    skip: usize,
    left: usize,
}

impl<'a> Cut<'a> {
    fn new(index: u32, frame: &'a Frame) -> Self {
        Self {
            frame,
            index,
            header: 0,
            pieces: 0,
            current: Span::EMPTY,
            skip: frame.covered(),
            left: frame.len(),
        }
    }

    /// Plans the copies that fill a buffer; how many bytes.
    fn fill(
        &mut self,
        gref: GrantRef,
        offset: usize,
        room: usize,
        copies: &mut Vec<CopyOut>,
    ) -> usize {
        let mut done = 0;
        let room = room.min(self.left);
        while done < room {
            let (source, bytes) = if self.header < self.frame.header().len() {
                let bytes = (self.frame.header().len() - self.header).min(room - done);
                let from = self.header as u16;
                self.header += bytes;
                (
                    Source::Header {
                        frame: self.index,
                        from,
                    },
                    bytes,
                )
            } else {
                let Some(span) = self.payload(room - done) else {
                    break;
                };
                (Source::Span(span), span.len())
            };
            copies.push(CopyOut {
                source,
                gref,
                offset: (offset + done) as u16,
                len: bytes as u16,
                status: GrantStatus::GeneralError,
            });
            done += bytes;
        }
        self.left -= done;
        done
    }

    /// At most `want` bytes of payload that lie together.
    fn payload(&mut self, want: usize) -> Option<Span> {
        while self.current.is_empty() {
            let piece = self.frame.pieces.get(self.pieces)?;
            self.pieces += 1;
            let here = self.skip.min(piece.span.len());
            self.skip -= here;
            self.current = piece.span.skip(here);
        }
        let span = self.current.take(want);
        self.current = self.current.skip(span.len());
        Some(span)
    }
}
