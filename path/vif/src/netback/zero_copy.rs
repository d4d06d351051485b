//! Posted buffers that a device writes: a dedicated NIC queue receives straight into the guest's
//! pages (Ram's thesis, 3.3).
//!
//! A batch calls [`Netback::post`] for each buffer that the device needs, [`Netback::put_back`]
//! for unused ones, [`Netback::accept`] or [`Netback::refuse`] for each received frame (preceded
//! by [`Netback::put_header`] if the device splits headers), and [`Netback::post_end`]. No request
//! is consumed before `post_end`; unused ones stay at the head of the ring, for the next batch or
//! for [`Netback::to_guest`]. Responses keep the order of the requests (NETIF-5), so an unused
//! buffer before the last used one is answered with an error.
//!
//! If the guest accepts responses in any order, received frames may instead be [kept]: their
//! requests become outstanding, as if they were lent to a device (`device_buffers`), so that frames
//! can be merged across batches.
//!
//! [kept]: Netback::keep
//!
//! Otherwise, frames in consecutive buffers may have been merged into one. Without `rx-meta`
//! (NETIF-21), its segment size needs a separate slot among the responses. So the netback *leaves
//! out* the request behind a first buffer before it knows the frame's length (Ram's thesis, 5.1):
//!
//! ```text
//!   request    0     1      2 … n      n + 1     n + 2    …      n: maximum slots of a packet
//!   is for   head  left out  rest      head     left out
//! ```

use super::buffers::coloured;
use super::completions::{DeliveryReport, RxResponseWriter, completions, put_merged_header};
use super::interface::Netback;
use super::zero_copy_batch::{PostState, PostedRequest};
use crate::counters::VifDrop;
use crate::grants::{GrantAccess, GrantMechanism};
use crate::netif::{RxRequest, rsp};
use abi::GrantRef;
use nic::{Buffer, BufferId, Frame, Piece};

/// Maximum number of buffers in a batch.
const POSTED_MAX: usize = 256;
/// Minimum number of buffers to map at a time. Small, because a poll may find nothing.
const AHEAD_MIN: usize = 4;
const AHEAD_MAX: usize = 32;

impl<G: GrantMechanism> Netback<G> {
    /// Returns whether a frame of `bytes` bytes fits one buffer of this guest.
    #[must_use]
    pub fn can_post(&self, bytes: usize) -> bool {
        bytes <= usize::from(self.negotiated.rx_buffer)
    }

    /// Returns the number of this guest's buffers that a device needs to receive a frame of `bytes`
    /// bytes, or `None` if the guest cannot receive it in place. A frame of several buffers may
    /// have a segment size, for which the responses have no slot without `rx-meta`.
    #[must_use]
    pub fn buffers_for(&self, bytes: usize) -> Option<u32> {
        if self.can_post(bytes) {
            return Some(1);
        }
        let buffers = bytes.div_ceil(usize::from(self.negotiated.rx_buffer).max(1));
        let takes =
            self.negotiated.rx_meta && buffers <= usize::from(self.negotiated.to_guest.max_slots);
        takes.then_some(buffers as u32)
    }

    /// Returns the distance in slots between buffers that may begin a merged frame, or `None` if no
    /// request is left out.
    fn period(&self) -> Option<usize> {
        let between = usize::from(self.negotiated.to_guest.max_slots) + 1;
        (self.zero_copy.skips_requests && !self.negotiated.rx_meta).then_some(between)
    }

    /// Sets whether merged frames may be [accepted](Netback::accept), or
    /// [kept](Netback::can_keep) and merged, for a whole batch.
    pub fn expect_merged(&mut self, merged: bool) {
        if !self.zero_copy.running {
            self.zero_copy.keeps = merged && self.can_keep();
            self.zero_copy.skips_requests = merged && !self.zero_copy.keeps;
        }
    }

    /// Returns whether requests are left out, so that only every n-th buffer may begin a merged
    /// frame.
    #[must_use]
    pub fn skips_requests(&self) -> bool {
        self.period().is_some()
    }

    /// Returns whether a frame in buffer `id` may be the first one of a merged frame.
    #[must_use]
    pub fn may_begin(&self, id: BufferId) -> bool {
        self.period()
            .is_none_or(|period| (id.0 as usize).is_multiple_of(period))
    }

    /// Returns whether a frame in buffer `next` may follow one in buffer `id` in a merged frame.
    #[must_use]
    pub fn may_follow(&self, id: BufferId, next: BufferId) -> bool {
        let gap = u32::from(self.period().is_some() && self.may_begin(id));
        id.0.checked_add(1 + gap) == Some(next.0)
            && !(self.period().is_some() && self.may_begin(next))
    }

    /// Returns the next posted buffer for a device that may receive frames of `bytes` bytes. The
    /// returned part has at least `bytes` bytes, or is the whole buffer if a frame needs several
    /// buffers. Returns `None` if the guest has posted no more buffers or the batch is full.
    pub fn post(&mut self, bytes: usize) -> Option<Buffer> {
        loop {
            if self.zero_copy.next == self.zero_copy.list.len() && !self.post_more(bytes) {
                return None;
            }
            let index = self.zero_copy.next;
            self.zero_copy.next += 1;
            let left_out = self.period().is_some_and(|period| index % period == 1);
            let span = self.zero_copy.span(index);
            let posted = self.zero_copy.list.get_mut(index)?;
            if left_out {
                posted.state = PostState::Skipped;
                continue;
            }
            // An invalid or unwritable request is answered with an error in its turn.
            let Some(span) = span.filter(|_| posted.state == PostState::Free) else {
                continue;
            };
            posted.state = PostState::InUse;
            return Some(Buffer {
                id: BufferId(index as u32),
                span,
            });
        }
    }

    /// Reads more requests and makes their pages usable; returns whether any were found.
    fn post_more(&mut self, bytes: usize) -> bool {
        let have = self.zero_copy.list.len();
        let Some(of_a_frame) = self.buffers_for(bytes) else {
            return false;
        };
        // A device that needs several buffers receives only when it has all of them.
        let least = match of_a_frame as usize {
            1 => AHEAD_MIN,
            several => several.saturating_sub(have).max(AHEAD_MIN),
        };
        let ahead = have.min(AHEAD_MAX).max(least).min(POSTED_MAX - have);
        if ahead == 0 || self.fatal.is_some() {
            return false;
        }
        let ready = self.ready_for_batch(have + ahead);
        for n in have..ready {
            let Some(words) = self.rx.peek(n as u32) else {
                break;
            };
            let request = RxRequest::decode(words);
            let place = coloured(&request, &self.negotiated, bytes);
            let (offset, room) = place.unwrap_or_default();
            self.zero_copy.list.push(PostedRequest {
                request: request.id,
                offset: offset as u16,
                state: if place.is_some() {
                    PostState::Free
                } else {
                    PostState::Failed(VifDrop::BadRequest)
                },
            });
            let gref = GrantRef(request.gref);
            let access = GrantAccess::new(gref, offset as u16, room as u16);
            self.zero_copy.accesses.push(access);
        }
        if self.zero_copy.list.len() == have {
            return false;
        }
        self.zero_copy.running = true;
        if let Some(new) = self.zero_copy.accesses.get_mut(have..) {
            self.grants.post_begin(new);
        }
        let new = self
            .zero_copy
            .list
            .iter_mut()
            .zip(&self.zero_copy.accesses)
            .skip(have);
        for (posted, access) in new {
            if posted.state == PostState::Free && access.result.is_err() {
                posted.state = PostState::Failed(VifDrop::Grant);
            }
        }
        true
    }

    /// Returns the number of requests for a batch of `want` buffers. While frames are kept, leaves
    /// a request for the segment size of every merged frame, which has two or more buffers.
    fn ready_for_batch(&mut self, want: usize) -> usize {
        if !self.zero_copy.keeps {
            return self.posted(want as u32) as usize;
        }
        let ready = self.posted((want + want.div_ceil(2)) as u32) as usize;
        want.min(ready * 2 / 3)
    }

    /// Takes back a posted buffer without a frame: unused, or with `fault` because its memory is
    /// inaccessible.
    pub fn put_back(&mut self, id: BufferId, fault: bool) {
        self.zero_copy.take_back(
            id,
            if fault {
                PostState::Failed(VifDrop::Fault)
            } else {
                PostState::Free
            },
        );
        // The buffer that was posted last is the next to be posted.
        if !fault && id.0 as usize + 1 == self.zero_copy.next {
            self.zero_copy.next -= 1;
        }
    }

    /// Writes the header of a frame that was received with split headers
    /// ([`nic::vmq::Vmq::split_headers`]) into its buffer, so that the frame can be merged or
    /// accepted. Returns false on failure; the buffer is then answered with an error.
    pub fn put_header(&mut self, frame: &mut Frame) -> bool {
        let Some(id) = frame.pieces.first().map(|piece| piece.buffer) else {
            return false;
        };
        let buffer = self.zero_copy.span(id.0 as usize);
        let put = buffer.is_some_and(|buffer| frame.undo_split(buffer).is_ok());
        if !put {
            self.zero_copy
                .take_back(id, PostState::Failed(VifDrop::Fault));
        }
        put
    }

    /// Accepts a frame for the guest. It lies in one posted buffer, or in several (merged or
    /// received that way), each of which [may follow](Netback::may_follow) the previous one.
    pub fn accept(&mut self, frame: &Frame) {
        if let Err(reason) = self.lay(frame) {
            // A merged frame counts as the packets that its sender must retransmit.
            for piece in &frame.pieces {
                self.zero_copy
                    .take_back(piece.buffer, PostState::Failed(reason));
            }
        }
    }

    /// Records the responses for the buffers of a frame.
    fn lay(&mut self, frame: &Frame) -> Result<(), VifDrop> {
        let pieces = frame.pieces.as_slice();
        let parts = pieces.iter().map(|piece| self.zero_copy.written(piece));
        let completions = completions(frame, &self.negotiated, parts)?;
        let first = pieces.first().ok_or(VifDrop::ZeroSize)?.buffer;
        let follow = |two: &[Piece]| match two {
            [one, next] => self.may_follow(one.buffer, next.buffer),
            _ => true,
        };
        if !pieces.windows(2).all(follow) || (pieces.len() > 1 && !self.may_begin(first)) {
            return Err(VifDrop::BadOffload);
        }
        let extra = match self.extra(frame) {
            Some(extra) => {
                let place = self.zero_copy.list.get(first.0 as usize + 1);
                let place = place.filter(|place| place.state == PostState::Skipped);
                Some(self.extra_for_request(extra, place.ok_or(VifDrop::BadOffload)?.request))
            }
            None => None,
        };
        put_merged_header(frame)?;
        // The requests after the first one also belong to the frame: those of its other parts, and
        // the skipped request.
        let mut places = self.zero_copy.list.iter_mut().skip(first.0 as usize);
        let mut whole = frame.len() as u32;
        let mut writer = RxResponseWriter::new(frame, &self.negotiated, extra, completions.len());
        for &completion in &completions {
            writer.respond(completion, |response| {
                if let Some(place) = places.next() {
                    let whole = std::mem::take(&mut whole);
                    place.state = PostState::Part { response, whole };
                }
            });
        }
        self.counters.meta_requests += u64::from(extra.is_some());
        Ok(())
    }

    /// Rejects a frame in a posted buffer, which the guest must not receive. The caller counts it.
    pub fn refuse(&mut self, id: BufferId) {
        self.zero_copy.take_back(id, PostState::Refused);
    }

    /// Ends the batch: answers every request up to the last used one.
    pub fn post_end(&mut self) -> DeliveryReport {
        let mut report = DeliveryReport::default();
        if !std::mem::take(&mut self.zero_copy.running) {
            return report;
        }
        self.grants.post_end();
        let used = self.zero_copy.used();
        self.rx.consume(used as u32);
        for posted in self.zero_copy.list.iter().take(used) {
            let response = match posted.state {
                PostState::Part { response, whole } => {
                    report.delivered += u32::from(whole > 0);
                    report.bytes += u64::from(whole);
                    response
                }
                PostState::Kept => continue,
                PostState::Skipped => {
                    self.counters.meta_requests += 1;
                    posted.empty_response(rsp::DROPPED)
                }
                PostState::Failed(reason) => {
                    report.drops.count(reason);
                    posted.empty_response(rsp::ERROR)
                }
                PostState::Refused | PostState::Free | PostState::InUse => {
                    posted.empty_response(rsp::ERROR)
                }
            };
            self.rx.respond(response);
        }
        self.zero_copy.list.clear();
        self.zero_copy.accesses.clear();
        self.zero_copy.next = 0;
        self.count(&report);
        report
    }
}
