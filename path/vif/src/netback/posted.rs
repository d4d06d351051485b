//! Posted buffers that a device writes itself: a queue of the NIC is the guest's alone, so what it
//! receives is read straight into the guest's pages (Ram's thesis, 3.3).
//!
//! A batch is: [`Netback::post`] for each buffer that the device asks for, [`Netback::put_back`]
//! for those that it did not use, [`Netback::accept`] or [`Netback::refuse`] for each frame that
//! came, and [`Netback::post_end`]. Until then no request is consumed: what was posted and not
//! used stays at the head of the ring, for the next batch or for [`Netback::to_guest`]. Responses
//! keep the order of the requests (NETIF-5), so a buffer before the last one in use that has no
//! frame for the guest is answered with an error.

use super::Netback;
use super::to_guest::{ToGuest, buffer, check, colour, flags_of};
use crate::counters::Drop;
use crate::grants::{Access, Grants};
use crate::netif::{RxRequest, RxResponse, rsp};
use abi::{GrantRef, GrantStatus};
use nic::{Buffer, BufferId, Frame};

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
    /// It holds a frame of so many bytes for the guest.
    Frame { bytes: u16, flags: u16 },
}

impl<G: Grants> Netback<G> {
    /// Whether a frame of `bytes` bytes fits a buffer of this guest's in one piece.
    #[must_use]
    pub fn can_post(&self, bytes: usize) -> bool {
        bytes <= usize::from(self.terms.rx_buffer)
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
            let posted = self.posted.get_mut(index)?;
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

    /// A frame that lies in a posted buffer is for the guest.
    pub fn accept(&mut self, id: BufferId, frame: &Frame) {
        let fits = frame.offload.gso.is_none() && frame.pieces.len() == 1;
        let checked = match fits {
            true => check(frame, &self.terms),
            false => Err(Drop::BadOffload),
        };
        self.settle(
            id,
            match checked {
                Ok(()) => State::Frame {
                    bytes: frame.len() as u16,
                    flags: flags_of(frame),
                },
                Err(reason) => State::Failed(reason),
            },
        );
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
        let used = |posted: &Posted| !matches!(posted.state, State::Free);
        let count = self
            .posted
            .iter()
            .rposition(used)
            .map_or(0, |last| last + 1);
        self.rx.consume(count as u32);
        for posted in self.posted.iter().take(count) {
            let (flags, status) = match posted.state {
                State::Frame { bytes, flags } => {
                    report.delivered += 1;
                    report.bytes += u64::from(bytes);
                    (flags, bytes as i16)
                }
                State::Failed(reason) => {
                    report.drops.count(reason);
                    (0, rsp::ERROR)
                }
                State::Refused | State::Free | State::Out => (0, rsp::ERROR),
            };
            self.rx.respond(
                RxResponse {
                    id: posted.request.id,
                    offset: posted.offset,
                    flags,
                    status,
                }
                .encode(),
            );
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
