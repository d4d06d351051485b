//! Why a frame was dropped.

use abi::counts::Counts;

abi::named_enum! {
    /// Why the bridge dropped a frame.
    pub enum DropReason: usize {
        /// It came in by a port that there is not.
        UnknownPort = "unknown_port",
        /// It is shorter than an Ethernet header.
        Runt = "runt",
        /// Its memory is not there any more.
        Fault = "fault",
        /// From a NIC: its source is a group's address, or all zeros.
        BadSource = "bad_source",
        /// From a NIC: its source is a guest's.
        BoundSource = "bound_source",
        /// From a guest: its source is not one of the guest's MACs.
        ForgedSource = "forged_source",
        /// From a guest: ARP that claims another's MAC or address.
        ForgedArp = "forged_arp",
        /// From a guest: neighbour discovery that claims another's MAC or address.
        ForgedNd = "forged_nd",
        /// From a guest that is no router: a router advertisement or a redirect.
        ForgedRouter = "forged_router",
        /// From a guest: an IP source that is not one of the guest's.
        ForgedAddress = "forged_address",
        /// From a guest that is no DHCP server: a packet to DHCP clients.
        ForgedDhcp = "forged_dhcp",
        /// From a guest: headers that hide what the frame is (too many, too long, or nonsense).
        Obscure = "obscure",
        /// A rule of the port that it came in by, or of the one that it would go out by, denies it.
        Firewall = "firewall",
        /// To a group address that bridges keep to themselves.
        ReservedGroup = "reserved_group",
        /// Above the port's rate.
        RateLimit = "rate_limit",
        /// Above the port's budget of broadcast and multicast frames.
        GroupBudget = "group_budget",
        /// Its destination is behind the port that it came in by.
        SamePort = "same_port",
        /// There is no port that it could go to.
        NoPort = "no_port",
    }
}

impl DropReason {
    /// Whether the guest claimed an identity that it does not have.
    #[must_use]
    pub const fn is_forgery(self) -> bool {
        matches!(
            self,
            Self::ForgedSource
                | Self::ForgedArp
                | Self::ForgedNd
                | Self::ForgedRouter
                | Self::ForgedAddress
                | Self::ForgedDhcp
        )
    }
}

/// A counter per reason, in frames.
pub type Drops = Counts<DropReason, { DropReason::COUNT }>;
