//! Requests that a device has from turn to turn: a queue of the NIC is the guest's alone, and what
//! comes by it is written into the guest's pages when it comes, not when somebody looks
//! (`specs/xdp.md`, XDP-14).
//!
//! ```text
//!   ring ── lend ──► with the device ── deliver ──► response with the frame
//!                                    ── give_back ─► response without: unused, or an error
//! ```
//!
//! Such a request has left the ring, and its page is in use. So responses come in the order in
//! which the device is done with them, and the guest has to take them so (NETIF-27). Other frames
//! for the guest take the requests that are behind those: some always stay in the ring for them.

use super::answers::{Answer, Responder, ToGuest, Written, answers, put_merged_header};
use super::buffers::buffer;
use super::interface::Netback;
use super::loans::{Lent, Loan, Returned};
use crate::counters::Drop;
use crate::grants::{Access, Grants};
use crate::netif::{RxRequest, rsp};
use abi::GrantRef;
use nic::{BufferId, Frame};
use smallvec::SmallVec;

impl<G: Grants> Netback<G> {
    /// Whether a device can be lent buffers that frames of `bytes` bytes fit.
    #[must_use]
    pub fn can_lend(&self, bytes: usize) -> bool {
        self.terms.any_order && self.terms.rx_offset && self.can_post(bytes)
    }

    /// Requests that the device has.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.loans.count
    }

    /// Takes up to `most` requests off the ring for a device, but leaves `leave` there, and appends
    /// their buffers to `out`. What is no buffer, or may not be written, is answered with an error.
    pub fn lend(&mut self, most: usize, leave: usize, out: &mut Vec<Loan>) {
        if self.fatal.is_some() || self.posts.running || !self.terms.any_order {
            return;
        }
        let want = most.saturating_add(leave).min(u32::MAX as usize);
        let ready = self.posted(want as u32) as usize;
        let count = ready.saturating_sub(leave).min(most);
        if count == 0 {
            return;
        }
        let mut requests = std::mem::take(&mut self.loans.requests);
        let mut accesses = std::mem::take(&mut self.loans.accesses);
        let mut frames = std::mem::take(&mut self.loans.frames);
        for n in 0..count {
            let Some(words) = self.rx.peek(n as u32) else {
                break;
            };
            let request = RxRequest::decode(words);
            // A request that is no buffer asks for no bytes, so that its span is empty.
            let (offset, len) = buffer(&request, &self.terms).unwrap_or((0, 0));
            requests.push(request);
            let gref = GrantRef(request.gref);
            accesses.push(Access::new(gref, offset as u16, len as u16));
        }
        self.rx.consume(requests.len() as u32);
        self.grants.hold(&mut accesses, &mut frames);
        for ((request, access), &frame) in requests.iter().zip(&accesses).zip(&frames) {
            let reason = match access.result {
                Ok(span) if !span.is_empty() => {
                    let (request, offset) = (*request, access.offset);
                    let id = self.loans.put(Lent { request, span });
                    out.push(Loan {
                        id,
                        frame,
                        offset,
                        span,
                    });
                    continue;
                }
                Ok(_) => {
                    self.grants.hold_end(access.gref);
                    Drop::BadRequest
                }
                Err(_) => Drop::Grant,
            };
            self.counters.to_guest_drops.count(reason);
            self.without(request.id, request.offset, rsp::ERROR);
        }
        requests.clear();
        accesses.clear();
        frames.clear();
        self.loans.requests = requests;
        self.loans.accesses = accesses;
        self.loans.frames = frames;
    }

    /// A frame that lies in lent buffers is for the guest, and the device is done with these: in
    /// one, or merged from frames in several.
    pub fn deliver(&mut self, frame: &Frame, report: &mut ToGuest) {
        let mut parts: SmallVec<[Written; 1]> = SmallVec::new();
        for piece in &frame.pieces {
            if let Some(lent) = self.take_back(piece.buffer) {
                parts.push(Written {
                    request: lent.request.id,
                    offset: lent.request.offset,
                    buffer: lent.span,
                    piece: piece.span,
                });
            }
        }
        match self.answer(frame, &parts) {
            Ok(()) => {
                self.counters.to_guest += 1;
                self.counters.to_guest_bytes += frame.len() as u64;
                report.deliver(frame.len());
            }
            Err(reason) => {
                // As many packets as somebody has to send again.
                for part in parts {
                    self.counters.to_guest_drops.count(reason);
                    report.drops.count(reason);
                    self.without(part.request, part.offset, rsp::ERROR);
                }
            }
        }
    }

    /// Answers the requests of a frame, if nothing is wrong with it.
    fn answer(&mut self, frame: &Frame, parts: &[Written]) -> Result<(), Drop> {
        let answers = answers(frame, &self.terms, parts.iter().copied().map(Some))?;
        // The segment size takes the place of a request that is still in the ring.
        let extra = match self.extra(frame) {
            Some(extra) if self.posted(1) == 1 => {
                let words = self.rx.peek(0).ok_or(Drop::NoRequest)?;
                Some(self.placed(extra, RxRequest::decode(words).id))
            }
            Some(_) => return Err(Drop::NoRequest),
            None => None,
        };
        put_merged_header(frame)?;
        if extra.is_some() {
            self.rx.consume(1);
            self.counters.meta_requests += 1;
        }
        let mut responder = Responder::new(frame, &self.terms, extra, answers.len());
        for &answer in &answers {
            responder.respond(answer, |words| {
                self.rx.respond(words);
            });
        }
        Ok(())
    }

    /// A lent buffer comes back without a frame; the device is done with it.
    pub fn give_back(&mut self, id: BufferId, how: Returned) {
        if let Some(out) = self.take_back(id) {
            let status = match how {
                Returned::Unused => rsp::DROPPED,
                Returned::Failed => rsp::ERROR,
            };
            self.without(out.request.id, out.request.offset, status);
        }
    }

    fn take_back(&mut self, id: BufferId) -> Option<Lent> {
        let out = self.loans.take(id)?;
        self.grants.hold_end(GrantRef(out.request.gref));
        Some(out)
    }

    /// Answers a request without a frame.
    fn without(&mut self, request: u16, offset: u16, len: i16) {
        self.rx.respond(Answer::new(request, offset, len).plain());
    }
}
