//! Packets from the guest: requests → frames, and the answers.

use super::{ACCESSES_MAX, Netback};
use crate::Fatal;
use crate::counters::Drop;
use crate::grants::{Access, Grants};
use crate::netif::rings::{TX_REQUEST, TX_RESPONSE, TxBack};
use crate::netif::{
    Abilities, ExtraInfo, FATAL_SLOTS, MIN_PACKET, TxRequest, TxResponse, extra, rsp, transport,
    txf,
};
use abi::{GrantStatus, PAGE};
use nic::{BufferId, Checksum, Frame, Gso, Offload, Piece};

/// One packet of the batch: where its parts and its responses lie in the batch's lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    accesses: (u32, u32),
    responses: (u32, u32),
    flags: u16,
    gso: Option<Gso>,
}

/// What [`Netback::fetch`] found at the head of the ring.
enum Fetched {
    /// A packet: in the batch's lists.
    Packet,
    /// A packet with something wrong: answered with an error.
    Bad,
    /// Nothing, or a packet whose rest is not there yet.
    Nothing,
}

impl<G: Grants> Netback<G> {
    /// Takes up to `budget` packets and appends them to `out`, as frames whose pieces lie in the
    /// guest's pages and whose `token` is their number in the batch; how many. They can be read
    /// until [`Netback::from_guest_done`], which has to be called before the next batch (and is,
    /// if it was forgotten); after 0 frames there is nothing to be done.
    ///
    /// Packets with something wrong are answered with an error and counted; they count against
    /// the budget, so that a guest gains nothing by sending them. Fewer than `budget` packets do
    /// not mean that there are no more ([`ACCESSES_MAX`]): ask [`Netback::has_work`].
    ///
    /// # Errors
    /// [`Fatal`]: the interface is disabled. Frames of `out` are not touched.
    pub fn from_guest(&mut self, budget: usize, out: &mut Vec<Frame>) -> Result<usize, Fatal> {
        self.alive()?;
        if !self.tx_responses.is_empty() {
            self.from_guest_done();
        }
        // One look at the shared index serves the batch, if packets have one slot each.
        if let Err(overrun) = self.tx.ready_for(budget.min(u32::MAX as usize) as u32) {
            return self.fail(overrun);
        }
        let mut left = budget;
        while left > 0 && self.accesses.len() + FATAL_SLOTS as usize <= ACCESSES_MAX {
            left -= 1;
            match self.fetch() {
                Ok(Fetched::Packet | Fetched::Bad) => {}
                Ok(Fetched::Nothing) => break,
                Err(fatal) => return self.fail(fatal),
            }
        }
        if self.chains.is_empty() {
            // What was bad is answered at once: nobody will call for the end of an empty batch.
            self.from_guest_done();
            return Ok(0);
        }
        self.grants.read_begin(&mut self.accesses);
        self.reading = true;
        let frames = self.build(out);
        if frames == 0 {
            self.from_guest_done();
        }
        Ok(frames)
    }

    /// The batch is over: gives up its grants, answers its requests and publishes the answers.
    pub fn from_guest_done(&mut self) {
        if self.reading {
            self.grants.read_end();
            self.reading = false;
        }
        self.tx.respond_all(&self.tx_responses);
        self.tx_responses.clear();
        self.chains.clear();
        self.accesses.clear();
        self.tx.publish();
    }

    /// Takes one packet off the ring: copies its slots out, once each, and checks them
    /// (NETIF-7).
    fn fetch(&mut self) -> Result<Fetched, Fatal> {
        let first_access = self.accesses.len();
        let first_response = self.tx_responses.len();
        self.partial = 0;
        let mut slots = Slots { taken: 0 };
        let Some(words) = slots.next(&mut self.tx)? else {
            return Ok(Fetched::Nothing);
        };
        let first = TxRequest::decode(words);
        if !first.has(txf::EXTRA_INFO | txf::MORE_DATA) {
            return Ok(self.fetch_one(first));
        }
        match self.scan(first, slots) {
            Ok(Some((chain, slots, verdict))) => {
                self.tx.consume(slots);
                let Some(reason) = verdict else {
                    self.chains.push(chain);
                    return Ok(Fetched::Packet);
                };
                self.accesses.truncate(first_access);
                refuse(of(&mut self.tx_responses, &chain));
                self.counters.from_guest_drops.count(reason);
                Ok(Fetched::Bad)
            }
            Ok(None) => {
                self.partial = self.tx.ready();
                self.accesses.truncate(first_access);
                self.tx_responses.truncate(first_response);
                Ok(Fetched::Nothing)
            }
            Err(fatal) => Err(fatal),
        }
    }

    /// Takes a packet of one slot off the ring, as nearly all are.
    #[inline]
    fn fetch_one(&mut self, request: TxRequest) -> Fetched {
        self.tx.consume(1);
        let size = u32::from(request.size);
        if let Some(reason) = check_packet(&request, 1, size, None, &self.terms.from_guest) {
            let refused = TxResponse {
                id: request.id,
                status: rsp::ERROR,
            };
            self.tx_responses.push(refused.encode());
            self.counters.from_guest_drops.count(reason);
            return Fetched::Bad;
        }
        let (access, response) = (self.accesses.len() as u32, self.tx_responses.len() as u32);
        self.chains.push(Chain {
            accesses: (access, access + 1),
            responses: (response, response + 1),
            flags: request.flags,
            gso: None,
        });
        self.push(request, request.size);
        Fetched::Packet
    }

    /// Reads the rest of the packet at the head of the ring, whose first slot was read, into the
    /// batch's lists: the packet, its slots, and what is wrong with it. None if not all of it is
    /// there.
    fn scan(
        &mut self,
        first: TxRequest,
        mut slots: Slots,
    ) -> Result<Option<(Chain, u32, Option<Drop>)>, Fatal> {
        let first_access = self.accesses.len();
        let first_response = self.tx_responses.len();
        self.push(first, first.size);

        let mut verdict = None;
        let mut gso = None;
        let mut more_extra = first.has(txf::EXTRA_INFO);
        while more_extra {
            let Some([one, two, _]) = slots.next(&mut self.tx)? else {
                return Ok(None);
            };
            let info = ExtraInfo::decode(one, two);
            self.tx_responses.push(
                TxResponse {
                    id: 0,
                    status: rsp::NULL,
                }
                .encode(),
            );
            match (info.kind, info.gso.gso()) {
                (extra::TYPE_GSO, Some(found)) if gso.is_none() => {
                    gso = Some(found);
                }
                _ => verdict = verdict.or(Some(Drop::BadExtra)),
            }
            more_extra = info.flags & extra::FLAG_MORE != 0;
        }

        let mut others: u32 = 0;
        let mut parts: u32 = 1;
        let mut more = first.has(txf::MORE_DATA);
        while more {
            let Some(words) = slots.next(&mut self.tx)? else {
                return Ok(None);
            };
            let request = TxRequest::decode(words);
            parts += 1;
            others = others.saturating_add(u32::from(request.size));
            self.push(request, request.size);
            verdict = verdict.or(check_part(request.offset, u32::from(request.size)));
            more = request.has(txf::MORE_DATA);
        }

        // The first request's size is the whole packet's; its own part is what the others leave.
        let own = u32::from(first.size).saturating_sub(others);
        if let Some(access) = self.accesses.get_mut(first_access) {
            access.len = own as u16;
        }
        verdict = verdict.or_else(|| check_packet(&first, parts, own, gso, &self.terms.from_guest));
        let chain = Chain {
            accesses: (first_access as u32, self.accesses.len() as u32),
            responses: (first_response as u32, self.tx_responses.len() as u32),
            flags: first.flags,
            gso,
        };
        Ok(Some((chain, slots.taken, verdict)))
    }

    fn push(&mut self, request: TxRequest, len: u16) {
        self.accesses.push(Access {
            gref: request.grant(),
            offset: request.offset,
            len,
            result: Err(GrantStatus::GeneralError),
        });
        self.tx_responses.push(
            TxResponse {
                id: request.id,
                status: rsp::OKAY,
            }
            .encode(),
        );
    }

    /// Makes frames of the batch's packets.
    fn build(&mut self, out: &mut Vec<Frame>) -> usize {
        let mut frames = 0;
        for (token, chain) in self.chains.iter().enumerate() {
            // Made where it stays: to move a frame costs more than to make it.
            out.push(Frame::empty());
            let Some(frame) = out.last_mut() else { break };
            match fill(frame, chain, &self.accesses, &self.terms.from_guest) {
                Ok(()) => {
                    frame.token = token as u32;
                    self.counters.from_guest += 1;
                    self.counters.from_guest_bytes += frame.len() as u64;
                    frames += 1;
                }
                Err(reason) => {
                    out.pop();
                    refuse(of(&mut self.tx_responses, chain));
                    self.counters.from_guest_drops.count(reason);
                }
            }
        }
        frames
    }
}

/// Reads a packet's slots in order.
struct Slots {
    taken: u32,
}

impl Slots {
    /// The next slot; none if the guest has not published it.
    #[inline]
    fn next(&mut self, ring: &mut TxBack) -> Result<Option<[u32; TX_REQUEST]>, Fatal> {
        if self.taken == FATAL_SLOTS {
            return Err(Fatal::EndlessPacket);
        }
        if ring.ready() <= self.taken && ring.ready_for(self.taken + 1)? <= self.taken {
            return Ok(None);
        }
        let slot = ring.peek(self.taken);
        self.taken += 1;
        Ok(slot)
    }
}

/// The answers of one packet.
fn of<'a>(responses: &'a mut [[u32; TX_RESPONSE]], chain: &Chain) -> &'a mut [[u32; TX_RESPONSE]] {
    let (from, to) = chain.responses;
    let own = responses.get_mut(from as usize..to as usize);
    own.unwrap_or(&mut [])
}

/// Turns the answers of one packet into errors, but for those that answer extra infos.
pub(super) fn refuse(responses: &mut [[u32; TX_RESPONSE]]) {
    for words in responses {
        let response = TxResponse::decode(*words);
        if response.status != rsp::NULL {
            *words = TxResponse {
                status: rsp::ERROR,
                ..response
            }
            .encode();
        }
    }
}

/// What is wrong with a part of a packet.
fn check_part(offset: u16, size: u32) -> Option<Drop> {
    if size == 0 {
        Some(Drop::ZeroSize)
    } else if u32::from(offset) + size > PAGE as u32 {
        Some(Drop::CrossesPage)
    } else {
        None
    }
}

/// What is wrong with a whole packet; `own` is the first part's length.
#[inline]
pub(super) fn check_packet(
    first: &TxRequest,
    parts: u32,
    own: u32,
    gso: Option<Gso>,
    may: &Abilities,
) -> Option<Drop> {
    if parts > u32::from(may.max_slots) {
        return Some(Drop::TooManySlots);
    }
    if usize::from(first.size) < MIN_PACKET {
        return Some(if first.size == 0 {
            Drop::ZeroSize
        } else {
            Drop::TooShort
        });
    }
    if own == 0 {
        return Some(Drop::SizeMismatch);
    }
    // A packet that is to be cut cannot have its checksum already. (Whether cutting was agreed on
    // is found where the checksum's place is.)
    if gso.is_some() && !first.has(txf::CSUM_BLANK) {
        return Some(Drop::BadOffload);
    }
    check_part(first.offset, own)
}

/// Makes the frame of a packet whose pages can be read now.
fn fill(
    frame: &mut Frame,
    chain: &Chain,
    accesses: &[Access],
    may: &Abilities,
) -> Result<(), Drop> {
    let (from, to) = chain.accesses;
    for access in accesses.get(from as usize..to as usize).unwrap_or(&[]) {
        let span = access.result.map_err(|_| Drop::Grant)?;
        if span.len() < usize::from(access.len) {
            return Err(Drop::Fault);
        }
        let span = span.take(usize::from(access.len));
        frame.push(Piece {
            span,
            buffer: BufferId::NONE,
        });
    }
    frame.snapshot().map_err(|_| Drop::Fault)?;
    if chain.flags & txf::CSUM_BLANK != 0 {
        frame.offload = blank(frame, chain.gso, may)?;
    } else if chain.flags & txf::DATA_VALIDATED != 0 {
        frame.offload.checksum = Checksum::Valid;
    }
    Ok(())
}

/// The offloads of a packet whose checksum is blank: found in the packet, and only if both ends
/// agreed on them (row 30).
fn blank(frame: &mut Frame, gso: Option<Gso>, may: &Abilities) -> Result<Offload, Drop> {
    frame.need(nic::frame::SNAPSHOT).map_err(|_| Drop::Fault)?;
    let found = transport::find(frame.header()).ok_or(Drop::BadOffload)?;
    if found.needs() > frame.len() {
        return Err(Drop::BadOffload);
    }
    if let Some(gso) = gso
        && (!found.tcp || found.ipv6 != (gso.kind == nic::GsoKind::Tcp6))
    {
        return Err(Drop::BadOffload);
    }
    let offload = Offload {
        checksum: found.blank(),
        gso,
    };
    if may.takes(&offload, found.ipv6) {
        Ok(offload)
    } else {
        Err(Drop::OffloadNotNegotiated)
    }
}
