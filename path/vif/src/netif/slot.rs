//! The five kinds of slot contents.

use super::limits::extra;
use super::rings::{RX_REQUEST, RX_RESPONSE, TX_REQUEST, TX_RESPONSE};
use abi::GrantRef;
use nic::{Gso, GsoKind};

const fn pair(low: u16, high: u16) -> u32 {
    low as u32 | (high as u32) << 16
}

const fn low(word: u32) -> u16 {
    word as u16
}

const fn high(word: u32) -> u16 {
    (word >> 16) as u16
}

/// A part of a packet from the guest (NETIF-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxRequest {
    /// The page.
    pub gref: u32,
    /// First byte within the page.
    pub offset: u16,
    /// [`super::txf`].
    pub flags: u16,
    /// Id that the response carries.
    pub id: u16,
    /// Bytes of the whole packet in the first request, of this part in the others.
    pub size: u16,
}

impl TxRequest {
    /// Encodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn encode(self) -> [u32; TX_REQUEST] {
        [
            self.gref,
            pair(self.offset, self.flags),
            pair(self.id, self.size),
        ]
    }

    /// Decodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn decode(words: [u32; TX_REQUEST]) -> Self {
        let [gref, second, third] = words;
        Self {
            gref,
            offset: low(second),
            flags: high(second),
            id: low(third),
            size: high(third),
        }
    }

    /// Returns the grant reference.
    #[must_use]
    #[inline]
    pub const fn grant(self) -> GrantRef {
        GrantRef(self.gref)
    }

    /// Returns whether `flag` is set.
    #[must_use]
    #[inline]
    pub const fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Result of a [`TxRequest`] (NETIF-3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxResponse {
    /// The request's id.
    pub id: u16,
    /// [`super::rsp`].
    pub status: i16,
}

impl TxResponse {
    /// Encodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn encode(self) -> [u32; TX_RESPONSE] {
        [pair(self.id, self.status as u16)]
    }

    /// Decodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn decode([word]: [u32; TX_RESPONSE]) -> Self {
        Self {
            id: low(word),
            status: high(word) as i16,
        }
    }
}

/// A buffer for packets to the guest (NETIF-4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxRequest {
    /// Id that the response carries.
    pub id: u16,
    /// First byte of the buffer within its page, with the extension `rx-offset` (NETIF-11);
    /// otherwise padding.
    pub offset: u16,
    /// The page.
    pub gref: u32,
}

impl RxRequest {
    /// Encodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn encode(self) -> [u32; RX_REQUEST] {
        [pair(self.id, self.offset), self.gref]
    }

    /// Decodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn decode(words: [u32; RX_REQUEST]) -> Self {
        let [first, gref] = words;
        Self {
            id: low(first),
            offset: high(first),
            gref,
        }
    }
}

/// A part of a packet to the guest (NETIF-5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxResponse {
    /// The request's id.
    pub id: u16,
    /// First byte within the page.
    pub offset: u16,
    /// [`super::rxf`].
    pub flags: u16,
    /// Bytes of this part, or one of [`super::rsp`]'s errors.
    pub status: i16,
}

impl RxResponse {
    /// Encodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn encode(self) -> [u32; RX_RESPONSE] {
        [
            pair(self.id, self.offset),
            pair(self.flags, self.status as u16),
        ]
    }

    /// Decodes the words of a slot.
    #[must_use]
    #[inline]
    pub const fn decode(words: [u32; RX_RESPONSE]) -> Self {
        let [first, second] = words;
        Self {
            id: low(first),
            offset: high(first),
            flags: low(second),
            status: high(second) as i16,
        }
    }

    /// Returns whether `flag` is set.
    #[must_use]
    #[inline]
    pub const fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Segmentation parameters in an extra info.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GsoInfo {
    /// Payload bytes of a segment.
    pub size: u16,
    /// [`extra::GSO_TCPV4`] or [`extra::GSO_TCPV6`].
    pub kind: u8,
    /// Id of the receive request whose slot the info uses, with `any-order` (NETIF-27); otherwise
    /// 0.
    pub place: u16,
}

impl GsoInfo {
    /// Returns the frame's segmentation offload, or `None` for an unknown kind or a size of 0.
    #[must_use]
    pub const fn gso(self) -> Option<Gso> {
        let kind = match self.kind {
            extra::GSO_TCPV4 => GsoKind::Tcp4,
            extra::GSO_TCPV6 => GsoKind::Tcp6,
            _ => return None,
        };
        if self.size == 0 {
            None
        } else {
            Some(Gso {
                kind,
                size: self.size,
            })
        }
    }
}

impl From<Gso> for GsoInfo {
    fn from(gso: Gso) -> Self {
        let kind = match gso.kind {
            GsoKind::Tcp4 => extra::GSO_TCPV4,
            GsoKind::Tcp6 => extra::GSO_TCPV6,
        };
        Self {
            size: gso.size,
            kind,
            place: 0,
        }
    }
}

/// Metadata of a packet in a separate slot (NETIF-6). Identical in both rings; fills the first 8
/// bytes of the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraInfo {
    /// Its type ([`extra`]).
    pub kind: u8,
    /// [`extra::FLAG_MORE`].
    pub flags: u8,
    /// Segmentation parameters, if the type is [`extra::TYPE_GSO`].
    pub gso: GsoInfo,
}

impl ExtraInfo {
    /// Returns the last extra info of a packet to be segmented.
    #[must_use]
    pub fn of(gso: Gso) -> Self {
        Self {
            kind: extra::TYPE_GSO,
            flags: 0,
            gso: gso.into(),
        }
    }

    /// Returns the info for the slot of receive request `id`.
    #[must_use]
    pub fn in_place_of(self, id: u16) -> Self {
        Self {
            gso: GsoInfo {
                place: id,
                ..self.gso
            },
            ..self
        }
    }

    /// Returns the address in the first words of a slot of type [`extra::TYPE_MCAST_ADD`] or
    /// [`extra::TYPE_MCAST_DEL`] (NETIF-28).
    #[must_use]
    pub const fn group(first: u32, second: u32) -> [u8; 6] {
        let ([_, _, a, b], [c, d, e, f]) = (first.to_le_bytes(), second.to_le_bytes());
        [a, b, c, d, e, f]
    }

    /// Encodes the first words of a slot.
    #[must_use]
    #[inline]
    pub const fn encode(self) -> [u32; 2] {
        [
            self.kind as u32 | (self.flags as u32) << 8 | (self.gso.size as u32) << 16,
            pair(self.gso.kind as u16, self.gso.place),
        ]
    }

    /// Decodes the first words of a slot.
    #[must_use]
    #[inline]
    pub const fn decode(first: u32, second: u32) -> Self {
        Self {
            kind: first as u8,
            flags: (first >> 8) as u8,
            gso: GsoInfo {
                size: high(first),
                kind: second as u8,
                place: high(second),
            },
        }
    }
}
