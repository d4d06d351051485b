//! What joins NICs to networks.

use super::findings::Findings;
use super::station::ifname;
use crate::model::{KernelPort, Kind, Nic};
use crate::problem::Place;
use crate::uplink::text;
use abi::machine::{Forward, Nat, Uplink};
use std::collections::BTreeSet;

pub(super) fn check(found: &mut Findings, place: Place, nic: &Nic) {
    let Some(uplink) = &nic.uplink else { return };
    let Kind::Tap { port, .. } = &nic.kind else {
        let what = "`kind` is \"xdp\" and there is an `uplink`";
        let remedy = "write kind = \"tap\": what an AF_XDP socket takes never reaches the kernel, \
                      which forwards and translates addresses; or leave `uplink` out, and give the \
                      interface itself as `netdev`";
        found.add(place, "uplink", what, remedy);
        return;
    };
    match uplink {
        Uplink::Bridge(bridge) => a_bridge(found, place, port, bridge),
        Uplink::Nat(nat) => translation(found, place, port, nat),
    }
}

fn a_bridge(found: &mut Findings, place: Place, port: &KernelPort, bridge: &str) {
    ifname(found, place, "uplink", bridge);
    if !port.addresses.is_empty() || port.gateway.is_some() || !port.routes.is_empty() {
        let what = format!("`uplink` is the bridge {bridge}, and there are addresses or routes");
        let remedy = "leave them out: a port of a bridge has none; the bridge has";
        found.add(place, "uplink", what, remedy);
    }
}

fn translation(found: &mut Findings, place: Place, port: &KernelPort, nat: &Nat) {
    if port.addresses.is_empty() {
        let what = "`uplink` has `nat`, and there are no `addresses`";
        let remedy = "write those that guests have as their `gateway`, like [\"10.0.0.1/24\"]: \
                      what comes from their networks is translated";
        found.add(place, "uplink", what, remedy);
    }
    if port.gateway.is_some() {
        let what = "`uplink` has `nat`, and there is a `gateway`";
        let remedy = "leave it out: the system's own routes lead on";
        found.add(place, "gateway", what, remedy);
    }
    let mut taken = BTreeSet::new();
    for forward in &nat.forward {
        if let Some((what, remedy)) = contradiction(port, forward, &mut taken) {
            let what = format!("`forward` has \"{}\", and {what}", text(forward));
            found.add(place, "uplink", what, remedy);
        }
    }
}

/// What is wrong with a forwarded port: what, remedy. `taken`: the ports of those before.
fn contradiction(
    port: &KernelPort,
    forward: &Forward,
    taken: &mut BTreeSet<(abi::machine::Transport, u16, bool)>,
) -> Option<(&'static str, &'static str)> {
    let to = forward.to.ip();
    if forward.port == 0 || forward.to.port() == 0 {
        return Some(("0 is no port", "write ports from 1 to 65535"));
    }
    if !port.addresses.iter().any(|cidr| cidr.contains(to)) {
        let what = "this address is in none of the networks of `addresses`";
        return Some((what, "write a guest's address"));
    }
    if !taken.insert((forward.transport, forward.port, to.is_ipv4())) {
        return Some(("this port is forwarded already", "leave one of them out"));
    }
    None
}
