//! Compares the interfaces, bridges and networks that a machine needs with those that its
//! namespaces already have.

use config::{Cidr, Config, ConfigPart, Endpoint, Finding, KernelPort};
use netdev::host_checks::{self, Obstacle, PlannedInterface};
use netdev::netns;
use netdev::overlap::{self, Subnet};
use std::path::PathBuf;

/// An interface that the machine creates.
struct CreatedInterface<'a> {
    part: ConfigPart,
    ifname: String,
    port: &'a KernelPort,
    bridge: Option<&'a str>,
    networks: Vec<Subnet>,
}

/// Returns the interfaces of a configuration that cannot be created because of the state of their
/// namespaces.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let all = created_interfaces(config);
    for (n, this) in all.iter().enumerate() {
        obstacles(config, this, &mut found);
        // An interface is rejected if its network overlaps that of an interface that is created
        // before it.
        let earlier = all
            .iter()
            .take(n)
            .find_map(|earlier| conflict(earlier, this));
        found.extend(earlier);
    }
    found
}

/// Returns the interfaces in the order of their creation.
fn created_interfaces(config: &Config) -> Vec<CreatedInterface<'_>> {
    let mut all = Vec::new();
    for (n, nic) in config.nics.iter().enumerate() {
        let bridge = match &nic.uplink {
            Some(abi::machine::Uplink::Bridge(bridge)) => Some(bridge.as_str()),
            _ => None,
        };
        if let (Some(port), Some(ifname)) = (nic.kind.port(), config.nic_ifname(n)) {
            all.push(CreatedInterface::new(
                ConfigPart::Nic(n),
                ifname,
                port,
                bridge,
            ));
        }
    }
    for (g, guest) in config.guests.iter().enumerate() {
        for (v, vif) in guest.vifs.iter().enumerate() {
            if let (Endpoint::Tap(port), Some(ifname)) = (&vif.endpoint, config.vif_ifname(g, v)) {
                all.push(CreatedInterface::new(
                    ConfigPart::Vif(g, v),
                    ifname,
                    port,
                    None,
                ));
            }
        }
    }
    all
}

impl<'a> CreatedInterface<'a> {
    fn new(
        part: ConfigPart,
        ifname: String,
        port: &'a KernelPort,
        bridge: Option<&'a str>,
    ) -> Self {
        let networks = match port.allow_overlap {
            true => Vec::new(),
            false => networks(&port.addresses),
        };
        Self {
            part,
            ifname,
            port,
            bridge,
            networks,
        }
    }

    fn netns(&self) -> Option<&'a str> {
        self.port.netns.as_deref()
    }

    fn finding(&self, key: &'static str, what: String, remedy: String) -> Finding {
        let part = self.part;
        Finding {
            part,
            key,
            what,
            remedy,
        }
    }

    fn overlap(&self, what: &dyn std::fmt::Display) -> Finding {
        let remedy = "choose another network, or write allow_overlap = true";
        self.finding("addresses", what.to_string(), remedy.to_owned())
    }
}

/// Returns the networks of addresses with prefix lengths.
pub(crate) fn networks(addresses: &[Cidr]) -> Vec<Subnet> {
    let network = |cidr: &Cidr| (cidr.address, cidr.prefix);
    addresses.iter().map(network).collect()
}

fn obstacles(config: &Config, this: &CreatedInterface<'_>, found: &mut Vec<Finding>) {
    let planned = PlannedInterface {
        ifname: &this.ifname,
        owner: this.port.persistent.then_some(config.name.as_str()),
        bridge: this.bridge,
        networks: &this.networks,
    };
    let obstacles = match this.netns() {
        // For other users than root, a machine with TAPs gets a new network namespace.
        None if !rustix::process::geteuid().is_root() => this
            .bridge
            .map_or_else(Vec::new, |_| vec![Obstacle::NoBridge]),
        // Another check reports absent and inaccessible namespaces.
        netns => host_checks::obstacles(netns, &planned).unwrap_or_default(),
    };
    let place = match this.netns() {
        Some(netns) => format!("the network namespace {netns}"),
        None => "the machine's network namespace".to_owned(),
    };
    let (ifname, bridge) = (&this.ifname, this.bridge.unwrap_or_default());
    for obstacle in obstacles {
        found.push(match obstacle {
            Obstacle::NameTaken => {
                let what = format!("the interface {ifname} already exists in {place}");
                let remedy = "choose another name for the new interface (`ifname`)".to_owned();
                this.finding("ifname", what, remedy)
            }
            Obstacle::NoBridge => {
                let what = format!("the bridge {bridge} does not exist in {place}");
                let remedy = format!(
                    "create it (`ip link add {bridge} type bridge`, `ip link set {bridge} up`) or \
                     change `uplink`"
                );
                this.finding("uplink", what, remedy)
            }
            Obstacle::NotABridge => {
                let what = format!("the interface {bridge} in {place} is not a bridge");
                let remedy = "write the name of a bridge (`ip link show type bridge`)".to_owned();
                this.finding("uplink", what, remedy)
            }
            Obstacle::Overlap(overlap) => this.overlap(&overlap),
        });
    }
}

/// Returns a finding if the network of `this` overlaps that of `earlier`, which is created before
/// it in the same namespace.
fn conflict(earlier: &CreatedInterface<'_>, this: &CreatedInterface<'_>) -> Option<Finding> {
    let place =
        |made: &CreatedInterface<'_>| made.netns().map_or(PathBuf::from(netns::OWN), netns::path);
    let (one, other) = (place(earlier), place(this));
    let is_same = one == other || netns::identity(&one)? == netns::identity(&other)?;
    let theirs = networks(&earlier.port.addresses);
    let meets = |network: &&Subnet| {
        theirs
            .iter()
            .any(|their| overlap::overlap(**network, *their))
    };
    let network = this.networks.iter().filter(|_| is_same).find(meets)?;
    let with = earlier.port.addresses.first()?;
    let what = format!(
        "its network {}/{} overlaps that of {} ({with}, interface {})",
        network.0, network.1, earlier.part, earlier.ifname
    );
    Some(this.overlap(&what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_one_machine_must_not_overlap() {
        let text = |second: &str, more: &str| {
            format!(
                "[[nic]]\nname = \"a\"\nkind = \"tap\"\nnetns = \"/proc/self/ns/net\"\n\
                 addresses = [\"10.91.0.1/24\"]\n\
                 [[nic]]\nname = \"b\"\nkind = \"tap\"\nnetns = \"/proc/self/ns/net\"\n\
                 addresses = [\"{second}\"]\n{more}"
            )
        };
        let found = |text: String| {
            let config = config::parse("f", &text).unwrap();
            let all = created_interfaces(&config);
            conflict(&all[0], &all[1]).map(|finding| finding.what)
        };
        let overlap = found(text("10.91.0.129/25", "")).unwrap();
        let with = "overlaps that of [[nic]] 1 (10.91.0.1/24, interface a)";
        assert_eq!(overlap, format!("its network 10.91.0.129/25 {with}"));
        assert_eq!(found(text("10.91.1.1/24", "")), None);
        assert_eq!(
            found(text("10.91.0.129/25", "allow_overlap = true\n")),
            None
        );
    }
}
