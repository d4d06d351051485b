//! Checks that the routers of a station are its neighbours.

use crate::address::Cidr;
use crate::findings::Findings;
use crate::problem::ConfigPart;
use std::net::IpAddr;

pub(crate) fn gateway(
    found: &mut Findings,
    part: ConfigPart,
    addresses: &[Cidr],
    gateway: Option<IpAddr>,
) {
    let wrong = gateway.and_then(|gateway| non_neighbour_reason(addresses, gateway));
    if let (Some(gateway), Some((what, remedy))) = (gateway, wrong) {
        let what = format!("`gateway` {gateway} {what}");
        found.add(part, "gateway", what, remedy);
    }
}

/// Returns why a router with address `via` is not a neighbour of a station with these addresses,
/// and a remedy; `None` if it is a neighbour. The text completes a sentence whose subject is the
/// address.
pub(crate) fn non_neighbour_reason(
    addresses: &[Cidr],
    via: IpAddr,
) -> Option<(String, &'static str)> {
    const REMEDY: &str = "choose one that is a neighbour";
    if addresses.iter().any(|own| own.address == via) {
        return Some(("is the station's own, by `addresses`".into(), REMEDY));
    }
    if let IpAddr::V6(v6) = via
        && v6.is_unicast_link_local()
    {
        // A link-local router is a neighbour of every station that has IPv6.
        let has_v6 = addresses.iter().any(|own| own.address.is_ipv6());
        let what = "is link-local, and no IPv6 address is among `addresses`";
        let remedy = "write an IPv6 address, or choose an IPv4 router";
        return (!has_v6).then(|| (what.to_owned(), remedy));
    }
    let networks: Vec<_> = addresses.iter().filter(|own| own.contains(via)).collect();
    if networks.is_empty() {
        let what = "is in none of the networks of `addresses`";
        return Some((what.to_owned(), REMEDY));
    }
    let why = |network: &&Cidr| {
        let prefix = network.prefix;
        let why = Cidr {
            address: via,
            prefix,
        }
        .non_station_reason()?;
        Some((format!("{why}, by `addresses`"), REMEDY))
    };
    networks.iter().find_map(why)
}
