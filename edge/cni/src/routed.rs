//! Networks whose containers send all packets through the gateway (`routed`), even those to other
//! containers of their subnet. So the gateway's system translates both directions of a connection
//! to a Service.

use crate::error::{CniError, ErrorCode};
use crate::result::{CniResult, CniRoute};
use netdev::netns::in_netns;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;

/// Returns addresses without a network, and routes through their gateways.
///
/// # Errors
///
/// Returns an error if an address is invalid, or its address family has no gateway.
pub(crate) fn route_by_gateway(mut given: CniResult) -> Result<CniResult, CniError> {
    let wrong = |msg| CniError::new(ErrorCode::Config, msg);
    let mut gateways = BTreeSet::new();
    for gateway in given.ips.iter_mut().filter_map(|ip| ip.gateway.as_mut()) {
        let invalid = |_| wrong(format!("the gateway is \"{gateway}\""));
        let address: IpAddr = gateway.parse().map_err(invalid)?;
        gateways.insert(address);
        *gateway = address.to_string();
    }
    for ip in &mut given.ips {
        let invalid = |_| wrong(format!("the address is \"{}\"", ip.address));
        let address: IpAddr = ip.without_prefix().parse().map_err(invalid)?;
        if !gateways
            .iter()
            .any(|via| via.is_ipv4() == address.is_ipv4())
        {
            let msg = format!("`routed` is set, but {} has no gateway", ip.address);
            return Err(wrong(msg).with_details("the plugin in `ipam` must return gateways"));
        }
        ip.address = host(address);
    }
    // The gateways of single routes, which were in the address's network, also need a route.
    for gateway in given
        .routes
        .iter_mut()
        .filter_map(|route| route.gw.as_mut())
    {
        let invalid = |_| wrong(format!("the gateway of a route is \"{gateway}\""));
        let address: IpAddr = gateway.parse().map_err(invalid)?;
        gateways.insert(address);
        *gateway = address.to_string();
    }
    // A link-local router is reachable without a route.
    let neighbours = gateways.iter().filter(|via| !is_link_local(**via));
    let mut routes: Vec<_> = neighbours.map(|via| CniRoute::to(&host(*via))).collect();
    routes.append(&mut given.routes);
    given.routes = routes;
    Ok(given)
}

/// Returns the address with the prefix of a single station.
fn host(address: IpAddr) -> String {
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    format!("{address}/{prefix}")
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Lets future interfaces of a namespace ignore ICMP redirects. Otherwise the gateway would
/// redirect two containers of one subnet past itself.
///
/// # Errors
///
/// Returns an error if the namespace does not exist, or its settings cannot be written.
pub(crate) fn ignore_redirects(netns: &str) -> Result<(), CniError> {
    let failed = |error: String| {
        let msg = format!("cannot disable ICMP redirects in the namespace {netns}");
        CniError::new(ErrorCode::Io, msg).with_details(error)
    };
    let written = in_netns(netns, write_settings).map_err(|error| failed(error.to_string()))?;
    written.map_err(|(file, error)| failed(format!("{file}: {error}")))
}

/// An IPv4 interface accepts redirects if the setting of `all` or its own setting allows them, and
/// an IPv6 interface if its own setting allows them. A new interface gets the setting of `default`.
fn write_settings() -> Result<(), (String, io::Error)> {
    for family in ["ipv4", "ipv6"] {
        for interface in ["all", "default"] {
            let file = format!("/proc/sys/net/{family}/conf/{interface}/accept_redirects");
            match fs::write(&file, "0") {
                // The kernel may lack IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound && family == "ipv6" => {}
                written => written.map_err(|error| (file, error))?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn routed(ips: Value, routes: Value) -> Result<CniResult, CniError> {
        route_by_gateway(serde_json::from_value(json!({ "ips": ips, "routes": routes })).unwrap())
    }

    #[test]
    fn all_packets_are_sent_by_the_gateway() {
        let ips = json!([
            { "address": "10.0.0.2/24", "gateway": "10.0.0.1" },
            { "address": "fd00::2/64", "gateway": "fd00::1" },
            { "address": "fd01::2/64", "gateway": "fe80::1" },
            { "address": "fd02::2/64", "gateway": "FD00::5" },
        ]);
        let given = routed(ips, json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }])).unwrap();
        let addresses: Vec<_> = given.ips.iter().map(|ip| ip.address.as_str()).collect();
        assert_eq!(
            addresses,
            ["10.0.0.2/32", "fd00::2/128", "fd01::2/128", "fd02::2/128"]
        );
        assert_eq!(
            given.machine_routes().unwrap(),
            [
                "10.0.0.1/32",
                "fd00::1/128",
                "fd00::5/128",
                "0.0.0.0/0 via 10.0.0.1",
                "::/0 via fd00::1"
            ]
        );
    }

    #[test]
    fn gateways_of_routes_are_neighbours() {
        let ips = json!([{ "address": "10.0.0.2/24", "gateway": "10.0.0.1" }]);
        let routes = json!([{ "dst": "10.9.0.0/16", "gw": "10.0.0.9" }, { "dst": "0.0.0.0/0" }]);
        assert_eq!(
            routed(ips.clone(), routes)
                .unwrap()
                .machine_routes()
                .unwrap(),
            [
                "10.0.0.1/32",
                "10.0.0.9/32",
                "10.9.0.0/16 via 10.0.0.9",
                "0.0.0.0/0 via 10.0.0.1"
            ]
        );
        let bad = routed(ips, json!([{ "dst": "0.0.0.0/0", "gw": "x" }])).unwrap_err();
        assert!(
            bad.msg.contains("the gateway of a route is \"x\""),
            "{}",
            bad.msg
        );
    }

    #[test]
    fn each_address_needs_a_gateway_of_its_family() {
        let v4 = json!({ "address": "10.0.0.2/24", "gateway": "10.0.0.1" });
        let refused = |ips| routed(ips, json!([])).unwrap_err().msg;
        let v6 = json!({ "address": "fd00::2/64" });
        assert!(refused(json!([v4, v6])).contains("fd00::2/64 has no gateway"));
        assert!(refused(json!([{ "address": "x/24" }])).contains("the address is \"x/24\""));
        let bad = json!([{ "address": "10.0.0.2/24", "gateway": "x" }]);
        assert!(refused(bad).contains("the gateway is \"x\""));
        assert!(routed(json!([]), json!([])).unwrap().ips.is_empty());
    }
}
