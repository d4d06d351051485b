//! The fast path ([`nic::small_frame`]): single-slot requests without offloads → small frames, and
//! small frames → single-slot responses. Other packets from the guest stay at the head of the ring
//! for [`Netback::from_guest`]; other frames to the guest use [`Netback::to_guest`].

use super::buffers::coloured;
use super::chains::{self, ACCESSES_MAX, check_packet};
use super::completions::{self, DeliveryReport, RxCompletion};
use super::interface::Netback;
use crate::counters::VifDrop;
use crate::fatal::Fatal;
use crate::grants::{GrantAccess, GrantMechanism};
use crate::netif::{PeerCaps, RxRequest, TxRequest, TxResponse, rsp};
use abi::GrantRef;
use nic::{SmallBatch, SmallFrame};
use std::slice;

/// Result of [`Netback::small_frames_from_guest`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallFramesTaken {
    /// Requests taken, including those answered with an error.
    pub requests: usize,
    /// Bytes of the small frames.
    pub bytes: u64,
    /// Whether more requests are waiting, because the next one is not a small frame or the budget
    /// is used up.
    pub more: bool,
}

impl<G: GrantMechanism> Netback<G> {
    /// Like [`Netback::from_guest`], for the small frames at the head of the ring, up to the first
    /// other packet. Overwrites `out`. The frames stay readable until [`Netback::from_guest_done`],
    /// which must be called unless no request was taken.
    ///
    /// # Errors
    /// Returns [`Fatal`]; the interface is then disabled.
    pub fn small_frames_from_guest(
        &mut self,
        budget: usize,
        out: &mut SmallBatch,
    ) -> Result<SmallFramesTaken, Fatal> {
        out.clear();
        self.check_fatal()?;
        if !self.chains.responses.is_empty() {
            self.from_guest_done();
        }
        let budget = budget.min(ACCESSES_MAX);
        if let Err(overrun) = self.tx.ready_for(budget as u32) {
            return self.fail(overrun);
        }
        self.take_small_frames(budget);
        let mut taken = SmallFramesTaken {
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
                Err(_) => VifDrop::Grant,
                Ok(span) => {
                    if out.push(span).is_ok() {
                        taken.bytes += u64::from(access.len);
                        continue;
                    }
                    VifDrop::Fault
                }
            };
            chains::refuse(slice::from_mut(response), (0, 1));
            self.counters.from_guest_drops.count(reason);
        }
        self.counters.from_guest += out.len() as u64;
        self.counters.from_guest_bytes += taken.bytes;
        Ok(taken)
    }

    /// Moves the requests of small frames from the ring into the batch's lists.
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
                if !is_small_frame(&request, &self.negotiated.from_guest) {
                    break;
                }
                taken += 1;
            }
            let requests = requests.take(taken);
            self.chains.accesses.extend(
                requests
                    .clone()
                    .map(|request| GrantAccess::new(request.grant(), request.offset, request.size)),
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

    /// Returns the length of the longest small frame that the guest accepts; 0 if it accepts none.
    #[must_use]
    pub fn longest_small_frame(&self) -> usize {
        let chooses = self.groups.is_some();
        if self.fatal.is_some() || chooses || self.zero_copy.running || !self.grants.in_reach() {
            0
        } else {
            self.negotiated.rx_buffer.into()
        }
    }

    /// Like [`Netback::to_guest`], for small frames of up to [`Netback::longest_small_frame`]
    /// bytes. Leaves the last `spared` buffers that the guest has posted.
    pub fn small_frames_to_guest(
        &mut self,
        small_frames: &SmallBatch,
        pick: &[u32],
        spared: u32,
    ) -> DeliveryReport {
        let mut report = DeliveryReport::default();
        let want = pick.len() as u32;
        let posted = self.posted(want.saturating_add(spared));
        let (ready, lacking) = match self.fatal {
            Some(_) => (0, VifDrop::Disabled),
            None => (posted.saturating_sub(spared).min(want), VifDrop::NoRequest),
        };
        report.drops.add(lacking, u64::from(want - ready));
        let pick = pick.get(..ready as usize).unwrap_or(&[]);
        self.plan_small_frames(small_frames, pick);
        self.grants.write_small_frames(
            &mut self.copies.destinations,
            small_frames,
            pick,
            self.negotiated.cpu_payload,
        );
        for (access, response) in self.copies.destinations.iter().zip(&mut self.responses) {
            if access.result.is_ok() {
                report.deliver(access.len.into());
                continue;
            }
            completions::refuse(slice::from_mut(response));
            report.drops.count(match access.len {
                0 => VifDrop::BadRequest,
                _ => VifDrop::Grant,
            });
        }
        self.copies.destinations.clear();
        self.respond(&report);
        report
    }

    /// Takes one request per frame from the ring and adds its access and response to the batch. An
    /// invalid request becomes an access of 0 bytes.
    fn plan_small_frames(&mut self, small_frames: &[SmallFrame], mut pick: &[u32]) {
        while !pick.is_empty() {
            let requests = self.rx.burst();
            let count = requests.len().min(pick.len());
            let (here, rest) = pick.split_at(count);
            let negotiated = &self.negotiated;
            let planned = requests.iter().zip(here).map(|(words, index)| {
                let request = RxRequest::decode(*words);
                let bytes = small_frames.get(*index as usize).map_or(0, SmallFrame::len);
                let place = coloured(&request, negotiated, bytes);
                let (offset, bytes) = place.map_or((0, 0), |(offset, _)| (offset, bytes));
                GrantAccess::new(GrantRef(request.gref), offset as u16, bytes as u16)
            });
            let first = self.copies.destinations.len();
            self.copies.destinations.extend(planned);
            let placed = self.copies.destinations.iter().skip(first);
            let answered = requests.iter().zip(placed).map(|(words, access)| {
                let id = RxRequest::decode(*words).id;
                RxCompletion::new(id, access.offset, access.len as i16).plain_response()
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

/// Returns whether a request is a valid whole packet without offloads.
#[inline]
fn is_small_frame(request: &TxRequest, may: &PeerCaps) -> bool {
    request.flags == 0 && check_packet(request, 1, request.size.into(), None, may).is_none()
}
