//! Answers of a kernel's rtnetlink and nf_tables, as netd and `up --check` read them.

use crate::input::Input;
use netdev::testing;
use std::net::IpAddr;

/// Types of messages that lists hold, then a reply, an error and the end of a list.
const KINDS: [u16; 9] = [16, 20, 24, 0xa00, 0xa03, 0xa06, 18, 2, 3];
/// Kinds of attributes that the readers use.
const ATTRIBUTES: [u16; 12] = [1, 2, 3, 4, 5, 6, 18, 20, 31, 37, 0x8001, 0x8004];

/// Parses bytes as datagrams. Writes messages with any attributes, which must be read back, and
/// changes a byte of each. Finally compares networks.
pub fn kernel(bytes: &[u8]) {
    testing::hostile_datagram(bytes, 1);
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        let kind = KINDS.get(input.below(KINDS.len() + 1)).copied();
        let kind = kind.unwrap_or_else(|| input.u16());
        let header = [4, 8, 12, 16].get(input.below(4)).copied().unwrap_or(0);
        let header = [input.bytes(header), &[0; 16]].concat();
        let header = header.get(..header.len() & !15).unwrap_or(&header);
        let many = input.below(6);
        let attributes: Vec<(u16, Vec<u8>)> = (0..many).map(|_| attribute(&mut input, 2)).collect();
        let attributes: Vec<(u16, &[u8])> = attributes
            .iter()
            .map(|(kind, value)| (*kind, value.as_slice()))
            .collect();
        let (at, to) = (usize::from(input.u16()), input.u8());
        testing::written_and_read(kind, header, &attributes, at, to);
        let networks = [network(&mut input), network(&mut input)];
        testing::hostile_networks(networks[0], networks[1]);
    }
}

/// Returns an attribute with a number, a text or, while `depth` is above 0, other attributes.
fn attribute(input: &mut Input<'_>, depth: usize) -> (u16, Vec<u8>) {
    let kind = ATTRIBUTES.get(input.below(ATTRIBUTES.len() + 1)).copied();
    let kind = kind.unwrap_or_else(|| input.u16());
    let value = match input.below(6) {
        0 => input.u32().to_ne_bytes().to_vec(),
        1 => u32::from(input.u8() % 4).to_be_bytes().to_vec(),
        2 => b"grantway m\0".to_vec(),
        3 => vec![0, input.u8(), b'a', b' ', b'b', 0],
        4 if depth > 0 => {
            let (kind, inner) = attribute(input, depth - 1);
            let len = (inner.len() as u16 + 4).to_ne_bytes();
            [&len[..], &kind.to_ne_bytes(), &inner].concat()
        }
        _ => {
            let most = input.below(20);
            input.bytes(most).to_vec()
        }
    };
    (kind, value)
}

/// Returns a network, often close to 10.0.0.0/24 or fd00::/64.
fn network(input: &mut Input<'_>) -> (IpAddr, u8) {
    let (near, prefix) = (input.u8(), input.u8());
    let address = match input.below(3) {
        0 => IpAddr::from([10, 0, 0, near]),
        1 => IpAddr::from([0xfd00, 0, 0, u16::from(near & 1), 0, 0, 0, near.into()]),
        _ => IpAddr::from(input.u32().to_be_bytes()),
    };
    (address, prefix)
}
