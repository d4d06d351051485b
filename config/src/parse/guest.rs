//! Reads guests and their interfaces.

use super::capture::files;
use super::rule;
use super::station::{MAC, ipv6, port, station};
use crate::address::MacAddress;
use crate::domain::Source;
use crate::model::{Endpoint, GuestSection, KernelPort, PortSecurity, Vif, VirtualMachine};
use crate::problem::ConfigPart;
use crate::rule::{FirewallPlace, Inbound};
use crate::table::TomlTable;
use serde::Deserialize;

/// Reads a section `[[guest]]`.
pub(super) fn read(g: usize, t: TomlTable<'_, '_>) -> GuestSection {
    let name = t.required("name", TomlTable::text, "give it a name, like \"web\"");
    let part = |v| ConfigPart::Vif(g, v);
    let guest = GuestSection {
        name: name.unwrap_or_default(),
        cpus: t.numbers("cpus"),
        spin_us: t.number("spin_us"),
        restart: t.flag("restart").unwrap_or(true),
        vifs: t.tables("vif", "guest.vif", part, |v, t| vif(g, v, t)),
    };
    t.finish();
    guest
}

/// Values of `firewall`: the effect on queues, and whether the firewall keeps state.
const FIREWALLS: [(&str, (FirewallPlace, bool)); 3] = [
    ("split", (FirewallPlace::Split, false)),
    ("shared", (FirewallPlace::Shared, false)),
    ("stateful", (FirewallPlace::Split, true)),
];

/// Values of `inbound`.
const INBOUND: [(&str, Inbound); 2] = [("deny", Inbound::Deny), ("allow", Inbound::Allow)];

/// Values of `endpoint`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EndpointWord {
    Tap,
    Stack,
    Sink,
    Source,
    Echo,
    Pcap,
    #[serde(rename = "vhost-user")]
    VhostUser,
}

fn vif(g: usize, v: usize, t: TomlTable<'_, '_>) -> Vif {
    let remedy = "write its endpoint, like endpoint = \"tap\"";
    let word = t.required("endpoint", TomlTable::word, remedy);
    let endpoint = word.map(|word| endpoint((g, v), &t, word));
    let usual = Vif::new(Endpoint::Echo);
    let rule_part = |r| ConfigPart::VifRule(g, v, r);
    let firewall = t.choice("firewall", &FIREWALLS);
    let (firewall, stateful) = firewall.unwrap_or((usual.firewall, usual.stateful));
    let vif = Vif {
        mac: t.parsed("mac", MAC),
        endpoint: endpoint.clone().unwrap_or(usual.endpoint),
        mtu: t.number("mtu").unwrap_or(usual.mtu),
        offloads: t.word("offloads").unwrap_or(usual.offloads),
        rate_mbps: t.real("rate_mbps"),
        burst_bytes: t.number("burst_bytes").unwrap_or(usual.burst_bytes),
        rate_to_guest_mbps: t.real("rate_to_guest_mbps"),
        burst_to_guest_bytes: t.number("burst_to_guest_bytes"),
        weight: t.number("weight").unwrap_or(usual.weight),
        forwards: t.flag("forwards").unwrap_or(usual.forwards),
        security: PortSecurity {
            extra_macs: t.parsed_list("extra_macs", MAC),
            confined: t.flag("confined"),
            source_guard: t.word("source_guard"),
            allowed_sources: t.cidrs("allowed_sources"),
            dhcp_server: t.flag("dhcp_server"),
        },
        pdev: t.parsed("pdev", "wire:1"),
        rules: t.tables("rule", "guest.vif.rule", rule_part, |r, t| {
            rule::read(r, t, &rule::VIF_DIRECTIONS)
        }),
        firewall,
        stateful,
        inbound: t.choice("inbound", &INBOUND),
    };
    match endpoint {
        Some(_) => t.finish(),
        None => t.finish_unknown("endpoint"),
    }
    vif
}

/// Reads the keys of one endpoint.
fn endpoint((g, v): (usize, usize), t: &TomlTable<'_, '_>, word: EndpointWord) -> Endpoint {
    match word {
        EndpointWord::Tap => Endpoint::Tap {
            port: KernelPort {
                persistent: t.flag("persistent").unwrap_or(false),
                ipv6: ipv6(t),
                ..port(t, false)
            },
        },
        EndpointWord::Stack => Endpoint::Stack {
            station: station(t, "guest.vif.app", |app| ConfigPart::VifApp(g, v, app)),
        },
        EndpointWord::Sink => Endpoint::Sink {
            touch: t.flag("touch").unwrap_or(false),
        },
        EndpointWord::Source => {
            let remedy = "write the MAC to send to: to = \"02:00:00:00:00:01\"";
            let to = t.required("to", |t, key| t.parsed(key, MAC), remedy);
            Endpoint::Source(Source {
                to: to.unwrap_or(MacAddress([0; 6])),
                size: t.number("size").unwrap_or(60),
                rate_pps: t.real("rate_pps"),
                window: t.number("window").unwrap_or(0),
                count: t.number("count"),
                touch: t.flag("touch").unwrap_or(false),
                flows: t.number("flows").unwrap_or(0),
            })
        }
        EndpointWord::Echo => Endpoint::Echo,
        EndpointWord::Pcap => Endpoint::Pcap(files(t)),
        EndpointWord::VhostUser => Endpoint::VhostUser(virtual_machine(t)),
    }
}

/// Reads the keys of a virtual machine.
fn virtual_machine(t: &TomlTable<'_, '_>) -> VirtualMachine {
    let socket = t.required(
        "socket",
        TomlTable::text,
        "write the path of its socket: socket = \"/run/grantway/vhost/web.sock\"",
    );
    let modes = [("server", false), ("client", true)];
    let mode = t.parsed("mode", "0660");
    VirtualMachine {
        socket: socket.unwrap_or_default(),
        client: t.choice("socket_mode", &modes).unwrap_or(false),
        owner: t.text("owner"),
        group: t.text("group"),
        mode: mode.unwrap_or(VirtualMachine::MODE),
        queue_pairs: t.number("queue_pairs"),
        memory_gib: t.number("memory_gib").unwrap_or(VirtualMachine::MEMORY_GIB),
    }
}
