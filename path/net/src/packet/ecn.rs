//! Explicit congestion notification (RFC 3168): a mark in the IP header instead of a drop.

use super::bytes::{array, be16, byte, put};
use super::headers::Packet;
use super::network::Network;

/// The codepoint *congestion experienced*; 0 is *not ECN-capable*.
const CE: u8 = 3;

/// Sets *congestion experienced* in `header`, a frame's first bytes, and updates the IPv4 header's
/// checksum. Returns false, and changes nothing, if the packet is not ECN-capable.
pub fn mark_ce(header: &mut [u8]) -> bool {
    let Ok(packet) = Packet::parse(header) else {
        return false;
    };
    let at = packet.network_at;
    match packet.network {
        Network::Ipv4(_) => mark_v4(header, at).unwrap_or(false),
        Network::Ipv6(_) => match byte(header, at + 1) {
            Ok(class) if (class >> 4) & CE != 0 => put(header, at + 1, &[class | CE << 4]),
            _ => false,
        },
        Network::Arp(_) | Network::Other => false,
    }
}

fn mark_v4(header: &mut [u8], at: usize) -> Option<bool> {
    let [version, tos] = array(header, at).ok()?;
    if tos & CE == 0 {
        return Some(false);
    }
    let marked = tos | CE;
    let before = be16(header, at + 10).ok()?;
    // RFC 1624: HC' = ~(~HC + ~m + m').
    let old = u16::from_be_bytes([version, tos]);
    let new = u16::from_be_bytes([version, marked]);
    let sum = u32::from(!before) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) as u16 + (sum >> 16) as u16);
    Some(put(header, at + 1, &[marked]) && put(header, at + 10, &sum.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::checksum::Sum;
    use proptest::prelude::*;

    /// Returns an Ethernet and an IPv4 header with a valid checksum.
    fn v4(tos: u8, id: u16) -> Vec<u8> {
        let mut header = vec![0; 34];
        header[12..16].copy_from_slice(&[8, 0, 0x45, tos]);
        header[16..18].copy_from_slice(&[0, 20]);
        header[18..20].copy_from_slice(&id.to_be_bytes());
        let sum = !sum_of(&header[14..]);
        header[24..26].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn sum_of(bytes: &[u8]) -> u16 {
        let mut sum = Sum::default();
        sum.add_bytes(bytes);
        sum.folded()
    }

    proptest! {
        #[test]
        fn eq_3_a_mark_keeps_the_checksum_right(tos in any::<u8>(), id in any::<u16>()) {
            let mut header = v4(tos, id);
            let before = header.clone();
            prop_assert_eq!(mark_ce(&mut header), tos & 3 != 0);
            match tos & 3 {
                0 => prop_assert_eq!(header, before),
                _ => {
                    prop_assert_eq!(header[15], tos | 3);
                    prop_assert_eq!(sum_of(&header[14..]), 0xffff);
                }
            }
        }

        #[test]
        fn eq_3_any_bytes_can_be_marked(mut bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            mark_ce(&mut bytes);
        }
    }

    #[test]
    fn eq_3_ipv6_has_its_mark_in_the_traffic_class() {
        let mut header = vec![0; 54];
        header[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0x20]);
        header[20] = 59;
        assert!(mark_ce(&mut header));
        assert_eq!(header[14..16], [0x60, 0x30]);
        header[15] = 0x0f;
        assert!(!mark_ce(&mut header), "the flow label is no mark");
    }
}
