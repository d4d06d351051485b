//! Reads the interfaces and routes of a container's namespace, without changing anything: netd
//! creates interfaces.

use netdev::netns::in_netns;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An interface, and the routes of its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceState {
    pub(crate) mac: String,
    pub(crate) is_up: bool,
    pub(crate) addresses: Vec<IpAddr>,
    /// Destination networks, with the lengths of their prefixes.
    pub(crate) routes: Vec<(IpAddr, u8)>,
}

/// Returns the interface of this name in the namespace at this path, if it exists.
///
/// # Errors
///
/// Returns an error if the namespace does not exist, or cannot be entered.
pub(crate) fn inspect(netns: &str, ifname: &str) -> io::Result<Option<InterfaceState>> {
    in_netns(netns, || seen(ifname)).map_err(io::Error::other)?
}

/// An interface that was found by its MAC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundInterface {
    /// Its name.
    pub ifname: String,
    /// Its number, which no later interface of the namespace has.
    pub index: u32,
    /// Whether it is up.
    pub is_up: bool,
}

/// Returns the interface with this MAC in the namespace at this path, if it exists.
///
/// # Errors
///
/// Returns an error if the namespace does not exist, or cannot be entered.
pub fn find(netns: &str, mac: &str) -> io::Result<Option<FoundInterface>> {
    in_netns(netns, || found(mac)).map_err(io::Error::other)?
}

fn found(mac: &str) -> io::Result<Option<FoundInterface>> {
    let has_it = |part: &InterfaceAddress| {
        let link = part
            .address
            .as_ref()
            .and_then(|address| address.as_link_addr()?.addr());
        link.is_some_and(|link| written(link).eq_ignore_ascii_case(mac))
    };
    let Some(part) = getifaddrs()?.find(has_it) else {
        return Ok(None);
    };
    Ok(Some(FoundInterface {
        index: if_nametoindex(part.interface_name.as_str())?,
        is_up: part.flags.contains(InterfaceFlags::IFF_UP),
        ifname: part.interface_name,
    }))
}

fn written(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn seen(ifname: &str) -> io::Result<Option<InterfaceState>> {
    let mut seen = None;
    for part in getifaddrs()?.filter(|part| part.interface_name == ifname) {
        let seen: &mut InterfaceState = seen.get_or_insert_default();
        seen.is_up = part.flags.contains(InterfaceFlags::IFF_UP);
        let Some(address) = part.address else {
            continue;
        };
        if let Some(mac) = address.as_link_addr().and_then(|link| link.addr()) {
            seen.mac = written(mac);
        }
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        let v6 = address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip()));
        seen.addresses.extend(v4.or(v6));
    }
    if let Some(seen) = &mut seen {
        // Without IPv6 the file does not exist.
        let text = |file: &str| {
            fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default()
        };
        seen.routes
            .extend(text("route").lines().filter_map(v4_route));
        seen.routes
            .extend(text("ipv6_route").lines().filter_map(v6_route));
    }
    Ok(seen)
}

/// Parses `eth0 0000630A 00000000 0001 0 0 0 00FFFFFF 0 0 0`. Destination and mask are words of
/// memory whose bytes are in network order.
fn v4_route(line: &str) -> Option<(IpAddr, u8)> {
    let mut words = line.split_whitespace().skip(1);
    let mut octets = |n| {
        let word = u32::from_str_radix(words.nth(n)?, 16).ok()?;
        Some(Ipv4Addr::from(word.to_ne_bytes()))
    };
    let (to, mask) = (octets(0)?, octets(5)?);
    Some((to.into(), mask.to_bits().leading_ones() as u8))
}

/// Parses `fd990000000000000000000000000000 40 … eth0`. Unreachable routes are on the loopback
/// interface.
fn v6_route(line: &str) -> Option<(IpAddr, u8)> {
    let mut words = line.split_whitespace();
    let to = u128::from_str_radix(words.next()?, 16).ok()?;
    let prefix = u8::from_str_radix(words.next()?, 16).ok()?;
    (words.last()? != "lo").then_some((Ipv6Addr::from_bits(to).into(), prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_parsed() {
        let v4 = "eth0\t0000630A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";
        assert_eq!(v4_route(v4), Some(("10.99.0.0".parse().unwrap(), 24)));
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU";
        assert_eq!(v4_route(head), None);
        let zeros = "0".repeat(32);
        let v6 = |to: &str, prefix: &str, ifname: &str| {
            v6_route(&format!(
                "{to} {prefix} {zeros} 00 {zeros} 00000400 00000001 00000000 00000003 {ifname}"
            ))
        };
        assert_eq!(v6(&zeros, "00", "eth0"), Some(("::".parse().unwrap(), 0)));
        assert_eq!(v6(&zeros, "00", "lo"), None);
        let net = "fd990000000000000000000000000000";
        assert_eq!(v6(net, "40", "eth0"), Some(("fd99::".parse().unwrap(), 64)));
    }

    #[test]
    fn a_new_namespace_has_only_the_loopback() {
        testing::require!(root);
        let own = "/proc/thread-self/ns/net";
        let lo = inspect(own, "lo").unwrap().unwrap();
        assert_eq!(lo.mac, "00:00:00:00:00:00");
        assert_eq!(inspect(own, "no-such-link").unwrap(), None);
        let found = find(own, &lo.mac).unwrap().unwrap();
        assert_eq!((found.ifname.as_str(), found.index), ("lo", 1));
        assert_eq!(find(own, "02:00:00:00:00:01").unwrap(), None);
        let error = inspect("/proc/self/status", "lo").unwrap_err().to_string();
        assert!(error.contains("/proc/self/status"), "{error}");
    }
}
