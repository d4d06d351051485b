//! The packets of a batch from the guest: their parts, responses and validity checks.

use crate::counters::VifDrop;
use crate::grants::GrantAccess;
use crate::netif::rings::TX_RESPONSE;
use crate::netif::{MIN_PACKET, PeerCaps, TxRequest, TxResponse, rsp, transport, txf};
use abi::PAGE;
use nic::{BufferId, Checksum, Frame, Gso, Piece};

/// Maximum number of accesses in one batch of [`Netback::from_guest`](super::Netback::from_guest).
/// Sizes the buffers of grant mechanisms that copy, and bounds the bytes moved per guest and turn.
pub const ACCESSES_MAX: usize = 256;

/// The packets of a batch: taken from the ring and not yet answered.
#[derive(Debug, Default)]
pub(super) struct Chains {
    pub(super) list: Vec<PacketChain>,
    pub(super) accesses: Vec<GrantAccess>,
    pub(super) responses: Vec<[u32; TX_RESPONSE]>,
    /// Whether the batch has begun to read through the accesses, and must still end this.
    pub(super) reading: bool,
    /// Published slots of an incomplete packet at the head of the ring.
    pub(super) partial: u32,
}

/// One packet of the batch: the ranges of its parts and responses in the batch's lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketChain {
    pub(super) accesses: (u32, u32),
    pub(super) responses: (u32, u32),
    pub(super) flags: u16,
    pub(super) gso: Option<Gso>,
}

impl Chains {
    /// Adds a part of `len` bytes with a success response.
    #[inline]
    pub(super) fn push(&mut self, request: TxRequest, len: u16) {
        let access = GrantAccess::new(request.grant(), request.offset, len);
        self.accesses.push(access);
        self.respond(request.id, rsp::OKAY);
    }

    /// Adds a response.
    #[inline]
    pub(super) fn respond(&mut self, id: u16, status: i16) {
        self.responses.push(TxResponse { id, status }.encode());
    }

    /// Ends the batch.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.accesses.clear();
        self.responses.clear();
    }
}

/// Turns one packet's responses into errors, except those to extra infos.
pub(super) fn refuse(answers: &mut [[u32; TX_RESPONSE]], (from, to): (u32, u32)) {
    let refused = answers.get_mut(from as usize..to as usize);
    for words in refused.unwrap_or(&mut []) {
        let answer = TxResponse::decode(*words);
        if answer.status != rsp::NULL {
            *words = TxResponse {
                status: rsp::ERROR,
                ..answer
            }
            .encode();
        }
    }
}

/// Returns why a part is invalid, or `None` if it is valid.
pub(super) fn check_part(offset: u16, size: u32) -> Option<VifDrop> {
    if size == 0 {
        Some(VifDrop::ZeroSize)
    } else if u32::from(offset) + size > PAGE as u32 {
        Some(VifDrop::CrossesPage)
    } else {
        None
    }
}

/// Returns why a whole packet is invalid, or `None` if it is valid; `own` is the length of its
/// first part.
#[inline]
pub(super) fn check_packet(
    first: &TxRequest,
    parts: u32,
    own: u32,
    gso: Option<Gso>,
    may: &PeerCaps,
) -> Option<VifDrop> {
    if parts > u32::from(may.max_slots) {
        return Some(VifDrop::TooManySlots);
    }
    if usize::from(first.size) < MIN_PACKET {
        return Some(if first.size == 0 {
            VifDrop::ZeroSize
        } else {
            VifDrop::TooShort
        });
    }
    if own == 0 {
        return Some(VifDrop::SizeMismatch);
    }
    // A packet to be segmented must have a blank checksum. (The check of the checksum's position
    // includes whether segmentation was negotiated.)
    if gso.is_some() && !first.has(txf::CSUM_BLANK) {
        return Some(VifDrop::BadOffload);
    }
    check_part(first.offset, own)
}

/// Builds the frame of a packet whose pages are readable.
pub(super) fn fill(
    frame: &mut Frame,
    chain: &PacketChain,
    accesses: &[GrantAccess],
    may: &PeerCaps,
) -> Result<(), VifDrop> {
    let (from, to) = chain.accesses;
    for access in accesses.get(from as usize..to as usize).unwrap_or(&[]) {
        let span = access.result.map_err(|_| VifDrop::Grant)?;
        if span.len() < usize::from(access.len) {
            return Err(VifDrop::Fault);
        }
        let span = span.take(usize::from(access.len));
        frame.push(Piece {
            span,
            buffer: BufferId::NONE,
        });
    }
    frame.snapshot().map_err(|_| VifDrop::Fault)?;
    if chain.flags & txf::CSUM_BLANK != 0 {
        frame.offload = transport::set_offloads(frame, chain.gso, may)?;
    } else if chain.flags & txf::DATA_VALIDATED != 0 {
        frame.offload.checksum = Checksum::Valid;
    }
    Ok(())
}
