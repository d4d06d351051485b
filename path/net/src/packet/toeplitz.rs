//! The Toeplitz hash of a packet's addresses and ports, with a key that the receiver chooses (Xen's
//! `public/io/netif.h`; NICs call it receive side scaling).

use super::bytes::array;
use super::headers::Packet;
use super::network::Network;
use super::transport::Transport;

/// Kinds of packets to hash, as bits with the values of Xen's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashTypes(pub u32);

impl HashTypes {
    /// IPv4: the addresses.
    pub const IPV4: Self = Self(1);
    /// TCP over IPv4: addresses and ports.
    pub const IPV4_TCP: Self = Self(1 << 1);
    /// IPv6: the addresses.
    pub const IPV6: Self = Self(1 << 2);
    /// TCP over IPv6: addresses and ports.
    pub const IPV6_TCP: Self = Self(1 << 3);
    /// All of them.
    pub const ALL: Self = Self(Self::IPV4.0 | Self::IPV4_TCP.0 | Self::IPV6.0 | Self::IPV6_TCP.0);

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Returns the hash of a packet that begins with `header`, by the first matching kind in `types`:
/// with ports, then without. A fragment has no ports. Returns `None` if no kind matches.
#[must_use]
pub fn hash(header: &[u8], types: HashTypes, key: &[u8]) -> Option<u32> {
    let packet = Packet::parse(header).ok()?;
    let (four, six);
    let (whole, alone, with_ports, addresses) = match packet.network {
        Network::Ipv4(ip) => {
            four = [ip.source.octets(), ip.destination.octets()];
            let whole = !ip.is_fragment();
            (
                whole,
                HashTypes::IPV4,
                HashTypes::IPV4_TCP,
                four.as_flattened(),
            )
        }
        Network::Ipv6(ip) => {
            six = [ip.source.octets(), ip.destination.octets()];
            let whole = ip.fragment.is_none();
            (
                whole,
                HashTypes::IPV6,
                HashTypes::IPV6_TCP,
                six.as_flattened(),
            )
        }
        Network::Arp(_) | Network::Other => return None,
    };
    let ports = match packet.transport(header) {
        Ok(Transport::Tcp(tcp)) if whole => array::<4>(header, tcp.at).ok(),
        _ => None,
    };
    let data = addresses.iter().copied();
    match ports.filter(|_| types.has(with_ports)) {
        Some(ports) => Some(toeplitz(key, data.chain(ports))),
        None if types.has(alone) => Some(toeplitz(key, data)),
        None => None,
    }
}

/// Returns the hash of these bytes. The key is padded with zeros.
fn toeplitz(key: &[u8], data: impl Iterator<Item = u8>) -> u32 {
    let of_key = |n: usize| u64::from(key.get(n).copied().unwrap_or(0));
    let mut window = (0..8).fold(0, |window, n| window << 8 | of_key(n));
    let mut hash = 0;
    for (n, byte) in data.enumerate() {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window <<= 1;
        }
        window |= of_key(n + 8);
    }
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// The verification key that NIC vendors publish with its hashes.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn tcp_header() -> Vec<u8> {
        let mut header = vec![0; 20];
        header[..2].copy_from_slice(&2794_u16.to_be_bytes());
        header[2..4].copy_from_slice(&1766_u16.to_be_bytes());
        header[12] = 5 << 4;
        header
    }

    fn ipv4(fragment: u16) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, 6, 0, 0]);
        frame.extend(Ipv4Addr::new(66, 9, 149, 187).octets());
        frame.extend(Ipv4Addr::new(161, 142, 100, 80).octets());
        frame.extend(tcp_header());
        frame
    }

    fn ipv6() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        for address in ["3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"] {
            frame.extend(address.parse::<Ipv6Addr>().unwrap().octets());
        }
        frame.extend(tcp_header());
        frame
    }

    #[test]
    fn hashes_are_those_that_nics_are_verified_with() {
        let hash = |frame: &[u8], types| hash(frame, types, &KEY);
        let (four, six) = (ipv4(0), ipv6());
        assert_eq!(hash(&four, HashTypes::IPV4), Some(0x323e_8fc2));
        assert_eq!(hash(&four, HashTypes::ALL), Some(0x51cc_c178));
        assert_eq!(hash(&six, HashTypes::IPV6), Some(0x2cc1_8cd5));
        assert_eq!(hash(&six, HashTypes::ALL), Some(0x4020_7d3d));
    }

    #[test]
    fn packets_without_a_hash_type_get_no_hash() {
        let part = ipv4(0x2000);
        assert_eq!(hash(&part, HashTypes::ALL, &KEY), Some(0x323e_8fc2));
        assert_eq!(hash(&part, HashTypes::IPV4_TCP, &KEY), None);
        assert_eq!(hash(&ipv4(0), HashTypes::IPV6, &KEY), None);
        assert_eq!(hash(&ipv6(), HashTypes::default(), &KEY), None);
        assert_eq!(hash(&ipv4(0), HashTypes::ALL, &[]), Some(0), "no key");
    }

    proptest! {
        #[test]
        fn no_header_is_too_strange(header: Vec<u8>, types: u32, key: Vec<u8>) {
            let _ = hash(&header, HashTypes(types), &key);
        }
    }
}
