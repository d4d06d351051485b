//! The fast path ([`nic::small_frame`]): requests of one slot that ask for nothing → small frames,
//! and small frames → responses of one slot. Anything else stays at the head of the ring for
//! [`Netback::from_guest`], and is not given to [`Netback::small_frames_to_guest`].

use super::answers::{self, Answer, ToGuest};
use super::buffers::coloured;
use super::chains::{self, ACCESSES_MAX, check_packet};
use super::interface::Netback;
use crate::counters::Drop;
use crate::fatal::Fatal;
use crate::grants::{Access, Grants};
use crate::netif::{Abilities, RxRequest, TxRequest, TxResponse, rsp};
use abi::GrantRef;
use nic::{SmallBatch, SmallFrame};
use std::slice;

/// What [`Netback::small_frames_from_guest`] has taken off the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Requests, answered with an error or not.
    pub requests: usize,
    /// Bytes of those that became small frames.
    pub bytes: u64,
    /// Whether more is known to be there: what is next is no small frame, or the budget is used up.
    pub more: bool,
}

impl<G: Grants> Netback<G> {
    /// [`Netback::from_guest`] for the packets at the head of the ring that are small frames, up to
    /// the first one that is not. What was in `out` is gone. They can be read until
    /// [`Netback::from_guest_done`], which has to be called unless no request was taken.
    ///
    /// # Errors
    /// [`Fatal`]: the interface is disabled.
    pub fn small_frames_from_guest(
        &mut self,
        budget: usize,
        out: &mut SmallBatch,
    ) -> Result<Taken, Fatal> {
        out.clear();
        self.alive()?;
        if !self.chains.responses.is_empty() {
            self.from_guest_done();
        }
        let budget = budget.min(ACCESSES_MAX);
        if let Err(overrun) = self.tx.ready_for(budget as u32) {
            return self.fail(overrun);
        }
        self.take_small_frames(budget);
        let mut taken = Taken {
            requests: self.chains.accesses.len(),
            bytes: 0,
            more: self.tx.ready() > 0,
        };
        if taken.requests == 0 {
            return Ok(taken);
        }
        self.chains.partial = 0;
        self.grants.read_begin(&mut self.chains.accesses);
        self.chains.reading = true;
        for (access, response) in self.chains.accesses.iter().zip(&mut self.chains.responses) {
            let reason = match access.result {
                Err(_) => Drop::Grant,
                Ok(span) => {
                    if out.push(span).is_ok() {
                        taken.bytes += u64::from(access.len);
                        continue;
                    }
                    Drop::Fault
                }
            };
            chains::refuse(slice::from_mut(response), (0, 1));
            self.counters.from_guest_drops.count(reason);
        }
        self.counters.from_guest += out.len() as u64;
        self.counters.from_guest_bytes += taken.bytes;
        Ok(taken)
    }

    /// Takes requests of small frames off the ring into the batch's lists.
    fn take_small_frames(&mut self, budget: usize) {
        let mut left = budget;
        while left > 0 {
            let requests = self
                .tx
                .burst()
                .iter()
                .map(|words| TxRequest::decode(*words));
            let requests = requests.take(left);
            let mut taken = 0;
            for request in requests.clone() {
                if !is_small_frame(&request, &self.terms.from_guest) {
                    break;
                }
                taken += 1;
            }
            let requests = requests.take(taken);
            self.chains.accesses.extend(
                requests
                    .clone()
                    .map(|request| Access::new(request.grant(), request.offset, request.size)),
            );
            self.chains
                .responses
                .extend(requests.map(|TxRequest { id, .. }| {
                    let status = rsp::OKAY;
                    TxResponse { id, status }.encode()
                }));
            if taken == 0 {
                return;
            }
            self.tx.consume(taken as u32);
            left -= taken;
        }
    }

    /// Bytes of the longest small frame that can be given to the guest; 0: none can.
    #[must_use]
    pub fn longest_small_frame(&self) -> usize {
        let chooses = self.groups.is_some();
        if self.fatal.is_some() || chooses || self.posts.running || !self.grants.in_reach() {
            0
        } else {
            self.terms.rx_buffer.into()
        }
    }

    /// [`Netback::to_guest`] for small frames none of which is longer than
    /// [`Netback::longest_small_frame`].
    pub fn small_frames_to_guest(&mut self, small_frames: &[SmallFrame], pick: &[u32]) -> ToGuest {
        let mut report = ToGuest::default();
        let want = pick.len() as u32;
        let posted = self.posted(want);
        let (ready, lacking) = match self.fatal {
            Some(_) => (0, Drop::Disabled),
            None => (posted, Drop::NoRequest),
        };
        report.drops.add(lacking, u64::from(want - ready));
        let pick = pick.get(..ready as usize).unwrap_or(&[]);
        self.plan_small_frames(small_frames, pick);
        self.grants
            .write_small_frames(&mut self.copies.places, small_frames, pick);
        for (access, response) in self.copies.places.iter().zip(&mut self.responses) {
            if access.result.is_ok() {
                report.deliver(access.len.into());
                continue;
            }
            answers::refuse(slice::from_mut(response));
            report.drops.count(match access.len {
                0 => Drop::BadRequest,
                _ => Drop::Grant,
            });
        }
        self.copies.places.clear();
        self.respond(&report);
        report
    }

    /// Takes a request off the ring for each frame, as the batch's accesses and responses. One that
    /// is no buffer is an access to no bytes.
    fn plan_small_frames(&mut self, small_frames: &[SmallFrame], mut pick: &[u32]) {
        while !pick.is_empty() {
            let requests = self.rx.burst();
            let count = requests.len().min(pick.len());
            let (here, rest) = pick.split_at(count);
            let terms = &self.terms;
            let planned = requests.iter().zip(here).map(|(words, index)| {
                let request = RxRequest::decode(*words);
                let bytes = small_frames.get(*index as usize).map_or(0, SmallFrame::len);
                let place = coloured(&request, terms, bytes);
                let (offset, bytes) = place.map_or((0, 0), |(offset, _)| (offset, bytes));
                Access::new(GrantRef(request.gref), offset as u16, bytes as u16)
            });
            let first = self.copies.places.len();
            self.copies.places.extend(planned);
            let placed = self.copies.places.iter().skip(first);
            let answered = requests.iter().zip(placed).map(|(words, access)| {
                let id = RxRequest::decode(*words).id;
                Answer::new(id, access.offset, access.len as i16).plain()
            });
            self.responses.extend(answered);
            if count == 0 {
                return;
            }
            self.rx.consume(count as u32);
            pick = rest;
        }
    }
}

/// Whether a request is a whole packet that asks for nothing, and nothing is wrong with it.
#[inline]
fn is_small_frame(request: &TxRequest, may: &Abilities) -> bool {
    request.flags == 0 && check_packet(request, 1, request.size.into(), None, may).is_none()
}
