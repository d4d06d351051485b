//! Checksum offloads in software: completes checksums of sent frames, and verifies those of
//! received frames.

use crate::frame::ETHERNET_BYTES;
use shmem::{Fault, Span, fold_ones_sum as fold, ones_sum, ones_sum_bytes};

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Completes the checksum that covers the frame from `start` to its end. The checksum field is at
/// `start + offset` and holds the sum of the pseudo-header. Returns false if the field lies outside
/// the frame.
#[must_use]
pub fn complete(bytes: &mut [u8], (start, offset): (u16, u16)) -> bool {
    let start = usize::from(start);
    let at = start + usize::from(offset);
    let Some(covered) = bytes.get(start..) else {
        return false;
    };
    let sum = complement(ones_sum_bytes(covered, 0));
    let field = bytes.get_mut(at..at + 2);
    field.is_some_and(|field| {
        field.copy_from_slice(&sum);
        true
    })
}

/// Completes a checksum like [`complete`], in memory that a device can access.
///
/// # Errors
/// Returns an error if the field lies outside the frame, or the memory is inaccessible.
pub fn complete_in(memory: Span, (start, offset): (u16, u16)) -> Result<(), Fault> {
    let start = usize::from(start);
    let covered = memory.len().checked_sub(start).ok_or(Fault)?;
    let covered = memory.sub(start, covered).ok_or(Fault)?;
    let field = covered.sub(offset.into(), 2).ok_or(Fault)?;
    field.write(&complement(ones_sum(covered, 0)?))
}

/// Returns the checksum for a sum.
fn complement(sum: u32) -> [u8; 2] {
    // In UDP, 0 means "no checksum". 0xffff is equivalent to 0 in one's complement arithmetic.
    let sum = match !fold(sum) {
        0 => 0xffff,
        sum => sum,
    };
    sum.to_be_bytes()
}

/// Returns whether the frame is an untagged, unfragmented TCP or UDP packet with a correct
/// checksum. Returns false for packets with IPv6 extension headers.
#[must_use]
pub fn is_valid(bytes: &[u8]) -> bool {
    verified(bytes).unwrap_or(false)
}

fn verified(bytes: &[u8]) -> Option<bool> {
    let packet = bytes.get(ETHERNET_BYTES..)?;
    let ether_type = bytes.get(12..ETHERNET_BYTES)?;
    let (protocol, addresses, segment) = if ether_type == IPV4 {
        let header = usize::from(packet.first()? & 0x0f) * 4;
        let len = usize::from(be16(packet, 2)?);
        let is_fragment = be16(packet, 6)? & 0x3fff != 0;
        if header < 20 || is_fragment || fold(ones_sum_bytes(packet.get(..header)?, 0)) != 0xffff {
            return None;
        }
        let segment = packet.get(header..len)?;
        (*packet.get(9)?, packet.get(12..20)?, segment)
    } else if ether_type == IPV6 {
        let len = usize::from(be16(packet, 4)?);
        let segment = packet.get(40..40 + len)?;
        (*packet.get(6)?, packet.get(8..40)?, segment)
    } else {
        return None;
    };
    let has_sum = match protocol {
        TCP => segment.len() >= 20,
        UDP => be16(segment, 6)? != 0,
        _ => false,
    };
    let pseudo = ones_sum_bytes(addresses, u32::from(protocol) + segment.len() as u32);
    Some(has_sum && fold(ones_sum_bytes(segment, pseudo)) == 0xffff)
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame whose checksum field holds the sum of the pseudo-header, and the offload
    /// that completes it.
    fn blank(is_v6: bool, protocol: u8) -> (Vec<u8>, (u16, u16)) {
        let (segment_len, offset) = if protocol == TCP { (27, 16) } else { (15, 6) };
        let mut bytes = vec![2; 12];
        let start = if is_v6 {
            bytes.extend(IPV6);
            bytes.extend([0x60, 0, 0, 0, 0, segment_len, protocol, 64]);
            bytes.extend(1..=32);
            54
        } else {
            bytes.extend(IPV4);
            let mut header = vec![0x45, 0, 0, 20 + segment_len, 0, 7, 0x40, 0, 64, protocol];
            header.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = !fold(ones_sum_bytes(&header, 0));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes.extend(header);
            34
        };
        let addresses = if is_v6 { 22..54 } else { 26..34 };
        let pseudo = u32::from(protocol) + u32::from(segment_len);
        let pseudo = fold(ones_sum_bytes(&bytes[addresses], pseudo));
        let mut segment: Vec<u8> = (0..segment_len).map(|byte| byte.wrapping_mul(37)).collect();
        segment[offset as usize..][..2].copy_from_slice(&pseudo.to_be_bytes());
        bytes.extend(segment);
        (bytes, (start, offset))
    }

    #[test]
    fn completed_checksums_are_valid_until_damaged() {
        for is_v6 in [false, true] {
            for protocol in [TCP, UDP] {
                let (mut bytes, offload) = blank(is_v6, protocol);
                assert!(!is_valid(&bytes));
                let memory = shmem::Area::anonymous(abi::PAGE).unwrap().span();
                let memory = memory.skip(6).take(bytes.len());
                memory.write(&bytes).unwrap();
                complete_in(memory, offload).unwrap();
                let mut in_memory = bytes.clone();
                memory.read(&mut in_memory).unwrap();
                assert!(complete(&mut bytes, offload));
                assert_eq!(in_memory, bytes);
                assert!(is_valid(&bytes));
                // The checksum does not cover the padding of a short frame.
                bytes.resize(64.max(bytes.len()), 0xff);
                assert!(is_valid(&bytes));
                for at in usize::from(offload.0)..usize::from(offload.0) + 15 {
                    bytes[at] ^= 0x10;
                    assert!(!is_valid(&bytes), "{at}");
                    bytes[at] ^= 0x10;
                }
            }
        }
    }

    #[test]
    fn malformed_packets_are_not_valid() {
        let (mut bytes, offload) = blank(false, TCP);
        assert!(complete(&mut bytes, offload));
        for len in 0..bytes.len() {
            assert!(!is_valid(&bytes[..len]));
        }
        let mut fragment = bytes.clone();
        fragment[20] = 0x20;
        assert!(!is_valid(&fragment));
        for offload in [(u16::MAX, 0), (34, u16::MAX), (60, 0), (61, 16)] {
            assert!(!complete(&mut bytes, offload), "{offload:?}");
            let memory = shmem::Area::anonymous(abi::PAGE).unwrap().span();
            complete_in(memory.take(bytes.len()), offload).unwrap_err();
        }
    }
}
