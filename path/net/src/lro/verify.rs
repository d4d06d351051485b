//! Checksum verification: a packet is merged only if its checksums are valid and equal to those
//! that segmentation would write.

use super::layout::{SnapshotLayout, TcpSegment, be16};
use super::reason::Reason;
use crate::packet::TCP_CHECKSUM;
use crate::packet::checksum::{Sum, fold};
use nic::{Checksum, Frame};

/// Checks a packet's checksums. Valid or blank ones are accepted; others are computed, which reads
/// the whole payload.
///
/// # Errors
/// Returns [`Reason::BadChecksum`]; or [`Reason::Unverified`] if the memory is inaccessible, the
/// field holds 0 for 0xffff or the reverse (both are valid; segmentation would write the other), or
/// the blank checksum is not TCP's.
#[inline]
pub(super) fn verify(frame: &Frame, segment: &TcpSegment) -> Result<(), Reason> {
    if !segment.layout.v6 {
        ip(frame, segment)?;
    }
    let field = be16(frame, segment.layout.tcp() + TCP_CHECKSUM);
    match frame.offload.checksum {
        Checksum::Valid if field != 0 => Ok(()),
        Checksum::Valid => Err(Reason::Unverified),
        Checksum::Blank { start, offset } => blank(frame, segment, (start, offset), field),
        Checksum::Unknown => tcp(frame, segment.layout, frame.len(), field),
    }
}

/// Checks the checksum of an IPv4 header without options.
#[inline]
fn ip(frame: &Frame, segment: &TcpSegment) -> Result<(), Reason> {
    let at = segment.layout.network();
    let bytes = frame.snapshot_array().get(at..).unwrap_or(&[]);
    let Some(header) = bytes.first_chunk::<20>() else {
        return Err(Reason::Unverified);
    };
    // Whether the sum is all ones is independent of byte order (RFC 1071, 2 B).
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = fold((sum >> 32) as u32 + fold(sum as u32) as u32);
    match (sum, be16(frame, at + 10)) {
        (0xffff, 0xffff) => Err(Reason::Unverified),
        (0xffff, _) => Ok(()),
        _ => Err(Reason::BadChecksum),
    }
}

/// Returns the sum of the pseudo header for `len` bytes of TCP header and payload.
#[inline]
pub(super) fn pseudo(frame: &Frame, segment_layout: SnapshotLayout, len: usize) -> u32 {
    let at = segment_layout.network();
    let (from, words) = match segment_layout.v6 {
        false => (at + 12, 4),
        true => (at + 8, 16),
    };
    let addresses: u32 = (0..words)
        .map(|word| u32::from(be16(frame, from + 2 * word)))
        .sum();
    let len = len as u32;
    addresses + 6 + (len >> 16) + (len & 0xffff)
}

fn blank(
    frame: &Frame,
    segment: &TcpSegment,
    (start, offset): (u16, u16),
    field: u16,
) -> Result<(), Reason> {
    let tcp = segment.layout.tcp();
    let place = (usize::from(start), usize::from(offset)) == (tcp, TCP_CHECKSUM);
    let sum = fold(pseudo(frame, segment.layout, frame.len() - tcp));
    match place && sum == field {
        true => Ok(()),
        false => Err(Reason::Unverified),
    }
}

/// Checks the TCP checksum of a frame of `len` bytes, with `field` in place of the checksum field.
///
/// # Errors
/// Returns the errors of [`verify`].
#[inline(never)]
pub(super) fn tcp(
    frame: &Frame,
    layout: SnapshotLayout,
    len: usize,
    field: u16,
) -> Result<(), Reason> {
    let at = layout.tcp();
    let mut sum = Sum::new(pseudo(frame, layout, len - at));
    sum.add_bytes(frame.header().get(at..).unwrap_or(&[]));
    for span in frame.payload() {
        sum.add(span).map_err(|_| Reason::Unverified)?;
    }
    match (sum.folded(), field) {
        (0xffff, 0) => Err(Reason::Unverified),
        (0xffff, _) => Ok(()),
        _ => Err(Reason::BadChecksum),
    }
}
