//! Packets to the guest: frames → copies into posted buffers → responses.

use super::answers::{Answer, Responder, ToGuest, refuse};
use super::buffers::{check, coloured};
use super::copies::Cut;
use super::interface::Netback;
use crate::counters::Drop;
use crate::grants::Grants;
use crate::netif::{ExtraInfo, MAX_PACKET, RxRequest};
use abi::GrantRef;
use net::packet::segment::packets;
use nic::Frame;

impl<G: Grants> Netback<G> {
    /// Gives those of `frames` whose indexes are in `pick` to the guest, in order: copies each
    /// into buffers that the guest has posted and writes the responses. The frames stay the
    /// caller's. [`Netback::publish`] lets the guest see them.
    ///
    /// A frame for which too few buffers are posted is dropped ([`Drop::NoRequest`]); whether
    /// to hold frames back instead is up to the caller, who can ask [`Netback::posted`].
    pub fn to_guest(&mut self, frames: &[Frame], pick: &[u32]) -> ToGuest {
        self.give(frames, pick, false).0
    }

    /// [`Netback::to_guest`] until a frame finds too few posted buffers. Returns, too, how many of
    /// `pick` were handled; the others are as they were.
    pub fn to_guest_while_posted(&mut self, frames: &[Frame], pick: &[u32]) -> (ToGuest, usize) {
        self.give(frames, pick, true)
    }

    #[inline]
    fn give(&mut self, frames: &[Frame], pick: &[u32], stops: bool) -> (ToGuest, usize) {
        let mut report = ToGuest::default();
        let mut handled = pick.len();
        for (at, &index) in pick.iter().enumerate() {
            let Some(frame) = frames.get(index as usize) else {
                continue;
            };
            match self.plan(index, frame) {
                Ok(()) => {}
                Err(Drop::NoRequest) if stops => {
                    handled = at;
                    break;
                }
                // An aggregate is as many packets as its sender has to send again.
                Err(reason) => report.drops.add(reason, packets(frame) as u64),
            }
        }
        if !self.copies.list.is_empty() {
            self.grants.write(&mut self.copies.list, frames);
        }
        self.refuse_failed(&mut report);
        self.respond(&report);
        (report, handled)
    }

    /// Those of `pick` that the guest wants to hear, where that is not all of them; the others are
    /// counted.
    #[inline]
    pub fn heard(&mut self, frames: &[Frame], pick: &[u32]) -> Option<Vec<u32>> {
        let groups = self.groups?;
        let hears = |index: &u32| {
            let frame = frames.get(*index as usize);
            frame.is_none_or(|frame| groups.hears(frame.header()))
        };
        if !groups.is_applied() || pick.iter().all(hears) {
            return None;
        }
        let heard: Vec<u32> = pick.iter().copied().filter(hears).collect();
        let not_wanted = (pick.len() - heard.len()) as u64;
        self.counters
            .to_guest_drops
            .add(Drop::NotWanted, not_wanted);
        Some(heard)
    }

    /// How many buffers a frame takes, the one for an extra info included.
    #[must_use]
    pub fn slots_for(&self, frame: &Frame) -> u32 {
        self.slots_for_bytes(frame.len()) + u32::from(self.extra(frame).is_some())
    }

    /// How many buffers this many bytes of a frame take.
    #[must_use]
    pub fn slots_for_bytes(&self, bytes: usize) -> u32 {
        let data = bytes.div_ceil(usize::from(self.terms.rx_buffer).max(1)) as u32;
        data.max(1)
    }

    /// What takes a request of its own to say about a frame (NETIF-6).
    pub(super) fn extra(&self, frame: &Frame) -> Option<ExtraInfo> {
        let gso = frame.offload.gso.filter(|_| !self.terms.rx_meta)?;
        Some(ExtraInfo::of(gso))
    }

    /// An extra info in the place of the request with this id.
    pub(super) fn placed(&self, extra: ExtraInfo, request: u16) -> ExtraInfo {
        if self.terms.any_order {
            extra.in_place_of(request)
        } else {
            extra
        }
    }

    /// How many buffers the longest frame takes that is still to be segmented.
    #[must_use]
    pub fn slots_of_longest(&self) -> u32 {
        let data = MAX_PACKET.div_ceil(usize::from(self.terms.rx_buffer).max(1)) as u32;
        data + self.meta_slots()
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

        let first_copy = self.copies.list.len();
        let first_response = self.responses.len();
        // The extra info takes the second request, which is read with the first.
        let extra = extra.map(|extra| match [0, 1].map(|n| self.rx.peek(n)) {
            [_, Some(words)] => self.placed(extra, RxRequest::decode(words).id),
            _ => extra,
        });
        let meta = u32::from(extra.is_some());
        let mut cut = Cut::new(index, frame);
        let mut bad = false;
        let parts = (slots - meta) as usize;
        let mut responder = Responder::new(frame, &self.terms, extra, parts);
        for slot in (0..slots).filter(|&slot| slot != 1 || meta == 0) {
            let Some(words) = self.rx.peek(slot) else {
                break;
            };
            let request = RxRequest::decode(words);
            let buffer = coloured(&request, &self.terms, frame.len());
            bad |= buffer.is_none();
            let (offset, room) = buffer.unwrap_or((0, usize::from(self.terms.rx_buffer)));
            let gref = GrantRef(request.gref);
            let bytes = cut.fill(gref, offset, room, &mut self.copies.list);
            let answer = Answer::new(request.id, offset as u16, bytes as i16);
            responder.respond(answer, |words| self.responses.push(words));
        }
        self.counters.meta_requests += u64::from(meta);
        self.rx.consume(slots);
        let responses = (first_response, self.responses.len());
        self.copies.plan(frame, first_copy, responses, bad);
        Ok(())
    }

    /// [`Netback::plan`] for a frame that fits one buffer, as nearly all do.
    #[inline]
    fn plan_one(&mut self, index: u32, frame: &Frame) -> Result<(), Drop> {
        self.posted_all(1)?;
        let words = self.rx.peek(0).ok_or(Drop::NoRequest)?;
        let request = RxRequest::decode(words);
        self.rx.consume(1);
        let first_copy = self.copies.list.len();
        let first_response = self.responses.len();
        let buffer = coloured(&request, &self.terms, frame.len());
        let (offset, _) = buffer.unwrap_or_default();
        if buffer.is_some() {
            let gref = GrantRef(request.gref);
            self.copies.whole(index, frame, gref, offset);
        }
        let answer = Answer::new(request.id, offset as u16, frame.len() as i16);
        let mut responder = Responder::new(frame, &self.terms, None, 1);
        responder.respond(answer, |words| self.responses.push(words));
        let responses = (first_response, first_response + 1);
        let bad = buffer.is_none();
        self.copies.plan(frame, first_copy, responses, bad);
        Ok(())
    }

    /// Whether the guest has posted so many buffers; if not, why nothing can be given to it.
    #[inline]
    fn posted_all(&mut self, slots: u32) -> Result<(), Drop> {
        if self.posted(slots) >= slots {
            return Ok(());
        }
        Err(self.fatal.map_or(Drop::NoRequest, |_| Drop::Disabled))
    }

    /// Turns the responses of those frames into errors whose copies have failed.
    fn refuse_failed(&mut self, report: &mut ToGuest) {
        for planned in &self.copies.planned {
            let Some(reason) = planned.verdict(&self.copies.list) else {
                report.deliver(planned.bytes as usize);
                continue;
            };
            let (from, to) = planned.responses;
            let responses = self.responses.get_mut(from as usize..to as usize);
            refuse(responses.unwrap_or(&mut []));
            report.drops.count(reason);
        }
        self.copies.planned.clear();
        self.copies.list.clear();
    }
}
