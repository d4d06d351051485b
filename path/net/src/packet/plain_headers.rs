//! Recognizes the most frequent headers by a few comparisons at fixed offsets: no VLAN tags, no
//! IPv4 options, no IPv6 extension headers, no fragments.

use super::constants::protocol;
use nic::frame::SNAPSHOT_MAX;

/// The protocol behind headers of the most frequent form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainHeaders {
    /// TCP.
    Tcp {
        /// Start of the TCP header.
        at: usize,
        /// Whether it follows an IPv6 header.
        v6: bool,
    },
    /// Another protocol over IPv4.
    Other,
}

impl PlainHeaders {
    /// Parses a snapshot of which at least 54 bytes are valid. Returns `None` if the headers have
    /// another form, which [`Packet::parse`](super::Packet::parse) handles.
    #[inline(always)]
    pub(crate) fn of(bytes: &[u8; SNAPSHOT_MAX]) -> Option<Self> {
        match [bytes[12], bytes[13], bytes[14]] {
            [8, 0, 0x45] if (bytes[20] & 0x3f) | bytes[21] == 0 => match bytes[23] {
                protocol::TCP => Some(Self::Tcp { at: 34, v6: false }),
                _ => Some(Self::Other),
            },
            [0x86, 0xdd, 0x60..=0x6f] if bytes[20] == protocol::TCP => {
                Some(Self::Tcp { at: 54, v6: true })
            }
            _ => None,
        }
    }
}
