//! From a file's text to a [`Config`].

use crate::domain::{BufferSize, GrantMode, Moderation, Offloads, RingFormat, StackApp, Vmq};
use crate::lro::{self, Lro};
use crate::model::{
    Buffers, Config, DEFAULT_NAME, Driver, Endpoint, Guest, KernelPort, Kind, Nic, Polling, Queues,
    Ring, Station, Vif, XdpWire,
};
use crate::problem::{Located, Place, Problem, Problems};
use crate::read::{Reader, Reading, Table};
use crate::rule;
use std::net::{IpAddr, Ipv4Addr};
use toml::de::DeTable;

const GRANTS: [(&str, GrantMode); 6] = [
    ("copy", GrantMode::Copy),
    ("map", GrantMode::Map),
    ("flip", GrantMode::Flip),
    ("mapped", GrantMode::Mapped),
    ("new", GrantMode::New),
    ("shared", GrantMode::Shared),
];
const OFFLOADS: [(&str, Offloads); 3] = [
    ("none", Offloads::None),
    ("checksum", Offloads::Checksum),
    ("tso", Offloads::Tso),
];
const SIZES: [(&str, BufferSize); 2] = [("half", BufferSize::Half), ("full", BufferSize::Full)];
const FORMATS: [(&str, RingFormat); 2] = [("native", RingFormat::Native), ("xen", RingFormat::Xen)];
const ADDRESS: &str = "10.0.0.2/24";
const MAC: &str = "02:00:00:00:00:01";
const PLAIN_ADDRESS: &str = "10.0.0.1";
const SOCKET: &str = "10.0.0.1:5001";

/// Read a configuration: `file` is its name for messages, `text` its content.
///
/// # Errors
/// Everything that is wrong with it, each with its line and what would be right.
pub fn parse(file: &str, text: &str) -> Result<Config, Problems> {
    read(file, text).0
}

/// [`parse`], and where everything stands: for checks that need more than the text, such as
/// whether a namespace exists.
///
/// # Errors
/// As [`parse`].
pub fn parse_located(file: &str, text: &str) -> Result<(Config, Located), Problems> {
    let (config, reading) = read(file, text);
    Ok((
        config?,
        Located {
            file: file.to_owned(),
            lines: reading.lines,
        },
    ))
}

/// [`parse`], and what the reader learned on the way.
pub(crate) fn read(file: &str, text: &str) -> (Result<Config, Problems>, Reading) {
    let reader = Reader::new(file, text);
    let (root, errors) = DeTable::parse_recoverable(text);
    let span = root.span();
    let root = root.into_inner();
    for error in &errors {
        reader.problem(
            error.span(),
            error.message(),
            "write it as TOML (https://toml.io)",
        );
    }
    let config = errors.is_empty().then(|| {
        let root = Table::new(&reader, &root, span, "", Place::Machine);
        let config = machine(&root);
        root.finish();
        config
    });
    let mut reading = reader.finish();
    let mut problems = std::mem::take(&mut reading.problems);
    // What could not be read has its default now: its meaning is not worth a second complaint.
    if problems.is_empty()
        && let Some(config) = &config
    {
        let found = config.findings();
        problems.extend(
            found
                .into_iter()
                .map(|f| Problem::new(f, Some(file), &reading.lines)),
        );
    }
    (Problems::or(problems, config.unwrap_or_default()), reading)
}

fn machine(root: &Table<'_, '_, '_>) -> Config {
    let mut name = None;
    if let Some(t) = root.table("machine", "machine", Place::Machine) {
        name = t.text("name");
        t.finish();
    }
    let mut driver = Driver::default();
    if let Some(t) = root.table("driver", "driver", Place::Driver) {
        driver = read_driver(&t);
        t.finish();
    }
    let mut buffers = Buffers::default();
    if let Some(t) = root.table("buffers", "buffers", Place::Buffers) {
        let usual = buffers;
        buffers = Buffers {
            size: t.choice("size", &SIZES).unwrap_or(usual.size),
            to_guest: t.number("to_guest").unwrap_or(usual.to_guest),
            spare: t.number("spare").unwrap_or(usual.spare),
            release_threshold: t.number("release_threshold"),
            from_guest: t.number("from_guest").unwrap_or(usual.from_guest),
            prefetch: t.number("prefetch").unwrap_or(usual.prefetch),
        };
        t.finish();
    }
    let mut ring = Ring::default();
    if let Some(t) = root.table("ring", "ring", Place::Ring) {
        ring = Ring {
            slots: t.number("slots").unwrap_or(ring.slots),
            format: t.choice("format", &FORMATS).unwrap_or(ring.format),
        };
        t.finish();
    }
    let mut lro = Lro::default();
    if let Some(t) = root.table("lro", "lro", Place::Lro) {
        lro = read_lro(&t);
        t.finish();
    }
    let nics = root.tables("nic", "nic", Place::Nic);
    let nics = nics
        .into_iter()
        .enumerate()
        .map(|(n, t)| read_nic(n, t))
        .collect();
    let guests = root.tables("guest", "guest", Place::Guest);
    let guests = guests
        .into_iter()
        .enumerate()
        .map(|(g, t)| read_guest(g, t))
        .collect();
    let name = name.unwrap_or_else(|| DEFAULT_NAME.to_owned());
    Config {
        name,
        driver,
        buffers,
        ring,
        lro,
        nics,
        guests,
    }
}

fn read_polling(t: &Table<'_, '_, '_>) -> Polling {
    let usual = Polling::default();
    Polling {
        spin_us: t.number("spin_us"),
        tick_us: t.number("tick_us").unwrap_or(usual.tick_us),
        empty_ticks: t.number("empty_ticks").unwrap_or(usual.empty_ticks),
    }
}

fn read_driver(t: &Table<'_, '_, '_>) -> Driver {
    let usual = Driver::default();
    Driver {
        cpus: t.numbers("cpus"),
        workers: t.number("workers").unwrap_or(usual.workers),
        grants: t.choice("grants", &GRANTS).unwrap_or(usual.grants),
        offloads: t.choice("offloads", &OFFLOADS).unwrap_or(usual.offloads),
        polling: read_polling(t),
        poll_budget: t.number("poll_budget").unwrap_or(usual.poll_budget),
        notify_us: t.number("notify_us"),
        broadcast_pps: t.number("broadcast_pps").unwrap_or(usual.broadcast_pps),
        mac_ageing_s: t.number("mac_ageing_s").unwrap_or(usual.mac_ageing_s),
        ledger: t.flag("ledger").unwrap_or(usual.ledger),
        restart: t.flag("restart").unwrap_or(usual.restart),
        restart_pause_ms: t
            .number("restart_pause_ms")
            .unwrap_or(usual.restart_pause_ms),
    }
}

fn read_lro(t: &Table<'_, '_, '_>) -> Lro {
    let usual = Lro::default();
    Lro {
        at: t.choice("at", &lro::AT).unwrap_or(usual.at),
        rules: t.choice("rules", &lro::RULES).unwrap_or(usual.rules),
        psh: t.choice("psh", &lro::PSH).unwrap_or(usual.psh),
        buffers: t.choice("buffers", &lro::FORMS).unwrap_or(usual.buffers),
        backend: t.choice("backend", &lro::BACKENDS).unwrap_or(usual.backend),
        meta: t.choice("meta", &lro::METAS).unwrap_or(usual.meta),
        flush: t
            .parsed_or("flush", lro::FLUSH_REMEDY)
            .unwrap_or(usual.flush),
        hold_us: t.number("hold_us").unwrap_or(usual.hold_us),
        flows: t.number("flows").unwrap_or(usual.flows),
        segments: t.number("segments").unwrap_or(usual.segments),
    }
}

#[derive(Clone, Copy)]
enum NicWord {
    Tap,
    Xdp,
    Sim,
    Pcap,
    Local,
}

fn read_nic(n: usize, t: Table<'_, '_, '_>) -> Nic {
    let name = t.required("name", t.text("name"), "give it a name, like \"wire\"");
    let words = [
        ("tap", NicWord::Tap),
        ("xdp", NicWord::Xdp),
        ("sim", NicWord::Sim),
        ("pcap", NicWord::Pcap),
        ("local", NicWord::Local),
    ];
    let word = t.choice("kind", &words);
    let word = t.required(
        "kind",
        word,
        "write kind = \"tap\", \"xdp\", \"sim\", \"pcap\" or \"local\"",
    );
    let kind = word.map(|word| match word {
        NicWord::Tap => Kind::Tap {
            port: read_port(&t, true),
            offloads: t.choice("offloads", &OFFLOADS).unwrap_or(Offloads::None),
        },
        NicWord::Xdp => Kind::Xdp {
            wire: match t.text("netdev") {
                Some(name) => XdpWire::Netdev {
                    name,
                    netns: t.text("netns"),
                },
                None => XdpWire::Veth(read_port(&t, true)),
            },
        },
        NicWord::Local => Kind::Local {
            port: read_port(&t, true),
        },
        NicWord::Sim => Kind::Sim {
            delay_us: t.number("delay_us").unwrap_or(0),
            loss: t.real("loss").unwrap_or(0.0),
            seed: t.number("seed").unwrap_or(1),
            mac: t.parsed("mac", MAC),
            station: read_station(&t, "nic.app", |app| Place::NicApp(n, app)),
        },
        NicWord::Pcap => Kind::Pcap {
            read: t.text("read"),
            write: t.text("write"),
        },
    });
    let usual = Nic::new(
        "",
        Kind::Pcap {
            read: None,
            write: None,
        },
    );
    let nic = Nic {
        name: name.unwrap_or_default(),
        kind: kind.clone().unwrap_or(usual.kind),
        mtu: t.number("mtu").unwrap_or(usual.mtu),
        rate_mbps: t.real("rate_mbps"),
        burst_bytes: t.number("burst_bytes").unwrap_or(usual.burst_bytes),
        moderation: read_moderation(&t),
        buffers: t.number("buffers").unwrap_or(usual.buffers),
        queues: read_queues(&t, matches!(kind, Some(Kind::Xdp { .. }))),
        rules: rule::read(
            t.tables("rule", "nic.rule", |r| Place::NicRule(n, r)),
            &rule::OF_NIC,
        ),
    };
    if kind.is_some() {
        t.finish();
    }
    nic
}

fn read_moderation(t: &Table<'_, '_, '_>) -> Moderation {
    /// As often as an ordinary NIC interrupts.
    const USUAL_TICK_US: u32 = 50;
    let words = [
        ("event", Moderation::Event),
        ("spin", Moderation::Spin),
        ("tick", Moderation::Tick(USUAL_TICK_US)),
    ];
    match t.choice("moderation", &words).unwrap_or(Moderation::Event) {
        Moderation::Tick(usual) => Moderation::Tick(t.number("tick_us").unwrap_or(usual)),
        other => other,
    }
}

/// `given`: which guest has which queue is said once and for all.
fn read_queues(t: &Table<'_, '_, '_>, given: bool) -> Queues {
    let usual = Vmq {
        queues: 8,
        rebalance_ms: if given { 0 } else { 100 },
    };
    let words = [("shared", Queues::Shared), ("vmq", Queues::Vmq(usual))];
    match t.choice("queues", &words).unwrap_or_default() {
        Queues::Shared => Queues::Shared,
        Queues::Vmq(usual) => Queues::Vmq(Vmq {
            queues: t.number("vmq_queues").unwrap_or(usual.queues),
            rebalance_ms: t.number("vmq_rebalance_ms").unwrap_or(usual.rebalance_ms),
        }),
    }
}

fn read_port(t: &Table<'_, '_, '_>, own_mac: bool) -> KernelPort {
    KernelPort {
        ifname: t.text("ifname"),
        netns: t.text("netns"),
        mac: if own_mac { t.parsed("mac", MAC) } else { None },
        addresses: t.parsed_list("addresses", ADDRESS),
        gateway: t.parsed("gateway", PLAIN_ADDRESS),
        tx_queue: t.number("tx_queue").unwrap_or(0),
    }
}

fn read_station(
    t: &Table<'_, '_, '_>,
    section: &'static str,
    place: impl Fn(usize) -> Place,
) -> Station {
    Station {
        addresses: t.parsed_list("addresses", ADDRESS),
        gateway: t.parsed("gateway", PLAIN_ADDRESS),
        apps: t
            .tables("app", section, place)
            .into_iter()
            .filter_map(read_app)
            .collect(),
    }
}

#[derive(Clone, Copy)]
enum AppWord {
    Sink,
    Echo,
    Source,
    Client,
    Ping,
}

fn read_app(t: Table<'_, '_, '_>) -> Option<StackApp> {
    const PORT: &str = "write the port, like port = 5001";
    const TO: &str = "write where to, like to = \"10.0.0.1:5001\"";
    let words = [
        ("tcp-sink", AppWord::Sink),
        ("tcp-echo", AppWord::Echo),
        ("tcp-source", AppWord::Source),
        ("tcp-client", AppWord::Client),
        ("ping", AppWord::Ping),
    ];
    let word = t.choice("kind", &words);
    let word = t.required("kind", word, "write what runs, like kind = \"tcp-echo\"")?;
    let port = || t.required("port", t.number("port"), PORT);
    let to = || t.required("to", t.parsed("to", SOCKET), TO);
    let seconds = || t.number("seconds").unwrap_or(10);
    let after_s = || t.number("after_s").unwrap_or(0);
    let app = match word {
        AppWord::Sink => port().map(|port| StackApp::TcpSink { port }),
        AppWord::Echo => port().map(|port| StackApp::TcpEcho { port }),
        AppWord::Source => {
            let (to, seconds, after_s) = (to(), seconds(), after_s());
            to.map(|to| StackApp::TcpSource {
                to,
                seconds,
                after_s,
            })
        }
        AppWord::Client => {
            let (to, seconds, after_s) = (to(), seconds(), after_s());
            let size = t.number("size").unwrap_or(1);
            to.map(|to| StackApp::TcpClient {
                to,
                size,
                seconds,
                after_s,
            })
        }
        AppWord::Ping => {
            let to = t.parsed("to", PLAIN_ADDRESS);
            let to = t.required("to", to, "write where to, like to = \"10.0.0.1\"");
            let (count, after_s) = (t.number("count").unwrap_or(3), after_s());
            let to = to.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            Some(StackApp::Ping { to, count, after_s })
        }
    };
    t.finish();
    app
}

fn read_guest(g: usize, t: Table<'_, '_, '_>) -> Guest {
    let name = t.required("name", t.text("name"), "give it a name, like \"web\"");
    let vifs = t.tables("vif", "guest.vif", |vif| Place::Vif(g, vif));
    let guest = Guest {
        name: name.unwrap_or_default(),
        cpus: t.numbers("cpus"),
        polling: read_polling(&t),
        vifs: vifs
            .into_iter()
            .enumerate()
            .map(|(v, t)| read_vif(g, v, t))
            .collect(),
    };
    t.finish();
    guest
}

#[derive(Clone, Copy)]
enum EndpointWord {
    Tap,
    Stack,
    Sink,
    Source,
    Echo,
    Pcap,
}

fn read_vif(g: usize, v: usize, t: Table<'_, '_, '_>) -> Vif {
    let words = [
        ("tap", EndpointWord::Tap),
        ("stack", EndpointWord::Stack),
        ("sink", EndpointWord::Sink),
        ("source", EndpointWord::Source),
        ("echo", EndpointWord::Echo),
        ("pcap", EndpointWord::Pcap),
    ];
    let word = t.choice("endpoint", &words);
    let word = t.required(
        "endpoint",
        word,
        "write what stands behind it: endpoint = \"tap\"",
    );
    let endpoint = word.map(|word| match word {
        EndpointWord::Tap => Endpoint::Tap {
            port: read_port(&t, false),
        },
        EndpointWord::Stack => Endpoint::Stack {
            station: read_station(&t, "guest.vif.app", |app| Place::VifApp(g, v, app)),
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
                to: to.unwrap_or(crate::Mac([0; 6])),
                size: t.number("size").unwrap_or(60),
                rate_pps: t.real("rate_pps"),
                window: t.number("window").unwrap_or(0),
                count: t.number("count"),
                touch: t.flag("touch").unwrap_or(false),
            }
        }
        EndpointWord::Echo => Endpoint::Echo,
        EndpointWord::Pcap => Endpoint::Pcap {
            read: t.text("read"),
            write: t.text("write"),
        },
    });
    let usual = Vif::new(Endpoint::Echo);
    let vif = Vif {
        mac: t.parsed("mac", MAC),
        endpoint: endpoint.clone().unwrap_or(usual.endpoint),
        mtu: t.number("mtu").unwrap_or(usual.mtu),
        offloads: t.choice("offloads", &OFFLOADS).unwrap_or(usual.offloads),
        rate_mbps: t.real("rate_mbps"),
        weight: t.number("weight").unwrap_or(usual.weight),
        forwards: t.flag("forwards").unwrap_or(usual.forwards),
        pdev: t.parsed("pdev", "wire:1"),
        rules: rule::read(
            t.tables("rule", "guest.vif.rule", |r| Place::VifRule(g, v, r)),
            &rule::OF_VIF,
        ),
        firewall: t
            .choice("firewall", &rule::FIREWALL)
            .unwrap_or(usual.firewall),
    };
    if endpoint.is_some() {
        t.finish();
    }
    vif
}
