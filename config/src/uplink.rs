//! Uplinks, which join NICs to networks.

use crate::findings::Findings;
use crate::kernel_port::{KernelPort, ifname};
use crate::problem::ConfigPart;
use crate::table::TomlTable;
use crate::text::read_as_text;
use abi::machine::{Forward, Nat, PortProtocol, Uplink};
use std::collections::BTreeSet;
use std::str::FromStr;

/// Default limit of each guest's open connections through address translation: three percent of the
/// connections that the kernel tracks by default, and more than a busy server needs.
pub const CONNECTIONS: u32 = 8192;

/// A forwarded port: `tcp:8080=10.0.0.2:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward(pub Forward);

/// Error: a text is not a forwarded port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a protocol, a port, and an address with a port")]
pub struct InvalidForward;

impl FromStr for PortForward {
    type Err = InvalidForward;

    fn from_str(text: &str) -> Result<Self, InvalidForward> {
        let (from, to) = text.split_once('=').ok_or(InvalidForward)?;
        let (transport, port) = from.split_once(':').ok_or(InvalidForward)?;
        let transport = match transport {
            "tcp" => PortProtocol::Tcp,
            "udp" => PortProtocol::Udp,
            _ => return Err(InvalidForward),
        };
        Ok(Self(Forward {
            transport,
            port: port.parse().map_err(|_| InvalidForward)?,
            to: to.parse().map_err(|_| InvalidForward)?,
        }))
    }
}

read_as_text!(PortForward, |_| "write it like \"tcp:8080=10.0.0.2:80\"");

/// Returns the text form of a forwarded port.
fn text(forward: &Forward) -> String {
    let transport = match forward.transport {
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
    };
    format!("{transport}:{}={}", forward.port, forward.to)
}

/// Reads an uplink of NIC number `n`: the name of a bridge, or a table.
pub(crate) fn read(n: usize, t: &TomlTable<'_, '_>) -> Option<Uplink> {
    if t.is_text("uplink") {
        return t.value("uplink").map(Uplink::Bridge);
    }
    let or = "a text in quotes or ";
    let table = t.table("uplink", "nic.uplink", ConfigPart::Nic(n), or)?;
    let forward: Option<Vec<PortForward>> = table.value("forward");
    let connections = table.value("connections").unwrap_or(CONNECTIONS);
    let nat: Option<bool> = table.required("nat", "write nat = true, or uplink = \"br0\"");
    table.finish();
    let forward = forward.into_iter().flatten();
    nat?.then(|| {
        Uplink::Nat(Nat {
            forward: forward.map(|PortForward(forward)| forward).collect(),
            connections,
        })
    })
}

/// Checks an uplink. `port` is the kernel's end of the NIC, if it is a TAP.
pub(crate) fn check(
    found: &mut Findings,
    part: ConfigPart,
    uplink: &Uplink,
    port: Option<&KernelPort>,
) {
    let Some(port) = port else {
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
    taken: &mut BTreeSet<(PortProtocol, u16, bool)>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_ports_round_trip() {
        for good in ["tcp:8080=10.0.0.2:80", "udp:53=[fd00::2]:53"] {
            let PortForward(forward) = good.parse().unwrap();
            assert_eq!(text(&forward), good);
        }
        for bad in [
            "",
            "8080=10.0.0.2:80",
            "tcp:8080",
            "tcp:8080=10.0.0.2",
            "sctp:1=10.0.0.2:80",
            "tcp:65536=10.0.0.2:80",
            "tcp:-1=10.0.0.2:80",
            "tcp:1=fd00::2:80:",
        ] {
            assert_eq!(bad.parse::<PortForward>(), Err(InvalidForward), "{bad}");
        }
    }
}
