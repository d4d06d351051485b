//! Packets to the guest: responses → frames, and posting their buffers again.

use super::interface::Netfront;
use super::offers::Fate;
use super::packet::Head;
use super::pool::{RX_BASE, Slot};
use crate::counters::Drop;
use crate::fatal::Fatal;
use crate::netif::rings::{RX_REQUEST, RX_RESPONSE};
use crate::netif::{ExtraInfo, FATAL_SLOTS, RxRequest, RxResponse, extra, rsp, rxf};
use nic::frame::HOT;
use nic::{BufferId, Frame, Piece};

/// What a packet at the head of the ring is.
enum Packet {
    /// A frame: the last one of the list.
    Frame,
    /// Something is wrong with it; its buffers are free again.
    Bad(Drop),
    /// A buffer that comes back unused.
    Unused,
    /// None, or not all of it.
    Nothing,
}

impl Netfront {
    /// Takes up to `budget` packets from the driver domain and appends them to `out`; how many.
    /// Their buffers are the frames' until [`Netfront::receive_done`].
    ///
    /// # Errors
    /// [`Fatal`]: the interface is disabled.
    pub fn receive(&mut self, budget: usize, out: &mut Vec<Frame>) -> Result<usize, Fatal> {
        self.alive()?;
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
            if let Ok(Packet::Frame) = found {
                self.counters.to_guest += 1;
                self.counters.to_guest_bytes += frame.len() as u64;
                frames += 1;
                continue;
            }
            out.pop();
            match found {
                Ok(Packet::Bad(reason)) => {
                    self.counters.to_guest_drops.count(reason);
                    bad = true;
                }
                Ok(Packet::Unused) => bad = true,
                Ok(_) => break,
                Err(fatal) => return self.fail(fatal),
            }
        }
        if bad {
            self.post();
        }
        Ok(frames)
    }

    /// Gives the buffers of received frames back and posts them again, as far as it is not done
    /// yet.
    pub fn receive_done(&mut self, frames: &mut Vec<Frame>) {
        for piece in frames.iter().flat_map(|frame| &frame.pieces) {
            self.put(piece.buffer);
        }
        frames.clear();
        self.post();
    }

    /// Posts free buffers while there are to be more and the ring has room.
    pub(super) fn post(&mut self) {
        for _ in 0..self.lacking() {
            let Some((index, slot)) = self.rx_pool.take() else {
                break;
            };
            if let Some(offers) = &self.offers {
                offers.make(slot.gref, index);
            }
            if let Some(at) = self.rx.request(self.request_for(index, &slot)) {
                self.rx_pool.launch(usize::from(index));
                self.note_posted(at, index);
                self.rx_pages.turnover.posted += 1;
            }
        }
    }

    /// The request that posts buffer `index`.
    #[inline]
    pub(super) fn request_for(&self, index: u16, slot: &Slot) -> [u32; RX_REQUEST] {
        let offset = if self.terms.rx_offset { slot.offset } else { 0 };
        let request = RxRequest {
            id: index,
            offset,
            gref: slot.gref.0,
        };
        request.encode()
    }

    /// Notes which buffer the request with index `at` has posted.
    #[inline]
    pub(super) fn note_posted(&mut self, at: u32, buffer: u16) {
        let at = self.rx.slot(at);
        if let Some(posted) = self.posted.get_mut(at) {
            *posted = buffer;
        }
    }

    /// A posted buffer has come back, with bytes of the driver domain's if `filled`.
    ///
    /// # Errors
    /// The driver domain says that it gave a page, or that it took none, and it is not so.
    #[inline]
    fn came_back(&self, buffer: u16, filled: bool) -> Result<(), Fatal> {
        let Some(offers) = &self.offers else {
            return Ok(());
        };
        let slot = self.rx_pool.get(usize::from(buffer));
        match slot.map(|slot| offers.end(slot.gref)) {
            Some(Fate::Exchanged) => Ok(()),
            Some(Fate::Kept) if !filled => Ok(()),
            _ => Err(Fatal::NotExchanged),
        }
    }

    /// Fetches the headers of what has arrived, up to the prefetch distance ahead of the packet
    /// that is looked at (thesis, 5.2).
    #[inline]
    fn fetch_ahead(&mut self) {
        while self.fetched < self.prefetch {
            let Some(words) = self.rx.peek(self.fetched) else {
                break;
            };
            let response = RxResponse::decode(words);
            let posted = self.named(self.fetched, response.id);
            self.fetched += 1;
            if let Some(slot) = self.rx_pool.get(usize::from(posted)) {
                let before = usize::from(response.offset.saturating_sub(slot.offset));
                let bytes = usize::try_from(response.status).unwrap_or(0);
                slot.span.skip(before).take(bytes.min(HOT)).prefetch();
            }
        }
    }

    /// The response at the head of the ring, if it is a whole packet whose bytes say all that is to
    /// be known about it, as nearly all do.
    #[inline]
    fn plain_head(&mut self) -> Option<RxResponse> {
        const MORE: u16 = rxf::MORE_DATA | rxf::EXTRA_INFO | rxf::GSO | rxf::CSUM_BLANK;
        let response = RxResponse::decode(self.rx.peek(0)?);
        (response.status > 0 && !response.has(MORE)).then_some(response)
    }

    /// Takes the packet that is [plain](Self::plain_head) at the head of the ring, checked as
    /// [`Netfront::scan`] does.
    #[inline]
    fn take(&mut self, response: &RxResponse, frame: &mut Frame) -> Result<Packet, Fatal> {
        let posted = self.named(0, response.id);
        if response.id != posted || !self.rx_pool.land(usize::from(posted)) {
            return Err(Fatal::ResponseId);
        }
        self.came_back(posted, true)?;
        self.partial = 0;
        self.rx.consume(1);
        self.fetched = self.fetched.saturating_sub(1);
        let mut packet = Head::new(frame);
        packet.flags = response.flags;
        self.part(posted, response, &mut packet);
        self.finish(packet)
    }

    /// Makes a frame of a packet whose buffers were taken from the peer.
    #[inline]
    fn finish(&mut self, mut packet: Head<'_>) -> Result<Packet, Fatal> {
        let made = match packet.verdict {
            Some(reason) => Err(reason),
            None => packet.finish(&self.terms.to_guest),
        };
        let Err(reason) = made else {
            return Ok(Packet::Frame);
        };
        self.recycle(packet.frame);
        Ok(Packet::Bad(reason))
    }

    /// Takes the packet at the head of the ring: reads each slot once, checked against what was
    /// posted there (NETIF-8).
    fn scan(&mut self, frame: &mut Frame) -> Result<Packet, Fatal> {
        let mut packet = Head::new(frame);
        let Some(slots) = self.walk(&mut packet)? else {
            self.partial = self.rx.ready();
            return Ok(Packet::Nothing);
        };
        self.partial = 0;
        // Only now are buffers taken from the peer: a packet that is not all there keeps them.
        for (n, &posted) in (0..).zip(&packet.buffers) {
            if !self.rx_pool.land(usize::from(posted)) {
                return Err(Fatal::ResponseId);
            }
            // In the place of an extra info lies a buffer that was not used.
            let unused = n != 0 && n <= packet.extras;
            self.came_back(
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
            return Ok(Packet::Unused);
        }
        self.finish(packet)
    }

    /// The buffer that was posted where response number `ahead` lies.
    #[inline]
    fn posted_at(&self, ahead: u32) -> u16 {
        let at = self.rx.next().wrapping_add(ahead);
        self.posted
            .get(self.rx.slot(at))
            .copied()
            .unwrap_or(u16::MAX)
    }

    /// The buffer that response number `ahead` is about: the one that was posted there, or where
    /// they come in any order (NETIF-27) the one that it names.
    #[inline]
    pub(super) fn named(&self, ahead: u32, id: u16) -> u16 {
        if self.terms.any_order {
            id
        } else {
            self.posted_at(ahead)
        }
    }

    /// Reads slots until the packet ends; how many, or none if it does not end yet.
    fn walk(&mut self, packet: &mut Head<'_>) -> Result<Option<u32>, Fatal> {
        let mut slots = 0;
        let mut parts: u32 = 0;
        loop {
            let Some(words) = self.slot(slots)? else {
                return Ok(None);
            };
            let response = RxResponse::decode(words);
            let posted = self.named(slots, response.id);
            packet.buffers.push(posted);
            slots += 1;
            parts += 1;
            let has_meta = parts == 1 && self.terms.rx_meta && response.has(rxf::GSO);
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
                    packet.buffers.push(self.named(slots, info.gso.place));
                    slots += 1;
                    packet.extra(&info);
                    more = info.flags & extra::FLAG_MORE != 0;
                }
            }
            if !response.has(rxf::MORE_DATA) {
                break;
            }
        }
        if parts > u32::from(self.terms.to_guest.max_slots) {
            packet.bad(Drop::TooManySlots);
        }
        Ok(Some(slots))
    }

    /// Response number `ahead`.
    fn slot(&mut self, ahead: u32) -> Result<Option<[u32; RX_RESPONSE]>, Fatal> {
        if ahead == FATAL_SLOTS {
            return Err(Fatal::EndlessPacket);
        }
        Ok(self.rx.fetch(ahead)?)
    }

    /// Appends one part to the packet: always its buffer, so that it is given back.
    #[inline]
    fn part(&self, posted: u16, response: &RxResponse, packet: &mut Head<'_>) {
        let buffer = BufferId(RX_BASE + u32::from(posted));
        let mut span = shmem::Span::EMPTY;
        if let Some(slot) = self.rx_pool.get(usize::from(posted)) {
            match usize::try_from(response.status) {
                Err(_) => packet.bad(Drop::PeerError),
                Ok(0) => packet.bad(Drop::ZeroSize),
                Ok(bytes) => match slot.part(response.offset, bytes) {
                    Some(inside) => span = inside,
                    None => packet.bad(Drop::CrossesPage),
                },
            }
        }
        packet.frame.push(Piece { span, buffer });
    }
}
