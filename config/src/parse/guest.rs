//! Guests and their interfaces.

use super::capture::files;
use super::rule;
use super::station::{MAC, ipv6, port, station};
use crate::address::Mac;
use crate::model::{Claims, Endpoint, Guest, KernelPort, Vif};
use crate::problem::Place;
use crate::table::Table;
use serde::Deserialize;

/// A section `[[guest]]`.
pub(super) fn read(g: usize, t: Table<'_, '_>) -> Guest {
    let name = t.required("name", t.text("name"), "give it a name, like \"web\"");
    let vifs = t.tables("vif", "guest.vif", |vif| Place::Vif(g, vif));
    let guest = Guest {
        name: name.unwrap_or_default(),
        cpus: t.numbers("cpus"),
        spin_us: t.number("spin_us"),
        restart: t.flag("restart").unwrap_or(true),
        vifs: vifs
            .into_iter()
            .enumerate()
            .map(|(v, t)| vif(g, v, t))
            .collect(),
    };
    t.finish();
    guest
}

/// What can be written for `endpoint`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EndpointWord {
    Tap,
    Stack,
    Sink,
    Source,
    Echo,
    Pcap,
}

fn vif(g: usize, v: usize, t: Table<'_, '_>) -> Vif {
    let word = t.word("endpoint");
    let word = t.required(
        "endpoint",
        word,
        "write what stands behind it: endpoint = \"tap\"",
    );
    let endpoint = word.map(|word| endpoint((g, v), &t, word));
    let usual = Vif::new(Endpoint::Echo);
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
        claims: Claims {
            extra_macs: t.parsed_list("extra_macs", MAC),
            confined: t.flag("confined"),
            source_guard: t.word("source_guard"),
            allowed_sources: t.cidrs("allowed_sources"),
            dhcp_server: t.flag("dhcp_server"),
        },
        pdev: t.parsed("pdev", "wire:1"),
        rules: rule::read(
            t.tables("rule", "guest.vif.rule", |r| Place::VifRule(g, v, r)),
            &rule::OF_VIF,
        ),
        firewall: t.word("firewall").unwrap_or(usual.firewall),
    };
    match endpoint {
        Some(_) => t.finish(),
        None => t.finish_unknown("endpoint"),
    }
    vif
}

/// The keys of one endpoint.
fn endpoint((g, v): (usize, usize), t: &Table<'_, '_>, word: EndpointWord) -> Endpoint {
    match word {
        EndpointWord::Tap => Endpoint::Tap {
            port: KernelPort {
                persistent: t.flag("persistent").unwrap_or(false),
                ipv6: ipv6(t),
                ..port(t, false)
            },
        },
        EndpointWord::Stack => Endpoint::Stack {
            station: station(t, "guest.vif.app", |app| Place::VifApp(g, v, app)),
        },
        EndpointWord::Sink => Endpoint::Sink {
            touch: t.flag("touch").unwrap_or(false),
        },
        EndpointWord::Source => {
            let to = t.parsed("to", MAC);
            let to = t.required(
                "to",
                to,
                "write the MAC to send to: to = \"02:00:00:00:00:01\"",
            );
            Endpoint::Source {
                to: to.unwrap_or(Mac([0; 6])),
                size: t.number("size").unwrap_or(60),
                rate_pps: t.real("rate_pps"),
                window: t.number("window").unwrap_or(0),
                count: t.number("count"),
                touch: t.flag("touch").unwrap_or(false),
            }
        }
        EndpointWord::Echo => Endpoint::Echo,
        EndpointWord::Pcap => Endpoint::Pcap(files(t)),
    }
}
