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
//! place among the responses. Without `rx-meta` (NETIF-21) that is the place of a request behind
//! the first buffer, which therefore was *left out* before anybody could know whether it would be
//! needed (Ram's thesis, 5.1):
//!
//! ```text
//!   request    0     1      2 … n      n + 1     n + 2    …      n: slots that one packet may have
//!   is for   head  left out  rest      head     left out
//! ```

use super::answers::{Responder, ToGuest, answers, put_merged_header};
use super::buffers::coloured;
use super::interface::Netback;
use super::posts::{PostState, Posted};
use crate::counters::Drop;
use crate::grants::{Access, Grants};
use crate::netif::{RxRequest, rsp};
use abi::GrantRef;
use nic::{Buffer, BufferId, Frame, Piece};

/// Buffers of one batch at the most.
const POSTED_MAX: usize = 256;
/// Buffers that are made usable at a time: few at first, because a look may find nothing.
const AHEAD_MIN: usize = 4;
const AHEAD_MAX: usize = 32;

impl<G: Grants> Netback<G> {
    /// Whether a frame of `bytes` bytes fits a buffer of this guest's in one piece.
    #[must_use]
    pub fn can_post(&self, bytes: usize) -> bool {
        bytes <= usize::from(self.terms.rx_buffer)
    }

    /// Buffers of this guest's that a device needs to receive a frame of `bytes` bytes. None: the
    /// guest cannot get such a frame in place. A frame of several buffers may have a segment size,
    /// which has no place among the responses without `rx-meta`.
    #[must_use]
    pub fn buffers_for(&self, bytes: usize) -> Option<u32> {
        if self.can_post(bytes) {
            return Some(1);
        }
        let buffers = bytes.div_ceil(usize::from(self.terms.rx_buffer).max(1));
        let takes = self.terms.rx_meta && buffers <= usize::from(self.terms.to_guest.max_slots);
        takes.then_some(buffers as u32)
    }

    /// How many slots lie between two heads, if requests have to be left out at all.
    fn period(&self) -> Option<usize> {
        let between = usize::from(self.terms.to_guest.max_slots) + 1;
        (self.posts.leaves_out && !self.terms.rx_meta).then_some(between)
    }

    /// From now on merged frames may be [accepted](Netback::accept), or not: a matter of the whole
    /// batch.
    pub fn expect_merged(&mut self, merged: bool) {
        if !self.posts.running {
            self.posts.leaves_out = merged;
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

    /// The next buffer that the guest has posted, to be written by a device that may receive frames
    /// of `bytes` bytes: at least so many bytes of it, or, if a frame needs several, all of it.
    /// None: there is no further one, or the batch is large enough.
    pub fn post(&mut self, bytes: usize) -> Option<Buffer> {
        loop {
            if self.posts.next == self.posts.list.len() && !self.post_more(bytes) {
                return None;
            }
            let index = self.posts.next;
            self.posts.next += 1;
            let left_out = self.period().is_some_and(|period| index % period == 1);
            let span = self.posts.span(index);
            let posted = self.posts.list.get_mut(index)?;
            if left_out {
                posted.state = PostState::LeftOut;
                continue;
            }
            // A request that is no buffer, or whose page may not be written, is answered when its
            // turn comes.
            let Some(span) = span.filter(|_| posted.state == PostState::Free) else {
                continue;
            };
            posted.state = PostState::Out;
            return Some(Buffer {
                id: BufferId(index as u32),
                span,
            });
        }
    }

    /// Looks at more requests and makes their pages usable; whether there were any.
    fn post_more(&mut self, bytes: usize) -> bool {
        let have = self.posts.list.len();
        let Some(of_a_frame) = self.buffers_for(bytes) else {
            return false;
        };
        // A device that needs several buffers needs all of them before it can receive anything.
        let least = match of_a_frame as usize {
            1 => AHEAD_MIN,
            several => several.saturating_sub(have).max(AHEAD_MIN),
        };
        let ahead = have.min(AHEAD_MAX).max(least).min(POSTED_MAX - have);
        if ahead == 0 || self.fatal.is_some() {
            return false;
        }
        let ready = self.posted((have + ahead) as u32) as usize;
        for n in have..ready {
            let Some(words) = self.rx.peek(n as u32) else {
                break;
            };
            let request = RxRequest::decode(words);
            let place = coloured(&request, &self.terms, bytes);
            let (offset, room) = place.unwrap_or_default();
            self.posts.list.push(Posted {
                request: request.id,
                offset: offset as u16,
                state: if place.is_some() {
                    PostState::Free
                } else {
                    PostState::Failed(Drop::BadRequest)
                },
            });
            let gref = GrantRef(request.gref);
            let access = Access::new(gref, offset as u16, room as u16);
            self.posts.accesses.push(access);
        }
        if self.posts.list.len() == have {
            return false;
        }
        self.posts.running = true;
        if let Some(new) = self.posts.accesses.get_mut(have..) {
            self.grants.post_begin(new);
        }
        let new = self
            .posts
            .list
            .iter_mut()
            .zip(&self.posts.accesses)
            .skip(have);
        for (posted, access) in new {
            if posted.state == PostState::Free && access.result.is_err() {
                posted.state = PostState::Failed(Drop::Grant);
            }
        }
        true
    }

    /// A buffer that was posted comes back without a frame: unused, or because its memory is not
    /// there.
    pub fn put_back(&mut self, id: BufferId, fault: bool) {
        self.posts.take_back(
            id,
            if fault {
                PostState::Failed(Drop::Fault)
            } else {
                PostState::Free
            },
        );
        // The last one goes out again as the next.
        if !fault && id.0 as usize + 1 == self.posts.next {
            self.posts.next -= 1;
        }
    }

    /// A frame that was received with its header apart ([`nic::vmq::Vmq::split_headers`]) may reach
    /// the guest: its header is put into the buffer, so that it can be merged or accepted. Whether
    /// it could be; if not, the buffer is answered with an error.
    pub fn put_header(&mut self, frame: &mut Frame) -> bool {
        let Some(id) = frame.pieces.first().map(|piece| piece.buffer) else {
            return false;
        };
        let buffer = self.posts.span(id.0 as usize);
        let put = buffer.is_some_and(|buffer| frame.put_header_back(buffer).is_ok());
        if !put {
            self.posts.take_back(id, PostState::Failed(Drop::Fault));
        }
        put
    }

    /// A frame that lies in posted buffers is for the guest: in one, or in several of which each
    /// [may follow](Netback::may_follow) the one before: merged from frames, or received so.
    pub fn accept(&mut self, frame: &Frame) {
        if let Err(reason) = self.lay(frame) {
            // As many packets as somebody has to send again.
            for piece in &frame.pieces {
                self.posts
                    .take_back(piece.buffer, PostState::Failed(reason));
            }
        }
    }

    /// Turns the buffers of a frame into its parts.
    fn lay(&mut self, frame: &Frame) -> Result<(), Drop> {
        let pieces = frame.pieces.as_slice();
        let parts = pieces.iter().map(|piece| self.posts.written(piece));
        let answers = answers(frame, &self.terms, parts)?;
        let first = pieces.first().ok_or(Drop::ZeroSize)?.buffer;
        let follow = |two: &[Piece]| match two {
            [one, next] => self.may_follow(one.buffer, next.buffer),
            _ => true,
        };
        if !pieces.windows(2).all(follow) || (pieces.len() > 1 && !self.may_begin(first)) {
            return Err(Drop::BadOffload);
        }
        let extra = match self.extra(frame) {
            Some(extra) => {
                let place = self.posts.list.get(first.0 as usize + 1);
                let place = place.filter(|place| place.state == PostState::LeftOut);
                Some(self.placed(extra, place.ok_or(Drop::BadOffload)?.request))
            }
            None => None,
        };
        put_merged_header(frame)?;
        // From the first one on every request is the frame's: those that follow, and the left out
        // one.
        let mut places = self.posts.list.iter_mut().skip(first.0 as usize);
        let mut whole = frame.len() as u32;
        let mut responder = Responder::new(frame, &self.terms, extra, answers.len());
        for &answer in &answers {
            responder.respond(answer, |response| {
                if let Some(place) = places.next() {
                    let whole = std::mem::take(&mut whole);
                    place.state = PostState::Part { response, whole };
                }
            });
        }
        self.counters.meta_requests += u64::from(extra.is_some());
        Ok(())
    }

    /// A frame that lies in a posted buffer is not for the guest. The caller counts it.
    pub fn refuse(&mut self, id: BufferId) {
        self.posts.take_back(id, PostState::Refused);
    }

    /// Ends the batch: answers every request up to the last that was used.
    pub fn post_end(&mut self) -> ToGuest {
        let mut report = ToGuest::default();
        if !std::mem::take(&mut self.posts.running) {
            return report;
        }
        self.grants.post_end();
        let used = self.posts.used();
        self.rx.consume(used as u32);
        for posted in self.posts.list.iter().take(used) {
            let response = match posted.state {
                PostState::Part { response, whole } => {
                    report.delivered += u32::from(whole > 0);
                    report.bytes += u64::from(whole);
                    response
                }
                PostState::LeftOut => {
                    self.counters.meta_requests += 1;
                    posted.without(rsp::DROPPED)
                }
                PostState::Failed(reason) => {
                    report.drops.count(reason);
                    posted.without(rsp::ERROR)
                }
                PostState::Refused | PostState::Free | PostState::Out => posted.without(rsp::ERROR),
            };
            self.rx.respond(response);
        }
        self.posts.list.clear();
        self.posts.accesses.clear();
        self.posts.next = 0;
        self.count(&report);
        report
    }
}
