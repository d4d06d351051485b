//! Overlaps between an interface's networks and the networks that its namespace already has.

use crate::netlink::{
    Attributes, IFA_ADDRESS, IFA_LOCAL, Netlink, RT_TABLE_MAIN, RTA_DST, RTA_OIF, RTM_GETADDR,
    RTM_GETROUTE, RTM_NEWADDR, RTM_NEWROUTE, u32_at,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network: an address in it, and the length of its prefix.
pub type Subnet = (IpAddr, u8);

/// Bytes of `struct ifaddrmsg` and `struct rtmsg`.
const ADDRESS: usize = 8;
const ROUTE: usize = 12;
/// Route types that match packets: unicast, blackhole, unreachable, prohibit.
const MATCHING_ROUTE_TYPES: [u8; 4] = [1, 6, 7, 8];
/// Routes with prefixes up to this length count as default routes: VPNs install default routes in
/// parts (0.0.0.0/1 and 128.0.0.0/1; 2000::/3).
const DEFAULT_V4: u8 = 1;
const DEFAULT_V6: u8 = 3;

/// An address or route of a namespace that overlaps a new network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The new network.
    pub network: Subnet,
    /// The existing address or route.
    pub with: Subnet,
    /// Whether `with` is an address; otherwise it is a route.
    pub is_address: bool,
    /// The interface of the address or route; empty for a route without one.
    pub interface: String,
}

impl std::fmt::Display for Overlap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (network, with) = (base(self.network), self.with);
        let (with, what) = match self.is_address {
            true => (with.0, "the address"),
            false => (base(with).0, "the route to"),
        };
        let prefix = self.with.1;
        write!(
            f,
            "its network {}/{} overlaps {what} {with}/{prefix}",
            network.0, network.1
        )?;
        match self.interface.as_str() {
            "" => Ok(()),
            interface => write!(f, " of interface {interface}"),
        }
    }
}

/// Returns the first overlap of `networks` with an address or route in the calling thread's
/// namespace, except those of the interface with number `own`. Ignores default and link-local
/// routes.
pub(crate) fn find_here(
    netlink: &Netlink,
    own: u32,
    networks: &[Subnet],
) -> io::Result<Option<Overlap>> {
    let mut found = None;
    let mut visit = |with: Subnet, index: u32, is_address: bool| {
        let is_link_local = matches!(with.0, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if found.is_none() && index != own && !is_link_local {
            let network = networks.iter().find(|network| overlap(**network, with));
            found = network.map(|network| (*network, with, index, is_address));
        }
    };
    if networks.is_empty() {
        return Ok(None);
    }
    netlink.list(RTM_GETADDR, |kind, body| {
        if let Some((with, index)) = (kind == RTM_NEWADDR).then(|| address(body)).flatten() {
            visit(with, index, true);
        }
    })?;
    netlink.list(RTM_GETROUTE, |kind, body| {
        if let Some((with, index)) = (kind == RTM_NEWROUTE).then(|| route(body)).flatten() {
            visit(with, index, false);
        }
    })?;
    let overlap = found.map(|(network, with, index, is_address)| Overlap {
        network,
        with,
        is_address,
        interface: netlink.name(index).unwrap_or_default(),
    });
    Ok(overlap)
}

/// Returns an address and the number of its interface.
pub(crate) fn address(body: &[u8]) -> Option<(Subnet, u32)> {
    let attributes = Attributes(body.get(ADDRESS..)?);
    // For a point-to-point interface, IFA_ADDRESS is the peer's address.
    let local = match attributes.get(IFA_LOCAL) {
        [] => attributes.get(IFA_ADDRESS),
        local => local,
    };
    Some(((ip(local)?, *body.get(1)?), u32_at(body, 4)?))
}

/// Returns the destination of a route of the main table, and the number of its interface (0 if it
/// has none).
pub(crate) fn route(body: &[u8]) -> Option<(Subnet, u32)> {
    let (prefix, table, kind) = (*body.get(1)?, *body.get(4)?, *body.get(7)?);
    if table != RT_TABLE_MAIN || !MATCHING_ROUTE_TYPES.contains(&kind) {
        return None;
    }
    let attributes = Attributes(body.get(ROUTE..)?);
    let to = ip(attributes.get(RTA_DST))?;
    let is_default = prefix <= if to.is_ipv4() { DEFAULT_V4 } else { DEFAULT_V6 };
    let index = u32_at(attributes.get(RTA_OIF), 0).unwrap_or(0);
    (!is_default).then_some(((to, prefix), index))
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(octets).map(IpAddr::from);
    v4().or_else(|_| v6()).ok()
}

/// Returns whether two networks share an address.
#[must_use]
pub fn overlap(one: Subnet, other: Subnet) -> bool {
    let prefix = one.1.min(other.1);
    one.0.is_ipv4() == other.0.is_ipv4() && base((one.0, prefix)) == base((other.0, prefix))
}

/// Returns a network by its first address.
fn base((address, prefix): Subnet) -> Subnet {
    let first = match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32)));
            Ipv4Addr::from_bits(v4.to_bits() & mask.unwrap_or(0)).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128)));
            Ipv6Addr::from_bits(v6.to_bits() & mask.unwrap_or(0)).into()
        }
    };
    (first, prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::process::Command;
    use testing::require;

    fn cidr(text: &str) -> Subnet {
        let (address, prefix) = text.split_once('/').unwrap();
        (address.parse().unwrap(), prefix.parse().unwrap())
    }

    #[test]
    fn networks_overlap_in_both_directions() {
        for (one, other, expected) in [
            ("10.91.0.0/24", "10.91.0.0/24", true),
            ("10.91.0.129/25", "10.91.0.1/24", true),
            ("10.91.0.1/24", "10.91.0.7/32", true),
            ("10.91.0.1/25", "10.91.0.129/25", false),
            ("0.0.0.0/0", "10.0.0.1/8", true),
            ("fd00::1/64", "fd00::2:0/112", true),
            ("fd00::1/64", "fd00:0:0:1::1/64", false),
            ("::/0", "10.0.0.1/8", false),
        ] {
            let (one, other) = (cidr(one), cidr(other));
            assert_eq!(overlap(one, other), expected, "{one:?} {other:?}");
            assert_eq!(overlap(other, one), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn overlaps_are_found_with_their_interface() {
        require!(netns, tool("ip"));
        let ip = |line: &str| {
            let run = Command::new("ip").args(line.split(' ')).status().unwrap();
            assert!(run.success(), "{line}");
        };
        let overlap_text = |networks: &[&str]| {
            let networks: Vec<Subnet> = networks.iter().map(|text| cidr(text)).collect();
            let netlink = Netlink::open().unwrap();
            let own = netlink.index("own").unwrap();
            let found = find_here(&netlink, own, &networks).unwrap();
            found.map_or(String::new(), |found| found.to_string())
        };
        let namespace = Namespace::new().unwrap();
        let checked = namespace.enter(|| {
            ip("link add own type veth peer name other");
            ip("link set own up");
            ip("link set other up");
            ip("address add 10.91.0.1/24 dev own");
            ip("address add 10.92.0.1/24 dev other");
            ip("address add fd00:92::1/64 dev other");
            ip("route add 10.93.0.0/16 via 10.92.0.9");
            ip("route add blackhole 10.94.0.0/30");
            ip("route add 0.0.0.0/1 dev other");
            ip("route add default via 10.92.0.9");
            for free in [&["10.91.0.1/24"][..], &["10.95.0.1/24", "fe80::1/64"], &[]] {
                assert_eq!(overlap_text(free), "");
            }
            [
                overlap_text(&["10.95.0.1/24", "10.92.0.129/25"]),
                overlap_text(&["10.93.7.1/24"]),
                overlap_text(&["10.94.0.1/24"]),
                overlap_text(&["fd00:92::/32"]),
            ]
        });
        let other = " of interface other";
        assert_eq!(
            checked.unwrap(),
            [
                format!("its network 10.92.0.128/25 overlaps the address 10.92.0.1/24{other}"),
                format!("its network 10.93.7.0/24 overlaps the route to 10.93.0.0/16{other}"),
                "its network 10.94.0.0/24 overlaps the route to 10.94.0.0/30".to_owned(),
                format!("its network fd00:92::/32 overlaps the address fd00:92::1/64{other}"),
            ]
        );
    }
}
