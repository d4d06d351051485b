//! Reads the driver domain's NICs.

use super::capture::files;
use super::rule;
use super::station::{MAC, port, station};
use crate::address::MacAddress;
use crate::domain::{FrameSource, ModerationConfig, Offloads, Rings, VmqConfig};
use crate::model::{Cable, CaptureFiles, DevicePlace, NicKind, NicSection, SoftWire, XdpWire};
use crate::problem::ConfigPart;
use crate::table::{TextOrTable, TomlTable};
use crate::uplink::{CONNECTIONS, PortForward};
use abi::machine::{Nat, Uplink};
use serde::Deserialize;

/// Values of `kind`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NicKindKey {
    Tap,
    Xdp,
    Sim,
    Soft,
    Vfio,
    Pcap,
    Local,
}

/// Reads a section `[[nic]]`.
pub(super) fn read(n: usize, t: TomlTable<'_, '_>) -> NicSection {
    let name = t.required("name", TomlTable::text, "give it a name, like \"wire\"");
    let word = t.required(
        "kind",
        TomlTable::word,
        "write kind = \"tap\", \"xdp\", \"vfio\", \"sim\", \"soft\", \"pcap\" or \"local\"",
    );
    let uplink = match word {
        Some(NicKindKey::Tap | NicKindKey::Xdp) => uplink(n, &t),
        _ => None,
    };
    let kind = word.map(|word| kind(n, &t, word, uplink.is_some()));
    let rule_part = |r| ConfigPart::NicRule(n, r);
    let some = || NicKind::Pcap(CaptureFiles::default());
    let usual = NicSection::new("", kind.clone().unwrap_or_else(some));
    let nic = NicSection {
        name: name.unwrap_or_default(),
        kind: usual.kind,
        mtu: t.number("mtu").unwrap_or(usual.mtu),
        rate_mbps: t.real("rate_mbps"),
        burst_bytes: t.number("burst_bytes").unwrap_or(usual.burst_bytes),
        moderation: moderation(&t),
        buffers: t.number("buffers").unwrap_or(usual.buffers),
        vmq: vmq(&t, kind.as_ref().is_some_and(NicKind::assigns_by_pdev)),
        rules: t.tables("rule", "nic.rule", rule_part, |r, t| {
            rule::read(r, t, &rule::NIC_DIRECTIONS)
        }),
        uplink,
    };
    match kind {
        Some(_) => t.finish(),
        None => t.finish_unknown("kind"),
    }
    nic
}

/// Reads an uplink: the name of a bridge, or a table.
fn uplink(n: usize, t: &TomlTable<'_, '_>) -> Option<Uplink> {
    let table = match t.text_or_table("uplink", "nic.uplink", ConfigPart::Nic(n))? {
        TextOrTable::Text(bridge) => return Some(Uplink::Bridge(bridge)),
        TextOrTable::Table(table) => table,
    };
    let forward = table.parsed_list("forward", "tcp:8080=10.0.0.2:80");
    let connections = table.number("connections").unwrap_or(CONNECTIONS);
    let nat = table.required(
        "nat",
        TomlTable::flag,
        "write nat = true, or uplink = \"br0\"",
    );
    table.finish();
    let forward = forward.into_iter().map(|PortForward(forward)| forward);
    nat?.then(|| {
        Uplink::Nat(Nat {
            forward: forward.collect(),
            connections,
        })
    })
}

/// Reads the keys of one kind. `joined` states whether the NIC has an `uplink`.
fn kind(n: usize, t: &TomlTable<'_, '_>, word: NicKindKey, joined: bool) -> NicKind {
    match word {
        NicKindKey::Tap => NicKind::Tap {
            port: port(t, true),
            offloads: t.word("offloads").unwrap_or(match joined {
                true => Offloads::Tso,
                false => Offloads::None,
            }),
        },
        NicKindKey::Xdp => NicKind::Xdp {
            wire: match t.text("netdev") {
                Some(name) => XdpWire::Netdev {
                    name,
                    netns: t.text("netns"),
                },
                None => XdpWire::Veth(port(t, true)),
            },
        },
        NicKindKey::Local => NicKind::Local {
            port: port(t, true),
        },
        NicKindKey::Sim => NicKind::Sim(cable(n, t)),
        NicKindKey::Soft => NicKind::Soft {
            wire: soft_wire(n, t),
            rings: rings(t),
            place: place(t),
            cpus: t.numbers("cpus"),
            lro: t.flag("lro").unwrap_or(false),
            header_split: t.flag("header_split").unwrap_or(false),
        },
        NicKindKey::Vfio => {
            let remedy = "write device = \"0000:00:03.0\"";
            let device = t.required("device", TomlTable::text, remedy);
            let usual = Rings::default().descriptors;
            NicKind::Vfio {
                device: device.unwrap_or_default(),
                descriptors: t.number("descriptors").unwrap_or(usual),
            }
        }
        NicKindKey::Pcap => NicKind::Pcap(files(t)),
    }
}

/// Reads the wire of a device in software.
fn soft_wire(n: usize, t: &TomlTable<'_, '_>) -> SoftWire {
    t.depend(&["delay_us", "loss", "seed", "app"], "wire");
    t.depend(
        &["ifname", "netns", "routes", "tx_queue", "allow_overlap"],
        "wire",
    );
    t.depend(&["to", "size"], "wire");
    match t.choice("wire", &WIRES) {
        Some(WireWord::Tap) => SoftWire::Tap(port(t, true)),
        Some(WireWord::Source) => {
            let remedy = "write the MAC to send to: to = \"02:00:00:00:00:01\"";
            let to = t.required("to", |t, key| t.parsed(key, MAC), remedy);
            SoftWire::Source(FrameSource {
                to: to.unwrap_or(MacAddress([0; 6])),
                size: t.number("size").unwrap_or(60),
            })
        }
        Some(WireWord::Memory) | None => SoftWire::Cable(cable(n, t)),
    }
}

/// Values of `wire`.
#[derive(Clone, Copy)]
enum WireWord {
    Memory,
    Tap,
    Source,
}

const WIRES: [(&str, WireWord); 3] = [
    ("memory", WireWord::Memory),
    ("tap", WireWord::Tap),
    ("source", WireWord::Source),
];

fn cable(n: usize, t: &TomlTable<'_, '_>) -> Cable {
    Cable {
        delay_us: t.number("delay_us").unwrap_or(0),
        loss: t.real("loss").unwrap_or(0.0),
        seed: t.number("seed").unwrap_or(1),
        mac: t.parsed("mac", MAC),
        station: station(t, "nic.app", |app| ConfigPart::NicApp(n, app)),
    }
}

fn rings(t: &TomlTable<'_, '_>) -> Rings {
    let usual = Rings::default();
    Rings {
        descriptors: t.number("descriptors").unwrap_or(usual.descriptors),
        interrupt_us: t.number("interrupt_us").unwrap_or(usual.interrupt_us),
        interrupt_frames: t
            .number("interrupt_frames")
            .unwrap_or(usual.interrupt_frames),
    }
}

fn place(t: &TomlTable<'_, '_>) -> DevicePlace {
    let words = [
        ("domain", DevicePlace::Domain),
        ("driver", DevicePlace::Driver),
    ];
    t.choice("device", &words).unwrap_or_default()
}

fn moderation(t: &TomlTable<'_, '_>) -> ModerationConfig {
    /// The default interval: that of the interrupts of an ordinary NIC.
    const DEFAULT_TICK_US: u32 = 50;
    let words = [
        ("event", ModerationConfig::Event),
        ("spin", ModerationConfig::Spin),
        ("tick", ModerationConfig::Tick(DEFAULT_TICK_US)),
    ];
    t.depend(&["tick_us"], "moderation");
    match t
        .choice("moderation", &words)
        .unwrap_or(ModerationConfig::Event)
    {
        ModerationConfig::Tick(usual) => {
            ModerationConfig::Tick(t.number("tick_us").unwrap_or(usual))
        }
        other => other,
    }
}

/// Reads dedicated queues. `given` states whether the configuration assigns them to guests.
fn vmq(t: &TomlTable<'_, '_>, given: bool) -> Option<VmqConfig> {
    t.depend(&["vmq_queues", "vmq_rebalance_ms"], "queues");
    let has_own = t.choice("queues", &[("shared", false), ("vmq", true)]);
    has_own.unwrap_or(false).then(|| VmqConfig {
        queues: t.number("vmq_queues").unwrap_or(8),
        rebalance_ms: t
            .number("vmq_rebalance_ms")
            .unwrap_or(if given { 0 } else { 100 }),
    })
}
