//! Checks that MACs, addresses and kernel interfaces are unique on the bridge.

use super::findings::Findings;
use crate::address::{Cidr, MacAddress};
use crate::model::{Config, Endpoint, KernelPort, NicKind, XdpWire};
use crate::problem::ConfigPart;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Identities found so far, each with its latest owner.
#[derive(Default)]
struct Taken<'c> {
    macs: BTreeMap<MacAddress, ConfigPart>,
    addresses: BTreeMap<IpAddr, ConfigPart>,
    interfaces: BTreeMap<(Option<&'c str>, String), ConfigPart>,
    devices: BTreeMap<&'c str, ConfigPart>,
}

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut taken = Taken::default();
    for (n, nic) in config.nics.iter().enumerate() {
        let part = ConfigPart::Nic(n);
        taken.mac(found, part, "mac", config.nic_mac(n));
        taken.addresses(found, part, nic.addresses().0);
        if let NicKind::Xdp {
            wire: XdpWire::Netdev { name, netns },
        } = &nic.kind
        {
            let netns = netns.as_deref();
            let remedy = "choose another `netdev`";
            taken.interface(found, part, "netdev", netns, name, remedy);
        }
        if let NicKind::Vfio { device, .. } = &nic.kind {
            taken.device(found, part, device);
        }
        taken.port(found, part, nic.kind.port(), config.nic_ifname(n));
    }
    for (g, guest) in config.guests.iter().enumerate() {
        for (v, vif) in guest.vifs.iter().enumerate() {
            let part = ConfigPart::Vif(g, v);
            taken.mac(found, part, "mac", config.vif_mac(g, v));
            for mac in &vif.security.extra_macs {
                taken.mac(found, part, "extra_macs", Some(*mac));
            }
            taken.addresses(found, part, vif.addresses().0);
            let port = match &vif.endpoint {
                Endpoint::Tap { port } => Some(port),
                _ => None,
            };
            taken.port(found, part, port, config.vif_ifname(g, v));
        }
    }
}

impl<'c> Taken<'c> {
    fn port(
        &mut self,
        found: &mut Findings,
        part: ConfigPart,
        port: Option<&'c KernelPort>,
        ifname: Option<String>,
    ) {
        if let (Some(port), Some(ifname)) = (port, ifname) {
            let remedy = "choose another `ifname` or `netns`";
            let netns = port.netns.as_deref();
            self.interface(found, part, "ifname", netns, &ifname, remedy);
        }
    }

    fn device(&mut self, found: &mut Findings, part: ConfigPart, address: &'c str) {
        if let Some(first) = self.devices.insert(address, part) {
            let what = format!("the PCI device {address} is also that of {first}");
            found.add(part, "device", what, "choose another `device`");
        }
    }

    fn interface(
        &mut self,
        found: &mut Findings,
        part: ConfigPart,
        key: &'static str,
        netns: Option<&'c str>,
        ifname: &str,
        remedy: &str,
    ) {
        if let Some(first) = self.interfaces.insert((netns, ifname.to_owned()), part) {
            let what = format!("the interface {ifname} is also that of {first}");
            found.add(part, key, what, remedy);
        }
    }

    fn mac(
        &mut self,
        found: &mut Findings,
        part: ConfigPart,
        key: &'static str,
        mac: Option<MacAddress>,
    ) {
        let Some(mac) = mac else { return };
        if mac.is_multicast() || mac.is_zero() {
            let kind = if mac.is_zero() {
                "the zero address"
            } else {
                "a multicast address"
            };
            let remedy = "write one with an even first byte, like 02:00:00:00:00:01";
            found.add(part, key, format!("`{key}` {mac} is {kind}"), remedy);
            return;
        }
        if let Some(first) = self.macs.insert(mac, part) {
            let what = format!("the MAC {mac} is also that of {first}");
            let remedy = format!("choose another one, or remove `{key}`");
            found.add(part, key, what, remedy);
        }
    }

    fn addresses(&mut self, found: &mut Findings, part: ConfigPart, addresses: &[Cidr]) {
        for address in addresses {
            self.address(found, part, *address);
        }
    }

    fn address(&mut self, found: &mut Findings, part: ConfigPart, cidr: Cidr) {
        let address = cidr.address;
        if let Some(why) = cidr.non_station_reason() {
            let what = format!("`addresses` has {cidr}, which {why}");
            let remedy = "write the address of one station, like 10.0.0.2/24";
            found.add(part, "addresses", what, remedy);
            return;
        }
        if let Some(first) = self.addresses.insert(address, part) {
            let what = format!("the address {address} is also that of {first}");
            found.add(part, "addresses", what, "choose another one");
        }
    }
}
