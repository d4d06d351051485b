//! Requests that a device has from turn to turn: a queue of the NIC is the guest's alone, and what
//! comes by it is written into the guest's pages when it comes, not when somebody looks
//! (`specs/xdp.md`, XDP-14).
//!
//! ```text
//!   ring ── lend ──► with the device ── deliver ──► response with the frame
//!                                    ── give_back ─► response without: unused, or an error
//! ```
//!
//! Such a request has left the ring, and its page is in use. So responses come in the order in which
//! the device is done with them, and the guest has to take them so (NETIF-27). Other frames for the
//! guest take the requests that are behind those: some always stay in the ring for them.

use super::Netback;
use super::to_guest::{ToGuest, buffer, check, say};
use crate::counters::Drop;
use crate::grants::{Access, Grants};
use crate::netif::{RxRequest, RxResponse, rsp, rxf};
use abi::{GrantRef, GrantStatus};
use nic::{BufferId, Frame};
use shmem::Span;
use smallvec::SmallVec;

/// A buffer of the guest's for a device.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// Names it from now on.
    pub id: BufferId,
    /// Which of the guest's page frames it lies in, as the grant mechanism says.
    pub frame: u32,
    /// Its first byte within that.
    pub offset: u16,
    /// Its bytes, as far as this domain can touch them.
    pub span: Span,
}

/// How a buffer comes back without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing has come for it.
    Unused,
    /// What it holds is not for the guest, or the device cannot write to it: it is answered with an
    /// error.
    Failed,
}

/// One request that the device has.
#[derive(Clone, Copy, Debug)]
struct Out {
    request: RxRequest,
    span: Span,
}

/// The requests that a device has, by number.
#[derive(Debug, Default)]
pub(super) struct Lent {
    out: Vec<Option<Out>>,
    free: Vec<u32>,
    count: usize,
    // Room for the work of `lend`; empty between calls.
    requests: Vec<RxRequest>,
    accesses: Vec<Access>,
    frames: Vec<u32>,
}

impl Lent {
    fn put(&mut self, out: Out) -> BufferId {
        self.count += 1;
        if let Some(id) = self.free.pop()
            && let Some(place) = self.out.get_mut(id as usize)
        {
            *place = Some(out);
            return BufferId(id);
        }
        self.out.push(Some(out));
        BufferId(self.out.len() as u32 - 1)
    }

    fn take(&mut self, id: BufferId) -> Option<Out> {
        let out = self.out.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        self.count -= 1;
        Some(out)
    }

    /// All of them: none is with the device any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = GrantRef> {
        self.count = 0;
        self.free.clear();
        let out = std::mem::take(&mut self.out).into_iter().flatten();
        out.map(|out| GrantRef(out.request.gref))
    }
}

impl<G: Grants> Netback<G> {
    /// Whether a device can be lent buffers that frames of `bytes` bytes fit.
    #[must_use]
    pub fn can_lend(&self, bytes: usize) -> bool {
        self.terms.any_order && self.terms.rx_offset && self.can_post(bytes)
    }

    /// Requests that the device has.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.lent.count
    }

    /// Takes up to `most` requests off the ring for a device, but leaves `leave` there, and appends
    /// their buffers to `out`. What is no buffer, or may not be written, is answered with an error.
    pub fn lend(&mut self, most: usize, leave: usize, out: &mut Vec<Loan>) {
        if self.fatal.is_some() || self.posting || !self.terms.any_order {
            return;
        }
        let want = most.saturating_add(leave).min(u32::MAX as usize);
        let ready = self.posted(want as u32) as usize;
        let count = ready.saturating_sub(leave).min(most);
        if count == 0 {
            return;
        }
        let mut requests = std::mem::take(&mut self.lent.requests);
        let mut accesses = std::mem::take(&mut self.lent.accesses);
        let mut frames = std::mem::take(&mut self.lent.frames);
        for n in 0..count {
            let Some(words) = self.rx.peek(n as u32) else {
                break;
            };
            let request = RxRequest::decode(words);
            // What is no buffer has no bytes: no mechanism says anything else.
            let (offset, len) = buffer(&request, &self.terms).unwrap_or((0, 0));
            requests.push(request);
            accesses.push(Access {
                gref: GrantRef(request.gref),
                offset: offset as u16,
                len: len as u16,
                result: Err(GrantStatus::GeneralError),
            });
        }
        self.rx.consume(requests.len() as u32);
        self.grants.hold(&mut accesses, &mut frames);
        for ((request, access), &frame) in requests.iter().zip(&accesses).zip(&frames) {
            let reason = match access.result {
                Ok(span) if !span.is_empty() => {
                    let (request, offset) = (*request, access.offset);
                    let id = self.lent.put(Out { request, span });
                    out.push(Loan {
                        id,
                        frame,
                        offset,
                        span,
                    });
                    continue;
                }
                Ok(_) => {
                    self.grants.let_go(access.gref);
                    Drop::BadRequest
                }
                Err(_) => Drop::Grant,
            };
            self.counters.to_guest_drops.count(reason);
            self.without(request, rsp::ERROR);
        }
        requests.clear();
        accesses.clear();
        frames.clear();
        self.lent.requests = requests;
        self.lent.accesses = accesses;
        self.lent.frames = frames;
    }

    /// A frame that lies in lent buffers is for the guest, and the device is done with these: in one, or
    /// merged from frames in several.
    pub fn deliver(&mut self, frame: &Frame, report: &mut ToGuest) {
        let mut parts: SmallVec<[(Out, Span); 1]> = SmallVec::new();
        for piece in &frame.pieces {
            if let Some(out) = self.take_back(piece.buffer) {
                parts.push((out, piece.span));
            }
        }
        match self.answer_parts(frame, &parts) {
            Ok(()) => {
                self.counters.to_guest += 1;
                self.counters.to_guest_bytes += frame.len() as u64;
                report.delivered += 1;
                report.bytes += frame.len() as u64;
            }
            Err(reason) => {
                // As many packets as somebody has to send again.
                for (out, _) in &parts {
                    self.counters.to_guest_drops.count(reason);
                    report.drops.count(reason);
                    self.without(&out.request, rsp::ERROR);
                }
            }
        }
    }

    /// Answers the requests of a frame, if nothing is wrong with it.
    fn answer_parts(&mut self, frame: &Frame, parts: &[(Out, Span)]) -> Result<(), Drop> {
        check(frame, &self.terms)?;
        let [(_, head), rest @ ..] = parts else {
            return Err(Drop::ZeroSize);
        };
        let merged = !rest.is_empty();
        let bytes: usize = parts.iter().map(|(_, span)| span.len()).sum();
        if frame.offload.gso.is_some() != merged || bytes != frame.len() {
            return Err(Drop::BadOffload);
        }
        if parts.len() > usize::from(self.terms.to_guest.max_slots) {
            return Err(Drop::TooManySlots);
        }
        let mut offsets: SmallVec<[u16; 1]> = SmallVec::new();
        for (out, span) in parts {
            let within = span.addr().checked_sub(out.span.addr());
            let within = within.filter(|&within| out.span.sub(within, span.len()).is_some());
            let within = within.ok_or(Drop::CrossesPage)?;
            offsets.push(out.request.offset + within as u16);
        }
        // The segment size takes the place of a request that nobody has.
        let extra = match self.extra(frame) {
            Some(extra) if self.posted(1) == 1 => {
                let words = self.rx.peek(0).ok_or(Drop::NoRequest)?;
                Some(extra.in_place_of(RxRequest::decode(words).id))
            }
            Some(_) => return Err(Drop::NoRequest),
            None => None,
        };
        if merged {
            // What was checked, and changed by the merging, is what is sent.
            head.write(frame.header()).map_err(|_| Drop::Fault)?;
        }
        let last = parts.len() - 1;
        for (n, ((out, span), offset)) in parts.iter().zip(offsets).enumerate() {
            let mut response = RxResponse {
                id: out.request.id,
                offset,
                flags: 0,
                status: span.len() as i16,
            };
            if n == 0 {
                say(frame, &self.terms, &mut response);
            }
            if n < last {
                response.flags |= rxf::MORE_DATA;
            }
            self.rx.respond(response.encode());
            if n == 0
                && let Some(extra) = extra
            {
                self.rx.consume(1);
                self.rx.respond(extra.encode());
                self.counters.meta_requests += 1;
            }
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
            self.without(&out.request, status);
        }
    }

    fn take_back(&mut self, id: BufferId) -> Option<Out> {
        let out = self.lent.take(id)?;
        self.grants.let_go(GrantRef(out.request.gref));
        Some(out)
    }

    /// Answers a request without a frame.
    fn without(&mut self, request: &RxRequest, status: i16) {
        let response = RxResponse {
            id: request.id,
            offset: request.offset,
            flags: 0,
            status,
        };
        self.rx.respond(response.encode());
    }
}
