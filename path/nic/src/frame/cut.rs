//! Computes the sizes of a frame's segments.

use super::Frame;
use crate::offload::Checksum;

impl Frame {
    /// Returns the length in bytes of the longest packet that results from the frame: the longest
    /// segment of a frame with pending segmentation, otherwise the frame's length. A second VLAN
    /// tag in a segment does not count, because kernels give stacked VLAN interfaces the same MTU.
    #[must_use]
    #[inline]
    pub fn longest_packet(&self) -> usize {
        match (self.offload.gso, self.payload_at()) {
            (Some(gso), Some(at)) => {
                let longest = self.len().min(at + usize::from(gso.size));
                longest.saturating_sub(self.second_tag())
            }
            _ => self.len(),
        }
    }

    fn second_tag(&self) -> usize {
        match (self.tag_bytes(), self.header().get(16..18)) {
            (4, Some([0x81, 0x00] | [0x88, 0xa8])) => 4,
            _ => 0,
        }
    }

    /// Returns the total length in bytes of all packets that result from the frame, including their
    /// headers.
    #[must_use]
    #[inline]
    pub fn wire_bytes(&self) -> usize {
        match (self.offload.gso, self.payload_at()) {
            (Some(gso), Some(at)) => {
                let payload = self.len().saturating_sub(at);
                let packets = payload.div_ceil(usize::from(gso.size).max(1));
                self.len() + packets.saturating_sub(1) * at
            }
            _ => self.len(),
        }
    }

    /// Returns the offset of the payload if the frame has a TCP header with a blank checksum.
    fn payload_at(&self) -> Option<usize> {
        let Checksum::Blank { start, .. } = self.offload.checksum else {
            return None;
        };
        let start = usize::from(start);
        let words = self.header().get(start + 12)? >> 4;
        Some(start + usize::from(words) * 4)
    }
}
