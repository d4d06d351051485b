//! Checks that MACs, addresses, kernel interfaces and devices are unique on the bridge.

use crate::address::{Cidr, MacAddress};
use crate::findings::Findings;
use crate::guest::Endpoint;
use crate::kernel_port::KernelPort;
use crate::model::Config;
use crate::nic::{NicKind, XdpWire};
use crate::problem::ConfigPart;
use std::collections::BTreeMap;

/// Identities found so far, each with its latest owner. An interface's name is unique in its
/// network namespace.
struct Taken<'c, 'f> {
    owners: BTreeMap<(String, Option<&'c str>), ConfigPart>,
    found: &'f mut Findings,
}

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut taken = Taken {
        owners: BTreeMap::new(),
        found,
    };
    for (n, nic) in config.nics.iter().enumerate() {
        let part = ConfigPart::Nic(n);
        taken.mac(part, "mac", config.nic_mac(n));
        taken.addresses(part, nic.stations().addresses);
        if let NicKind::Xdp {
            wire: XdpWire::Netdev { name, netns },
        } = &nic.kind
        {
            let name = (format!("the interface {name}"), netns.as_deref());
            taken.claim(part, "netdev", name, "choose another `netdev`");
        }
        if let NicKind::Vfio { device, .. } = &nic.kind {
            let device = (format!("the PCI device {device}"), None);
            taken.claim(part, "device", device, "choose another `device`");
        }
        taken.port(part, nic.kind.port(), config.nic_ifname(n));
    }
    for ((g, v), _, vif) in config.vifs() {
        let part = ConfigPart::Vif(g, v);
        taken.mac(part, "mac", config.vif_mac(g, v));
        for mac in &vif.security.extra_macs {
            taken.mac(part, "extra_macs", Some(*mac));
        }
        taken.addresses(part, vif.stations().addresses);
        let port = match &vif.endpoint {
            Endpoint::Tap(port) => Some(port),
            _ => None,
        };
        taken.port(part, port, config.vif_ifname(g, v));
    }
}

impl<'c> Taken<'c, '_> {
    /// Records the owner of an identity, and reports an earlier one.
    fn claim(
        &mut self,
        part: ConfigPart,
        key: &'static str,
        identity: (String, Option<&'c str>),
        remedy: &str,
    ) {
        let name = identity.0.clone();
        if let Some(first) = self.owners.insert(identity, part) {
            let what = format!("{name} is also that of {first}");
            self.found.add(part, key, what, remedy);
        }
    }

    fn port(&mut self, part: ConfigPart, port: Option<&'c KernelPort>, ifname: Option<String>) {
        if let (Some(port), Some(ifname)) = (port, ifname) {
            let name = (format!("the interface {ifname}"), port.netns.as_deref());
            self.claim(part, "ifname", name, "choose another `ifname` or `netns`");
        }
    }

    fn mac(&mut self, part: ConfigPart, key: &'static str, mac: Option<MacAddress>) {
        let Some(mac) = mac else { return };
        if mac.is_multicast() || mac.is_zero() {
            let kind = if mac.is_zero() {
                "the zero address"
            } else {
                "a multicast address"
            };
            let what = format!("`{key}` {mac} is {kind}");
            let remedy = "write one with an even first byte, like 02:00:00:00:00:01";
            self.found.add(part, key, what, remedy);
            return;
        }
        let remedy = format!("choose another one, or remove `{key}`");
        self.claim(part, key, (format!("the MAC {mac}"), None), &remedy);
    }

    fn addresses(&mut self, part: ConfigPart, addresses: &[Cidr]) {
        const KEY: &str = "addresses";
        for cidr in addresses {
            if let Some(why) = cidr.non_station_reason() {
                let what = format!("`{KEY}` has {cidr}, which {why}");
                let remedy = "write the address of one station, like 10.0.0.2/24";
                self.found.add(part, KEY, what, remedy);
                continue;
            }
            let address = (format!("the address {}", cidr.address), None);
            self.claim(part, KEY, address, "choose another one");
        }
    }
}
