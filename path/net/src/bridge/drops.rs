//! Drop reasons of the bridge. A reason that occurs in other layers, too, has the layer in its
//! name, because the names of all layers are keys of one table.

use abi::counts::Counts;

abi::named_enum! {
    /// Reason why the bridge dropped a frame.
    pub enum DropReason: usize {
        /// The frame arrived at a port that does not exist.
        UnknownPort = "unknown_port",
        /// The frame is shorter than an Ethernet header.
        Runt = "runt",
        /// The frame's memory is no longer accessible.
        Fault = "bridge.fault",
        /// From a NIC: the source MAC is a group address or zero.
        BadSource = "bad_source",
        /// From a NIC: the source MAC belongs to a guest.
        BoundSource = "bound_source",
        /// From a guest: the source MAC is not one of the guest's.
        ForgedSource = "forged_source",
        /// From a guest: ARP that claims another station's MAC or address.
        ForgedArp = "forged_arp",
        /// From a guest: neighbour discovery that claims another station's MAC or address.
        ForgedNd = "forged_nd",
        /// From a guest that is not a router: a router advertisement or a redirect.
        ForgedRouter = "forged_router",
        /// From a guest: the IP source is not one of the guest's.
        ForgedAddress = "forged_address",
        /// From a guest that is not a DHCP server: a packet to DHCP clients.
        ForgedDhcp = "forged_dhcp",
        /// From a guest: headers that obscure the frame's type (too many, too long, or invalid).
        Obscure = "obscure",
        /// A firewall rule of the ingress or egress port denies it.
        Firewall = "firewall",
        /// A stateful rule denies it, or the port's flow table has no room for its flow.
        FirewallState = "firewall_state",
        /// To a group address that bridges must not forward.
        ReservedGroup = "reserved_group",
        /// The port's rate limit is exceeded.
        RateLimit = "rate_limit",
        /// The port's budget of broadcast and multicast frames is exceeded.
        GroupBudget = "group_budget",
        /// The destination is behind the ingress port.
        SamePort = "same_port",
        /// No port matches the destination.
        NoPort = "no_port",
    }
}

impl DropReason {
    /// Returns whether the guest claimed an identity that it does not have.
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

/// One counter per reason, in frames.
pub type Drops = Counts<DropReason, { DropReason::COUNT }>;
