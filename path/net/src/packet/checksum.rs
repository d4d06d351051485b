//! Internet checksums over frames (RFC 1071), and completion of blank checksums.

use super::bytes::put;
use nic::frame::SNAPSHOT_MAX;
use nic::{Checksum, Frame};
pub use shmem::fold_ones_sum as fold;
use shmem::{Fault, Span};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A running sum over consecutive parts of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    total: u32,
    /// Whether an odd number of bytes was added, so that the next byte is the low half of a word.
    odd: bool,
}

impl Sum {
    /// Creates a sum that starts with `initial`, such as a pseudo header's.
    #[must_use]
    pub const fn new(initial: u32) -> Self {
        Self {
            total: initial,
            odd: false,
        }
    }

    /// Adds private bytes.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.join(shmem::ones_sum_bytes(bytes, 0), bytes.len());
    }

    /// Adds a part of a frame's payload.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn add(&mut self, span: Span) -> Result<(), Fault> {
        self.join(shmem::ones_sum(span, 0)?, span.len());
        Ok(())
    }

    /// Adds the sum of a part. If the part starts in the middle of a word, its bytes count swapped
    /// (RFC 1071, 2 B).
    fn join(&mut self, part: u32, len: usize) {
        let part = fold(part);
        let part = if self.odd { part.swap_bytes() } else { part };
        self.total = u32::from(fold(self.total)) + u32::from(part);
        self.odd ^= !len.is_multiple_of(2);
    }

    /// Returns the sum in 16 bits, not complemented.
    #[must_use]
    pub fn folded(self) -> u16 {
        fold(self.total)
    }

    /// Returns the checksum: the complement of the sum, with 0xffff instead of 0. UDP reads 0 as
    /// "no checksum"; other protocols treat the two as equal.
    #[must_use]
    pub fn finish(self) -> u16 {
        match !self.folded() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Returns the pseudo header's sum of TCP or UDP over IPv4; `len`: bytes of transport header and
/// payload.
#[must_use]
pub fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: usize) -> u32 {
    let sum = shmem::ones_sum_bytes(&source.octets(), 0);
    let sum = shmem::ones_sum_bytes(&destination.octets(), sum);
    shmem::ones_sum_bytes(&u32::from(protocol).to_be_bytes(), length(sum, len))
}

/// Returns the pseudo header's sum of TCP, UDP or ICMP over IPv6; `len`: bytes of transport header
/// and payload.
#[must_use]
pub fn pseudo_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: usize) -> u32 {
    let sum = shmem::ones_sum_bytes(&source.octets(), 0);
    let sum = shmem::ones_sum_bytes(&destination.octets(), sum);
    shmem::ones_sum_bytes(&u32::from(protocol).to_be_bytes(), length(sum, len))
}

fn length(sum: u32, len: usize) -> u32 {
    shmem::ones_sum_bytes(&(len as u32).to_be_bytes(), sum)
}

/// Error of completing a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishError {
    /// The field lies outside the writable bytes: the snapshot or, for [`finish_in_place`], the
    /// frame.
    #[error("the checksum field lies outside the header")]
    FieldOutsideHeader,
    /// The frame is still to be segmented; each segment gets its own checksum.
    #[error("the frame is still to be segmented")]
    Segmented,
    /// Memory is inaccessible.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Computes a [`Checksum::Blank`] checksum; leaves other frames unchanged. Reads the payload once:
/// a peer that changes it afterwards invalidates only its own checksum. Writes only to the
/// snapshot, so other frames may share the memory behind it.
///
/// # Errors
/// Returns [`FinishError`]; the caller then drops the frame.
pub fn finish(frame: &mut Frame) -> Result<(), FinishError> {
    fill_in(frame, false)
}

/// Like [`finish`], but writes to the frame's memory if the field lies behind the snapshot. No
/// other frame may use this memory.
///
/// # Errors
/// Returns [`FinishError`]; the caller then drops the frame.
pub fn finish_in_place(frame: &mut Frame) -> Result<(), FinishError> {
    fill_in(frame, true)
}

/// Computes a checksum whose field lies beyond the largest snapshot. The caller calls this right
/// after it has received a frame from a device, because later other frames may share the memory.
/// Leaves the frame unchanged on failure.
#[inline]
pub fn finish_outside_snapshot(frame: &mut Frame) {
    if let Checksum::Blank { start, offset } = frame.offload.checksum
        && usize::from(start) + usize::from(offset) + 2 > SNAPSHOT_MAX
    {
        // The next user of the checksum drops the frame and counts the reason.
        let _ = finish_in_place(frame);
    }
}

fn fill_in(frame: &mut Frame, in_place: bool) -> Result<(), FinishError> {
    let Checksum::Blank { start, offset } = frame.offload.checksum else {
        return Ok(());
    };
    if frame.offload.gso.is_some() {
        return Err(FinishError::Segmented);
    }
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    frame.extend_snapshot(field + 2)?;
    let writable = match in_place {
        true => frame.len(),
        false => frame.header().len(),
    };
    if writable < field + 2 {
        return Err(FinishError::FieldOutsideHeader);
    }
    let mut sum = Sum::default();
    sum.add_bytes(frame.header().get(start..).unwrap_or(&[]));
    for span in frame.payload_from(start) {
        sum.add(span)?;
    }
    // The two bytes may lie in different pieces.
    for (at, byte) in (field..).zip(sum.finish().to_be_bytes()) {
        match at < frame.header().len() {
            true => _ = put(frame.header_mut(), at, &[byte]),
            false => {
                let span = frame.payload_from(at).next();
                span.map_or(Ok(()), |span| span.write(&[byte]))?;
            }
        }
    }
    frame.offload.checksum = Checksum::Unknown;
    Ok(())
}
