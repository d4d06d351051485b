//! Lengths of frames.

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
/// Bytes that a VLAN tag adds to a frame without counting to the MTU.
pub(super) const VLAN_TAG: usize = 4;
/// Bytes of the largest frame with segmentation still to be done: an IP packet of 64 KB.
pub(super) const GSO_FRAME_MAX: usize = 65_535 + ETHERNET + VLAN_TAG;
