//! What podman tells of a network and of a container in it.

use crate::failure::{Code, Failure};
use crate::result::{CniIp, CniResult, CniRoute};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A network, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(super) struct PodmanNetwork {
    pub(super) name: String,
    #[serde(default)]
    pub(super) internal: bool,
    pub(super) subnets: Option<Vec<Subnet>>,
    routes: Option<Vec<Route>>,
    pub(super) options: Option<BTreeMap<String, String>>,
    pub(super) ipam_options: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Subnet {
    subnet: String,
    gateway: Option<IpAddr>,
}

/// A route that `podman network create --route` asks for.
#[derive(Debug, Deserialize)]
struct Route {
    destination: String,
    gateway: IpAddr,
    metric: Option<u32>,
}

/// A container that comes or goes.
#[derive(Debug, Deserialize)]
pub(super) struct Container {
    pub(super) container_id: String,
    pub(super) network: PodmanNetwork,
    pub(super) network_options: Interface,
    pub(super) port_mappings: Option<Vec<Port>>,
}

/// Its interface.
#[derive(Debug, Deserialize)]
pub(super) struct Interface {
    pub(super) interface_name: String,
    static_ips: Option<Vec<IpAddr>>,
    pub(super) static_mac: Option<String>,
}

/// Ports that it publishes.
#[derive(Debug, Deserialize)]
pub(super) struct Port {
    pub(super) container_port: u16,
    pub(super) host_port: u16,
    #[serde(default)]
    pub(super) host_ip: String,
    /// How many of them.
    pub(super) range: u16,
    /// Several, with a comma between them.
    pub(super) protocol: String,
}

impl Container {
    /// Its addresses, and the default routes by the gateways of their subnets.
    pub(super) fn given(&self) -> Result<CniResult, Failure> {
        let subnets = self.network.subnets.as_deref().unwrap_or_default();
        let mut given = CniResult::default();
        for ip in self.network_options.static_ips.iter().flatten() {
            let own = subnets.iter().find_map(|subnet| subnet.prefix_of(*ip));
            let Some((prefix, gateway)) = own else {
                let name = &self.network.name;
                let msg = format!("the address {ip} is in no subnet of the network {name}");
                return Err(Failure::new(Code::Config, msg));
            };
            let gateway = gateway.filter(|_| !self.network.internal);
            given.routes.extend(gateway.map(|via| CniRoute {
                dst: if via.is_ipv4() { "0.0.0.0/0" } else { "::/0" }.to_owned(),
                gw: Some(via.to_string()),
                ..CniRoute::default()
            }));
            given.ips.push(CniIp {
                gateway: gateway.map(|via| via.to_string()),
                ..CniIp::of(&format!("{ip}/{prefix}"))
            });
        }
        let routes = self.network.routes.iter().flatten();
        given.routes.extend(routes.map(Route::told));
        match given.ips.is_empty() {
            true => Err(Failure::new(Code::Config, "podman has given no address")),
            false => Ok(given),
        }
    }
}

impl Route {
    fn told(&self) -> CniRoute {
        let metric = self
            .metric
            .map(|metric| ("metric".to_owned(), metric.into()));
        CniRoute {
            dst: self.destination.clone(),
            gw: Some(self.gateway.to_string()),
            more: metric.into_iter().collect(),
        }
    }
}

impl Subnet {
    /// The length of its prefix and its gateway, if an address is in it.
    fn prefix_of(&self, ip: IpAddr) -> Option<(u32, Option<IpAddr>)> {
        let (base, prefix) = self.subnet.split_once('/')?;
        let (base, prefix): (IpAddr, u32) = (base.parse().ok()?, prefix.parse().ok()?);
        // As the upper bits of as many as there can be.
        let (base, ip, bits): (u128, u128, u32) = match (base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => (base.to_bits().into(), ip.to_bits().into(), 32),
            (IpAddr::V6(base), IpAddr::V6(ip)) => (base.to_bits(), ip.to_bits(), 128),
            _ => return None,
        };
        let host = bits.checked_sub(prefix)?;
        let is_in = (base ^ ip).checked_shr(host).unwrap_or(0) == 0;
        is_in.then_some((prefix, self.gateway))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_its_own_subnet() {
        let of = |subnet: &str, ip: &str| {
            let subnet = Subnet {
                subnet: subnet.to_owned(),
                gateway: None,
            };
            let found = subnet.prefix_of(ip.parse().unwrap());
            found.map(|(prefix, _)| prefix)
        };
        assert_eq!(of("10.96.0.0/24", "10.96.0.77"), Some(24));
        assert_eq!(of("10.96.0.0/24", "10.96.1.77"), None);
        assert_eq!(of("fd00::/64", "fd00::7"), Some(64));
        assert_eq!(of("fd00::/64", "fd00:0:0:1::7"), None);
        assert_eq!(of("::/0", "fd00::7"), Some(0));
        assert_eq!(of("0.0.0.0/0", "fd00::7"), None);
        assert_eq!(of("10.0.0.0/33", "10.0.0.1"), None);
        assert_eq!(of("10.0.0.0", "10.0.0.1"), None);
    }
}
