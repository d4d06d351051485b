//! Packets to the guest: responses → frames, and reposting of their buffers.

use super::interface::Netfront;
use super::offers::OfferResult;
use super::packet::PacketBuilder;
use super::pool::{PoolBuffer, RX_BASE};
use crate::counters::VifDrop;
use crate::fatal::Fatal;
use crate::netif::rings::{RX_REQUEST, RX_RESPONSE};
use crate::netif::{ExtraInfo, FATAL_SLOTS, RxRequest, RxResponse, extra, rsp, rxf};
use nic::frame::SNAPSHOT_MIN;
use nic::{BufferId, Frame, Piece};

/// Result of taking the packet at the head of the ring.
enum ReceivedPacket {
    /// A frame, which is now the last one of the list.
    Frame,
    /// An invalid packet; its buffers are free again.
    Bad(VifDrop),
    /// A buffer that is returned unused.
    Unused,
    /// No packet has arrived, or only a part of one.
    Nothing,
}

impl Netfront {
    /// Consumes up to `budget` packets from the driver domain, appends them to `out` and returns
    /// their number. The frames own their buffers until [`Netfront::receive_done`].
    ///
    /// # Errors
    /// Returns [`Fatal`]; the interface is then disabled.
    pub fn receive(&mut self, budget: usize, out: &mut Vec<Frame>) -> Result<usize, Fatal> {
        self.check_fatal()?;
        if let Err(overrun) = self.rx.ready_for(budget.min(u32::MAX as usize) as u32) {
            return self.fail(overrun);
        }
        let mut frames = 0;
        let mut bad = false;
        for _ in 0..budget {
            self.fetch_ahead();
            out.push(Frame::empty());
            let Some(frame) = out.last_mut() else { break };
            let found = match self.plain_head() {
                Some(response) => self.take(&response, frame),
                None => self.scan(frame),
            };
            if let Ok(ReceivedPacket::Frame) = found {
                self.counters.to_guest += 1;
                self.counters.to_guest_bytes += frame.len() as u64;
                frames += 1;
                continue;
            }
            out.pop();
            match found {
                Ok(ReceivedPacket::Bad(reason)) => {
                    self.counters.to_guest_drops.count(reason);
                    bad = true;
                }
                Ok(ReceivedPacket::Unused) => bad = true,
                Ok(_) => break,
                Err(fatal) => return self.fail(fatal),
            }
        }
        if bad {
            self.post();
        }
        Ok(frames)
    }

    /// Takes back the buffers of received frames and posts those that are not posted already.
    pub fn receive_done(&mut self, frames: &mut Vec<Frame>) {
        for piece in frames.iter().flat_map(|frame| &frame.pieces) {
            self.put(piece.buffer);
        }
        frames.clear();
        self.post();
    }

    /// Posts free buffers up to the target while the ring has room. If the pools swap memory, each
    /// gets that of a transmit buffer.
    pub(super) fn post(&mut self) {
        match self.tx_pool.swaps() {
            true => self.post_buffers::<true>(),
            false => self.post_buffers::<false>(),
        }
    }

    /// Like [`Netfront::post`], for buffers that no frame has filled yet.
    pub(super) fn post_first(&mut self) {
        self.post_buffers::<false>();
    }

    fn post_buffers<const SWAPS: bool>(&mut self) {
        for _ in 0..self.buffers_to_post() {
            let Some((index, mut slot)) = self.rx_pool.take() else {
                break;
            };
            if SWAPS && self.tx_pool.swap(&mut self.rx_pool, index.into()) {
                slot = self.rx_pool.get(index.into()).copied().unwrap_or(slot);
            }
            if let Some(offers) = &self.offers {
                offers.offer(slot.gref, index);
            }
            if let Some(at) = self.rx.request(self.request_for(index, &slot)) {
                self.rx_pool.mark_in_flight(usize::from(index));
                self.note_posted(at, index);
                self.rx_pages.recycling.posted += 1;
            }
        }
    }

    /// Returns the request that posts buffer `index`.
    #[inline]
    pub(super) fn request_for(&self, index: u16, slot: &PoolBuffer) -> [u32; RX_REQUEST] {
        let offset = if self.negotiated.rx_offset {
            slot.offset
        } else {
            0
        };
        let request = RxRequest {
            id: index,
            offset,
            gref: slot.gref.0,
        };
        request.encode()
    }

    /// Records the buffer that request `at` has posted.
    #[inline]
    pub(super) fn note_posted(&mut self, at: u32, buffer: u16) {
        let at = self.rx.slot(at);
        if let Some(posted) = self.posted.get_mut(at) {
            *posted = buffer;
        }
    }

    /// Takes back a posted buffer; `filled` states whether the driver domain claims to have written
    /// to it.
    ///
    /// # Errors
    /// Returns an error if the driver domain's claim about an exchange of the page is false.
    #[inline]
    fn has_returned(&self, buffer: u16, filled: bool) -> Result<(), Fatal> {
        let Some(offers) = &self.offers else {
            return Ok(());
        };
        let slot = self.rx_pool.get(usize::from(buffer));
        match slot.map(|slot| offers.end(slot.gref)) {
            Some(OfferResult::Exchanged) => Ok(()),
            Some(OfferResult::Kept) if !filled => Ok(()),
            _ => Err(Fatal::NotExchanged),
        }
    }

    /// Prefetches the headers of received packets up to the prefetch distance (thesis, 5.2).
    #[inline]
    fn fetch_ahead(&mut self) {
        while self.fetched < self.prefetch {
            let Some(words) = self.rx.peek(self.fetched) else {
                break;
            };
            let response = RxResponse::decode(words);
            let posted = self.response_buffer(self.fetched, response.id);
            self.fetched += 1;
            if let Some(slot) = self.rx_pool.get(usize::from(posted)) {
                let before = usize::from(response.offset.saturating_sub(slot.offset));
                let bytes = usize::try_from(response.status).unwrap_or(0);
                slot.span
                    .skip(before)
                    .take(bytes.min(SNAPSHOT_MIN))
                    .prefetch();
            }
        }
    }

    /// Returns the response at the head of the ring if it is the most frequent kind of packet: one
    /// slot without metadata.
    #[inline]
    fn plain_head(&mut self) -> Option<RxResponse> {
        const MORE: u16 = rxf::MORE_DATA | rxf::EXTRA_INFO | rxf::GSO | rxf::CSUM_BLANK;
        let response = RxResponse::decode(self.rx.peek(0)?);
        (response.status > 0 && !response.has(MORE)).then_some(response)
    }

    /// Takes the [plain](Self::plain_head) packet at the head of the ring, with the same checks as
    /// [`Netfront::scan`].
    #[inline]
    fn take(&mut self, response: &RxResponse, frame: &mut Frame) -> Result<ReceivedPacket, Fatal> {
        let posted = self.response_buffer(0, response.id);
        if response.id != posted || !self.rx_pool.complete_request(usize::from(posted)) {
            return Err(Fatal::ResponseId);
        }
        self.has_returned(posted, true)?;
        self.partial = 0;
        self.rx.consume(1);
        self.fetched = self.fetched.saturating_sub(1);
        let mut packet = PacketBuilder::new(frame);
        packet.flags = response.flags;
        self.part(posted, response, &mut packet);
        self.finish(packet)
    }

    /// Builds the frame of a packet whose buffers the netfront has taken back.
    #[inline]
    fn finish(&mut self, mut packet: PacketBuilder<'_>) -> Result<ReceivedPacket, Fatal> {
        let made = match packet.verdict {
            Some(reason) => Err(reason),
            None => packet.finish(&self.negotiated.to_guest),
        };
        let Err(reason) = made else {
            return Ok(ReceivedPacket::Frame);
        };
        self.recycle(packet.frame);
        Ok(ReceivedPacket::Bad(reason))
    }

    /// Takes the packet at the head of the ring: reads each slot once and checks it against the
    /// request posted there (NETIF-8).
    fn scan(&mut self, frame: &mut Frame) -> Result<ReceivedPacket, Fatal> {
        let mut packet = PacketBuilder::new(frame);
        let Some(slots) = self.walk(&mut packet)? else {
            self.partial = self.rx.ready();
            return Ok(ReceivedPacket::Nothing);
        };
        self.partial = 0;
        // Buffers are taken back only now, because those of an incomplete packet stay in flight.
        for (n, &posted) in (0..).zip(&packet.buffers) {
            if !self.rx_pool.complete_request(usize::from(posted)) {
                return Err(Fatal::ResponseId);
            }
            // The slot of an extra info returns its buffer unused.
            let unused = n != 0 && n <= packet.extras;
            self.has_returned(
                posted,
                !unused && !packet.unused && packet.verdict.is_none(),
            )?;
            if unused {
                self.rx_pool.put(usize::from(posted));
            }
        }
        self.rx.consume(slots);
        self.fetched = self.fetched.saturating_sub(slots);
        if packet.unused {
            self.recycle(packet.frame);
            return Ok(ReceivedPacket::Unused);
        }
        self.finish(packet)
    }

    /// Returns the buffer that was posted in the slot of response number `ahead`.
    #[inline]
    fn posted_at(&self, ahead: u32) -> u16 {
        let at = self.rx.next().wrapping_add(ahead);
        self.posted
            .get(self.rx.slot(at))
            .copied()
            .unwrap_or(u16::MAX)
    }

    /// Returns the buffer of response number `ahead`: the one posted in its slot, or with
    /// `any-order` (NETIF-27) the one that it names.
    #[inline]
    pub(super) fn response_buffer(&self, ahead: u32, id: u16) -> u16 {
        if self.negotiated.any_order {
            id
        } else {
            self.posted_at(ahead)
        }
    }

    /// Reads slots until the packet ends; returns their number, or `None` if it is incomplete.
    fn walk(&mut self, packet: &mut PacketBuilder<'_>) -> Result<Option<u32>, Fatal> {
        let mut slots = 0;
        let mut parts: u32 = 0;
        loop {
            let Some(words) = self.slot(slots)? else {
                return Ok(None);
            };
            let response = RxResponse::decode(words);
            let posted = self.response_buffer(slots, response.id);
            packet.buffers.push(posted);
            slots += 1;
            parts += 1;
            let has_meta = parts == 1 && self.negotiated.rx_meta && response.has(rxf::GSO);
            if has_meta {
                packet.meta(&response);
            } else if response.id != posted {
                return Err(Fatal::ResponseId);
            }
            self.part(posted, &response, packet);
            if parts == 1 {
                packet.flags = response.flags;
                packet.unused = response.status == rsp::DROPPED
                    && !response.has(rxf::MORE_DATA | rxf::EXTRA_INFO);
                let mut more = response.has(rxf::EXTRA_INFO);
                while more {
                    let Some([one, two]) = self.slot(slots)? else {
                        return Ok(None);
                    };
                    let info = ExtraInfo::decode(one, two);
                    packet
                        .buffers
                        .push(self.response_buffer(slots, info.gso.place));
                    slots += 1;
                    packet.extra(&info);
                    more = info.flags & extra::FLAG_MORE != 0;
                }
            }
            if !response.has(rxf::MORE_DATA) {
                break;
            }
        }
        if parts > u32::from(self.negotiated.to_guest.max_slots) {
            packet.bad(VifDrop::TooManySlots);
        }
        Ok(Some(slots))
    }

    /// Returns response number `ahead`.
    fn slot(&mut self, ahead: u32) -> Result<Option<[u32; RX_RESPONSE]>, Fatal> {
        if ahead == FATAL_SLOTS {
            return Err(Fatal::EndlessPacket);
        }
        Ok(self.rx.fetch(ahead)?)
    }

    /// Appends one part to the packet. Always records its buffer, so that the buffer is returned
    /// even on an error.
    #[inline]
    fn part(&self, posted: u16, response: &RxResponse, packet: &mut PacketBuilder<'_>) {
        let buffer = BufferId(RX_BASE + u32::from(posted));
        let mut span = shmem::Span::EMPTY;
        if let Some(slot) = self.rx_pool.get(usize::from(posted)) {
            match usize::try_from(response.status) {
                Err(_) => packet.bad(VifDrop::PeerError),
                Ok(0) => packet.bad(VifDrop::ZeroSize),
                Ok(bytes) => match slot.part(response.offset, bytes) {
                    Some(inside) => span = inside,
                    None => packet.bad(VifDrop::CrossesPage),
                },
            }
        }
        packet.frame.push(Piece { span, buffer });
    }
}

#[cfg(test)]
mod tests;
