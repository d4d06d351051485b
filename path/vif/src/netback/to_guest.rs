//! Packets to the guest: frames → copies into posted buffers → responses.

use super::buffers::{check, coloured};
use super::completions::{DeliveryReport, RxCompletion, RxResponseWriter, refuse};
use super::copies::ScatterCursor;
use super::interface::Netback;
use crate::counters::VifDrop;
use crate::grants::GrantMechanism;
use crate::netif::{ExtraInfo, MAX_PACKET, RxRequest};
use abi::GrantRef;
use net::packet::segment::packets;
use nic::Frame;

impl<G: GrantMechanism> Netback<G> {
    /// Delivers the frames of `frames` whose indexes are in `pick`, in order: copies each into
    /// posted buffers and writes the responses. The caller keeps the frames. [`Netback::publish`]
    /// makes the responses visible to the guest.
    ///
    /// Drops a frame for which too few buffers are posted ([`VifDrop::NoRequest`]). A caller that
    /// prefers to keep such frames checks [`Netback::posted`] first.
    pub fn to_guest(&mut self, frames: &[Frame], pick: &[u32]) -> DeliveryReport {
        self.give(frames, pick, false).0
    }

    /// Like [`Netback::to_guest`], but stops at the first frame that lacks posted buffers. Also
    /// returns the number of frames in `pick` that it handled; the others are unchanged.
    pub fn to_guest_while_posted(
        &mut self,
        frames: &[Frame],
        pick: &[u32],
    ) -> (DeliveryReport, usize) {
        self.give(frames, pick, true)
    }

    #[inline]
    fn give(&mut self, frames: &[Frame], pick: &[u32], stops: bool) -> (DeliveryReport, usize) {
        let mut report = DeliveryReport::default();
        let mut handled = pick.len();
        for (at, &index) in pick.iter().enumerate() {
            let Some(frame) = frames.get(index as usize) else {
                continue;
            };
            match self.plan(index, frame) {
                Ok(()) => {}
                Err(VifDrop::NoRequest) if stops => {
                    handled = at;
                    break;
                }
                // An aggregate counts as the packets that its sender must retransmit.
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

    /// Returns the frames of `pick` that match the guest's multicast filter, or `None` if all
    /// match. Filtered frames count as [`VifDrop::NotWanted`].
    #[inline]
    pub fn match_multicast(&mut self, frames: &[Frame], pick: &[u32]) -> Option<Vec<u32>> {
        let groups = self.groups?;
        let matches = |index: &u32| {
            let frame = frames.get(*index as usize);
            frame.is_none_or(|frame| groups.matches(frame.header()))
        };
        if !groups.is_applied() || pick.iter().all(matches) {
            return None;
        }
        let matching: Vec<u32> = pick.iter().copied().filter(matches).collect();
        let not_wanted = (pick.len() - matching.len()) as u64;
        self.counters
            .to_guest_drops
            .add(VifDrop::NotWanted, not_wanted);
        Some(matching)
    }

    /// Returns the number of buffers that a frame occupies, including one for an extra info if the
    /// frame needs it.
    #[must_use]
    pub fn slots_for(&self, frame: &Frame) -> u32 {
        self.slots_for_bytes(frame.len()) + u32::from(self.extra(frame).is_some())
    }

    /// Returns the number of buffers that this many bytes of a frame occupy.
    #[must_use]
    pub fn slots_for_bytes(&self, bytes: usize) -> u32 {
        let data = bytes.div_ceil(usize::from(self.negotiated.rx_buffer).max(1)) as u32;
        data.max(1)
    }

    /// Returns the extra info that a frame needs, if any; it uses a separate request (NETIF-6).
    pub(super) fn extra(&self, frame: &Frame) -> Option<ExtraInfo> {
        let gso = frame.offload.gso.filter(|_| !self.negotiated.rx_meta)?;
        Some(ExtraInfo::of(gso))
    }

    /// Returns the extra info for the slot of the request with this id.
    pub(super) fn extra_for_request(&self, extra: ExtraInfo, request: u16) -> ExtraInfo {
        if self.negotiated.any_order {
            extra.in_place_of(request)
        } else {
            extra
        }
    }

    /// Returns the number of buffers that the longest frame with pending segmentation occupies.
    #[must_use]
    pub fn slots_of_longest(&self) -> u32 {
        let data = MAX_PACKET.div_ceil(usize::from(self.negotiated.rx_buffer).max(1)) as u32;
        data + self.meta_slots()
    }

    /// Returns the number of slots that a packet with pending segmentation needs in addition to
    /// those for its bytes.
    fn meta_slots(&self) -> u32 {
        u32::from(!self.negotiated.rx_meta)
    }

    /// Returns the length in bytes of the longest frame with pending segmentation that fits `slots`
    /// slots, at most the guest's limit.
    #[must_use]
    pub fn bytes_for(&self, slots: u32) -> usize {
        let data = slots
            .saturating_sub(self.meta_slots())
            .min(self.negotiated.to_guest.max_slots.into());
        (data as usize * usize::from(self.negotiated.rx_buffer)).min(MAX_PACKET)
    }

    /// Plans the copies and responses of one frame and consumes its requests.
    pub(super) fn plan(&mut self, index: u32, frame: &Frame) -> Result<(), VifDrop> {
        if self.fatal.is_some() {
            return Err(VifDrop::Disabled);
        }
        check(frame, &self.negotiated)?;
        if frame.offload.gso.is_none() && frame.len() <= usize::from(self.negotiated.rx_buffer) {
            return self.plan_one(index, frame);
        }
        let slots = self.slots_for(frame);
        let extra = self.extra(frame);
        if slots - u32::from(extra.is_some()) > u32::from(self.negotiated.to_guest.max_slots) {
            return Err(VifDrop::TooManySlots);
        }
        self.posted_all(slots)?;

        let first_copy = self.copies.list.len();
        let first_response = self.responses.len();
        // The extra info uses the second request, which is read with the first.
        let extra = extra.map(|extra| match [0, 1].map(|n| self.rx.peek(n)) {
            [_, Some(words)] => self.extra_for_request(extra, RxRequest::decode(words).id),
            _ => extra,
        });
        let meta = u32::from(extra.is_some());
        let mut cut = ScatterCursor::new(index, frame);
        let mut bad = false;
        let parts = (slots - meta) as usize;
        let mut writer = RxResponseWriter::new(frame, &self.negotiated, extra, parts);
        for slot in (0..slots).filter(|&slot| slot != 1 || meta == 0) {
            let Some(words) = self.rx.peek(slot) else {
                break;
            };
            let request = RxRequest::decode(words);
            let buffer = coloured(&request, &self.negotiated, frame.len());
            bad |= buffer.is_none();
            let (offset, room) = buffer.unwrap_or((0, usize::from(self.negotiated.rx_buffer)));
            let gref = GrantRef(request.gref);
            let bytes = cut.fill(gref, offset, room, &mut self.copies.list);
            let completion = RxCompletion::new(request.id, offset as u16, bytes as i16);
            writer.respond(completion, |words| self.responses.push(words));
        }
        self.counters.meta_requests += u64::from(meta);
        self.rx.consume(slots);
        let responses = (first_response, self.responses.len());
        self.copies.plan(frame, first_copy, responses, bad);
        Ok(())
    }

    /// Like [`Netback::plan`], for a frame that fits one buffer, the most frequent case.
    #[inline]
    fn plan_one(&mut self, index: u32, frame: &Frame) -> Result<(), VifDrop> {
        self.posted_all(1)?;
        let words = self.rx.peek(0).ok_or(VifDrop::NoRequest)?;
        let request = RxRequest::decode(words);
        self.rx.consume(1);
        let first_copy = self.copies.list.len();
        let first_response = self.responses.len();
        let buffer = coloured(&request, &self.negotiated, frame.len());
        let (offset, _) = buffer.unwrap_or_default();
        if buffer.is_some() {
            let gref = GrantRef(request.gref);
            self.copies.plan_whole_frame(index, frame, gref, offset);
        }
        let completion = RxCompletion::new(request.id, offset as u16, frame.len() as i16);
        let mut writer = RxResponseWriter::new(frame, &self.negotiated, None, 1);
        writer.respond(completion, |words| self.responses.push(words));
        let responses = (first_response, first_response + 1);
        let bad = buffer.is_none();
        self.copies.plan(frame, first_copy, responses, bad);
        Ok(())
    }

    /// Returns an error if the guest has posted fewer than `slots` buffers.
    #[inline]
    fn posted_all(&mut self, slots: u32) -> Result<(), VifDrop> {
        if self.posted(slots) >= slots {
            return Ok(());
        }
        Err(self.fatal.map_or(VifDrop::NoRequest, |_| VifDrop::Disabled))
    }

    /// Turns the responses of frames whose copies failed into errors.
    fn refuse_failed(&mut self, report: &mut DeliveryReport) {
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
