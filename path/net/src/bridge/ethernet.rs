//! Ethernet headers as the bridge reads them, with addresses as words.

use crate::packet::{ETHERNET_BYTES, Mac, Packet, array};

/// The low 48 bits of a word: a MAC, its first byte lowest.
pub(super) const MAC_BITS: u64 = (1 << 48) - 1;
/// The group bit of a MAC in such a word.
pub(super) const GROUP_BIT: u64 = 1;
/// 01:80:c2:00:00:00 … 0f, which differ in the lowest four bits of the last byte (802.1D, 7.12.6).
pub(super) const RESERVED: u64 = 0x0000_00c2_8001;
/// The bits that all reserved addresses have in common.
pub(super) const RESERVED_MASK: u64 = 0xf0ff_ffff_ffff;

/// EtherTypes below this are lengths of 802.3 frames.
pub(super) const LENGTHS: u16 = 1536;

/// The addresses of an Ethernet header, as words loaded from memory: the first byte is the lowest.
pub(super) struct Ethernet {
    pub(super) destination: u64,
    pub(super) source: u64,
}

impl Ethernet {
    #[inline]
    pub(super) fn of(header: &[u8; ETHERNET_BYTES]) -> Self {
        let [.., a, b, c, d, e, f, g, h] = *header;
        let rest = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Self {
            destination: destination_of(header),
            source: rest & MAC_BITS,
        }
    }
}

/// Returns the destination of a frame, first byte lowest.
#[inline]
pub(super) fn destination_of(ethernet: &[u8; ETHERNET_BYTES]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *ethernet;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) & MAC_BITS
}

/// Returns a MAC as loaded from a frame: first byte lowest.
pub(super) fn word_of(Mac([a, b, c, d, e, f]): Mac) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// Returns the MAC of such a word.
pub(super) fn mac_of(word: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = word.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

/// Returns whether an 802.3 frame carries its protocol behind a SNAP header (RFC 1042). Some stacks
/// accept ARP and IP in this form. No known guest needs it.
pub(super) fn is_disguised(header: &[u8], packet: &Packet) -> bool {
    const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
    packet.ethertype < LENGTHS && array(header, packet.network_at) == Ok(SNAP)
}
