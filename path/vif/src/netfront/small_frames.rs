//! The fast path ([`nic::small_frame`]): single-slot responses without metadata → pieces, and
//! pieces → single-slot requests. Other packets stay at the head of the ring for
//! [`Netfront::receive`].

use super::interface::Netfront;
use super::pool::{RX_BASE, rx_index};
use super::transmit::TransmitReport;
use crate::counters::VifDrop;
use crate::fatal::Fatal;
use crate::netif::{MIN_PACKET, RxResponse};
use crate::ring::BURST;
use nic::{BufferId, Piece};
use shmem::Span;
use smallvec::SmallVec;

impl Netfront {
    /// Like [`Netfront::receive`], for the small frames of up to `longest` bytes at the head of the
    /// ring, up to the first other packet. Returns their number. The pieces own their buffers until
    /// [`Netfront::small_frames_done`].
    ///
    /// # Errors
    /// Returns [`Fatal`]; the interface is then disabled.
    pub fn receive_small_frames(
        &mut self,
        budget: usize,
        longest: usize,
        out: &mut Vec<Piece>,
    ) -> Result<usize, Fatal> {
        self.check_fatal()?;
        // With elastic or exchanged pages each frame takes the slow path.
        if self.offers.is_some() || self.is_elastic() {
            return Ok(0);
        }
        if let Err(overrun) = self.rx.ready_for(budget.min(u32::MAX as usize) as u32) {
            return self.fail(overrun);
        }
        let before = out.len();
        let taken = self.take_small_frames(budget, longest, out);
        let frames = out.get(before..).unwrap_or(&[]);
        let bytes = frames.iter().map(|piece| piece.span.len() as u64);
        self.counters.to_guest += frames.len() as u64;
        self.counters.to_guest_bytes += bytes.sum::<u64>();
        match taken {
            Ok(()) => Ok(frames.len()),
            Err(fatal) => self.fail(fatal),
        }
    }

    fn take_small_frames(
        &mut self,
        budget: usize,
        longest: usize,
        out: &mut Vec<Piece>,
    ) -> Result<(), Fatal> {
        for _ in 0..budget {
            let Some(words) = self.rx.peek(0) else { break };
            let response = RxResponse::decode(words);
            let posted = self.response_buffer(0, response.id);
            let found = self.small_frame_in(posted, &response);
            let Some(span) = found.filter(|span| span.len() <= longest) else {
                break;
            };
            if response.id != posted || !self.rx_pool.complete_request(usize::from(posted)) {
                return Err(Fatal::ResponseId);
            }
            out.push(Piece {
                span,
                buffer: BufferId(RX_BASE + u32::from(posted)),
            });
            self.partial = 0;
            self.rx.consume(1);
            self.fetched = self.fetched.saturating_sub(1);
        }
        Ok(())
    }

    /// Returns the bytes of the small frame that a response describes in this buffer, or `None` if
    /// it describes another packet.
    #[inline]
    fn small_frame_in(&self, buffer: u16, response: &RxResponse) -> Option<Span> {
        let bytes = usize::try_from(response.status).ok()?;
        let slot = self.rx_pool.get(usize::from(buffer))?;
        let is_small = response.flags == 0 && bytes >= MIN_PACKET;
        slot.part(response.offset, bytes).filter(|_| is_small)
    }

    /// Like [`Netfront::receive_done`], for small frames; empties the list.
    pub fn small_frames_done(&mut self, pieces: &mut Vec<Piece>) {
        // The ring has room for the buffers that were just taken from it.
        if (self.buffers_to_post() as usize) < pieces.len() {
            pieces.drain(..).for_each(|piece| self.put(piece.buffer));
            self.post();
            return;
        }
        let mut requests: SmallVec<[_; BURST]> = SmallVec::new();
        if self.tx_pool.swaps() {
            self.swap_memory(pieces);
        }
        for some in pieces.chunks(BURST) {
            let mut at = self.rx.prod();
            for piece in some {
                let Some(index) = rx_index(piece.buffer) else {
                    continue;
                };
                let Some(&slot) = self.rx_pool.get(index) else {
                    continue;
                };
                if !self.rx_pool.mark_in_flight(index) {
                    continue;
                }
                requests.push(self.request_for(index as u16, &slot));
                self.note_posted(at, index as u16);
                at = at.wrapping_add(1);
            }
            self.rx_pages.recycling.posted += requests.len() as u64;
            self.rx.request_all(&requests);
            requests.clear();
        }
        pieces.clear();
    }

    /// Swaps the memory of received buffers.
    // If the compiler inlined this function, the caller's loops would become slower.
    #[inline(never)]
    fn swap_memory(&mut self, pieces: &[Piece]) {
        let received = pieces.iter().filter_map(|piece| rx_index(piece.buffer));
        self.tx_pool.swap_all(&mut self.rx_pool, received);
    }

    /// Like [`Netfront::transmit`], for small frames that lie entirely in [`Netfront::buffers`].
    /// Frames that do not fit the ring stay in the list; [`Netfront::reap`] makes room.
    ///
    /// # Errors
    /// Returns [`Fatal`]; the interface is then disabled.
    pub fn transmit_small_frames(
        &mut self,
        pieces: &mut Vec<Piece>,
    ) -> Result<TransmitReport, Fatal> {
        self.check_fatal()?;
        let mut report = TransmitReport::default();
        let count = pieces.len().min(self.tx.free() as usize);
        let mut requests: SmallVec<[_; BURST]> = SmallVec::new();
        for some in pieces.get(..count).unwrap_or(&[]).chunks(BURST) {
            for piece in some {
                let request = self.tx_pool.request(piece, piece.span.len());
                let Some(request) = request.filter(|_| self.tx_pool.mark_in_flight(piece.buffer))
                else {
                    self.put(piece.buffer);
                    self.counters.from_guest_drops.count(VifDrop::NoBuffer);
                    report.dropped += 1;
                    continue;
                };
                requests.push(request.encode());
                report.sent += 1;
                report.bytes += piece.span.len() as u64;
            }
            self.tx.request_all(&requests);
            requests.clear();
        }
        pieces.drain(..count);
        self.counters.from_guest += u64::from(report.sent);
        self.counters.from_guest_bytes += report.bytes;
        Ok(report)
    }
}

#[cfg(test)]
mod tests;
