//! The station in the guest, which answers ARP requests, echo requests and datagrams.

use std::net::Ipv4Addr;

const ARP: [u8; 2] = [8, 6];
const IPV4: [u8; 2] = [8, 0];
const ICMP: u8 = 1;
const UDP: u8 = 17;

/// Replaces a frame by its answer. Returns false if the frame has no answer.
pub(crate) fn answer(frame: &mut [u8], mac: [u8; 6], address: Ipv4Addr) -> bool {
    let Some(&[high, low]) = frame.get(12..14) else {
        return false;
    };
    let is_answered = match [high, low] {
        ARP => arp(frame, mac, address),
        IPV4 => ipv4(frame, address),
        _ => false,
    };
    if is_answered {
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&mac);
    }
    is_answered
}

fn arp(frame: &mut [u8], mac: [u8; 6], address: Ipv4Addr) -> bool {
    if frame.len() < 42 || frame[20..22] != [0, 1] || frame[38..42] != address.octets() {
        return false;
    }
    frame[21] = 2;
    frame.copy_within(22..32, 32);
    frame[22..28].copy_from_slice(&mac);
    frame[28..32].copy_from_slice(&address.octets());
    true
}

/// Answers a packet without IP options.
fn ipv4(frame: &mut [u8], address: Ipv4Addr) -> bool {
    if frame.len() < 42 || frame[14] != 0x45 || frame[30..34] != address.octets() {
        return false;
    }
    match frame[23] {
        ICMP if frame[34] == 8 => {
            frame[34] = 0;
            let sum = u16::from_be_bytes([frame[36], frame[37]]);
            let (sum, carry) = sum.overflowing_add(0x800);
            frame[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        }
        UDP => swap(frame, 34, 36, 2),
        _ => return false,
    }
    // The checksums of IP and UDP remain valid.
    swap(frame, 26, 30, 4);
    true
}

fn swap(frame: &mut [u8], one: usize, other: usize, bytes: usize) {
    for n in 0..bytes {
        frame.swap(one + n, other + n);
    }
}
