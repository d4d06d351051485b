//! Features that one end accepts, and that the other may therefore use.

use nic::{Checksum, GsoKind, Offload};

/// Features that one end *accepts*, encoded as in a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// Packets of several slots (`feature-sg`).
    pub const SG: Self = Self(1);
    /// Segmentation of TCP over IPv4 (`feature-gso-tcpv4`).
    pub const GSO_TCPV4: Self = Self(1 << 1);
    /// Segmentation of TCP over IPv6 (`feature-gso-tcpv6`).
    pub const GSO_TCPV6: Self = Self(1 << 2);
    /// No blank checksums over IPv4 (`feature-no-csum-offload`).
    pub const NO_CSUM: Self = Self(1 << 3);
    /// Blank checksums over IPv6 (`feature-ipv6-csum-offload`).
    pub const IPV6_CSUM: Self = Self(1 << 4);
    /// Packets are copied into granted pages (`feature-rx-copy`, `request-rx-copy`); required.
    pub const RX_COPY: Self = Self(1 << 5);
    /// Receive requests carry an offset (NETIF-11).
    pub const RX_OFFSET: Self = Self(1 << 6);
    /// The backend binds a table of counted grants (NETIF-18), to which all references of the
    /// frontend's record and of its requests belong.
    pub const COUNTED_GRANTS: Self = Self(1 << 8);

    /// The first response of a packet carries its segment size (NETIF-21).
    pub const RX_META: Self = Self(1 << 9);
    /// Rings in the native format (NETIF-25).
    pub const NATIVE_RINGS: Self = Self(1 << 10);
    /// Packets to the guest are delivered by exchanging pages (`feature-rx-flip`, NETIF-26): the
    /// frontend's record names an exchange instead of a table, and buffers are whole pages.
    pub const RX_FLIP: Self = Self(1 << 11);

    /// Receive responses name their buffers and may be in any order (NETIF-27).
    pub const RX_ANY_ORDER: Self = Self(1 << 12);
    /// The frontend's CPU writes and reads payload (NETIF-30), so that its caches hold the buffers.
    pub const CPU_PAYLOAD: Self = Self(1 << 13);

    /// The features that every end of this implementation has. The grant mechanism, the place of
    /// the segment size and the ring format are chosen separately.
    pub const ALL: Self = Self(
        Self::SG.0
            | Self::GSO_TCPV4.0
            | Self::GSO_TCPV6.0
            | Self::IPV6_CSUM.0
            | Self::RX_COPY.0
            | Self::RX_OFFSET.0,
    );
    /// Full checksums, whole packets, default buffers.
    pub const PLAIN: Self =
        Self(Self::SG.0 | Self::NO_CSUM.0 | Self::RX_COPY.0 | Self::RX_OFFSET.0);
    /// [`Features::ALL`] without segmentation.
    pub const CHECKSUM: Self = Self(Self::ALL.0 & !(Self::GSO_TCPV4.0 | Self::GSO_TCPV6.0));

    /// Returns whether these include every feature of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union with `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the features without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Limits and offloads that one direction accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCaps {
    /// Maximum data slots of a packet.
    pub max_slots: u16,
    /// Unsegmented TCP over IPv4.
    pub gso_tcpv4: bool,
    /// Unsegmented TCP over IPv6.
    pub gso_tcpv6: bool,
    /// Blank checksums over IPv4.
    pub csum: bool,
    /// Blank checksums over IPv6.
    pub ipv6_csum: bool,
}

impl PeerCaps {
    /// Returns what an end with `features` and a limit of `max_slots` slots accepts.
    #[must_use]
    pub const fn of(features: Features, max_slots: u16) -> Self {
        let sg = features.has(Features::SG);
        Self {
            max_slots: if sg { max_slots } else { 1 },
            gso_tcpv4: sg && features.has(Features::GSO_TCPV4),
            gso_tcpv6: sg && features.has(Features::GSO_TCPV6),
            csum: !features.has(Features::NO_CSUM),
            ipv6_csum: features.has(Features::IPV6_CSUM),
        }
    }

    /// Returns whether the end accepts unsegmented packets of this kind.
    #[must_use]
    pub const fn gso(&self, kind: GsoKind) -> bool {
        match kind {
            GsoKind::Tcp4 => self.gso_tcpv4,
            GsoKind::Tcp6 => self.gso_tcpv6,
        }
    }

    /// Returns whether a frame with these offloads may be sent unchanged; `ipv6` states whether it
    /// is an IPv6 packet.
    #[must_use]
    pub const fn takes(&self, offload: &Offload, ipv6: bool) -> bool {
        if let Some(gso) = offload.gso
            && !self.gso(gso.kind)
        {
            return false;
        }
        match offload.checksum {
            Checksum::Blank { .. } => {
                if ipv6 {
                    self.ipv6_csum
                } else {
                    self.csum
                }
            }
            Checksum::Unknown | Checksum::Valid => true,
        }
    }
}
