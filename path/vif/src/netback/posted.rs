//! Posted buffers that a device writes itself: a queue of the NIC is the guest's alone, so what it
//! receives is read straight into the guest's pages (Ram's thesis, 3.3).
//!
//! A batch is: [`Netback::post`] for each buffer that the device asks for, [`Netback::put_back`]
//! for those that it did not use, [`Netback::accept`] or [`Netback::refuse`] for each frame that
//! came (and before that [`Netback::put_header`], where headers were kept apart), and
//! [`Netback::post_end`]. Until then no request is consumed: what was posted and not
//! used stays at the head of the ring, for the next batch or for [`Netback::to_guest`]. Responses
//! keep the order of the requests (NETIF-5), so a buffer before the last one in use that has no
//! frame for the guest is answered with an error.
//!
//! Frames that lie in consecutive buffers may have been merged into one. Its segment size needs a
//! place among the responses. Without `rx-meta` (NETIF-21) that is the place of a request behind the
//! first buffer, which therefore was *left out* before anybody could know whether it would be
//! needed (Ram's thesis, 5.1):
//!
//! ```text
//!   request    0     1      2 … n      n + 1     n + 2    …      n: slots that one packet may have
//!   is for   head  left out  rest      head     left out
//! ```

use super::Netback;
use super::to_guest::{ToGuest, buffer, check, colour, say};
use crate::counters::Drop;
use crate::grants::{Access, Grants};
use crate::netif::{ExtraInfo, RxRequest, RxResponse, rsp, rxf};
use abi::{GrantRef, GrantStatus};
use nic::{Buffer, BufferId, Frame, Piece};
use smallvec::SmallVec;

/// Buffers of one batch at the most.
const POSTED_MAX: usize = 256;
/// Buffers that are made usable at a time: few at first, because a look may find nothing.
const AHEAD_MIN: usize = 4;
const AHEAD_MAX: usize = 32;

/// One request of the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    request: RxRequest,
    offset: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has it.
    Free,
    /// With the device, or with a frame.
    Out,
    /// To be answered with an error, for this reason.
    Failed(Drop),
    /// To be answered with an error, because what it holds is not for the guest.
    Refused,
    /// It was left out, for what a merged frame in the buffer before might need.
    LeftOut,
    /// It says how the frame in the buffer before is to be segmented.
    Extra(ExtraInfo),
    /// It holds a part of a frame for the guest: the response, and in the first part the bytes of
    /// all.
    Part { response: RxResponse, whole: u32 },
}

impl<G: Grants> Netback<G> {
    /// Whether a frame of `bytes` bytes fits a buffer of this guest's in one piece.
    #[must_use]
    pub fn can_post(&self, bytes: usize) -> bool {
        bytes <= usize::from(self.terms.rx_buffer)
    }

    /// How many slots lie between two [heads](self), if requests have to be left out at all.
    fn period(&self) -> Option<usize> {
        let between = usize::from(self.terms.to_guest.max_slots) + 1;
        (self.leaves_out && !self.terms.rx_meta).then_some(between)
    }

    /// From now on merged frames may be [accepted](Netback::accept), or not: a matter of the whole
    /// batch.
    pub fn expect_merged(&mut self, merged: bool) {
        if !self.posting {
            self.leaves_out = merged;
        }
    }

    /// Whether requests are left out: only one frame in so many can begin a merged one.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        self.period().is_some()
    }

    /// Whether a frame in buffer `id` may be the first one of a merged frame.
    #[must_use]
    pub fn may_begin(&self, id: BufferId) -> bool {
        self.period()
            .is_none_or(|period| (id.0 as usize).is_multiple_of(period))
    }

    /// Whether a frame in buffer `next` may follow one in buffer `id` in a merged frame.
    #[must_use]
    pub fn may_follow(&self, id: BufferId, next: BufferId) -> bool {
        let gap = u32::from(self.period().is_some() && self.may_begin(id));
        id.0.checked_add(1 + gap) == Some(next.0)
            && !(self.period().is_some() && self.may_begin(next))
    }

    /// The next buffer that the guest has posted, to be written by a device: at least `bytes`
    /// bytes of it. None: there is no further one, or the batch is large enough.
    pub fn post(&mut self, bytes: usize) -> Option<Buffer> {
        loop {
            if self.post_next == self.posted.len() && !self.post_more(bytes) {
                return None;
            }
            let index = self.post_next;
            self.post_next += 1;
            let left_out = self.period().is_some_and(|period| index % period == 1);
            let posted = self.posted.get_mut(index)?;
            if left_out {
                posted.state = State::LeftOut;
                continue;
            }
            let span = match self.post_accesses.get(index).map(|access| access.result) {
                Some(Ok(span)) if posted.state == State::Free => span,
                // What is no buffer, or may not be written, is answered when its turn comes.
                _ => continue,
            };
            posted.state = State::Out;
            return Some(Buffer {
                id: BufferId(index as u32),
                span,
            });
        }
    }

    /// Looks at more requests and makes their pages usable; whether there were any.
    fn post_more(&mut self, bytes: usize) -> bool {
        let have = self.posted.len();
        let ahead = have.clamp(AHEAD_MIN, AHEAD_MAX).min(POSTED_MAX - have);
        if ahead == 0 || self.fatal.is_some() || !self.can_post(bytes) {
            return false;
        }
        let ready = match self.rx.ready_for((have + ahead) as u32) {
            Ok(ready) => (ready as usize).min(have + ahead),
            Err(overrun) => {
                self.fatal = Some(overrun.into());
                return false;
            }
        };
        for n in have..ready {
            let Some(words) = self.rx.peek(n as u32) else {
                break;
            };
            let request = RxRequest::decode(words);
            let place = buffer(&request, &self.terms);
            let (offset, room) = place.unwrap_or((0, 0));
            let colour = colour(request.gref, bytes, room);
            self.posted.push(Posted {
                request,
                offset: (offset + colour) as u16,
                state: if place.is_some() {
                    State::Free
                } else {
                    State::Failed(Drop::BadRequest)
                },
            });
            self.post_accesses.push(Access {
                gref: GrantRef(request.gref),
                offset: (offset + colour) as u16,
                len: room.saturating_sub(colour) as u16,
                result: Err(GrantStatus::GeneralError),
            });
        }
        if self.posted.len() == have {
            return false;
        }
        self.posting = true;
        if let Some(new) = self.post_accesses.get_mut(have..) {
            self.grants.post_begin(new);
        }
        let new = self.posted.iter_mut().zip(&self.post_accesses).skip(have);
        for (posted, access) in new {
            if posted.state == State::Free && access.result.is_err() {
                posted.state = State::Failed(Drop::Grant);
            }
        }
        true
    }

    /// A buffer that was posted comes back without a frame: unused, or because its memory is not
    /// there.
    pub fn put_back(&mut self, id: BufferId, fault: bool) {
        self.settle(
            id,
            if fault {
                State::Failed(Drop::Fault)
            } else {
                State::Free
            },
        );
        // The last one goes out again as the next.
        if !fault && id.0 as usize + 1 == self.post_next {
            self.post_next -= 1;
        }
    }

    /// A frame that was received with its header apart ([`nic::vmq::Vmq::split_headers`]) may reach the
    /// guest: its header is put into the buffer, so that it can be merged or accepted. Whether it could
    /// be; if not, the buffer is answered with an error.
    pub fn put_header(&mut self, frame: &mut Frame) -> bool {
        let Some(id) = frame.pieces.first().map(|piece| piece.buffer) else {
            return false;
        };
        let access = self.post_accesses.get(id.0 as usize);
        let buffer = access.and_then(|access| access.result.ok());
        let put = buffer.is_some_and(|buffer| frame.put_header_back(buffer).is_ok());
        if !put {
            self.settle(id, State::Failed(Drop::Fault));
        }
        put
    }

    /// A frame that lies in posted buffers is for the guest: in one, or merged from frames of which
    /// each [may follow](Netback::may_follow) the one before.
    pub fn accept(&mut self, frame: &Frame) {
        let laid = check(frame, &self.terms).and_then(|()| self.lay(frame));
        if let Err(reason) = laid {
            // As many packets as somebody has to send again.
            for piece in &frame.pieces {
                self.settle(piece.buffer, State::Failed(reason));
            }
        }
    }

    /// Turns the buffers of a frame into its parts.
    fn lay(&mut self, frame: &Frame) -> Result<(), Drop> {
        let pieces = &frame.pieces;
        let merged = pieces.len() > 1;
        let extra = self.extra(frame);
        let first = pieces.first().ok_or(Drop::ZeroSize)?;
        let follow = |two: &[Piece]| match two {
            [one, next] => self.may_follow(one.buffer, next.buffer),
            _ => true,
        };
        let fits = frame.offload.gso.is_some() == merged
            && pieces.windows(2).all(follow)
            && (!merged || self.may_begin(first.buffer));
        if !fits {
            return Err(Drop::BadOffload);
        }
        if pieces.len() > usize::from(self.terms.to_guest.max_slots) {
            return Err(Drop::TooManySlots);
        }
        let mut parts: SmallVec<[(BufferId, State); 1]> = SmallVec::new();
        for (n, piece) in pieces.iter().enumerate() {
            let index = piece.buffer.0 as usize;
            let posted = self.posted.get(index).ok_or(Drop::BadOffload)?;
            let buffer = self.post_accesses.get(index).and_then(|a| a.result.ok());
            let within = buffer
                .and_then(|buffer| piece.span.addr().checked_sub(buffer.addr()))
                .ok_or(Drop::BadOffload)?;
            let mut response = RxResponse {
                id: posted.request.id,
                offset: posted.offset + within as u16,
                flags: 0,
                status: piece.span.len() as i16,
            };
            if n == 0 {
                say(frame, &self.terms, &mut response);
            }
            if n + 1 < pieces.len() {
                response.flags |= rxf::MORE_DATA;
            }
            let whole = if n == 0 { frame.len() as u32 } else { 0 };
            parts.push((piece.buffer, State::Part { response, whole }));
        }
        if merged {
            // What was checked, and changed by the merging, is what is sent.
            first.span.write(frame.header()).map_err(|_| Drop::Fault)?;
        }
        if let Some(extra) = extra {
            let place = self.posted.get_mut(first.buffer.0 as usize + 1);
            let place = place.filter(|place| place.state == State::LeftOut);
            place.ok_or(Drop::BadOffload)?.state = State::Extra(extra);
        }
        for (id, part) in parts {
            self.settle(id, part);
        }
        Ok(())
    }

    /// A frame that lies in a posted buffer is not for the guest: whoever has decided so has
    /// counted it.
    pub fn refuse(&mut self, id: BufferId) {
        self.settle(id, State::Refused);
    }

    fn settle(&mut self, id: BufferId, state: State) {
        if let Some(posted) = self.posted.get_mut(id.0 as usize)
            && posted.state == State::Out
        {
            posted.state = state;
        }
    }

    /// Ends the batch: answers every request up to the last that was used.
    pub fn post_end(&mut self) -> ToGuest {
        let mut report = ToGuest::default();
        if !std::mem::take(&mut self.posting) {
            return report;
        }
        self.grants.post_end();
        let used = |posted: &Posted| !matches!(posted.state, State::Free | State::LeftOut);
        let count = self
            .posted
            .iter()
            .rposition(used)
            .map_or(0, |last| last + 1);
        self.rx.consume(count as u32);
        for posted in self.posted.iter().take(count) {
            let unused = |status| RxResponse {
                id: posted.request.id,
                offset: posted.offset,
                flags: 0,
                status,
            };
            let words = match posted.state {
                State::Part { response, whole } => {
                    report.delivered += u32::from(whole > 0);
                    report.bytes += u64::from(whole);
                    response.encode()
                }
                State::Extra(extra) => {
                    self.counters.meta_requests += 1;
                    match self.terms.any_order {
                        true => extra.in_place_of(posted.request.id).encode(),
                        false => extra.encode(),
                    }
                }
                State::LeftOut => {
                    self.counters.meta_requests += 1;
                    unused(rsp::DROPPED).encode()
                }
                State::Failed(reason) => {
                    report.drops.count(reason);
                    unused(rsp::ERROR).encode()
                }
                State::Refused | State::Free | State::Out => unused(rsp::ERROR).encode(),
            };
            self.rx.respond(words);
        }
        self.posted.clear();
        self.post_accesses.clear();
        self.post_next = 0;
        self.counters.to_guest += u64::from(report.delivered);
        self.counters.to_guest_bytes += report.bytes;
        self.counters.to_guest_drops += report.drops;
        report
    }
}
