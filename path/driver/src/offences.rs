//! Reports forgeries of guests: the first frame of each kind, with the configuration key that
//! permits such frames.

use crate::ports::BridgePorts;
use net::bridge::{Bridge, DropReason, ForgedIdentity, Offence};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// Prints the new forgeries to the console, which is part of the log.
pub(crate) fn report(bridge: &mut Bridge, ports: &BridgePorts) {
    for (number, offence) in bridge.new_offences() {
        let name = ports.name(number).unwrap_or("?");
        let what = describe(&offence, ports);
        runtime::start::print_line(format_args!("{name}: {what}"));
    }
}

/// Returns the forgeries of a port's guest by reason as JSON, or `None` if the guest has forged
/// nothing.
pub(crate) fn stat(number: usize, bridge: &Bridge, ports: &BridgePorts) -> Option<Value> {
    let offences = bridge.offences(number).iter();
    let all: Map<String, Value> = offences
        .map(|offence| {
            let what = describe(offence, ports);
            (offence.reason.name().to_owned(), what.into())
        })
        .collect();
    (!all.is_empty()).then_some(Value::Object(all))
}

/// Describes a drop as text, with its reason and the key that permits such frames.
fn describe(offence: &Offence, ports: &BridgePorts) -> String {
    let owner = offence.owner.and_then(|port| ports.name(port));
    match (offence.reason, offence.claim) {
        (DropReason::ForgedSource, ForgedIdentity::Mac(mac)) => match owner {
            Some(owner) => format!(
                "dropped a frame from {mac}, a MAC of {owner}: two stations have the same MAC, or \
                 the guest forges it"
            ),
            None => format!(
                "dropped a frame from {mac}, which is not the guest's MAC: a macvlan, a bridge or \
                 a changed MAC in the guest sends such frames; extra_macs = [\"{mac}\"] allows it"
            ),
        },
        (DropReason::ForgedAddress, ForgedIdentity::Address(address)) => match owner {
            Some(owner) => format!("dropped a packet from {address}, the address of {owner}"),
            None => format!(
                "dropped a packet from {address}, which is not among the guest's addresses; \
                 allowed_sources = [\"{address}/{}\"] or source_guard = \"off\" allows it",
                if address.is_ipv4() { 32 } else { 128 }
            ),
        },
        (DropReason::ForgedArp | DropReason::ForgedNd, ForgedIdentity::Address(address)) => {
            claimed(address, owner)
        }
        (DropReason::ForgedRouter, _) => "dropped a router advertisement or a redirect; \
                                          forwards = true allows it"
            .to_owned(),
        (DropReason::ForgedDhcp, _) => {
            "dropped an answer to DHCP clients; dhcp_server = true allows it".to_owned()
        }
        (reason, _) => format!("dropped a frame ({})", reason.name()),
    }
}

/// Describes the drop of a packet that claims an address by ARP or neighbour discovery.
fn claimed(address: IpAddr, owner: Option<&str>) -> String {
    let protocol = match address {
        IpAddr::V4(_) => "ARP",
        IpAddr::V6(_) => "neighbour discovery",
    };
    match owner {
        Some(owner) => format!(
            "dropped {protocol} that claims {address}, the address of {owner}: two stations have \
             the same address, or the guest forges it"
        ),
        None => format!(
            "dropped {protocol} that claims {address}, which is not among the guest's addresses or \
             is a gateway's, or which has another MAC; the key `addresses` allows it, or \
             confined = false unless it is a gateway's"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::BridgePort;
    use crate::testing::vif_port;

    #[test]
    fn reports_name_the_key_that_permits_the_frame() {
        let mut ports = BridgePorts::default();
        ports.insert(BridgePort::Vif(Box::new(vif_port("a"))));
        let owner = ports.name(0).unwrap().to_owned();
        let mac = ForgedIdentity::Mac(net::packet::Mac([2, 0, 0, 0, 0, 7]));
        let v4 = ForgedIdentity::Address("10.0.0.7".parse().unwrap());
        let v6 = ForgedIdentity::Address("fd00::7".parse().unwrap());
        let names_owner_of_mac = format!("a MAC of {owner}:");
        let names_owner_of_address = format!("claims fd00::7, the address of {owner}");
        for (reason, claim, owner, expected) in [
            (
                DropReason::ForgedSource,
                mac,
                None,
                "extra_macs = [\"02:00:00:00:00:07\"]",
            ),
            (DropReason::ForgedSource, mac, Some(0), &names_owner_of_mac),
            (
                DropReason::ForgedAddress,
                v4,
                None,
                "allowed_sources = [\"10.0.0.7/32\"]",
            ),
            (
                DropReason::ForgedAddress,
                v6,
                None,
                "allowed_sources = [\"fd00::7/128\"]",
            ),
            (DropReason::ForgedAddress, v4, Some(0), "the address of"),
            (
                DropReason::ForgedArp,
                v4,
                None,
                "ARP that claims 10.0.0.7, which is not",
            ),
            (DropReason::ForgedNd, v6, Some(0), &names_owner_of_address),
            (
                DropReason::ForgedRouter,
                ForgedIdentity::Role,
                None,
                "forwards = true",
            ),
            (
                DropReason::ForgedDhcp,
                ForgedIdentity::Role,
                None,
                "dhcp_server = true",
            ),
        ] {
            let offence = Offence {
                reason,
                claim,
                owner,
            };
            let text = describe(&offence, &ports);
            assert!(text.contains(expected), "{text}");
        }
    }
}
