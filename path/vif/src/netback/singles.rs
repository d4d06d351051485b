//! The short way ([`nic::single`]): requests of one slot that ask for nothing → singles, and singles →
//! responses of one slot. Whatever is anything else stays at the head of the ring for
//! [`Netback::from_guest`], and is not given to [`Netback::singles_to_guest`].

use super::from_guest::{self, check_packet};
use super::to_guest::{self, ToGuest, buffer, colour};
use super::{ACCESSES_MAX, Netback};
use crate::Fatal;
use crate::counters::Drop;
use crate::grants::{Access, Grants};
use crate::netif::{Abilities, RxRequest, RxResponse, TxRequest, TxResponse, rsp};
use abi::{GrantRef, GrantStatus};
use nic::{Batch, Single};
use std::slice;

/// What [`Netback::singles_from_guest`] has taken off the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Requests, answered with an error or not.
    pub requests: usize,
    /// Bytes of those that became singles.
    pub bytes: u64,
    /// Whether more is known to be there: what is next is no single, or the budget is used up.
    pub more: bool,
}

impl<G: Grants> Netback<G> {
    /// [`Netback::from_guest`] for the packets at the head of the ring that are singles, up to the first
    /// one that is not. What was in `out` is gone. They can be read until [`Netback::from_guest_done`],
    /// which has to be called unless no request was taken.
    ///
    /// # Errors
    /// [`Fatal`]: the interface is disabled.
    pub fn singles_from_guest(&mut self, budget: usize, out: &mut Batch) -> Result<Taken, Fatal> {
        out.clear();
        self.alive()?;
        if !self.tx_responses.is_empty() {
            self.from_guest_done();
        }
        let budget = budget.min(ACCESSES_MAX);
        if let Err(overrun) = self.tx.ready_for(budget as u32) {
            return self.fail(overrun);
        }
        self.take_singles(budget);
        let mut taken = Taken {
            requests: self.accesses.len(),
            bytes: 0,
            more: self.tx.ready() > 0,
        };
        if taken.requests == 0 {
            return Ok(taken);
        }
        self.partial = 0;
        self.grants.read_begin(&mut self.accesses);
        self.reading = true;
        for (access, response) in self.accesses.iter().zip(&mut self.tx_responses) {
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
            from_guest::refuse(slice::from_mut(response));
            self.counters.from_guest_drops.count(reason);
        }
        self.counters.from_guest += out.len() as u64;
        self.counters.from_guest_bytes += taken.bytes;
        Ok(taken)
    }

    /// Takes requests of singles off the ring into the batch's lists.
    fn take_singles(&mut self, budget: usize) {
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
                if !is_single(&request, &self.terms.from_guest) {
                    break;
                }
                taken += 1;
            }
            let requests = requests.take(taken);
            self.accesses.extend(requests.clone().map(|request| Access {
                gref: request.grant(),
                offset: request.offset,
                len: request.size,
                result: Err(GrantStatus::GeneralError),
            }));
            self.tx_responses
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

    /// Bytes of the longest single that can be given to the guest; 0: none can.
    #[must_use]
    pub fn longest_single(&self) -> usize {
        if self.fatal.is_some() || self.posting || !self.grants.in_reach() {
            0
        } else {
            self.terms.rx_buffer.into()
        }
    }

    /// [`Netback::to_guest`] for singles none of which is longer than [`Netback::longest_single`].
    pub fn singles_to_guest(&mut self, singles: &[Single], pick: &[u32]) -> ToGuest {
        let mut report = ToGuest::default();
        let want = pick.len() as u32;
        let posted = self.posted(want);
        let (ready, lacking) = match self.fatal {
            Some(_) => (0, Drop::Disabled),
            None => (posted, Drop::NoRequest),
        };
        report.drops.add(lacking, u64::from(want - ready));
        let pick = pick.get(..ready as usize).unwrap_or(&[]);
        self.plan_singles(singles, pick);
        self.grants.write_singles(&mut self.placed, singles, pick);
        for (access, response) in self.placed.iter().zip(&mut self.rx_responses) {
            if access.result.is_ok() {
                report.delivered += 1;
                report.bytes += u64::from(access.len);
                continue;
            }
            to_guest::refuse(slice::from_mut(response));
            report.drops.count(match access.len {
                0 => Drop::BadRequest,
                _ => Drop::Grant,
            });
        }
        self.rx.respond_all(&self.rx_responses);
        self.placed.clear();
        self.rx_responses.clear();
        self.counters.to_guest += u64::from(report.delivered);
        self.counters.to_guest_bytes += report.bytes;
        self.counters.to_guest_drops += report.drops;
        report
    }

    /// Takes a request off the ring for each single, as the batch's accesses and responses. One that is no
    /// buffer is an access to no bytes.
    fn plan_singles(&mut self, singles: &[Single], mut pick: &[u32]) {
        while !pick.is_empty() {
            let requests = self.rx.burst();
            let count = requests.len().min(pick.len());
            let (here, rest) = pick.split_at(count);
            let terms = &self.terms;
            let planned = requests.iter().zip(here).map(|(words, index)| {
                let request = RxRequest::decode(*words);
                let bytes = singles.get(*index as usize).map_or(0, Single::len);
                let place = buffer(&request, terms);
                let offset = place.map_or(0, |(offset, room)| {
                    offset + colour(request.gref, bytes, room)
                });
                Access {
                    gref: GrantRef(request.gref),
                    offset: offset as u16,
                    len: place.map_or(0, |_| bytes as u16),
                    result: Err(GrantStatus::GeneralError),
                }
            });
            let first = self.placed.len();
            self.placed.extend(planned);
            let placed = self.placed.iter().skip(first);
            let answered = requests.iter().zip(placed).map(|(words, access)| {
                let response = RxResponse {
                    id: RxRequest::decode(*words).id,
                    offset: access.offset,
                    flags: 0,
                    status: access.len as i16,
                };
                response.encode()
            });
            self.rx_responses.extend(answered);
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
fn is_single(request: &TxRequest, may: &Abilities) -> bool {
    request.flags == 0 && check_packet(request, 1, request.size.into(), None, may).is_none()
}
