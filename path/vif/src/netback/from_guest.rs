//! Packets from the guest: requests → frames → responses.

use super::chains::{ACCESSES_MAX, PacketChain, check_packet, check_part, fill, refuse};
use super::interface::Netback;
use super::multicast_filter::GroupChange;
use crate::counters::VifDrop;
use crate::fatal::Fatal;
use crate::grants::GrantMechanism;
use crate::netif::rings::{TX_REQUEST, TxBack};
use crate::netif::{ExtraInfo, FATAL_SLOTS, TxRequest, extra, rsp, txf};
use nic::{Frame, Gso};
use smallvec::SmallVec;

/// The packet at the head of the ring, whose parts and responses are in the batch's lists.
struct Scanned {
    chain: PacketChain,
    slots: u32,
    /// Reason for rejecting the packet, if it is invalid.
    verdict: Option<VifDrop>,
    /// Multicast filter changes; a message with changes carries no packet.
    changes: SmallVec<[GroupChange; 1]>,
}

/// The extra infos of a packet, in the slots behind its first one.
#[derive(Default)]
struct Extras {
    gso: Option<Gso>,
    /// Changes of the guest's multicast filter. A message with changes carries no packet
    /// (NETIF-28).
    changes: SmallVec<[GroupChange; 1]>,
    verdict: Option<VifDrop>,
}

/// Result of [`Netback::fetch`].
enum Fetched {
    /// A packet, now in the batch's lists.
    Packet,
    /// A rejected packet, or a message without a packet; the responses are queued.
    Answered,
    /// No packet, or an incomplete one.
    Nothing,
}

impl<G: GrantMechanism> Netback<G> {
    /// Consumes up to `budget` packets, appends them to `out` and returns their number. Their
    /// pieces lie in the guest's pages; `token` is the packet's index in the batch. The frames stay
    /// readable until [`Netback::from_guest_done`], which the caller calls if the number is not 0.
    /// (If the caller has not done so, the next batch does.)
    ///
    /// Answers invalid packets with an error and counts them, also against the budget, so that a
    /// guest gains nothing by sending them. May return fewer than `budget` packets while more are
    /// waiting ([`ACCESSES_MAX`]); check [`Netback::has_work`].
    ///
    /// # Errors
    /// Returns [`Fatal`]; the interface is then disabled, and `out` is unchanged.
    pub fn from_guest(&mut self, budget: usize, out: &mut Vec<Frame>) -> Result<usize, Fatal> {
        self.check_fatal()?;
        if !self.chains.responses.is_empty() {
            self.from_guest_done();
        }
        // One read of the shared index serves the batch if packets have one slot each.
        if let Err(overrun) = self.tx.ready_for(budget.min(u32::MAX as usize) as u32) {
            return self.fail(overrun);
        }
        let mut left = budget;
        while left > 0 && self.chains.accesses.len() + FATAL_SLOTS as usize <= ACCESSES_MAX {
            left -= 1;
            match self.fetch() {
                Ok(Fetched::Packet | Fetched::Answered) => {}
                Ok(Fetched::Nothing) => break,
                Err(fatal) => return self.fail(fatal),
            }
        }
        if self.chains.list.is_empty() {
            // The caller does not end an empty batch, so errors are answered here.
            self.from_guest_done();
            return Ok(0);
        }
        self.grants.read_begin(&mut self.chains.accesses);
        self.chains.reading = true;
        let frames = self.build(out);
        if frames == 0 {
            self.from_guest_done();
        }
        Ok(frames)
    }

    /// Ends the batch: releases its grants, answers its requests and publishes the responses.
    pub fn from_guest_done(&mut self) {
        if self.chains.reading {
            self.grants.read_end();
            self.chains.reading = false;
        }
        self.tx.respond_all(&self.chains.responses);
        self.chains.clear();
        self.tx.publish();
    }

    /// Takes one packet from the ring: copies each of its slots out once, and checks the copies
    /// (NETIF-7).
    fn fetch(&mut self) -> Result<Fetched, Fatal> {
        let first_access = self.chains.accesses.len();
        let first_response = self.chains.responses.len();
        self.chains.partial = 0;
        let mut slots = SlotReader { taken: 0 };
        let Some(words) = slots.next(&mut self.tx)? else {
            return Ok(Fetched::Nothing);
        };
        let first = TxRequest::decode(words);
        if !first.has(txf::EXTRA_INFO | txf::MORE_DATA) {
            return Ok(self.fetch_one(first));
        }
        match self.scan(first, slots) {
            Ok(Some(Scanned {
                chain,
                slots,
                verdict,
                changes,
            })) => {
                self.tx.consume(slots);
                let verdict = verdict.or_else(|| self.change_groups(&changes));
                if verdict.is_none() && changes.is_empty() {
                    self.chains.list.push(chain);
                    return Ok(Fetched::Packet);
                }
                self.chains.accesses.truncate(first_access);
                let Some(reason) = verdict else {
                    return Ok(Fetched::Answered);
                };
                refuse(&mut self.chains.responses, chain.responses);
                self.counters.from_guest_drops.count(reason);
                Ok(Fetched::Answered)
            }
            Ok(None) => {
                self.chains.partial = self.tx.ready();
                self.chains.accesses.truncate(first_access);
                self.chains.responses.truncate(first_response);
                Ok(Fetched::Nothing)
            }
            Err(fatal) => Err(fatal),
        }
    }

    /// Takes a single-slot packet, the most frequent case, from the ring.
    #[inline]
    fn fetch_one(&mut self, request: TxRequest) -> Fetched {
        self.tx.consume(1);
        let size = u32::from(request.size);
        if let Some(reason) = check_packet(&request, 1, size, None, &self.negotiated.from_guest) {
            self.chains.respond(request.id, rsp::ERROR);
            self.counters.from_guest_drops.count(reason);
            return Fetched::Answered;
        }
        let (access, response) = (
            self.chains.accesses.len() as u32,
            self.chains.responses.len() as u32,
        );
        self.chains.list.push(PacketChain {
            accesses: (access, access + 1),
            responses: (response, response + 1),
            flags: request.flags,
            gso: None,
        });
        self.chains.push(request, request.size);
        Fetched::Packet
    }

    /// Reads the packet at the head of the ring, whose first slot is `first`, into the batch's
    /// lists. Returns `None` if the packet is incomplete.
    fn scan(&mut self, first: TxRequest, mut slots: SlotReader) -> Result<Option<Scanned>, Fatal> {
        let first_access = self.chains.accesses.len();
        let first_response = self.chains.responses.len();
        self.chains.push(first, first.size);

        let Some(extras) = self.extras(&first, &mut slots)? else {
            return Ok(None);
        };
        let Extras {
            gso,
            changes,
            mut verdict,
        } = extras;

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
            self.chains.push(request, request.size);
            verdict = verdict.or(check_part(request.offset, u32::from(request.size)));
            more = request.has(txf::MORE_DATA);
        }

        // The first request has the size of the whole packet; its own part is what the other parts
        // do not cover.
        let own = u32::from(first.size).saturating_sub(others);
        if let Some(access) = self.chains.accesses.get_mut(first_access) {
            access.len = own as u16;
        }
        verdict = verdict.or_else(|| match changes.is_empty() {
            true => check_packet(&first, parts, own, gso, &self.negotiated.from_guest),
            false => (parts > 1 || gso.is_some()).then_some(VifDrop::BadExtra),
        });
        let chain = PacketChain {
            accesses: (first_access as u32, self.chains.accesses.len() as u32),
            responses: (first_response as u32, self.chains.responses.len() as u32),
            flags: first.flags,
            gso,
        };
        Ok(Some(Scanned {
            chain,
            slots: slots.taken,
            verdict,
            changes,
        }))
    }

    /// Reads the extra infos behind the packet's first slot. Returns `None` if they are incomplete.
    fn extras(
        &mut self,
        first: &TxRequest,
        slots: &mut SlotReader,
    ) -> Result<Option<Extras>, Fatal> {
        let mut all = Extras::default();
        let mut more = first.has(txf::EXTRA_INFO);
        while more {
            let Some([one, two, _]) = slots.next(&mut self.tx)? else {
                return Ok(None);
            };
            let info = ExtraInfo::decode(one, two);
            self.chains.respond(0, rsp::NULL);
            match (info.kind, info.gso.gso()) {
                (extra::TYPE_GSO, Some(found)) if all.gso.is_none() => {
                    all.gso = Some(found);
                }
                (extra::TYPE_MCAST_ADD | extra::TYPE_MCAST_DEL, _) if self.groups.is_some() => {
                    all.changes.push(GroupChange {
                        group: ExtraInfo::group(one, two),
                        joins: info.kind == extra::TYPE_MCAST_ADD,
                    });
                }
                _ => all.verdict = all.verdict.or(Some(VifDrop::BadExtra)),
            }
            more = info.flags & extra::FLAG_MORE != 0;
        }
        Ok(Some(all))
    }

    /// Changes the guest's multicast filter. Returns a reason if it cannot.
    fn change_groups(&self, changes: &[GroupChange]) -> Option<VifDrop> {
        let groups = self.groups?;
        let fit = changes.iter().all(|change| groups.change(*change));
        (!fit).then_some(VifDrop::TooManyGroups)
    }

    /// Builds the frames of the batch's packets.
    fn build(&mut self, out: &mut Vec<Frame>) -> usize {
        let mut frames = 0;
        for (token, chain) in self.chains.list.iter().enumerate() {
            // Built in place: moving a frame costs more than building it.
            out.push(Frame::empty());
            let Some(frame) = out.last_mut() else { break };
            match fill(
                frame,
                chain,
                &self.chains.accesses,
                &self.negotiated.from_guest,
            ) {
                Ok(()) => {
                    frame.token = token as u32;
                    self.counters.from_guest += 1;
                    self.counters.from_guest_bytes += frame.len() as u64;
                    frames += 1;
                }
                Err(reason) => {
                    out.pop();
                    refuse(&mut self.chains.responses, chain.responses);
                    self.counters.from_guest_drops.count(reason);
                }
            }
        }
        frames
    }
}

/// Reads a packet's slots in order.
struct SlotReader {
    taken: u32,
}

impl SlotReader {
    /// Returns the next slot, or `None` if the guest has not published it.
    #[inline]
    fn next(&mut self, ring: &mut TxBack) -> Result<Option<[u32; TX_REQUEST]>, Fatal> {
        if self.taken == FATAL_SLOTS {
            return Err(Fatal::EndlessPacket);
        }
        let slot = ring.fetch(self.taken)?;
        self.taken += u32::from(slot.is_some());
        Ok(slot)
    }
}
