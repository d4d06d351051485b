//! Limits of frame lengths.

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
/// Bytes of a VLAN tag, which do not count towards the MTU.
pub(super) const VLAN_TAG: usize = 4;
/// Maximum length of a frame with pending segmentation: an IP packet of 64 KB.
pub(super) const GSO_FRAME_MAX: usize = 65_535 + ETHERNET + VLAN_TAG;
