//! What there is in a container's namespace. Nothing is changed there: netd makes interfaces.

use netdev::netns::in_netns;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An interface, and the routes of its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) mac: String,
    pub(crate) is_up: bool,
    pub(crate) addresses: Vec<IpAddr>,
    /// Networks, with the bits of their prefixes.
    pub(crate) routes: Vec<(IpAddr, u8)>,
}

/// The interface of this name in the namespace at this path, if there is one.
///
/// # Errors
/// There is no such namespace, or it cannot be entered.
pub(crate) fn look(netns: &str, ifname: &str) -> io::Result<Option<Seen>> {
    in_netns(netns, || seen(ifname)).map_err(io::Error::other)?
}

fn seen(ifname: &str) -> io::Result<Option<Seen>> {
    let mut seen = None;
    for part in getifaddrs()?.filter(|part| part.interface_name == ifname) {
        let seen: &mut Seen = seen.get_or_insert_default();
        seen.is_up = part.flags.contains(InterfaceFlags::IFF_UP);
        let Some(address) = part.address else {
            continue;
        };
        if let Some(mac) = address.as_link_addr().and_then(|link| link.addr()) {
            seen.mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        }
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        let v6 = address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip()));
        seen.addresses.extend(v4.or(v6));
    }
    if let Some(seen) = &mut seen {
        // Without IPv6 there is no file.
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

/// `eth0 0000630A 00000000 0001 0 0 0 00FFFFFF 0 0 0`: destination and mask are words of memory in
/// which the bytes lie in the network's order.
fn v4_route(line: &str) -> Option<(IpAddr, u8)> {
    let mut words = line.split_whitespace().skip(1);
    let mut octets = |n| {
        let word = u32::from_str_radix(words.nth(n)?, 16).ok()?;
        Some(Ipv4Addr::from(word.to_ne_bytes()))
    };
    let (to, mask) = (octets(0)?, octets(5)?);
    Some((to.into(), mask.to_bits().leading_ones() as u8))
}

/// `fd990000000000000000000000000000 40 … eth0`. On the loopback lies what has no route.
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
    fn the_kernels_lines_are_read() {
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
    fn there_is_a_loopback_and_nothing_else_of_that_kind() {
        testing::require!(root);
        let own = "/proc/thread-self/ns/net";
        let lo = look(own, "lo").unwrap().unwrap();
        assert_eq!(lo.mac, "00:00:00:00:00:00");
        assert_eq!(look(own, "no-such-link").unwrap(), None);
        let error = look("/proc/self/status", "lo").unwrap_err().to_string();
        assert!(error.contains("/proc/self/status"), "{error}");
    }
}
