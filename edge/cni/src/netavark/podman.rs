//! podman's description of a network and of a container in it.

use crate::error::{CniError, ErrorCode};
use crate::ports::PortMapping;
use crate::result::{CniIp, CniResult, CniRoute};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The fields of a network that this plugin uses.
#[derive(Debug, Deserialize)]
pub(super) struct PodmanNetwork {
    pub(super) name: String,
    #[serde(default)]
    pub(super) internal: bool,
    pub(super) subnets: Option<Vec<PodmanSubnet>>,
    routes: Option<Vec<PodmanRoute>>,
    pub(super) options: Option<BTreeMap<String, String>>,
    pub(super) ipam_options: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PodmanSubnet {
    subnet: String,
    gateway: Option<IpAddr>,
}

/// A route of `podman network create --route`.
#[derive(Debug, Deserialize)]
struct PodmanRoute {
    destination: String,
    gateway: IpAddr,
    metric: Option<u32>,
}

/// A container to attach or detach.
#[derive(Debug, Deserialize)]
pub(super) struct PodmanContainer {
    pub(super) container_id: String,
    pub(super) network: PodmanNetwork,
    pub(super) network_options: PodmanInterface,
    port_mappings: Option<Vec<PublishedPort>>,
}

/// Its interface.
#[derive(Debug, Deserialize)]
pub(super) struct PodmanInterface {
    pub(super) interface_name: String,
    static_ips: Option<Vec<IpAddr>>,
    pub(super) static_mac: Option<String>,
}

/// A range of published ports.
#[derive(Debug, Deserialize)]
struct PublishedPort {
    container_port: u16,
    host_port: u16,
    #[serde(default)]
    host_ip: String,
    /// Number of ports in the range.
    range: u16,
    /// One or more protocols, separated by commas.
    protocol: String,
}

impl PodmanContainer {
    /// Returns its published ports, ranges split into single ones.
    pub(super) fn mappings(&self) -> Result<Vec<PortMapping>, CniError> {
        let ports = self.port_mappings.iter().flatten();
        let each: Result<Vec<_>, _> = ports.map(PublishedPort::single_ports).collect();
        Ok(each?.concat())
    }

    /// Returns its addresses, and default routes through the gateways of their subnets.
    pub(super) fn assigned_addresses(&self) -> Result<CniResult, CniError> {
        let subnets = self.network.subnets.as_deref().unwrap_or_default();
        let mut given = CniResult::default();
        for ip in self.network_options.static_ips.iter().flatten() {
            let own = subnets.iter().find_map(|subnet| subnet.prefix_of(*ip));
            let Some((prefix, gateway)) = own else {
                let name = &self.network.name;
                let msg = format!("the address {ip} is in no subnet of the network {name}");
                return Err(CniError::new(ErrorCode::Config, msg));
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
        given.routes.extend(routes.map(PodmanRoute::to_cni));
        match given.ips.is_empty() {
            true => Err(CniError::new(
                ErrorCode::Config,
                "podman has assigned no address",
            )),
            false => Ok(given),
        }
    }
}

impl PublishedPort {
    /// Splits a range of ports into single ones.
    fn single_ports(&self) -> Result<Vec<PortMapping>, CniError> {
        let mut each = Vec::new();
        for n in 0..self.range.max(1) {
            let both = [self.host_port, self.container_port].map(|first| first.checked_add(n));
            let [Some(host_port), Some(container_port)] = both else {
                let (first, range) = (self.host_port, self.range);
                let msg = format!("fewer than {range} ports exist from {first} on");
                return Err(CniError::new(ErrorCode::Config, msg));
            };
            each.extend(self.protocol.split(',').map(|protocol| PortMapping {
                host_port,
                container_port,
                protocol: protocol.to_owned(),
                host_ip: self.host_ip.clone(),
            }));
        }
        Ok(each)
    }
}

impl PodmanRoute {
    fn to_cni(&self) -> CniRoute {
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

impl PodmanSubnet {
    /// Returns the prefix length and the gateway of the subnet, if an address is in it.
    fn prefix_of(&self, ip: IpAddr) -> Option<(u32, Option<IpAddr>)> {
        let (base, prefix) = self.subnet.split_once('/')?;
        let (base, prefix): (IpAddr, u32) = (base.parse().ok()?, prefix.parse().ok()?);
        // Both families are compared as the upper bits of a 128-bit number.
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
            let subnet = PodmanSubnet {
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
