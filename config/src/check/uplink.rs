//! Checks of uplinks, which join NICs to networks.

use super::findings::Findings;
use super::station::ifname;
use crate::model::{KernelPort, NicKind, NicSection};
use crate::problem::ConfigPart;
use crate::uplink::text;
use abi::machine::{Forward, Nat, Uplink};
use std::collections::BTreeSet;

pub(super) fn check(found: &mut Findings, part: ConfigPart, nic: &NicSection) {
    let Some(uplink) = &nic.uplink else { return };
    let NicKind::Tap { port, .. } = &nic.kind else {
        let what = "`kind` is \"xdp\" and `uplink` is set";
        let remedy = "write kind = \"tap\": frames of an AF_XDP socket never reach the kernel, \
                      which forwards and translates addresses; or leave `uplink` out, and give the \
                      interface itself as `netdev`";
        found.add(part, "uplink", what, remedy);
        return;
    };
    match uplink {
        Uplink::Bridge(bridge) => bridged(found, part, port, bridge),
        Uplink::Nat(nat) => translation(found, part, port, nat),
    }
}

fn bridged(found: &mut Findings, part: ConfigPart, port: &KernelPort, bridge: &str) {
    ifname(found, part, "uplink", bridge);
    if !port.addresses.is_empty() || port.gateway.is_some() || !port.routes.is_empty() {
        let what = format!("`uplink` is the bridge {bridge}, but the NIC has addresses or routes");
        let remedy = "leave them out: configure them on the bridge itself";
        found.add(part, "uplink", what, remedy);
    }
}

fn translation(found: &mut Findings, part: ConfigPart, port: &KernelPort, nat: &Nat) {
    if port.addresses.is_empty() {
        let what = "`uplink` has `nat`, but `addresses` is empty";
        let remedy = "write the `gateway` of the guests, like [\"10.0.0.1/24\"]: \
                      source addresses in its network are translated";
        found.add(part, "uplink", what, remedy);
    }
    if port.gateway.is_some() {
        let what = "`uplink` has `nat`, and `gateway` is set";
        let remedy = "leave it out: the system's own routes apply";
        found.add(part, "gateway", what, remedy);
    }
    let mut taken = BTreeSet::new();
    for forward in &nat.forward {
        if let Some((what, remedy)) = contradiction(port, forward, &mut taken) {
            let what = format!("`forward` has \"{}\", but {what}", text(forward));
            found.add(part, "uplink", what, remedy);
        }
    }
}

/// Returns the mistake of a forwarded port, and a remedy. `taken` are the ports of earlier entries.
fn contradiction(
    port: &KernelPort,
    forward: &Forward,
    taken: &mut BTreeSet<(abi::machine::PortProtocol, u16, bool)>,
) -> Option<(&'static str, &'static str)> {
    let to = forward.to.ip();
    if forward.port == 0 || forward.to.port() == 0 {
        return Some(("0 is not a port", "write ports from 1 to 65535"));
    }
    if !port.addresses.iter().any(|cidr| cidr.contains(to)) {
        let what = "this address is in none of the networks of `addresses`";
        return Some((what, "write a guest's address"));
    }
    if !taken.insert((forward.transport, forward.port, to.is_ipv4())) {
        return Some(("this port is already forwarded", "leave one of them out"));
    }
    None
}
